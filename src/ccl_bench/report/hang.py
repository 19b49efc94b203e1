"""The analysis of a hang as text: missing ranks, waiting ranks, and divergences that only follow."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Group, Text, bullet, heading, indented
from ccl_bench.report.formatting import ranges
from ccl_bench.report.inspection import issues
from ccl_bench.result.hang import DAMAGED_DUMP, EMPTY_DUMP, MISMATCH, MISSING, NO_DUMP, OLDER_DUMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from ccl_bench.result.hang import Call, Divergence, Hang, IncompleteDump, Missing

SHOWN = 8
"""Divergences that the text lists; JSON has all."""


def hang_page(hang: Hang) -> Group:
    """Return the output of `ccl-bench hang`."""
    parts: list[RenderableType] = [heading(plain(hang.run)), indented(Text(plain(verdict(hang))))]
    for number, each in enumerate(hang.divergences[:SHOWN], start=1):
        parts += [Text(), indented(bullet(Text(str(number), "bold"), _lines(each)))]
    if (left := len(hang.divergences) - SHOWN) > 0:
        parts += [Text(), indented(Text(f"{counted(left, 'more place')} in --format json", "dim"))]
    have = f"{counted(hang.calls, 'call')} of {counted(len(hang.ranks), 'rank')}"
    damaged = f"; damaged dump of {_ranks(hang.damaged)}" if hang.damaged else ""
    missing = f"; no dump of {_ranks(hang.without_dump)}" if hang.without_dump else ""
    parts += [Text(), indented(Text(f"{have}{damaged}{missing}", "dim"))]
    if hang.findings:
        parts += [Text(), heading("Data quality"), indented(issues(hang.findings))]
    return Group(*parts)


def verdict(hang: Hang) -> str:
    """Return the answer in one sentence."""
    if not hang.divergences and hang.unproven:
        unproven = _ranks(hang.unproven)
        return f"No rank waits in these dumps, but they do not show every call of {unproven}."
    if not hang.divergences:
        return "No rank is missing: in every group the ranks made the same calls, and no rank waits."
    first = hang.divergences[0]
    culprits, where = _ranks(hang.culprits), _place(first)
    is_one = len(hang.culprits) == 1
    if first.kind == MISMATCH and not first.waiting:
        return f"Calls do not match: {culprits} made a different call in {where}."
    if first.kind == MISMATCH:
        other = " and ".join(dict.fromkeys(_operation(call) for call in first.differing))
        usual = _operation(first.waiting[0])
        return f"Calls do not match: {culprits} called {other} in {where}, where the others called {usual}."
    if first.kind == MISSING and first.missing:
        state = "is" if is_one else "are"
        circle = ", and the ranks wait for each other in a cycle" if first.is_mutual else ""
        return f"{_capital(culprits)} {state} missing in {where}, where {_waiters(first)}{circle}."
    if first.incomplete or first.kind == NO_DUMP:
        return f"{_capital(_left(hang))}, and {_waiters(first)} in {where}: look there first."
    if first.kind == MISSING:
        return (
            f"{_capital(_waiters(first))} in {where}; the calls of {culprits} in that group were overwritten."
        )
    return (
        f"No rank is missing: all members called {where}, but it has not finished on "
        f"{_ranks_of(first.waiting)}."
    )


def _left(hang: Hang) -> str:
    """Return what dump each culprit left, or that it left none."""
    kinds = {each.rank: each.kind for each in hang.divergences[0].incomplete}
    ranks_of: dict[str, list[int]] = {}
    for rank in hang.culprits:
        ranks_of.setdefault(kinds.get(rank, NO_DUMP), []).append(rank)
    parts = []
    for kind, ranks in ranks_of.items():
        one, several = _WHAT_IT_LEFT[kind]
        parts.append(f"{_ranks(ranks)} left {one if len(ranks) == 1 else several}")
    return ", ".join(parts)


_WHAT_IT_LEFT = {
    NO_DUMP: ("no dump", "no dump"),
    EMPTY_DUMP: ("an empty dump", "empty dumps"),
    DAMAGED_DUMP: ("a damaged dump", "damaged dumps"),
    OLDER_DUMP: ("an older dump", "older dumps"),
}


def _lines(divergence: Divergence) -> Iterator[str | Text]:
    """Yield the lines about one divergence."""
    title = Text(plain(f"{divergence.kind}: {_place(divergence)}"))
    if divergence.follows_from is not None:
        title.append(f" (follows from {divergence.follows_from + 1})", "dim")
    yield title
    others = (
        f"; the dumps list none, so {_ranks(divergence.possible)} may be too" if divergence.possible else ""
    )
    yield Text(f"members: {_ranks(divergence.members)}{others}", "dim")
    yield from _calls("waits", divergence.waiting)
    yield from _calls("called instead" if divergence.waiting else "called", divergence.differing)
    for text, alike in groupby(sorted(divergence.missing, key=_last_call), _last_call):
        yield Text(plain(f"missing: {_ranks([each.rank for each in alike])}, {text}"))
    for (kind, ends), dumps in groupby(sorted(divergence.incomplete, key=_incomplete), _incomplete):
        yield Text(plain(f"{kind}: {_ranks([each.rank for each in dumps])}{ends}"))
    if divergence.without_dump:
        yield Text(f"no dump: {_ranks(divergence.without_dump)}")
    if divergence.overwritten:
        yield Text(f"unknown: {_ranks(divergence.overwritten)}, whose calls in the group were overwritten")


def _calls(role: str, calls: Iterable[Call]) -> Iterator[Text]:
    """Yield one line for each call; ranks that made it at the same place share a line."""

    def key(call: Call) -> tuple[str, str]:
        return _call(call), _frame(call)

    for (call, frame), alike in groupby(sorted(calls, key=key), key):
        yield Text(plain(f"{role}: {_ranks_of([*alike])} in {call}{frame}"))


def _last_call(missing: Missing) -> str:
    if missing.last is None:
        return "with no call at all"
    waits = f", waiting there ({missing.waits_in + 1})" if missing.waits_in is not None else ""
    return f"{_ended(missing.last)}{waits}"


def _incomplete(dump: IncompleteDump) -> tuple[str, str]:
    return dump.kind, f", {_ended(dump.last)}" if dump.last else ""


def _ended(last: Call) -> str:
    return f"last call {_call(last)} of {_group(last.group, last.description)}{_frame(last)}"


def _call(call: Call) -> str:
    number = f" {call.sequence}" if call.sequence is not None else ""
    return f"{call.operation}{number} {_tensors(call)}".rstrip()


def _operation(call: Call) -> str:
    return f"{call.operation} {_tensors(call)}".rstrip()


def _tensors(call: Call) -> str:
    shapes = " ".join(str(shape).replace(" ", "") for shape in call.shapes)
    types = " ".join(dict.fromkeys(call.dtypes))
    return f"{types}{shapes}"


def _frame(call: Call) -> str:
    return f" at {call.frame.file}:{call.frame.line} ({call.frame.function})" if call.frame else ""


def _place(divergence: Divergence) -> str:
    """Return the place of a divergence: the operation, its number, and the group."""
    group = _group(divergence.group, divergence.description)
    if divergence.kind == MISMATCH and not divergence.is_p2p:
        return f"collective {divergence.sequence} of {group}"
    operation, number = divergence.operation, divergence.sequence
    if divergence.is_p2p:
        _, _, ranks = operation.partition(" ")
        return f"message {number} from rank {ranks.replace('->', ' to rank ')} in {group}"
    return f"{operation}, collective {number} of {group}"


def _group(name: str, description: str) -> str:
    return description if description == "default_pg" else f"{description or 'group'} (group {name})"


def _waiters(divergence: Divergence) -> str:
    ranks = [call.rank for call in divergence.waiting]
    return f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def _ranks_of(calls: Iterable[Call]) -> str:
    return _ranks(sorted({call.rank for call in calls}))


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {ranges(numbers)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
