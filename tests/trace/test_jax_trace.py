"""JAX's traces for viewers, read where no profile lies beside them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from commands import invoke
from jax_recordings import RANKS, STATED, STEPS, jax_recording, traces
from oracles import xprof_figures

import ccl_bench as ccl
from ccl_bench.base.errors import InputError
from ccl_bench.trace import formats
from ccl_bench.trace.discovery import discover_traces
from ccl_bench.trace.formats.jax_trace import events
from ccl_bench.trace.formats.jax_trace.reader import read_jax_trace

if TYPE_CHECKING:
    from ccl_bench.trace.content import TraceContent

needs_corpus = pytest.mark.skipif(
    "CCL_BENCH_CORPUS" not in os.environ, reason="CCL_BENCH_CORPUS names no corpus"
)


pytestmark = pytest.mark.usefixtures("shared_cache")

CORPUS = ("tpu-v6e-4of8", "mi300-conv")
"""Profiles of the corpus whose traces for viewers are written from them."""

WITH_PROFILES = ("data parallel", "pipeline", "ahead", "unmarked")
"""Recordings whose profiles are read too: with steps that are marked, run ahead, and are not marked."""


def alone(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a run with only the traces for viewers of a recording, which nobody changes."""
    folder = factory.getbasetemp() / "alone" / name
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, trace in enumerate(traces(jax_recording(factory, name), ".trace.json.gz")):
            shutil.copy(trace, folder / f"host{number}.trace.json.gz")
    return folder


@cache
def contents(run: Path) -> dict[int | None, TraceContent]:
    """Return what each rank of a run did."""
    found = {}
    for trace in discover_traces(run).traces:
        assert trace.form.name == "jax_trace"
        found[trace.rank] = read_jax_trace(trace.path, trace.relative, trace.part)
    return found


