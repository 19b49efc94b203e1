"""Dumps that are empty, damaged, older or overwritten: who is a suspect, and when nobody is accused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from flight_recorder import call, dump, tables_of

from ccl_bench.analysis.recorder.hang import find_hang
from ccl_bench.report.hang import verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.result.hang import Hang

ALL = {"0": [0, 1, 2, 3]}
LAST = 6
"""The call in which ranks wait; those before are over."""


def hang(dumps: Mapping[int, dict[str, object] | bytes], **known: object) -> Hang:
    return find_hang(tables_of(dumps), None, "run", **known)  # type: ignore[arg-type]


def calls(
    last: int = LAST, first: int = 1, *, is_done: bool = False, ends_seen: bool = True, **options: object
) -> list[dict[str, object]]:
    """Return all-reduces up to number `last`, of which number `LAST` waits unless all are done.

    Where the recorder sees no ends, as with gloo, calls that are over are only retired.
    """
    over = {number: number < LAST or is_done for number in range(first, last + 1)}
    return [
        call(
            "all_reduce",
            number,
            record=number - 1,
            at_ms=number,
            ended_ms=number if done and ends_seen else None,
            is_retired=done,
            **options,
        )
        for number, done in over.items()
    ]


def suspects(found: Hang) -> list[tuple[int, str]]:
    assert found.culprits == [each.rank for each in found.suspects]
    return [(each.rank, each.kind) for each in found.suspects]


@pytest.mark.parametrize("ends_seen", [True, False], ids=["nccl", "gloo"])
@pytest.mark.parametrize(
    ("kept", "kind"),
    [(0, "empty-dump"), (1, "older-dump"), (4, "older-dump"), (5, "missing"), (6, None)],
)
def test_a_dump_that_ends_before_the_call_is_named_for_what_it_is(
    kept: int, kind: str | None, ends_seen: bool
) -> None:
    """Rank 3 made the five calls that are over on the others, so a dump with fewer is an earlier one."""
    whole = dump(calls(ends_seen=ends_seen), ALL)
    found = hang(dict.fromkeys(range(3), whole) | {3: dump(calls(kept, ends_seen=ends_seen), ALL)})
    assert suspects(found) == ([(3, kind)] if kind else [])
    [place] = found.divergences
    assert (place.sequence, place.operation) == (LAST, "all_reduce")
    waiting = [each.rank for each in place.waiting]
    assert waiting == ([0, 1, 2] if kind else [0, 1, 2, 3])
    assert verdict(found).startswith("No rank is missing") is (kind is None)


def test_an_older_dump_is_named_with_its_last_call() -> None:
    found = hang(dict.fromkeys((0, 1, 3), dump(calls(), ALL)) | {2: dump(calls(3), ALL)})
    [suspect], [place] = found.suspects, found.divergences
    assert (suspect.group, suspect.sequence, suspect.operation) == ("0", LAST, "all_reduce")
    [older] = place.incomplete
    assert (older.rank, older.kind, older.last and older.last.sequence) == (2, "older dump", 3)
    assert verdict(found) == (
        "Rank 2 left an older dump, and ranks 0-1, 3 wait in all_reduce, collective 6 of default_pg: "
        "look there first."
    )


def test_a_call_that_an_older_dump_shows_in_progress_does_not_make_its_rank_wait() -> None:
    older = [*calls(2), call("all_reduce", 3, record=2, at_ms=3)]
    found = hang(dict.fromkeys(range(3), dump(calls(), ALL)) | {3: dump(older, ALL)})
    assert suspects(found) == [(3, "older-dump")]


def test_a_dump_from_before_what_ring_buffers_hold_is_older() -> None:
    found = hang(dict.fromkeys(range(3), dump(calls(first=5), ALL)) | {3: dump(calls(2), ALL)})
    assert suspects(found) == [(3, "older-dump")]


def test_empty_damaged_older_and_absent_dumps_are_all_named() -> None:
    groups = {"0": [*range(6)]}
    dumps = {0: dump(calls(), groups), 1: dump([]), 2: dump(calls(2), groups), 5: dump(calls(), groups)}
    found = hang(dumps, unreadable=[3])
    assert suspects(found) == [(1, "empty-dump"), (2, "older-dump"), (3, "damaged-dump"), (4, "no-dump")]
    assert (found.without_dump, found.damaged) == ([4], [3])
    assert verdict(found).startswith(
        "Rank 1 left an empty dump, rank 2 left an older dump, rank 3 left a damaged dump, "
        "rank 4 left no dump, and ranks 0, 5 wait in"
    )


def test_several_of_a_kind_are_named_together() -> None:
    found = hang({0: dump(calls(), ALL), 1: dump([]), 2: dump([]), 3: dump(calls(), ALL)})
    assert verdict(found).startswith("Ranks 1-2 left empty dumps, and ranks 0, 3 wait in")


def test_who_is_proven_missing_goes_before_dumps_that_show_nothing() -> None:
    found = hang({0: dump(calls(), ALL), 1: dump([]), 2: dump(calls(LAST - 1), ALL), 3: dump(calls(), ALL)})
    assert suspects(found) == [(2, "missing")]
    assert [each.rank for each in found.divergences[0].incomplete] == [1]


def cut(content: dict[str, object], whole: int) -> bytes:
    """Return JSON that is cut off in the call after `whole` ones."""
    text = json.dumps(content)
    return text[: text.index(f'"record_id": {whole}') + 40].encode()


@pytest.mark.parametrize(("whole", "expected"), [(4, [(1, "damaged-dump")]), (5, [(1, "damaged-dump")])])
def test_of_a_dump_that_is_cut_off_calls_may_be_lost(whole: int, expected: list[tuple[int, str]]) -> None:
    content = dump(calls(), ALL)
    found = hang({0: content, 1: cut(content, whole), 2: content, 3: content})
    assert suspects(found) == expected
    [place] = found.divergences
    assert place.incomplete[0].last
    assert place.incomplete[0].last.sequence == whole


def test_a_dump_that_is_cut_off_behind_the_call_accuses_nobody() -> None:
    content = dump([*calls(), call("all_reduce", 1, record=6, group=("1", "tp"))], ALL)
    found = hang({0: dump(calls(), ALL), 1: cut(content, 6), 2: dump(calls(), ALL), 3: dump(calls(), ALL)})
    assert (suspects(found), [each.kind for each in found.divergences]) == ([], ["unfinished"])


def test_what_a_rank_stated_last_counts_where_a_dump_is_cut_off() -> None:
    """The status comes before the calls in a file that Python wrote."""
    content = dump(calls(), ALL, {0: LAST})
    found = hang({0: content, 1: cut(content, 3), 2: content, 3: content})
    assert (suspects(found), [each.kind for each in found.divergences]) == ([], ["unfinished"])


OTHER = ("1", "tp")
GROUPS = ALL | {"1": [2, 3]}


def overwritten(enqueued: int | None, **options: object) -> dict[str, object]:
    """Return the dump of a rank whose ring buffer holds calls of another group alone."""
    status = {1: 40} if enqueued is None else {0: enqueued, 1: 40}
    others = [
        call(
            "all_reduce", number, record=50 + number, group=OTHER, group_id=1, at_ms=number, ended_ms=number,
            **options,
        )
        for number in (39, 40)
    ]  # fmt: skip
    return dump(others, GROUPS, status)


@pytest.mark.parametrize(
    ("enqueued", "kind"),
    [
        (LAST, None),
        (LAST + 1, None),
        (LAST - 1, "missing"),
        (LAST - 2, "older-dump"),
        (None, "overwritten"),
    ],
)
def test_the_status_decides_what_a_rank_called_that_its_ring_buffer_lost(
    enqueued: int | None, kind: str | None
) -> None:
    whole = dump(calls(), ALL)
    found = hang(dict.fromkeys(range(2), whole) | dict.fromkeys((2, 3), overwritten(enqueued)))
    assert suspects(found) == ([(2, kind), (3, kind)] if kind else [])
    assert verdict(found).startswith("No rank is missing") is (kind is None)


def test_the_status_of_an_empty_dump_decides_too() -> None:
    """As where a dump holds active calls alone."""
    whole = dump(calls(), ALL)
    for enqueued, expected in ((LAST, []), (LAST - 1, [(3, "missing")])):
        found = hang(dict.fromkeys(range(3), whole) | {3: dump([], ALL, {0: enqueued})})
        assert suspects(found) == expected


def test_the_status_of_gloo_numbers_other_things_and_does_not_count() -> None:
    whole = dump(calls(backend="gloo"), ALL)
    found = hang(dict.fromkeys(range(3), whole) | {3: overwritten(LAST, backend="gloo")})
    assert suspects(found) == [(3, "overwritten")]


def test_the_status_of_a_group_with_messages_does_not_count() -> None:
    """NCCL writes the number of the last message into it as well."""
    send = call("send 0->1", 9, record=9, at_ms=9, ended_ms=9)
    receive = call("recv 1<-0", 9, record=9, at_ms=9, ended_ms=9)
    dumps = {0: dump([*calls(), send], ALL), 1: dump([*calls(), receive], ALL), 2: dump(calls(), ALL)}
    found = hang({**dumps, 3: overwritten(9)})
    assert suspects(found) == [(3, "overwritten")]


def test_the_first_call_that_all_wait_in_is_where_to_look_not_what_was_queued_behind_it() -> None:
    queued = [*calls(), call("all_reduce", LAST + 1, record=LAST, at_ms=9)]
    found = hang(dict.fromkeys(range(3), dump(queued, ALL)) | {3: dump(calls(), ALL)})
    [place] = found.divergences
    assert (place.kind, place.sequence, suspects(found)) == ("unfinished", LAST, [])


def test_a_call_that_ended_on_one_rank_is_passed_and_the_next_is_looked_at() -> None:
    over = [*calls(is_done=True), call("all_reduce", LAST + 1, record=LAST, at_ms=9)]
    found = hang({0: dump(over, ALL), 1: dump(over, ALL), 2: dump(over, ALL), 3: dump(calls(), ALL)})
    [place] = found.divergences
    assert (place.kind, place.sequence, suspects(found)) == ("missing", LAST + 1, [(3, "missing")])


@pytest.mark.parametrize("kept", range(LAST + 1))
def test_nobody_is_accused_where_all_calls_are_over(kept: int) -> None:
    """A dump that ends earlier than others is no hang, but does not show that no rank is missing either."""
    whole = dump(calls(is_done=True), ALL)
    found = hang(dict.fromkeys(range(3), whole) | {3: dump(calls(kept, is_done=True), ALL)})
    assert (found.divergences, suspects(found)) == ([], [])
    assert found.unproven == ([3] if kept < LAST else [])
    said = (
        "No rank waits in these dumps, but they do not show every call of rank 3."
        if kept < LAST
        else "No rank is missing: in every group the ranks made the same calls, and no rank waits."
    )
    assert verdict(found) == said


def test_nobody_is_accused_where_all_calls_are_over_and_dumps_are_damaged_or_absent() -> None:
    whole = dump(calls(is_done=True), ALL)
    found = hang({0: whole, 1: whole}, unreadable=[2])
    assert (found.divergences, found.unproven) == ([], [2, 3])
    assert verdict(found).startswith("No rank waits in these dumps, but")


def test_a_rank_with_an_empty_dump_may_be_a_member_of_a_group_that_nobody_lists() -> None:
    """Of six calls of a pair five are over, so that it has another member than rank 0."""
    pair = dump(calls(group=("5", "pair")))
    alone = dump([call("barrier", 1, group=("7", "alone"), is_retired=True)])
    assert suspects(hang({0: pair, 1: dump([]), 2: alone})) == [(1, "empty-dump")]
    assert suspects(hang({0: pair, 2: alone}, unreadable=[1])) == [(1, "damaged-dump")]
    assert suspects(hang({0: pair, 2: alone})) == [(1, "no-dump")]


PAIR = {"0": [0, 1]}


@pytest.mark.parametrize(("kept", "kind"), [(0, "empty-dump"), (1, "older-dump"), (4, "missing"), (5, None)])
def test_of_messages_too_a_dump_is_named_for_what_it_is(kept: int, kind: str | None) -> None:
    """Rank 1 has received four messages and waits for the fifth, of which rank 0 has recorded some."""
    received = [call("recv 1<-0", n, at_ms=n, ended_ms=n if n < 5 else None) for n in range(1, 6)]
    sent = [call("send 0->1", n, at_ms=n, ended_ms=n) for n in range(1, kept + 1)]
    found = hang({0: dump(sent, PAIR), 1: dump(received, PAIR)})
    assert suspects(found) == ([(0, kind)] if kind else [])


def test_a_message_from_a_rank_with_a_damaged_dump_says_so() -> None:
    found = hang({1: dump([call("recv 1<-0", 1)], PAIR)}, unreadable=[0])
    assert suspects(found) == [(0, "damaged-dump")]
