"""What the tracks add up to is what the metrics say, and what the plan of a run says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from trace_events import Slice, TraceFile, exposed_ns, read

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice, step_choice
from ccl_bench.run import open_run
from ccl_bench.testing import Expected, Message, Plan, Straggler, plans, write_run
from ccl_bench.timeline import WrittenTimeline, write_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

S = 1_000_000_000

PLAN = Plan(
    tp=2, pp=2, steps=3, layers=2, microbatches=2, jitter_ns=20_000,
    gradient_norm=Message(1, 15_000, "Float"),
    clock_offsets_ns={1: 3_000_000, 2: -2_500_000},
    stragglers=(Straggler(rank=3, layer_ns=40_000),),
)  # fmt: skip
"""Four ranks in two stages, clocks up to 5.5 ms apart, one of them slow."""


def drawn(
    run: Path, target: Path, choice: StepChoice = EVERY_STEP, **options: object
) -> tuple[TraceFile, WrittenTimeline]:
    """Return the timeline of a run as a viewer takes it, and what the writer says of it."""
    written = write_timeline(open_run(run, choice=choice), target, jobs=1, **options)  # type: ignore[arg-type]
    return read(target), written


def measured(run: Path, *names: str) -> list[Result]:
    """Return the results of some metrics."""
    return evaluate(open_run(run), names, jobs=1)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected, TraceFile]:
    """Return the run of the plan, what is expected of it, and its timeline."""
    folder = tmp_path_factory.mktemp("timeline")
    expected = write_run(PLAN, folder / "run")
    return folder / "run", expected, drawn(folder / "run", folder / "run.json.gz")[0]


def test_exposed_communication_adds_up_to_the_plan(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    for rank in PLAN.present_ranks:
        parts = [expected.parts(rank, step).exposed_communication_ns for step in PLAN.step_numbers]
        assert exposed_ns(shown, f"rank {rank}") == sum(parts)
        for part in ("waiting", "transfer", "unknown"):
            planned_ns = sum(expected.exposed_parts_ns(rank, step)[part] for step in PLAN.step_numbers)
            assert exposed_ns(shown, f"rank {rank}", part) == planned_ns


def test_waiting_adds_up_to_the_plan_step_by_step(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    for rank in PLAN.present_ranks:
        for step in PLAN.step_numbers:
            slices = [s for s in shown.of("wait", f"rank {rank}") if s.args["step"] == step]
            assert sum(s.sum_ns for s in slices) == expected.wait_ns(rank, step)


def test_bubbles_add_up_to_the_plan(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    for rank in PLAN.present_ranks:
        bubbles = [expected.bubble_ns(rank, step) for step in PLAN.step_numbers]
        assert shown.totals_ns("bubble")[f"rank {rank}"] == sum(bubbles)


def test_sums_are_those_of_the_metrics(planned: tuple[Path, Expected, TraceFile]) -> None:
    run, _, shown = planned
    ranks = [f"rank {rank}" for rank in PLAN.present_ranks]
    found = measured(run, "exposed_communication_time", "bubble_size_pipeline", "straggler")
    exposed = fmean(exposed_ns(shown, rank) for rank in ranks) / PLAN.steps / S
    assert found[0].value == pytest.approx(exposed)
    bubble = fmean(shown.totals_ns("bubble")[rank] for rank in ranks) / PLAN.steps / S
    assert found[1].value == pytest.approx(bubble)
    details = found[2].details
    for category, detail in (("wait", "wait_s_per_step"), ("late", "caused_wait_s_per_step")):
        totals = shown.totals_ns(category)
        said = {f"rank {rank}": value * PLAN.steps for rank, value in details[detail].items()}
        assert {rank: totals.get(rank, 0) / S for rank in ranks} == pytest.approx(said)


def test_every_call_is_drawn_in_its_parts(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    for rank in PLAN.present_ranks:
        calls = [call for step in PLAN.step_numbers for call in expected.calls(rank, step)]
        whole = sum(call.operation.end_ns - call.start_ns for call in calls)
        categories = ("wait", "wait, not counted", "wait, of a message", "transfer", "unknown")
        drawn_ns = {name: shown.totals_ns(name).get(f"rank {rank}", 0) for name in categories}
        assert sum(drawn_ns.values()) == whole
        messages = [call.operation for call in calls if call.operation.collective == "send_recv"]
        waits = sum(one.duration_ns(rank) - expected.seen_transfer_ns(one) for one in messages)
        assert drawn_ns["wait, of a message"] == waits > 0


def test_every_call_and_kernel_is_drawn(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    for rank in PLAN.present_ranks:
        calls = sum(sum(expected.call_counts(rank, step).values()) for step in PLAN.step_numbers)
        assert len(shown.of("communication", f"rank {rank}")) == calls
        assert len(shown.of("step", f"rank {rank}")) == PLAN.steps


def test_clocks_5_ms_apart_are_one_clock(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, _, shown = planned
    assert shown.about["clocks"].startswith(
        "clocks are aligned by the ends of collectives, with shifts up to 3 ms"
    )
    ends: dict[tuple[str, int], set[int]] = {}
    for transfer in shown.of("transfer"):
        ends.setdefault((transfer.process, transfer.start_ns), set()).add(transfer.end_ns)
    assert shown.flows
    for points in shown.flows.values():
        together = [ends[process, time] for _, process, time in points]
        assert set.intersection(*together), "members of a collective end it together"


def test_an_arrow_joins_the_members_of_every_collective(planned: tuple[Path, Expected, TraceFile]) -> None:
    _, expected, shown = planned
    symmetric = [operation for operation in expected.operations if operation.is_symmetric]
    assert len(shown.flows) == len(symmetric)
    assert sum(map(len, shown.flows.values())) == sum(len(operation.members) for operation in symmetric)


def test_the_critical_path_tiles_steps_and_its_arrows_stand_where_it_changes_rank(
    planned: tuple[Path, Expected, TraceFile],
) -> None:
    _, _, shown = planned
    by_step: dict[int, list[Slice]] = {}
    for each in sorted(shown.of("critical path"), key=lambda each: each.start_ns):
        by_step.setdefault(each.args["step"], []).append(each)
    assert set(by_step) == set(PLAN.step_numbers)
    changes = 0
    for path in by_step.values():
        assert all(one.end_ns == other.start_ns for one, other in pairwise(path))
        changes += sum(one.process != other.process for one, other in pairwise(path))
    points = [point for points in shown.paths.values() for point in sorted(points, key=lambda each: each[2])]
    arrows = sum(one[1] != other[1] and other[0] != "s" for one, other in pairwise(points))
    assert arrows == changes > 0


def test_the_critical_path_of_all_ranks_is_as_long_as_the_step(
    planned: tuple[Path, Expected, TraceFile],
) -> None:
    _, _, shown = planned
    path = shown.of("critical path of all ranks", "all ranks")
    parts = Counter((f"{s.process}: {s.name}", s.start_ns, s.end_ns) for s in shown.of("critical path"))
    assert Counter((s.name, s.start_ns, s.end_ns) for s in path) == parts
    for step in PLAN.step_numbers:
        of_ranks = [s for s in shown.of("step") if s.args["step"] == step and s.process != "all ranks"]
        of_step = [s for s in path if s.args["step"] == step]
        first = min(s.start_ns for s in of_step)
        assert first in {s.start_ns for s in of_ranks}
        assert sum(s.sum_ns for s in of_step) == max(s.end_ns for s in of_ranks) - first


def test_diagnoses_are_on_their_steps_and_on_the_operations_that_show_them(
    planned: tuple[Path, Expected, TraceFile],
) -> None:
    run, _, shown = planned
    diagnoses = diagnose(open_run(run), jobs=1).diagnoses
    assert {each.name for each in diagnoses} == {"exposed_collectives", "few_microbatches"}
    steps = {s.args["step"]: (s.start_ns, s.end_ns) for s in shown.of("step", "all ranks")}
    detected = Counter((each.title, *steps[step]) for each in diagnoses for step in each.steps)
    assert Counter((s.name, s.start_ns, s.end_ns) for s in shown.of("diagnosis", "all ranks")) == detected
    calls = {(s.process, s.name, s.start_ns, s.end_ns) for s in shown.of("communication")}
    examples = shown.of("diagnosis example")
    assert len(examples) == sum(len(each.evidence) for each in diagnoses) == 3
    for each in examples:
        assert (each.process, each.name.partition(": ")[2], each.start_ns, each.end_ns) in calls


def test_the_late_rank_is_named_above_all_ranks(planned: tuple[Path, Expected, TraceFile]) -> None:
    shown = planned[2]
    assert [s.name for s in shown.of("late", "all ranks")] == ["rank 3"] * PLAN.steps
    assert [s.name for s in shown.of("step", "all ranks")] == ["step 1", "step 2", "step 3"]


def test_the_counter_of_waiting_ranks_begins_and_ends_at_none(
    planned: tuple[Path, Expected, TraceFile],
) -> None:
    shown = planned[2]
    levels = [level for _, level in sorted(shown.counters)]
    assert levels[0] >= 1
    assert levels[-1] == 0
    assert max(levels) <= PLAN.world_size
    assert min(levels) == 0


def test_chosen_steps_are_shown_and_nothing_else(
    planned: tuple[Path, Expected, TraceFile], tmp_path: Path
) -> None:
    run, expected, whole = planned
    shown, written = drawn(run, tmp_path / "two.json", step_choice("2"))
    assert {s.args["step"] for s in shown.slices} == {2}
    assert shown.totals_ns("wait")["rank 2"] == expected.wait_ns(2, 2)
    assert written.left_out == ("the file shows only step 2",)
    of_two = [s for s in whole.slices if s.args.get("step") == 2]
    assert len(shown.slices) == len(of_two)


def test_a_reduced_timeline_still_adds_up(planned: tuple[Path, Expected, TraceFile], tmp_path: Path) -> None:
    run, _, whole = planned
    shown, written = drawn(run, tmp_path / "small.json.gz", most_slices=1000)
    assert len(shown.slices) == written.slices <= 1000 + len(whole.of("step", "all ranks")) * 2
    assert sum(s.stands_for for s in shown.slices) == len(whole.slices)
    exposed = ("exposed waiting", "exposed transfer", "exposed unknown")
    for category in ("wait", *exposed, "bubble", "late", "compute", "communication"):
        assert shown.totals_ns(category) == whole.totals_ns(category)
    assert "are merged into" in written.left_out[0]
    assert list(written.left_out) == shown.about["left_out"]


@pytest.mark.parametrize(
    "plan",
    [
        plans.two_ranks(),
        plans.even_pipeline(2, 4),
        plans.uneven_experts(),
        replace(plans.many_dimensions(), dp_replicate=1, tp=1, pp=1, microbatches=1),
    ],
)
def test_every_kind_of_parallelism_has_a_timeline(plan: Plan, tmp_path: Path) -> None:
    expected = write_run(plan, tmp_path / "run")
    shown, written = drawn(tmp_path / "run", tmp_path / "t.json")
    assert len(shown.slices) == written.slices
    for rank in plan.present_ranks:
        parts = [expected.parts(rank, step).exposed_communication_ns for step in plan.step_numbers]
        assert exposed_ns(shown, f"rank {rank}") == sum(parts)


def test_windows_of_a_rank_are_processes_of_their_own(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "run" / "profile_trace"
    for window, first in ((10, 1), (20, 21)):
        write_run(replace(plans.two_ranks(), first_step=first, seed=first), run)
        (folder / f"iteration_{window}").mkdir(parents=True)
        for trace in run.glob("rank*_trace.json"):
            trace.rename(folder / f"iteration_{window}" / trace.name)
    shown, _ = drawn(run, tmp_path / "t.json")
    assert list(shown.processes.values()) == [
        "all ranks", "rank 0, window 10", "rank 0, window 20", "rank 1, window 10", "rank 1, window 20"
    ]  # fmt: skip
    assert [s.name for s in shown.of("step", "rank 1, window 20")] == ["step 21", "step 22"]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    write_run(plans.two_ranks(), tmp_path / "run")
    run = open_run(tmp_path / "run")
    for name, options in (("a", {"jobs": 1}), ("b", {"jobs": 2, "use_cache": False})):
        write_timeline(run, tmp_path / name, **options)  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
