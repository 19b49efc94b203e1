"""The results of one run in a comparison: loaded from a run, a file or a bundle, with card and samples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.comparison.baselines import PREFIX, RESULTS, baseline_path
from ccl_bench.comparison.comparability import fields_of
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import from_json
from ccl_bench.result.step_choice import EVERY_STEP
from ccl_bench.run import discover_run, open_run
from ccl_bench.storage import remote_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.comparison.comparability import Fields
    from ccl_bench.engine import Progress
    from ccl_bench.result import Result
    from ccl_bench.result.step_choice import StepChoice
    from ccl_bench.run import Run


@dataclass(frozen=True, slots=True)
class RunResults:
    """One run of a comparison."""

    name: str
    """The place as the user gave it."""
    results: dict[str, Result]
    fields: Fields = field(default_factory=dict)
    """Fields of its card and metadata."""

    @property
    def traces(self) -> frozenset[str]:
        """Hashes of the trace files behind the results."""
        return frozenset(t.sha256 for result in self.results.values() for t in result.provenance.traces)

    @property
    def statements(self) -> frozenset[str]:
        """Hashes of card and metadata behind the results."""
        files = [each for result in self.results.values() for each in result.provenance.files.items()]
        return frozenset(digest for name, digest in files if _states(name))


def _states(name: str) -> bool:
    """Whether a file behind a result identifies the workload."""
    return name.endswith((".yaml", ".yml", ".toml", "run_metadata.json"))


def is_same_work(one: RunResults, other: RunResults) -> bool:
    """Whether two sides have the same recording, or the same card and metadata."""
    return any(
        bool(mine) and mine == theirs
        for mine, theirs in ((one.traces, other.traces), (one.statements, other.statements))
    )


_PER_STEP = re.compile(r"per_step(_\w+)?")
_EACH = re.compile(r"values(_\w+)?")

_TO_UNIT = {("ratio", "pct"): 0.01, ("%", "ratio"): 100.0}
"""(unit of the metric, suffix of the detail) → factor; a variant of a metric shares its details."""


def samples_of(result: Result) -> list[float]:
    """Return the samples in a result's details, in its unit and in order; empty for a single number.

    They are `per_step_*`, {step: number}, or `values_*`, a list with one number for each request.
    """
    for name, detail in result.details.items():
        each: object = None
        if _PER_STEP.fullmatch(name) and isinstance(detail, dict):
            each = list(detail.values())
        elif _EACH.fullmatch(name) and isinstance(detail, list):
            each = detail
        if isinstance(each, list) and each and all(isinstance(value, int | float) for value in each):
            factor = _TO_UNIT.get((result.unit, name.rpartition("_")[2]), 1.0)
            return [factor * value for value in each]
    return []


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
        return _from_file(place, stored, results.parent)
    run = open_run(place, profile_mode=profile_mode, choice=choice)
    computed = evaluate(run, names, jobs=jobs, use_cache=use_cache, progress=progress)
    return RunResults(place, _by_name(computed), _fields(run))


def _fields(run: Run) -> Fields:
    return fields_of(run.stated.card, run.facts)


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


def _from_file(place: str, results: list[Result], folder: Path) -> RunResults:
    """Return a side of stored results; a card in the same folder is used if the results used it."""
    alone = RunResults(place, _by_name(results))
    beside = discover_run(folder)
    stated = beside.stated
    is_own = stated.card is not None and set(stated.sha256.values()) & alone.statements
    return RunResults(place, alone.results, _fields(beside)) if is_own else alone
