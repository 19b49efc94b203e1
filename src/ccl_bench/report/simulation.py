"""The comparison of a simulation with the run, for the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.report.console import Group, aligned

if TYPE_CHECKING:
    from ccl_bench.result.simulation import SimulatedRun

_HEADER = ("rank", "recorded", "simulated", "of recorded", "predicted", "simulated of predicted")

_LEGEND = (
    "recorded: measured. simulated: ASTRA-sim, 1 cycle = 1 ns; a model, not measured. "
    "predicted: our replay with the network that --astra-sim writes; a model, not measured."
)


def simulation_page(run: SimulatedRun) -> Group:
    """Return a table of the mean step of each rank, and of the slowest."""
    rows = [
        (str(rank.rank), *_cells(rank.recorded_s, rank.simulated_s, rank.predicted_s)) for rank in run.ranks
    ]
    predictions = [rank.predicted_s for rank in run.ranks if rank.predicted_s is not None]
    slowest = (
        max(rank.recorded_s for rank in run.ranks),
        max(rank.simulated_s for rank in run.ranks),
        max(predictions) if len(predictions) == len(run.ranks) else None,
    )
    table = aligned(_HEADER, [*rows, ("slowest", *_cells(*slowest))], right=range(1, len(_HEADER)))
    return Group(f"mean step, ms, of {counted(len(run.steps), 'step')}", table, "", _LEGEND)


def _cells(recorded_s: float, simulated_s: float, predicted_s: float | None) -> tuple[str, ...]:
    if predicted_s is None:
        predicted, against = "none", "none"
    else:
        predicted, against = f"{predicted_s * 1e3:.3f}", f"{simulated_s / predicted_s - 1:+.1%}"
    share = f"{simulated_s / recorded_s - 1:+.1%}"
    return f"{recorded_s * 1e3:.3f}", f"{simulated_s * 1e3:.3f}", share, predicted, against
