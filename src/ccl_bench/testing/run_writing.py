"""Write a whole run: one trace a rank, the card, the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.testing import cards
from ccl_bench.testing.expected import Expected
from ccl_bench.testing.kineto_layout import Style
from ccl_bench.testing.kineto_writing import write_rank
from ccl_bench.testing.simulation import timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.testing.plan import Plan
    from ccl_bench.testing.timeline import Timeline


def write_run(
    plan: Plan,
    directory: Path,
    *,
    style: Style | None = None,
    filler_bytes: int = 0,
    iteration: int | None = None,
    with_moe_assignments: bool = False,
) -> Expected:
    """Write the run that `plan` describes into `directory`, and return what its numbers must come to.

    Ranks are written one by one and only as the files grow. `filler_bytes` makes each rank's file so
    much larger, `iteration` puts the traces under `profile_trace/iteration_<n>/` as torchtitan does.
    """
    made = timeline(plan)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "workload_card.yaml").write_text(cards.workload_card(plan), encoding="utf-8")
    (directory / "run_metadata.json").write_text(cards.run_metadata(plan), encoding="utf-8")
    if with_moe_assignments:
        (directory / "moe_assignments.json").write_text(cards.moe_assignments(plan), encoding="utf-8")
    for _ in written_ranks(made, directory, style=style, filler_bytes=filler_bytes, iteration=iteration):
        pass
    return Expected(made)


def written_ranks(
    made: Timeline,
    directory: Path,
    *,
    style: Style | None = None,
    filler_bytes: int = 0,
    iteration: int | None = None,
) -> Iterator[Path]:
    """Write the trace of one rank after the other and yield the path of each."""
    style = style or Style()
    for rank in made.plan.present_ranks:
        if rank % style.devices_in_process:
            continue
        path = trace_path(directory, rank, style=style, iteration=iteration)
        write_rank(made, rank, path, style=style, filler_bytes=filler_bytes)
        yield path


def trace_path(
    directory: Path, rank: int, *, style: Style | None = None, iteration: int | None = None
) -> Path:
    """Return where `write_run` puts the trace of a rank."""
    folder = directory if iteration is None else directory / "profile_trace" / f"iteration_{iteration}"
    return folder / (style or Style()).name(rank)
