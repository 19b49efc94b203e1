"""The page of `ccl-bench hang`, from answers made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ccl_bench.base.findings import Issue
from ccl_bench.report.console import to_text
from ccl_bench.report.hang import hang_page
from ccl_bench.result.hang import Call, Divergence, Frame, Hang, IncompleteDump, Missing


def call(rank: int, sequence: int | None = 4, line: int | None = 29, **changed: Any) -> Call:
    frame = None if line is None else Frame("step", "train.py", line)
    known = {"shapes": [[2, 8]], "dtypes": ["Float"], "operation": "all_reduce", "group": "0"}
    known |= {"description": "default_pg"} | changed
    return Call(rank=rank, sequence=sequence, state="started", created_ns=0, frame=frame, **known)


def divergence(**changed: Any) -> Divergence:
    known = {"kind": "missing", "group": "0", "description": "default_pg", "members": [0, 1, 2, 3]}
    known |= {"sequence": 4, "operation": "all_reduce", "waiting": [call(0), call(1)]}
    return Divergence(**known | changed)


def page(*divergences: Divergence, **changed: Any) -> list[str]:
    known: dict[str, Any] = {"run": "runs/one", "ranks": [0, 1, 2], "without_dump": [], "calls": 12}
    found = Hang(**known | {"culprits": [3], "divergences": list(divergences)} | changed)
    return to_text(hang_page(found), width=200).splitlines()


def test_a_missing_rank_is_named_with_who_waits_where_and_its_last_call() -> None:
    missing = [
        Missing(3, call(3, 3, line=None), waits_in=1),
        Missing(2, None),
    ]
    first = divergence(missing=missing, without_dump=[5], overwritten=[6, 7], possible=[8])
    second = divergence(
        kind="unfinished", group="1", description="tp", follows_from=0, waiting=[call(3, 2, 7)]
    )
    assert page(first, second, culprits=[2, 3]) == [
        "runs/one",
        "  Ranks 2-3 are missing in all_reduce, collective 4 of default_pg, where ranks 0-1 wait.",
        "",
        "  1 missing: all_reduce, collective 4 of default_pg",
        "    members: ranks 0-3; the dumps list none, so rank 8 may be too",
        "    waits: ranks 0-1 in all_reduce 4 Float[2,8] at train.py:29 (step)",
        "    missing: rank 3, last call all_reduce 3 Float[2,8] of default_pg, waiting there (2)",
        "    missing: rank 2, with no call at all",
        "    no dump: rank 5",
        "    unknown: ranks 6-7, whose calls in the group were overwritten",
        "",
        "  2 unfinished: all_reduce, collective 4 of tp (group 1) (follows from 1)",
        "    members: ranks 0-3",
        "    waits: rank 3 in all_reduce 2 Float[2,8] at train.py:7 (step)",
        "",
        "  12 calls of 3 ranks",
    ]


def test_calls_that_differ_are_listed_by_what_they_are_and_where() -> None:
    differing = [call(2, line=5), call(3, line=5), call(4, None, operation="send 4->5", shapes=[])]
    lines = page(
        divergence(kind="mismatch", differing=differing), without_dump=[6], findings=[Issue("note", "odd")]
    )
    assert lines[1].endswith("in collective 4 of default_pg, where the others called all_reduce Float[2,8].")
    assert lines[6:] == [
        "    called instead: ranks 2-3 in all_reduce 4 Float[2,8] at train.py:5 (step)",
        "    called instead: rank 4 in send 4->5 Float at train.py:29 (step)",
        "",
        "  12 calls of 3 ranks; no dump of rank 6",
        "",
        "Data quality",
        "  note    odd",
    ]
    alone = page(divergence(kind="mismatch", differing=differing[:1], waiting=[]))
    assert alone[5] == "    called: rank 2 in all_reduce 4 Float[2,8] at train.py:5 (step)"


@pytest.mark.parametrize(("count", "more"), [(8, []), (9, ["  1 more place in --format json"])])
def test_eight_places_are_shown(count: int, more: list[str]) -> None:
    lines = page(*[divergence(missing=[Missing(3, None)])] * count)
    assert [line for line in lines if "more place" in line] == more
    assert sum(line.strip().startswith(tuple("123456789")) and "missing:" in line for line in lines) == 8


def test_one_call_of_one_rank() -> None:
    assert page(ranks=[0], calls=1, culprits=[])[-1] == "  1 call of 1 rank"


def test_a_message_names_both_ranks() -> None:
    lines = page(divergence(operation="message 3->2", is_p2p=True, missing=[Missing(3, None)]))
    assert lines[3] == "  1 missing: message 4 from rank 3 to rank 2 in default_pg"


def said(culprits: list[int], **changed: Any) -> str:
    """Return the verdict on one divergence."""
    return page(divergence(**changed), culprits=culprits)[1].strip()


def test_the_verdict_says_who_to_look_at_first_and_why() -> None:
    three, tp = [Missing(3, None)], {"group": "5", "description": "", "sequence": 7}
    assert page()[1].startswith("  No rank is missing: in every group")
    assert said([3], missing=three).startswith("Rank 3 is missing in all_reduce, collective 4 of default_pg")
    assert said([3], missing=three).endswith("where ranks 0-1 wait.")
    alone = said([3], missing=three, waiting=[call(0)], is_mutual=True, **tp)
    assert "collective 7 of group (group 5), where rank 0 waits" in alone
    assert alone.endswith("in a cycle.")
    assert said([2, 3], kind="no dump", without_dump=[2, 3], **tp).startswith("Ranks 2-3 left no dump")
    assert said([2], kind="no dump", missing=three).startswith("Rank 2 left no dump, and ranks 0-1 wait in")
    overwritten = said([3], overwritten=[3])
    assert overwritten.startswith("Ranks 0-1 wait in all_reduce")
    assert "calls of rank 3 in that group were overwritten" in overwritten
    unfinished = said([], kind="unfinished", waiting=[call(2), call(0)], missing=three)
    assert unfinished.startswith("No rank is missing: all members called all_reduce, collective 4")
    assert unfinished.endswith("not finished on ranks 0, 2.")


def test_a_verdict_on_calls_that_differ_names_what_was_called_by_whom() -> None:
    differing = [call(3, operation="barrier"), call(2, operation="broadcast"), call(1, operation="barrier")]
    text = said([1, 2, 3], kind="mismatch", waiting=[call(0)], differing=differing)
    assert "ranks 1-3 called barrier Float[2,8] and broadcast Float[2,8] in collective 4" in text
    assert text.endswith("where the others called all_reduce Float[2,8].")
    assert "ranks 2-3 made a different call" in said([2, 3], kind="mismatch", waiting=[], differing=differing)
    message = divergence(kind="mismatch", operation="message 3->2", is_p2p=True, waiting=[call(2)])
    assert page(message)[3] == "  1 mismatch: message 4 from rank 3 to rank 2 in default_pg"


def test_incomplete_dumps_are_listed_by_what_is_wrong_with_them_and_their_last_call() -> None:
    incomplete = [
        IncompleteDump(2, "empty dump", None),
        IncompleteDump(3, "older dump", call(3, 2, line=None)),
        IncompleteDump(4, "damaged dump", None),
        IncompleteDump(5, "empty dump", None),
    ]
    place = divergence(kind="empty dump", incomplete=incomplete, without_dump=[6])
    lines = page(place, culprits=[2, 3, 4, 5, 6], damaged=[4], without_dump=[6])
    assert lines[1] == (
        "  Ranks 2, 5 left empty dumps, rank 3 left an older dump, rank 4 left a damaged dump, "
        "rank 6 left no dump, and ranks 0-1 wait in all_reduce, collective 4 of default_pg: look there first."
    )
    assert lines[6:] == [
        "    damaged dump: rank 4",
        "    empty dump: ranks 2, 5",
        "    older dump: rank 3, last call all_reduce 2 Float[2,8] of default_pg",
        "    no dump: rank 6",
        "",
        "  12 calls of 3 ranks; damaged dump of rank 4; no dump of rank 6",
    ]


def test_where_nobody_waits_ranks_whose_calls_are_not_all_shown_are_named() -> None:
    said = page(culprits=[], unproven=[1, 2])[1]
    assert said == "  No rank waits in these dumps, but they do not show every call of ranks 1-2."
