"""Load the results of one run for a comparison: from a run, a file, a folder of results or a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.comparison.baselines import PREFIX, RESULTS, baseline_path
from ccl_bench.comparison.run_results import RunResults
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.evaluate.sweep import sweep_or_reason
from ccl_bench.result import from_json
from ccl_bench.result.step_choice import EVERY_STEP
from ccl_bench.run import discover_run, open_run
from ccl_bench.storage import remote_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.card.comparison_fields import Fields
    from ccl_bench.engine import Progress
    from ccl_bench.result import Result
    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.run import Run

_HEAD_BYTES = 512

_WRITE = "write one with: ccl-metrics RUN --all --format json"


def load_results(
    place: str,
    names: Sequence[str],
    *,
    profile_mode: str = "auto",
    choice: StepChoice = EVERY_STEP,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> RunResults:
    """Return the side at `place`; `names` are the metrics to compute of a run, over the chosen steps.

    A place is a run, a file of results from `ccl-metrics --all --format json`, a folder with such a file
    and a card instead of traces, or `baseline:NAME`.
    """
    is_baseline = place.startswith(PREFIX)
    path = baseline_path(place.removeprefix(PREFIX)) if is_baseline else storage.to_path(place)
    with remote_errors(path):
        results = path if path.is_file() else path / RESULTS
        stored = _stored(results) if results.is_file() else None
    if is_baseline and stored is None:
        raise InputError("holds no results", where=str(results), fix="set the baseline again")
    if stored is not None and (results == path or not discover_run(path).traces):
        side = RunResults(place, _by_name(stored))
        # A card in the same folder is the run's if the results used it.
        beside = discover_run(results.parent)
        is_own = beside.documents.card is not None and {*beside.documents.sha256.values()} & side.statements
        return RunResults(place, side.results, _fields(beside)) if is_own else side
    run = open_run(place, profile_mode=profile_mode, choice=choice)
    computed = evaluate(run, names, jobs=jobs, use_cache=use_cache, progress=progress)
    sweep = sweep_or_reason(run, jobs=jobs, use_cache=use_cache, progress=progress)
    return RunResults(place, _by_name(computed), _fields(run), *sweep)


def _fields(run: Run) -> Fields:
    return fields_of(run.documents.card, run.facts)


def _by_name(results: Sequence[Result]) -> dict[str, Result]:
    return {result.metric: result for result in results}


def _stored(path: Path) -> list[Result] | None:
    """Return the results in a file; None if it is another file."""
    head = storage.read_head(path, _HEAD_BYTES).lstrip()
    if not (head.startswith(b"[") and b'"metric"' in head):
        return None
    with storage.open_file(path) as stream:
        text = stream.read()
    try:
        results = from_json(text)
    except msgspec.ValidationError as error:
        raise InputError(f"holds no results: {error}", where=str(path), fix=_WRITE) from error
    except msgspec.DecodeError as error:
        raise InputError(f"is not JSON: {error}", where=str(path), fix=_WRITE) from error
    return results
