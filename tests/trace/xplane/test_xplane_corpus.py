"""Real profiles of a TPU, of CPUs and of GPUs: the published figures, and JAX's own reader."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import invoke

import ccl_bench as ccl
from ccl_bench.trace.formats.xplane import profile
from ccl_bench.trace.formats.xplane.profile import list_devices
from ccl_bench.trace.formats.xplane.reader import read_xplane

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

pytestmark = pytest.mark.usefixtures("shared_cache")

TPU, CPU, GPU = "tpu-v6e-4of8", "cpu-2x2-gloo", "mi300-conv"

MESSAGE_BYTES = 5_368_709_120
XPROF_MEMORY_BYTES = 25_904_021_504_000
"""`rawBytesAccessedArray[0]` of xprof's op_profile of the TPU's profile."""

BARRIERS_MS = {4: 0.003, 5: 26.65, 6: 340.98, 7: 11.78}
"""What each TPU waited for the others before its first all-reduce."""


@cache
def table(run: Path, name: str) -> pl.DataFrame:
    """Return a raw table of all devices of a run, with their ranks."""
    return opened(run).table(name).with_columns(pl.selectors.categorical().cast(pl.String))


@cache
def opened(run: Path) -> ccl.MeasuredRun:
    """Return a run that is read once for all that is asked of it."""
    return ccl.open(run)


@cache
def results(run: Path) -> dict[str, Result]:
    """Return every metric of a run."""
    return {result.metric: result for result in opened(run).results()}


def step_seconds(run: Path) -> dict[int, float]:
    """Return how long the marked steps of each rank take together."""
    marks = table(run, "annotations").filter(pl.col("name").str.contains("#step_num="))
    return dict(marks.group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9).iter_rows())


def length_us() -> pl.Expr:
    return (pl.col("end_ns") - pl.col("start_ns")) / 1e3


def test_tpus_are_the_ranks_of_their_global_ids(corpus):
    job = list_devices(corpus / "xplane" / TPU / "host0.xplane.pb")
    assert [(device.id, device.rank) for device in job.devices] == [(f"TPU:{i}", i + 4) for i in range(4)]
    assert job.world_size == 8
    findings = {each.code: each for each in results(corpus / "xplane" / TPU)["gpu_busy"].findings}
    assert "4 of 8 ranks have no trace: 0, 1, 2, 3" in findings["ranks-missing"].message
    assert "steps-by-program" in findings


def test_all_reduces_of_tpus_have_the_size_and_time_that_xprof_states(corpus):
    kernels = table(corpus / "xplane" / TPU, "kernels")
    calls = kernels.filter(pl.col("collective") == "all_reduce").select("rank", us=length_us())
    assert calls.height == 12
    assert calls["us"].mean() == pytest.approx(121_695.4, abs=0.05)
    fastest = calls["us"].min()
    assert fastest == pytest.approx(121_688, rel=1e-4)
    assert MESSAGE_BYTES / fastest / 1e3 == pytest.approx(44.12, abs=0.005)
    collectives = table(corpus / "xplane" / TPU, "collectives").filter(pl.col("name") == "all_reduce")
    assert set(collectives["in_elements"] * 4) == {MESSAGE_BYTES}
    groups = dict(collectives.select("rank", "group_ranks").iter_rows())
    assert groups == {4: [0, 4], 5: [1, 5], 6: [2, 6], 7: [3, 7]}


def test_communication_of_tpus_lies_outside_of_the_runs_that_count_as_steps(corpus):
    """The program that runs 100 times has no collective; each device reduces three times beside it."""
    found = results(corpus / "xplane" / TPU)["coll_call_num"]
    assert found.status == "not_measurable"
    assert found.reason == "communication was recorded only outside the steps: 24 calls"
    kernels = table(corpus / "xplane" / TPU, "kernels").drop_nulls("collective")
    counts = kernels.group_by("rank", "collective").len()
    assert set(counts.select("collective", "len").rows()) == {("all_reduce", 3), ("barrier", 3)}


def test_tpus_wait_for_each_other_in_barriers(corpus):
    kernels = table(corpus / "xplane" / TPU, "kernels").sort("start_ns")
    first = kernels.filter(pl.col("collective") == "barrier").group_by("rank").first()
    waited = dict(first.select("rank", length_us() / 1e3).iter_rows())
    assert waited == {rank: pytest.approx(ms, abs=0.006) for rank, ms in BARRIERS_MS.items()}


def test_a_tpu_works_for_the_share_of_time_that_xprof_states(corpus):
    """Its duty cycle is the time of instructions over that from the first program to the last instruction."""
    every = table(corpus / "xplane" / TPU, "hlo_operations")
    operations = every.filter(pl.col("program") != "jit_convert_element_type")
    kernels = table(corpus / "xplane" / TPU, "kernels").filter(pl.col("collective") == "barrier")
    keys = ("rank", "start_ns", "end_ns")
    spans = pl.concat([operations.select(keys), kernels.select(keys)]).group_by("rank")
    whole = spans.agg((pl.col("end_ns").max() - pl.col("start_ns").min()).alias("ns"))["ns"].sum()
    busy = operations.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    assert 100 * busy / whole == pytest.approx(86.5, abs=0.05)


def test_the_memory_traffic_of_tpus_is_that_of_xprof(corpus):
    assert table(corpus / "xplane" / TPU, "hlo_operations")["memory_bytes"].sum() == XPROF_MEMORY_BYTES
    devices = table(corpus / "xplane" / TPU, "devices")
    assert set(devices["name"]) == {"TPU v6 Lite"}
    assert set(devices["peak_flops_per_s"]) == {918e12}
    assert set((devices["memory_bytes_per_s"] / 1e9).round()) == {1638.0}


def test_the_use_of_a_tpus_memory_is_what_its_compiler_counts(corpus):
    """In a run three copies write the memory and three read it, and three additions do both."""
    found = results(corpus / "xplane" / TPU)["dram_utilization"]
    moved = 12 * MESSAGE_BYTES * 100
    rates = [moved / seconds for seconds in step_seconds(corpus / "xplane" / TPU).values()]
    assert found.value == pytest.approx(100 * sum(rates) / 4 / 1.637993152512e12)
    assert "other-source" in {finding.code for finding in found.findings}


def test_copies_of_tpus_go_to_and_from_the_host(corpus):
    """The program moves three arrays in and three out in each of 100 runs."""
    copies = table(corpus / "xplane" / TPU, "memcpy")
    counts = copies.group_by("rank", "kind").len().sort("rank", "kind")
    assert counts.rows() == [(rank, kind, 300) for rank in range(4, 8) for kind in ("DtoH", "HtoD")]


def test_mfu_of_tpus_needs_no_model(corpus):
    found = results(corpus / "xplane" / TPU)["mfu"]
    flops = 3 * 1_342_177_280 * 100  # three additions of arrays in each of 100 runs
    rates = [flops / seconds for seconds in step_seconds(corpus / "xplane" / TPU).values()]
    assert found.value == pytest.approx(100 * sum(rates) / 4 / 918e12)
    assert {finding.code for finding in found.findings} >= {"other-source", "steps-by-program"}


def test_collectives_of_cpus_have_the_groups_and_sizes_of_the_program(corpus):
    run = corpus / "xplane" / CPU
    calls = table(run, "collectives").with_columns(bytes=pl.col("in_elements") * 4)
    members = pl.col("group_ranks").cast(pl.List(pl.String)).list.join(",")
    groups = calls.group_by("rank", "bytes", members).len()
    expected = set()
    for rank in range(4):
        pair = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
        for size, members in zip((262_144, 2_097_156), pair, strict=True):
            expected.add((rank, size, ",".join(map(str, members)), 4))
    assert {*groups.iter_rows()} == expected
    marks = table(run, "annotations").filter(pl.col("name").str.contains("#step_num="))
    numbers = marks.select("rank", pl.col("name").str.extract(r"(\d+)#$").cast(pl.Int64))
    assert {*numbers.iter_rows()} == {(rank, step) for rank in range(4) for step in range(4)}


def test_products_of_cpus_are_those_of_the_program(corpus):
    run = corpus / "xplane" / CPU
    products = table(run, "products")
    flops = pl.col("batch") * pl.col("rows") * pl.col("inner") * pl.col("columns") * 2
    per_device = products.group_by("rank").agg(flops.sum().alias("flops"))
    assert set(per_device["flops"]) == {335_544_320 * 4}  # in four steps
    assert results(run)["compute_intensity"].details["flops_per_step"] == 335_544_320


@pytest.mark.parametrize("process", [0, 1])
def test_events_are_those_that_jax_reads(corpus, process):
    """Its own reader gives each event of a CPU's instruction at the same time."""
    from jax.profiler import ProfileData

    path = corpus / "xplane" / CPU / f"p{process}" / "vm.xplane.pb"
    start = next(
        dict(plane.stats)["profile_start_time"]
        for plane in ProfileData.from_file(str(path)).planes
        if plane.name == "Task Environment"
    )
    expected = []
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    ordinal = stats["device_ordinal"] % 2048 + 2 * process
                    expected.append((ordinal, stats["hlo_op"], round(event.start_ns) + start))
    kernels = table(corpus / "xplane" / CPU, "kernels").filter(pl.col("rank") // 2 == process)
    found = sorted(kernels.select("rank", "name", "start_ns").rows())
    assert [row[:2] for row in found] == [row[:2] for row in sorted(expected)]
    pairs = zip(found, sorted(expected), strict=True)
    assert all(abs(row[2] - other[2]) <= 1 for row, other in pairs)


def test_kernels_of_gpus_are_those_of_their_instructions(corpus):
    run = corpus / "xplane" / GPU
    kernels = table(run, "kernels")
    assert kernels["rank"].n_unique() == 8
    own = table(run, "hlo_operations").filter(pl.col("rank") == 3)
    assert dict(own.group_by("name").len().iter_rows()) == {
        "loop_transpose_fusion": 5,
        "input_transpose_fusion.1": 5,
        "cudnn-conv.1": 10,  # two kernels each
        "input_transpose_fusion": 5,
    }
    products = table(run, "products").filter(pl.col("rank") == 3)
    sizes = products.select("batch", "rows", "inner", "columns").unique().rows()
    assert sizes == [(1, 34 * 31 * 53, 16 * 2 * 2, 5120)]  # output places, a place of the kernel, its outputs
    assert products.height == 5
    assert set(products["name"].str.slice(0, 4)) == {"Cijk"}
    transposed = kernels.filter(pl.col("name") == "loop_transpose_fusion.kd")
    assert set(transposed["grid_blocks"]) == {1280}
    assert set(transposed["blocks_per_sm"]) == {1280 / 304}
    steps = table(run, "annotations").filter("on_device", pl.col("name").str.contains("#step_num="))
    assert steps.group_by("rank").len()["len"].to_list() == [5] * 8
    devices = table(run, "devices")
    assert set(devices["memory_bytes"]) == {206_141_652_992}
    assert set(devices["sms"]) == {304}


@pytest.mark.parametrize("run", [TPU, CPU, GPU])
def test_the_whole_catalogue_runs_over_a_profile(corpus, run):
    found = results(corpus / "xplane" / run)
    assert {result.status for result in found.values()} <= {"ok", "not_measurable", "not_applicable"}
    assert found["gpu_busy"].status == "ok"
    assert all(result.reason for result in found.values() if result.status != "ok")


@pytest.mark.parametrize("decoded", ["latin-1", "utf-8"])
def test_a_profile_that_was_converted_to_text_is_refused(corpus, tmp_path, decoded):
    original = (corpus / "xplane" / TPU / "host0.xplane.pb").read_bytes()
    (tmp_path / "host0.xplane.pb").write_text(original.decode(decoded, "replace"), newline="")
    done = invoke(["ccl-metrics", str(tmp_path), "--metric", "gpu_busy"])
    assert done.returncode == 4
    assert "host0.xplane.pb" in done.stderr
    assert "converted to UTF-8 text" in done.stderr


def test_a_small_file_is_read_once_for_all_its_devices_and_gives_what_each_gives_alone(
    corpus, tmp_path, monkeypatch
):
    path = tmp_path / "host.xplane.pb"
    sought = []
    find_planes = profile.find_planes
    monkeypatch.setattr(profile, "find_planes", lambda stream: sought.append(1) or find_planes(stream))
    for source, ids in (("p0", ["CPU:0", "CPU:1"]), ("p1", ["CPU:2048", "CPU:2049"])):
        path.write_bytes((corpus / "xplane" / CPU / source / "vm.xplane.pb").read_bytes())
        sought.clear()
        devices = [device.id for device in list_devices(path).devices]
        together = [read_xplane(path, path.name, device) for device in devices]
        assert (devices, len(sought)) == (ids, 1)
        with monkeypatch.context() as alone:
            alone.setattr(profile, "_HELD_BYTES", 0)
            for device, shared in zip(devices, together, strict=True):
                other = read_xplane(path, path.name, device)
                assert all(shared.table(name).equals(other.table(name)) for name in other.tables)
                assert (shared.findings, shared.rank) == (other.findings, other.rank)
        assert len(sought) == 1 + len(devices)
