"""Checks of a run's tables: what each looks at, and which tables are in doubt where it finds something."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ccl_bench.analysis import findings as found
from ccl_bench.analysis.derived import tables_behind
from ccl_bench.base.findings import NO_NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ccl_bench.base.findings import Finding


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the data of a run."""

    needs: tuple[str, ...]
    """Tables that it looks at, and `facts`."""
    look: Callable[..., list[Finding]]
    """Return what it finds in them."""
    touches: tuple[str, ...]
    """Tables that are in doubt then, with every number that rests on one of them."""


CALLS_OF_A_RANK = ("calls", "work", "kernel_time", "copies", "copy_time", "product_work")
"""What a rank that lacks calls may have too little of: calls, other work, and time in which it ran."""

_PEAKS = ("memory_peaks",)

CHECKS = (
    Check(("groups",), found.ambiguous_groups, ("groups",)),
    Check(("groups",), found.groups_off_the_mesh, ("groups",)),
    Check(("call_groups",), found.foreign_groups, ("groups",)),
    Check(("matched",), found.disagreements, ("calls",)),
    Check(("matched",), found.missing_members, CALLS_OF_A_RANK),
    Check(("matched",), found.lacking, CALLS_OF_A_RANK),
    Check(("matched",), found.assumed_groups, ("matched",)),
    Check(("matched",), found.unmatched_streams, CALLS_OF_A_RANK),
    Check(("matched",), found.even_assumed, ("waits", "call_parts")),
    Check(("name_lengths",), found.lengths_of_another_unit, ("kernels", "cpu_ops", "annotations")),
    Check(("calls",), found.overlapping_calls, CALLS_OF_A_RANK),
    Check(("transfers", "devices"), found.impossible_rates, ("traffic", *CALLS_OF_A_RANK)),
    Check(("messages",), found.unequal_messages, ("messages",)),
    Check(("arrivals",), found.refused_arrivals, ("arrivals",)),
    Check(("traffic",), found.calls_without_size, ("traffic",)),
    Check(("traffic",), found.even_assumed, ("traffic",)),
    Check(("traffic",), found.unpaired, ("calls",)),
    Check(("traffic",), found.messages_to_self, ("traffic", "bubbles", "traffic_matrix")),
    Check(("traffic",), found.unknown_peers, ("traffic",)),
    Check(("et_agreement",), found.et_disagreements, ("calls", "et_calls", "et_agreement")),
    Check(("et_links",), found.unlinked, ("et_links", "et_calls")),
    Check(("bubbles",), found.unmatched_messages, ("bubbles",)),
    Check(("memory_peaks",), found.without_history, _PEAKS),
    Check(("memory_peaks",), found.with_late_history, _PEAKS),
    Check(("memory_peaks",), found.contradicting_history, _PEAKS),
    Check(("memory_peaks",), found.out_of_memory, _PEAKS),
    Check(("memory_peaks", "devices", "facts"), found.memory_beyond_device, _PEAKS),
    # A side file gives step times without a trace being read: no number asks for this one.
    Check(("step_times", "steps"), found.differing_step_times, NO_NUMBER),
)
"""Every check, in the order in which findings are reported."""


def checked_tables(wanted_tables: Iterable[str]) -> set[str]:
    """Return the tables that show whether `wanted_tables` are in doubt."""
    behind = tables_behind(wanted_tables)
    return {need for check in CHECKS if not behind.isdisjoint(check.touches) for need in check.needs}


class Checking:
    """The checks of one run, each made as soon as there is all that it needs, and once."""

    def __init__(self) -> None:
        self._findings: dict[Check, list[Finding]] = {}

    def look(self, tables: Mapping[str, object]) -> None:
        """Make each check that can be made now with these tables."""
        for check in CHECKS:
            if check not in self._findings and tables.keys() >= {*check.needs}:
                found_now = check.look(*(tables[need] for need in check.needs))
                self._findings[check] = [replace(finding, touches=check.touches) for finding in found_now]

    def needs(self, tables: Iterable[str]) -> set[str]:
        """Return what the checks need that are still to be made, and can be with these tables."""
        available = {*tables}
        return {
            need
            for check in CHECKS
            if check not in self._findings and available >= {*check.needs}
            for need in check.needs
        }

    @property
    def findings(self) -> list[Finding]:
        """Everything that was found, in the order of the checks."""
        return [finding for check in CHECKS for finding in self._findings.get(check, ())]
