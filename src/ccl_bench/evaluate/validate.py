"""Validation of cards, side files and whole runs, with all mistakes at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Issue
from ccl_bench.result.inspection import Validation
from ccl_bench.storage import remote_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from ccl_bench.card import Card, Reading
    from ccl_bench.engine import Progress


def validate(
    place: str,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Validation:
    """Return all issues of the run, card, configuration or side file at `place`."""
    path = storage.to_path(place)
    try:
        with remote_errors(path):
            reader = _reader(path)
            if reader is not None:
                kind, read = reader
                return Validation(place, kind, read(path).issues)
        from ccl_bench.evaluate.inspect import issues
        from ccl_bench.evaluate.load import load_tables
        from ccl_bench.run import discover_run

        run = discover_run(place)
        absent = []
        if not run.traces:
            message = "holds no trace of a known format"
            absent.append(Issue("error", message, "trace-missing", place, fix="add the traces"))
        if run.path.is_dir() and run.documents.card is None:
            fix = "write workload_card.yaml; without it, metrics that need model or hardware have no value"
            absent.append(Issue("warning", "has no workload card", "card-missing", place, fix=fix))
        findings = run.findings
        if run.traces:
            loaded = load_tables(
                run, ("contents",), jobs=jobs, use_cache=use_cache, progress=progress, checked=False
            )
            findings = loaded.findings
        # Issues name files below the run; here several places may be checked at once.
        folder = run.path if run.path.is_dir() else run.path.parent
        placed = [
            replace(issue, file=str(folder / issue.file))
            if issue.file and not issue.file.startswith(str(folder))
            else issue
            for issue in issues(run, findings)
        ]
        return Validation(place, "run", [*absent, *placed])
    except InputError as error:
        where = error.where or place
        return Validation(place, "file", [Issue("error", error.message, file=where, fix=error.fix)])


def _reader(path: Path) -> tuple[str, Callable[[Path], Reading[Any]]] | None:
    """Return the kind of a single file and its reader; None for runs and traces."""
    from ccl_bench.side_files import kinds

    if path.is_dir():
        return None
    if path.suffix.lower() in {".yaml", ".yml"}:
        return kinds.CARD.name, _card
    kind = kinds.kind_named(path.name)
    if kind is None:
        kind = kinds.TRAIN_CONFIG if path.suffix.lower() == ".toml" else kinds.kind_of(path)
    return (kind.name, kind.read) if kind else None


def _card(path: Path) -> Reading[Card]:
    """Return a card as read; InputError for other YAML."""
    from ccl_bench import card as cards
    from ccl_bench.card.comparison_fields import fields_of, unranked_issue

    reading = cards.read_card(path)
    if not cards.is_card_file(path):
        raise InputError(
            "is not a workload card: it has no workload, Model-executor or metric_source",
            where=str(path),
            fix="start from workload_card_template.yaml, or ccl-bench new NAME",
        )
    unranked = unranked_issue(fields_of(reading.value), str(path))
    return replace(reading, issues=[*reading.issues, *unranked])
