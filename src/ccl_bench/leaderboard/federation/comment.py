"""The comment on a merge request to a board, as Markdown: rows, ranks, differences, and what is refused.

Everything that a bundle states is escaped: it comes from strangers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.report.render.markdown import escaped, table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.leaderboard.federation.review import BoardReview, RowReview
    from ccl_bench.leaderboard.store.query_result import RunNumber

MARK = "<!-- ccl-bench review -->"
"""First line of every comment, by which a pipeline finds the one to replace."""
_MAX_BYTES = 60_000
"""Of a comment: GitHub accepts 65,536 characters."""
_MAX_MOVED = 20
"""Changed ranks that are shown; the rest is counted."""


def review_comment(review: BoardReview) -> str:
    """Return the comment."""
    parts = [MARK, f"## {_headline(review)}"]
    # A long comment is cut at its end: what is wrong comes first.
    for row in sorted(review.rows, key=lambda row: (not row.problems, not row.mismatches)):
        parts += _row(row, review)
    parts += _moved(review)
    text, left = "", len(parts)
    for part in parts:
        if len(text.encode()) + len(part.encode()) > _MAX_BYTES:
            return (
                f"{text}{counted(left, 'more part')} did not fit; `ccl-bench board review` shows all of it.\n"
            )
        text += f"{part}\n\n"
        left -= 1
    return f"{text.rstrip()}\n"


def _text(text: str) -> str:
    """Return untrusted text, escaped, in which no `@` or `#` refers to somebody or something on the host."""
    return escaped(text).replace("@", "@\u200b").replace("#", "#\u200b")


def _headline(review: BoardReview) -> str:
    if not review.rows:
        return "No row changes"
    refused = sum(bool(row.problems) for row in review.rows)
    if refused:
        return f"{counted(refused, 'bundle')} of {len(review.rows)} refused"
    differing = sum(bool(row.mismatches) for row in review.rows)
    if differing:
        verb = "differs" if differing == 1 else "differ"
        return f"{counted(differing, 'row')} of {len(review.rows)} {verb} when recomputed"
    added = sum(row.is_new for row in review.rows)
    changed = len(review.rows) - added
    what = [
        counted(count, "row") + f" {word}"
        for count, word in ((added, "added"), (changed, "changed"))
        if count
    ]
    return f"{' and '.join(what)}: the board lists {counted(review.listed, 'run')}"


def _row(row: RowReview, review: BoardReview) -> Iterator[str]:
    """Yield the paragraphs about one run."""
    kind = "removed" if row.is_removed else "added" if row.is_new else "changed"
    yield f"### {_text(row.run[:100] or row.name[:12])}, {kind}"
    if row.run:
        signed = f"signed by {_text(row.signed_by)}" if row.signed_by else "unsigned"
        facts = [f"`{row.name[:12]}`", f"submitter {_text(row.submitter[:100] or 'unnamed')}, {signed}"]
        yield "; ".join([*facts, *([_text(row.listed.workload)] if row.listed else [])])
    for problem in row.problems:
        place = f"{_text(problem.where)}: " if problem.where else ""
        fix = f" Fix: {_text(problem.fix)}." if problem.fix else ""
        yield f"- **Refused.** {place}{_text(problem.message)}.{fix}"
    for event in row.events[:_MAX_MOVED] if not row.is_new else []:
        by = f" by {_text(event.by)}" if event.by else ""
        note = f": {_text(event.note[:200])}" if event.note else ""
        to = f" by {event.superseded_by[:12]}" if event.superseded_by else ""
        yield f"- {event.state.value.replace('_', '-')}{to or by}{note}"
    for difference in row.mismatches:
        yield f"- **Differs.** {_text(difference)}"
    for remark in (*row.remarks, *([row.recomputed] if row.recomputed and not row.mismatches else [])):
        yield f"- {_text(remark[0].upper() + remark[1:])}"
    if row.listed and row.is_new:
        yield from _numbers(row, review)


def _numbers(row: RowReview, review: BoardReview) -> Iterator[str]:
    """Yield the numbers of a new row: the usual ones, and the others folded."""
    assert row.listed is not None  # noqa: S101  the caller checked it
    numbers, workload = row.listed.numbers, row.listed.run["workload"]
    usual = [name for name in default_columns()[row.listed.run["phase"] or "any"] if name in numbers]
    others = [name for name in sorted(numbers) if name not in usual]
    for names, (head, end) in ((usual, ("", "")), (others, (_FOLD.format(len(others)), "\n\n</details>"))):
        rows = []
        for name in names:
            number = numbers[name]
            best = review.best_before.get((workload, name))
            before = f"{best[0]:.6g} (`{best[1][:12]}`)" if best and number.place else ""
            rows.append((_text(name), f"{number.value:.6g}", _text(number.unit), _rank(number), before))
        if rows:
            columns = ("metric", "value", "unit", "rank", "best before")
            yield f"{head}{table_rows(columns, rows, (1,))}{end}"


_FOLD = "<details><summary>{} more</summary>\n\n"


def _rank(number: RunNumber) -> str:
    return f"{number.place} of {number.ranked}" if number.place else "not ranked"


def _moved(review: BoardReview) -> Iterator[str]:
    """Yield the rows whose rank changes."""
    if not review.moved:
        return
    yield "### Ranks that change"
    rows = [
        (
            _text(each.metric),
            f"{_text(each.name[:100])} (`{each.run[:12]}`)",
            _rank(each.before),
            _rank(each.after),
        )
        for each in review.moved[:_MAX_MOVED]
    ]
    more = len(review.moved) - _MAX_MOVED
    yield table_rows(("metric", "run", "before", "after"), rows, ()) + (
        f"\n\nAnd {more} more." if more > 0 else ""
    )
