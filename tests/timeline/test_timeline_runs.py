"""Timelines of recorded runs: what a real profiler leaves, beside what the metrics say of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import invoke
from trace_events import TraceFile, exposed_ns, read

from ccl_bench.cli.bench import main
from ccl_bench.evaluate.compute import evaluate, evaluate_metrics
from ccl_bench.evaluate.load import load_tables, needed_inputs
from ccl_bench.run import open_run
from ccl_bench.testing import plans, write_run

if TYPE_CHECKING:
    from subprocess import CompletedProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"
CORPUS = [
    "kineto/deepseek-dualpipe", "kineto/nccl-args", "nsys/two-gpu-sendrecv",
    "nsys/tiny", "nsys/nvtx-attention",
]  # fmt: skip

Captured = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("shared_cache")


def drawn(run: Path, target: Path, *options: str) -> TraceFile:
    """Return the timeline that the command writes."""
    assert main(["timeline", str(run), "-o", str(target), "--jobs", "1", *options]) == 0
    return read(target)


def agrees(run: Path, shown: TraceFile) -> None:
    """Check sums of slices against metrics, and numbers of slices against tables."""
    names = ["exposed_communication_time", "straggler", "straggler_lag_16"]
    opened = open_run(run)
    wanted = [*needed_inputs(opened, names), "kernels", "memcpy", "calls", "steps"]
    loaded = load_tables(opened, wanted, jobs=1)
    results = {r.metric: r for r in evaluate_metrics(opened.facts, names, loaded)}
    tables = loaded.inputs
    exposed = results["exposed_communication_time"]
    if exposed.value:
        steps = dict(tables["steps"].group_by("rank").len().iter_rows())
        for rank, seconds in exposed.details["per_rank_s"].items():
            name, count = shown_name(shown, rank), steps[number(rank)]
            assert exposed_ns(shown, name) == round(seconds * count * 1e9)
            for part, each in exposed.details["per_rank_parts_s"][rank].items():
                assert exposed_ns(shown, name, part) == round(each * count * 1e9)
    waits = results["straggler_lag_16"]
    # A lag that a file of step times gives is not drawn.
    if waits.value is not None and "source" not in waits.details:
        for rank, by_step in waits.details["per_rank_per_step_wait_s"].items():
            total = shown.totals_ns("wait").get(shown_name(shown, rank), 0)
            assert total == round(sum(by_step.values()) * 1e9)
    late = results["straggler"].details
    if results["straggler"].value is not None and "source" not in late:
        is_late = late["slowest_rank"] != "none" and late["persistence_ratio"] > 0
        named = {s.name for s in shown.of("late", "all ranks")}
        assert named == ({f"rank {late['slowest_rank']}"} if is_late else set())
    if tables["kernels"].height:
        work = [*shown.of("compute"), *shown.of("communication"), *shown.of("memory")]
        assert len(work) == tables["kernels"].height + tables["memcpy"].height
    assert len(shown.of("communication")) == tables["calls"].height


def number(rank: str) -> int | None:
    return None if rank == "unknown" else int(rank)


def shown_name(shown: TraceFile, rank: str) -> str:
    """Return the process of a rank; one of no known rank goes by its file."""
    if rank != "unknown":
        return f"rank {rank}"
    (name,) = [each for each in shown.processes.values() if each.partition(" ")[0] not in {"rank", "all"}]
    return name


@pytest.mark.parametrize("name", CORPUS)
def test_a_recorded_run_adds_up_to_its_metrics(name: str, corpus: Path, tmp_path: Path) -> None:
    agrees(corpus / name, drawn(corpus / name, tmp_path / "run.json.gz"))


def test_clocks_that_are_moved_apart_change_nothing_on_the_timeline(corpus: Path, tmp_path: Path) -> None:
    """Two ranks of eight, the second with a clock that is 40 ms late: each is moved by half of it."""
    for run, microseconds in (("recorded", 0), ("moved", 40_000)):
        (tmp_path / run).mkdir()
        for rank in (0, 1):
            name = f"megatron_kineto_{rank}.json.gz"
            trace = json.loads(gzip.decompress((corpus / "kineto" / "megatron-tp8" / name).read_bytes()))
            for event in trace["traceEvents"]:
                if event["ph"] != "M":
                    event["ts"] += rank * microseconds
            (tmp_path / run / name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    shown, moved = (drawn(tmp_path / run, tmp_path / f"{run}.json") for run in ("recorded", "moved"))
    assert moved.about["clocks"].startswith(
        "clocks are aligned by the ends of collectives, with shifts up to 20 ms"
    )
    assert _placed(moved) == _placed(shown)


def _placed(shown: TraceFile) -> list[tuple[str, str, str, int, int]]:
    first = min(each.start_ns for each in shown.slices)
    return [(s.process, s.thread, s.name, s.start_ns - first, s.end_ns - first) for s in shown.slices]


def test_an_example_run_adds_up_to_its_metrics(tmp_path: Path) -> None:
    run = EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"
    agrees(run, drawn(run, tmp_path / "run.json.gz"))


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceFile, Path, CompletedProcess[str]]:
    """Return the timeline of a pipeline without a device, its file, and what the command prints."""
    target = tmp_path_factory.mktemp("pipelined") / "run.json"
    done = invoke(["ccl-bench", "timeline", str(EXAMPLES / "llama-tiny-pp4-gloo"), "-o", str(target)])
    assert done.returncode == 0, done.stderr
    return read(target), target, done


def test_a_pipeline_adds_up_to_its_metrics_and_so_does_its_bubble(
    pipelined: tuple[TraceFile, Path, CompletedProcess[str]],
) -> None:
    run, shown = EXAMPLES / "llama-tiny-pp4-gloo", pipelined[0]
    agrees(run, shown)
    (bubble,) = evaluate(open_run(run), ["bubble_size_pipeline"], jobs=1)
    for stage, found in bubble.details["per_stage"].items():  # one rank a stage, two steps
        assert shown.totals_ns("bubble")[f"rank {stage}"] == round(2 * found["bubble_s"] * 1e9)


def test_a_run_without_collectives_says_that_its_clocks_are_not_aligned(
    pipelined: tuple[TraceFile, Path, CompletedProcess[str]],
) -> None:
    shown, target, done = pipelined
    assert done.stdout.startswith(f"{target}  4 traces, {len(shown.slices):,} slices, ")
    assert "clocks are not aligned" in done.stderr


def test_operators_of_a_run_without_a_device_have_their_names(
    pipelined: tuple[TraceFile, Path, CompletedProcess[str]],
) -> None:
    shown = pipelined[0]
    names = {s.name for s in shown.of("compute")}
    assert {"aten::bmm", "aten::mul"} & names
    assert any(name.startswith("aten::") for name in names)
    assert "" not in names


def test_a_file_is_not_overwritten(tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "run.json"
    write_run(plans.two_ranks(), tmp_path / "run")
    command = ["timeline", str(tmp_path / "run"), "-o", str(target)]
    assert main(command) == 0
    before = target.read_bytes()
    target.write_text("mine")
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force", "--steps", "2"]) == 0
    assert len(target.read_bytes()) < len(before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "9"], "no trace contains step 9\n  fix: there are 2, 3, 4"),
        (["--steps", "4-2"], "'4-2' is not a list of steps"),
        (["--steps", "a"], "'a' is not a list of steps"),
        (["--max-slices", "10"], "10 slices are too few"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: Captured
) -> None:
    run = str(EXAMPLES / "llama-tiny-fsdp2-tp2-gloo")
    assert main(["timeline", run, "-o", str(tmp_path / "x.json"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


def test_a_run_without_times_is_refused(corpus: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["timeline", str(corpus / "serving" / "vllm-tp8"), "-o", str(tmp_path / "x.json")]) == 4
    assert "contains no trace with times" in capsys.readouterr().err
