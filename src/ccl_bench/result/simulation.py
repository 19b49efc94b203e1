"""A simulated run beside the recorded one, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The step of one rank, the mean of all steps."""

    rank: int
    recorded_s: float
    """As measured."""
    simulated_s: float
    """As ASTRA-sim simulates it."""
    predicted_s: float | None
    """As the replay predicts it with the network of the simulation; None without a replay."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """All ranks, and what limits the comparison."""

    steps: tuple[int, ...]
    ranks: tuple[SimulatedStep, ...]
    remarks: tuple[str, ...]