@pytest.mark.parametrize("name", STATED)
def test_each_device_shows_the_steps_and_calls_that_its_program_states(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = contents(alone(tmp_path_factory, name))
    assert sorted(found, key=str) == [*range(RANKS)]
    for content in found.values():
        kernels = content.tables["kernels"]
        calls = kernels.drop_nulls("collective").group_by("collective").len()
        assert dict(calls.iter_rows()) == {call.kind: call.times * STEPS for call in STATED[name].calls}
        steps = [name for name in content.tables["annotations"]["name"] if "#step_num=" in name]
        program = "train" if STATED[name].is_marked else "jit_train_step"
        assert steps == [f"{program}#step_num={number}#" for number in range(STEPS)]


def test_each_kernel_is_joined_to_the_call_that_started_its_program(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content = contents(alone(tmp_path_factory, "ahead"))[2]
    runs = content.tables["kernels"].group_by("correlation").len()
    assert runs.height == STEPS
    assert runs["len"].n_unique() == 1
    assert set(runs["correlation"]) == set(content.tables["launches"]["correlation"])


def test_the_metrics_of_a_run_with_such_traces_alone_name_what_they_lack(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = alone(tmp_path_factory, "sharded")
    result: Any = json.loads(invoke(f"ccl-metrics {run} --metric coll_call_num --format json").stdout)[0]
    assert result["value"] == 2
    assert "viewer-trace" in {finding["code"] for finding in result["findings"]}
    assert "Traceback" not in invoke(f"ccl-metrics {run} --all").stderr


def _steps(run: Path) -> list[tuple[Any, ...]]:
    """Return rank, number and length of each step, and the ns from the rank's first step to it.

    Ranks count from the first that was traced: TPUs do not state theirs in such a trace.
    """
    found = ccl.open(run).table("steps").sort("rank", "start_ns")
    found = found.with_columns(pl.col("rank") - pl.col("rank").min())
    begin = pl.col("start_ns") - pl.col("start_ns").min().over("rank")
    length = pl.col("end_ns") - pl.col("start_ns")
    return found.select("rank", "step", begin.alias("begin"), length.alias("length")).rows()


@pytest.mark.parametrize(
    "name", [*WITH_PROFILES, *(pytest.param(f"corpus/{set_}", marks=needs_corpus) for set_ in CORPUS)]
)
def test_steps_are_those_of_the_profile_that_was_written_with_it(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown = _steps(alone(tmp_path_factory, name))
    expected = _steps(jax_recording(tmp_path_factory, name))
    assert [step[:2] for step in shown] == [step[:2] for step in expected]
    for (*_, begin, length), (*_, own_begin, own_length) in zip(shown, expected, strict=True):
        assert (begin, length) == (pytest.approx(own_begin, abs=2), pytest.approx(own_length, abs=2))


def test_steps_of_a_program_that_runs_ahead_are_measured_on_the_device(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Counted here: from the first instruction that each run of the program executes to that of the next."""
    run = alone(tmp_path_factory, "ahead")
    lengths = []
    for path in sorted(run.iterdir()):
        begins: dict[tuple[str, str], float] = {}
        last: dict[str, float] = {}
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            args = event.get("args", {})
            if "hlo_op" in args:
                device, key = args["device_ordinal"], (args["device_ordinal"], args["run_id"])
                begins[key] = min(begins.get(key, event["ts"]), event["ts"])
                last[device] = max(last.get(device, 0.0), event["ts"] + event["dur"])
        for device, end in sorted(last.items()):
            own = [*sorted(time for (of, _), time in begins.items() if of == device), end]
            lengths += [pytest.approx(1000 * (after - time), abs=2) for time, after in pairwise(own)]
    assert [length for *_, length in _steps(run)] == lengths
    assert "steps-on-device" in {finding.code for finding in ccl.open(run).findings}


@needs_corpus
def test_runs_of_a_chosen_program_are_those_that_the_trace_for_viewers_lists(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Counted here: the events of the program on the lines of modules; both formats give these steps."""
    name = "corpus/tpu-v6e-4of8"
    run, profile = alone(tmp_path_factory, name), jax_recording(tmp_path_factory, name)
    (path,) = run.iterdir()
    document = json.loads(gzip.decompress(path.read_bytes()))
    recorded = [event for event in document["traceEvents"] if "name" in event]
    modules = {
        (e["pid"], e["tid"])
        for e in recorded
        if e["name"] == "thread_name" and e["args"]["name"] == "XLA Modules"
    }
    expected = []
    for line in sorted(modules):
        runs = sorted(
            (e["ts"], e["dur"])
            for e in recorded
            if e["name"].startswith("jit__psum(") and (e["pid"], e["tid"]) == line
        )
        ends = [*(start for start, _ in runs[1:]), sum(runs[-1])]
        expected += [1000 * (end - start) for (start, _), end in zip(runs, ends, strict=True)]
    assert len(expected) == 4 * 3
    for place, calls in ((run, 1), (profile, 2)):  # an all-reduce, and a barrier that only the profile has
        found = ccl.open(place, program="jit__psum")
        steps = found.table("steps").sort("rank", "start_ns")
        lengths = (steps["end_ns"] - steps["start_ns"]).to_list()
        assert lengths == [pytest.approx(length, abs=2) for length in expected]
        assert found.metric("coll_call_num").value == calls
        assert "steps-by-program" not in {finding.code for finding in found.findings}
    by_default = ccl.open(profile).metric("coll_call_num")
    assert by_default.value is None
    assert "--program" in by_default.fix


@needs_corpus
def test_a_gpus_calls_are_those_that_launched_its_own_work(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = ccl.open(alone(tmp_path_factory, "corpus/mi300-conv"))
    assert {finding.code for finding in run.findings} == {"viewer-trace", "steps-by-program"}
    calls = run.table("launches").join(run.table("kernels"), on=["trace", "correlation"], how="anti")
    of_others = calls.join(run.table("kernels"), on="correlation", how="semi")
    assert (of_others.height, calls.height) == (0, 0)


@needs_corpus
def test_a_tpus_trace_shows_what_xprof_makes_of_its_profile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = contents(alone(tmp_path_factory, "corpus/tpu-v6e-4of8"))
    profile = Path(os.environ["CCL_BENCH_CORPUS"], "xplane/tpu-v6e-4of8/host0.xplane.pb")
    expected = xprof_figures.operations(profile)
    kernels = pl.concat([content.tables["kernels"] for content in found.values()])
    lengths = kernels.group_by(pl.col("name").cast(pl.String)).agg(
        pl.len(), us=(pl.col("end_ns") - pl.col("start_ns")).sum() / 1e3
    )
    whole = {name: (count, us) for name, count, us in lengths.iter_rows()}
    assert whole.keys() == {name for name in expected if not name.startswith("copy-")}
    for name, (count, us) in whole.items():
        assert count == expected[name].count
        assert us == pytest.approx(expected[name].total_us, abs=0.001 * count)
    calls = pl.concat([content.tables["collectives"] for content in found.values()])
    assert calls.height == 12
    assert set(calls["in_elements"] * 4) == {5_368_709_120}
    assert set(calls["group_size"]) == {2}
    assert kernels.filter(pl.col("collective") == "all_reduce").height == 12
    for content in found.values():
        names = content.tables["annotations"]["name"].cast(pl.String)
        assert names.str.contains("#step_num=").sum() == 100
    copies = pl.concat([content.tables["memcpy"] for content in found.values()])
    assert Counter(copies["kind"]) == {"HtoD": 1200, "DtoH": 1200}


@needs_corpus
def test_a_gpus_trace_shows_what_xprof_makes_of_its_profile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found = contents(alone(tmp_path_factory, "corpus/mi300-conv"))
    profile = Path(os.environ["CCL_BENCH_CORPUS"], "xplane/mi300-conv/tw003.xplane.pb")
    kernels = pl.concat([content.tables["kernels"] for content in found.values()])
    lengths = kernels.group_by(pl.col("name").cast(pl.String)).agg(
        pl.len(), us=(pl.col("end_ns") - pl.col("start_ns")).sum() / 1e3
    )
    shown = {name: (count, pytest.approx(us)) for name, count, us in lengths.iter_rows()}
    assert {name: (one.count, one.total_us) for name, one in xprof_figures.kernels(profile).items()} == shown


def written(path: Path, *own: dict[str, object]) -> Path:
    """Write a trace of one CPU device with two instructions and `own` events."""
    ran = {"ph": "X", "pid": 7, "tid": 1, "dur": 2.5}
    args = {"hlo_op": "dot.1", "hlo_module": "jit_f", "device_ordinal": "0", "run_id": "-5"}
    events_ = [
        {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/host:CPU"}},
        ran | {"name": "dot.1", "ts": 10.0, "args": args},
        ran | {"name": "psum.2", "ts": 20.0, "args": args | {"hlo_op": "psum.2"}},
        *own,
        {},
    ]
    head = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    path.write_text(json.dumps(head | {"traceEvents": events_}, separators=(",", ":")))
    return path


def codes(path: Path) -> list[str]:
    return [finding.code for finding in read_jax_trace(path, path.name, "").findings]


def test_a_trace_is_told_apart_from_kinetos_by_its_content(tmp_path: Path) -> None:
    jax = written(tmp_path / "kineto_trace_0.json").read_bytes()
    assert getattr(formats.recognised(jax), "name", None) == "jax_trace"
    kineto = b'{"traceEvents": [{"ph": "M", "name": "process_name", "args": {"name": "python"}}'
    assert getattr(formats.recognised(kineto), "name", None) == "kineto"


def test_the_copy_for_perfetto_beside_a_profile_is_no_further_trace(tmp_path: Path) -> None:
    written(tmp_path / "perfetto_trace.json")
    assert len(discover_traces(tmp_path).traces) == 1
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    assert not [t for t in discover_traces(tmp_path).traces if t.form.name == "jax_trace"]


def test_beside_its_profile_a_trace_is_not_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    recording = jax_recording(tmp_path_factory, "sharded")
    assert traces(recording, ".trace.json.gz")
    assert {trace.form.name for trace in discover_traces(recording).traces} == {"xplane"}


def test_an_instruction_named_by_jax_is_the_collective_that_it_becomes(tmp_path: Path) -> None:
    kernels = read_jax_trace(written(tmp_path / "a.trace.json"), "a", "").tables["kernels"]
    assert kernels.select("start_ns", "end_ns", "collective").rows() == [
        (10_000, 12_500, None),
        (20_000, 22_500, "all_reduce"),
    ]


def test_what_is_lost_of_a_damaged_trace_is_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.trace.json",
        {"ph": "X", "pid": "odd", "tid": 1, "ts": 30.0, "dur": 1.0, "name": "x"},
        {"ph": "X", "pid": 7, "tid": 1, "ts": 1e300, "dur": 1.0, "name": "x"},
    )
    assert {"events-lost", "impossible-time"} <= {*codes(path)}
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"x"')])
    assert "file-truncated" in codes(path)
    packed = gzip.compress(whole)
    path.write_bytes(packed[:-9])
    assert "file-broken-off" in codes(path)
    path.write_bytes(b'{"traceEvents":[{' + bytes(99))
    with pytest.raises(InputError, match="events cannot be read"):
        codes(path)


def test_a_trace_with_as_many_events_as_jax_writes_may_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.trace.json")
    assert codes(path) == ["viewer-trace"]
    monkeypatch.setattr(events, "MOST_EVENTS", 2)
    assert "file-truncated" in codes(path)
