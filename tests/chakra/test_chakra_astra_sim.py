"""Folders for ASTRA-sim, read and simulated by another reader, and output of ASTRA-sim beside the run."""

from __future__ import annotations

import random
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from astra_sim import Network, collective_ns, output, simulate
from chakra_wire import COMP_NODE, communication, read
from commands import EXAMPLE, ROOT, invoke

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.base.errors import InputError
from ccl_bench.chakra import write_simulation
from ccl_bench.chakra.simulated import read_result
from ccl_bench.chakra.simulator import STEP_NS, Level, machine, network_levels, network_text, ring_line
from ccl_bench.chakra.workload import Span, Window, timeline
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, write_run
from ccl_bench.whatif.run_graph import OWN, VALUES, load_run_graph
from ccl_bench.whatif.simulations import network_values

if TYPE_CHECKING:
    from pathlib import Path

A100 = ROOT / "examples" / "runs" / "megatron-tp8-a100"
PLAN = Plan(dp_shard=4, steps=3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("astra-sim")
    write_run(PLAN, folder / "run")
    done = invoke(f"ccl-bench chakra {folder / 'run'} -o {folder / 'out'} --astra-sim")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_model_reproduces_the_output_that_astra_sim_documents(tmp_path: Path) -> None:
    # getting-started/argument-workload-config.md: 64440 cycles for examples/network_analytical, an all-reduce
    # of 1 MiB over 8 ranks in 4 chunks; all of ASTRA-sim's own time is 57 times 40 ns.
    path = tmp_path / "network.yml"
    path.write_text(
        "topology: [ FullyConnected ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
    )
    assert Network(path).message_ns(0, 1, 2**20 / 8 / 4) == 1110
    assert collective_ns(Network(path), [*range(8)], 0, 2**20, 4) == 64440 - STEP_NS


@pytest.mark.parametrize("kind", [(0, 2, 7 / 4), (2, 1, 7 / 8), (7, 1, 7 / 8)])
def test_the_network_takes_the_time_of_the_line(kind: tuple[int, int, float], tmp_path: Path) -> None:
    comm_type, rounds, factor = kind
    path = tmp_path / "network.yml"
    path.write_text(network_text([Level(8, "of all ranks", 4440.0, 200.0, "a line")]))
    size = 1 << 24
    sent = size // 8 if comm_type == 2 else size  # an all-gather counts what each rank gives
    expected = rounds * 7 * 4440 + size * factor / 200
    assert collective_ns(Network(path), [*range(8)], comm_type, sent, 1) == pytest.approx(expected, rel=1e-4)


def test_a_step_faster_than_astra_sim_adds_has_no_latency() -> None:
    assert Level(8, "", STEP_NS + 2.0, 1.0, "").latency_ns == 1
    assert Level(8, "", STEP_NS - 1.0, 1.0, "").latency_ns == 0


def test_a_simulation_with_the_fitted_network_takes_the_recorded_time(written: Path) -> None:
    ends = simulate(written / "out")
    steps = load_tables(open_run(written / "run"), ("steps",)).inputs["steps"]
    lengths = dict(steps.group_by("rank").agg(pl.col("length_ns").sum()).iter_rows())
    assert lengths.keys() == ends.keys() == {0, 1, 2, 3}
    for rank, end in ends.items():
        assert end == pytest.approx(lengths[rank], rel=1e-3)


def test_work_and_calls_by_hand() -> None:
    # us: 20 of work; a call of 30 of which 10 compute; 10; a hidden call of 20; 20; the host adds 10
    spans = [Span(20_000, 50_000, {"name": "a"}), Span(60_000, 80_000, {"name": "b"})]
    pieces = timeline([Window(0, 100_000, 110_000)], spans, [(30_000, 50_000)])
    found = [(piece.duration_us, piece.after, piece.call and piece.call["name"]) for piece in pieces]
    assert found == [
        (20, (), None),
        (30, (1,), "a"),
        (10, (1,), None),
        (10, (3, 2), None),
        (20, (4,), "b"),
        (20, (4,), None),
        (20, (6, 5), None),
        (10, (7,), None),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_work_and_exposed_calls_add_up_to_the_steps(seed: int) -> None:
    draw = random.Random(seed)
    times = sorted(draw.sample(range(1, 400), 6))
    windows = [Window(a, b, b - a + draw.choice([0, 30])) for a, b in pairwise([0, *times, 400])]
    spans = sorted(
        (
            Span(start, min(400, start + draw.randrange(1, 60)), {"name": "c"})
            for start in draw.sample(range(399), 9)
        ),
        key=lambda span: span.start_ns,
    )
    alone = {t for span in spans for t in range(span.start_ns, span.end_ns)} - {
        t for t in range(400) if draw.random() < 0.4
    }
    # in units of 1 us, so that nothing is rounded
    pieces = timeline(
        [Window(w.start_ns * 1000, w.end_ns * 1000, w.length_ns * 1000) for w in windows],
        [Span(s.start_ns * 1000, s.end_ns * 1000, s.call) for s in spans],
        _merged(alone),
    )
    assert sum(p.duration_us for p in pieces if p.call is None) == sum(w.length_ns for w in windows) - len(
        alone
    )
    assert [p.duration_us for p in pieces if p.call] == [s.end_ns - s.start_ns for s in spans]
    assert all(before < piece.number for piece in pieces for before in piece.after)


def _merged(moments: set[int]) -> list[tuple[int, int]]:
    starts = sorted(t for t in moments if t - 1 not in moments)
    ends = sorted(t + 1 for t in moments if t + 1 not in moments)
    return [(a * 1000, b * 1000) for a, b in zip(starts, ends, strict=True)]


def test_every_call_of_the_run_is_written_with_its_bytes(written: Path) -> None:
    calls = load_tables(open_run(written / "run"), ("known_calls",)).inputs["known_calls"].drop_nulls("step")
    for rank in range(4):
        metadata, nodes = read(written / "out" / f"workload.{rank}.et")
        recorded = calls.filter(pl.col("rank") == rank).sort("start_ns")["sent_bytes"].to_list()
        assert [node.attributes["comm_size"] for node in communication(nodes)] == recorded
        assert metadata["rank"] == rank


def transfers(step_ns: float, gb_per_s: float, *, spans_nodes: bool, dimension: str = "dp") -> pl.DataFrame:
    """Return calls that take exactly what a ring takes by its steps and the bytes that it sends."""
    rows = []
    for collective, rounds in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        for size in (1 << 14, 1 << 20, 1 << 24):
            factor = rounds * 7 / 8
            time = rounds * 7 * step_ns + size * factor / gb_per_s
            rows.append((collective, 8, size, factor, round(time), "wait-free", spans_nodes, dimension))
    names = ["collective", "size", "size_bytes", "bus_factor", "time_ns", "basis", "spans_nodes", "dimension"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_bandwidth_and_latency_of_a_ring_come_out_of_its_times() -> None:
    line = ring_line(transfers(900, 200, spans_nodes=False))
    assert not isinstance(line, str)
    assert (line.step_ns, line.bytes_per_ns) == pytest.approx((900, 200), rel=1e-3)
    assert (line.calls, line.r_squared) == (9, pytest.approx(1))


def _inputs(*, per_node: int, members: list[list[int]]) -> dict[str, Any]:
    groups = pl.DataFrame(
        {
            "members": members,
            "dimension": ["dp"] * len(members),
            "spans_nodes": [len({r // per_node for r in ranks}) > 1 for ranks in members],
        }
    )
    both = pl.concat([transfers(900, 200, spans_nodes=False), transfers(5000, 25, spans_nodes=True)])
    facts = Facts(devices_per_node=Fact(per_node, "card"))
    return {"facts": facts, "groups": groups, "transfers": both, "known_calls": None, "devices": None}


def test_a_node_and_the_network_between_nodes_are_two_levels() -> None:
    inputs = _inputs(per_node=2, members=[[*range(0, 16, 2)], [*range(1, 16, 2)]])
    inside, between = network_levels(inputs, 16)
    assert (inside.count, between.count) == (2, 8)
    assert (inside.bandwidth, between.bandwidth) == pytest.approx((200e9 / 2**30, 25e9 / 2**30), rel=1e-3)
    assert (inside.latency_ns, between.latency_ns) == pytest.approx((430, 2480), rel=1e-3)
    settings = machine(inputs, 16).settings
    assert settings["all-reduce-implementation"] == ["ring", "ring"]
    assert settings["roofline-enabled"] == 0  # else ASTRA-sim leaves out work without num_ops and tensor_size


def test_calls_with_several_ranks_a_node_do_not_show_the_network_between_nodes() -> None:
    _, between = network_levels(_inputs(per_node=2, members=[[*range(8)]]), 16)
    assert between.bandwidth is None
    assert "several ranks a node" in between.source


def test_the_figures_of_the_manual_are_those_of_the_example(tmp_path: Path) -> None:
    done = invoke(f"ccl-bench chakra {A100} -o {tmp_path} --astra-sim")
    assert done.returncode == 0, done.stderr
    manual = (ROOT / "docs" / "astra-sim.md").read_text()
    assert (tmp_path / "network.yml").read_text() in manual
    readme = (tmp_path / "README.md").read_text()
    assert "| `local-mem-bw` | `2039.0` |" in readme
    assert "| `peak-perf` | `312.0` |" in readme
    (tmp_path / "result.txt").write_text(output(simulate(tmp_path)))
    shown = invoke(f"ccl-bench chakra {A100} --astra-sim-result {tmp_path / 'result.txt'}")
    assert shown.stdout in manual


def test_the_script_runs_the_program_that_is_given(written: Path, tmp_path: Path) -> None:
    program = tmp_path / "AstraSim"
    program.write_text('#!/bin/sh\nls "$PWD" | head -1\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    script = str(written / "out" / "run.sh")
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", script],
        env=environment | {"ASTRA_SIM": str(program)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        "README.md",
        "--workload-configuration=workload",
        "--comm-group-configuration=comm_group.json",
        "--system-configuration=system.json",
        "--remote-memory-configuration=memory.json",
        "--network-configuration=network.yml",
    ]
    without = subprocess.run(["sh", script], env=environment, capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "ASTRA_SIM" in without.stderr


def test_a_run_whose_times_fit_no_line_gets_no_bandwidth(tmp_path: Path) -> None:
    done = invoke(f"ccl-bench chakra {EXAMPLE} -o {tmp_path} --astra-sim")
    assert "bandwidth and latency of all ranks are missing, fill them in: no line fits" in done.stderr
    assert "\nbandwidth:" not in (tmp_path / "network.yml").read_text()


def test_a_device_of_the_reference_gets_its_smallest_and_largest_message(tmp_path: Path) -> None:
    write_run(Plan(dp_shard=2, tp=2, steps=2, layers=2), tmp_path / "run")
    write_simulation(open_run(tmp_path / "run"), tmp_path / "out")
    text = (tmp_path / "out" / "network.yml").read_text()
    assert "reference, not of this run (no line fits" in text
    curve = pl.read_parquet(ROOT / "src/ccl_bench/catalog/collective_reference.parquet").filter(
        (pl.col("system") == "a100_sxm") & (pl.col("library") == "nccl") & (pl.col("version") == "2.27.3"),
        (pl.col("collective") == "all_reduce") & (pl.col("group_size") == 2) & (pl.col("dtype") == "half"),
    )
    network = Network(tmp_path / "out" / "network.yml")
    for row in (curve.sort("size_bytes").row(at, named=True) for at in (0, -1)):
        time = collective_ns(network, [0, 1], 0, row["size_bytes"], 1)
        assert time == pytest.approx(row["time_s"] * 1e9, rel=1e-3)


def test_a_pipeline_sends_and_receives(tmp_path: Path) -> None:
    write_run(Plan(pp=2, tp=2, steps=2, layers=2), tmp_path / "run")
    write_simulation(open_run(tmp_path / "run"), tmp_path / "out")
    assert simulate(tmp_path / "out").keys() == {0, 1, 2, 3}


def test_the_execution_trace_run_of_the_corpus_is_simulated(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for rank in range(8):
        for kind in ("kineto", "execution_trace"):
            for path in (corpus / kind / "megatron-tp8").glob(f"*_{rank}.json.gz"):
                (tmp_path / "run" / path.name).symlink_to(path)
    written = write_simulation(open_run(tmp_path / "run"), tmp_path / "out")
    assert [sum(p.call is not None for p in rank.pieces) for rank in written.workload.ranks] == [84] * 8
    ends = simulate(tmp_path / "out")
    assert max(ends.values()) == pytest.approx(633_541_000, rel=0.05)
    for rank in range(8):  # work of a rank is what its step has beside exposed calls
        nodes = read(tmp_path / "out" / f"workload.{rank}.et")[1]
        assert (
            sum(n.duration_us for n in nodes if n.type == COMP_NODE) * 1000
            < written.workload.ranks[rank].recorded_ns
        )


def test_a_run_of_unknown_groups_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no call that ASTRA-sim can simulate: .* 24 all_reduce, 40 all_to_all"
    ):
        write_simulation(open_run(corpus / "kineto" / "dlrm-8rank"), tmp_path)


def test_a_run_without_a_rank_is_refused(tmp_path: Path) -> None:
    write_run(Plan(dp_shard=4, steps=2), tmp_path / "run")
    (tmp_path / "run" / "rank2_trace.json").unlink()
    done = invoke(f"ccl-bench chakra {tmp_path / 'run'} -o {tmp_path / 'out'} --astra-sim")
    assert done.returncode == 4
    assert "holds steps of 3 ranks of 4 and not of rank 2, but ASTRA-sim simulates all" in done.stderr


def test_nothing_is_written_over_without_force(written: Path) -> None:
    again = invoke(f"ccl-bench chakra {written / 'run'} -o {written / 'out'} --astra-sim")
    assert again.returncode == 2
    assert "workload.0.et already exists" in again.stderr


def test_options_that_contradict_each_other_are_refused(written: Path) -> None:
    both = invoke(f"ccl-bench chakra {written / 'run'} -o {written / 'x'} --astra-sim --communication")
    assert (both.returncode, "give one of" in both.stderr) == (2, True)
    neither = invoke(f"ccl-bench chakra {written / 'run'}")
    assert (neither.returncode, "--output DIR" in neither.stderr) == (2, True)


def test_a_result_is_shown_beside_the_recorded_step_and_the_replay(written: Path) -> None:
    result = written / "result.txt"
    result.write_text(output({0: 9_000_000, 1: 9_000_000, 2: 9_000_000, 3: 9_300_000}))
    done = invoke(f"ccl-bench chakra {written / 'run'} --astra-sim-result {result}")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["0"][:3] == ["2.401", "3.000", "+25.0%"]  # 7201.5 us in 3 steps; 9 ms in 3 steps
    assert rows["slowest"][1] == "3.100"
    assert float(rows["0"][3]) == pytest.approx(
        2.401, abs=0.002
    )  # the fitted network takes the recorded time
    assert "simulated: ASTRA-sim" in done.stdout
    assert done.stdout.count("not measured") == 2


def test_the_replay_takes_the_time_of_the_network(written: Path) -> None:
    graph = load_run_graph(open_run(written / "run"))
    groups = load_tables(open_run(written / "run"), ("groups",)).inputs["groups"]
    values = network_values(graph, groups, [Level(4, "", 1000.0, 100.0, "")])
    rows = (
        graph.operations.filter(pl.Series(graph.meets >= 0)).select("row", "collective", "size_bytes").rows()
    )
    assert rows
    for row, collective, size in rows:
        rounds = 2 if collective == "all_reduce" else 1
        assert values[row * VALUES + OWN] == pytest.approx(rounds * 3 * (1000 + size / 4 / 100))


def test_old_output_without_exposed_communication_is_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("sys[1] finished, 12 cycles\nsys[0] finished, 10 cycles\n")
    ranks = read_result(str(tmp_path / "r"), 2)
    assert [(rank.cycles, rank.exposed_cycles) for rank in ranks.values()] == [(10, None), (12, None)]


def test_statistics_are_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(output({0: 64440}))
    [rank] = read_result(str(tmp_path / "r"), 1).values()
    assert (rank.cycles, rank.exposed_cycles) == (64440, 32220)
    assert rank.statistics == {"Wall time": 64440, "Total compute-communication overlap": 22}


GOOD = "sys[0] finished, 10 cycles\n"

BAD = {
    "": "holds no line of ASTRA-sim",
    "rank 0 done in 5 s\n": "holds no line of ASTRA-sim",
    GOOD: "r: Rank 1 has not finished, of 2 ranks",
    GOOD + "sys[2] finished, 10 cycles\n": "r:2: rank 2 finishes, but the run has 2 ranks",
    GOOD + GOOD: "r:2: rank 0 finishes a second time",
    "sys[0] finished, 0 cycles, exposed communication 0 cycles.\n": "r:1: rank 0 finishes after 0 cycles",
    "\nsys[0] finished, -5 cycles\n": "r:2: is no line of ASTRA-sim",
    "[info] sys[0] iteration 0 finished, 9 cycles, exposed communication 0 cycles.\n": "r:1: is no line",
}


@pytest.mark.parametrize("text", BAD)
def test_other_output_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(InputError) as caught:
        read_result(str(tmp_path / "r"), 2)
    assert BAD[text] in str(caught.value)
    assert caught.value.fix
