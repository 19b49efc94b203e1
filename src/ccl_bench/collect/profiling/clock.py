"""Clocks for steps: the clock of the host, or events in the stream of a device."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Clock(Protocol):
    """Measures the length of numbered steps."""

    name: str

    def start(self) -> None:
        """Start a step."""

    def stop(self, step: int) -> None:
        """End a step; a step without a start has no length."""

    def seconds(self) -> dict[int, float]:
        """Return the length of every measured step."""


class HostClock:
    """Time between calls; correct if a step has finished its work when it returns, as on the CPU."""

    name = "host"

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: dict[int, float] = {}

    def start(self) -> None:
        """Start a step."""
        self._began = time.perf_counter()

    def stop(self, step: int) -> None:
        """End a step."""
        if self._began is not None:
            self._seconds[step] = time.perf_counter() - self._began

    def seconds(self) -> dict[int, float]:
        """Return the length of every measured step."""
        return dict(self._seconds)


class DeviceClock:
    """Time between events in the current stream.

    The host runs ahead of the device: its clock shows when work was launched, and waiting for the device at
    every step would slow the training down.
    """

    name = "device"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._began: Any = None
        self._events: dict[int, tuple[Any, Any]] = {}

    def start(self) -> None:
        """Start a step."""
        self._began = self._event()

    def stop(self, step: int) -> None:
        """End a step."""
        if self._began is not None:
            self._events[step] = (self._began, self._event())

    def seconds(self) -> dict[int, float]:
        """Return the length of every measured step; wait for the device."""
        self._torch.cuda.synchronize()
        return {step: began.elapsed_time(ended) / 1000 for step, (began, ended) in self._events.items()}

    def _event(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def clock_for(torch: Any) -> Clock:
    """Return the clock for the device that trains."""
    return DeviceClock(torch) if torch.cuda.is_available() else HostClock()
