"""Validate the files of a bundle and report every mistake at once.

The same check runs before a bundle is sent and after a server receives it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import metrics
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import plain
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.card.fields import is_address
from ccl_bench.comparison import read_fields
from ccl_bench.comparison.compare import compare_runs
from ccl_bench.comparison.run_results import RunResults
from ccl_bench.leaderboard.bundle.bounds import bounds
from ccl_bench.leaderboard.bundle.format import (
    CARD,
    PROVENANCE,
    REPORT,
    REQUIRED,
    RESULTS,
    Bundle,
    name_problem,
)
from ccl_bench.report.comparison.page import sections
from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.result import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from ccl_bench.base.registry import Registry
    from ccl_bench.leaderboard.bundle.format import BundleProvenance, Limits
    from ccl_bench.metrics import Metric
    from ccl_bench.result import Result

_MAX_SHOWN = 10
"""Mistakes shown; the rest is counted."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"\d[\w.+-]{0,49}", re.ASCII)
_MAX_CHARACTERS = 2000
"""Characters of a name or address."""

VALIDATE_FIX = "run ccl-bench validate on the run, correct what it reports, and publish again"


def validate_bundle(folder: Path, limits: Limits, hashes: Mapping[str, str] | None = None) -> Bundle:
    """Return the bundle in a folder; raise InputError with all of its problems.

    `hashes` are those of the run's files that were sent with it; empty if none were.
    """
    problems = [f"{name} is missing" for name in REQUIRED if not (folder / name).is_file()]
    problems += [
        f"{path.name} has more than {limits.of(path.name):,} bytes"
        for path in sorted(folder.iterdir())
        if path.stat().st_size > limits.of(path.name)
    ]
    bundle = Bundle(folder)
    if not problems:
        problems = list(_content_problems(bundle))
    if not problems:
        problems = list(_drawing_problems(bundle))
    if not problems and hashes:
        problems = list(_run_file_problems(bundle.provenance, hashes))
    if not problems:
        return bundle
    more = f"; and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
    raise InputError("; ".join(problems[:_MAX_SHOWN]) + more, where="the bundle is refused", fix=VALIDATE_FIX)


def _content_problems(bundle: Bundle) -> Iterator[str]:
    """Yield the problems of each file; an unreadable file does not hide problems of the others."""
    readable = True
    for about in (_card_problems, _provenance_problems, _results_problems, _report_problems):
        try:
            yield from about(bundle)
        except InputError as error:
            name = error.where.rpartition("/")[2]
            readable = False
            yield f"{name}: {error.message}" if name else error.message
        except RecursionError:
            readable = False
            yield "a file is nested too deeply"
    if readable:
        yield from _consistency_problems(bundle.provenance, bundle.results)
        yield from _repetition_problems(bundle)


def _drawing_problems(bundle: Bundle) -> Iterator[str]:
    """Yield what cannot be drawn of a bundle, by drawing it: what fails here would fail for its readers.

    Details are plain data, so that no type shows whether a comparison can read them.
    """
    results = {result.metric: result for result in bundle.results}
    side = RunResults(bundle.provenance.run, results, bundle.fields)
    names = sorted(result.metric for result in bundle.results if result.value is not None)
    uses: dict[str, Callable[[], object]] = {
        f"{RESULTS} cannot be compared": lambda: list(sections(compare_runs([side, side], names)))
    }
    if REPORT in bundle.files:
        uses[f"{REPORT} cannot be drawn"] = lambda: run_page(report_page(bundle.report), assets="", before=())
    for problem, use in uses.items():
        try:
            use()
        except Exception as error:
            yield f"{problem}: {type(error).__name__}: {str(error)[:200]}"


def _card_problems(bundle: Bundle) -> Iterator[str]:
    for issue in bundle.card.errors:
        yield f"{CARD}: {issue.path}: {issue.message}"


def _provenance_problems(bundle: Bundle) -> Iterator[str]:
    provenance = bundle.provenance
    if provenance.schema_version != 1:
        yield f"provenance.json has schema {provenance.schema_version}; this program supports 1"
    if (
        not 1 <= len(provenance.run) <= _MAX_CHARACTERS
        or "/" in provenance.run
        or provenance.run != plain(provenance.run)
    ):
        yield "the name of the run is empty, a path, or not printable"
    if not _VERSION.fullmatch(provenance.tool_version):
        yield f"{provenance.tool_version[:50]!r} is not a version of ccl-bench"
    if provenance.trace_url is not None and not (
        is_address(provenance.trace_url) and len(provenance.trace_url) <= _MAX_CHARACTERS
    ):
        yield "trace_url is not a full address such as https://... or s3://..."
    hashed_files = [(trace.file, trace.sha256) for trace in provenance.traces] + list(
        provenance.files.items()
    )
    for name, digest in hashed_files:
        if problem := name_problem(name):
            yield f"the name of the file {name[:100]!r} {problem}"
        if not _SHA256.fullmatch(digest):
            yield f"{name[:100]!r} has no valid SHA-256"
    if len({name for name, _ in hashed_files}) < len(hashed_files):
        yield "a file is named twice"
    if any(trace.size < 0 for trace in provenance.traces):
        yield "a trace has fewer than 0 bytes"
    fields = fields_of(bundle.card.value) | provenance.fields
    if len(fields) > (most := bounds()[PROVENANCE].fields):
        yield f"the card and {PROVENANCE} state {len(fields):,} fields; at most {most:,} are accepted"
        return
    for issue in read_fields(provenance.fields).errors:
        yield f"{PROVENANCE}: {issue.path}: {issue.message}"


def _results_problems(bundle: Bundle) -> Iterator[str]:
    if not any(result.status == "ok" for result in bundle.results):
        yield "no result has a value"
    for name, count in Counter(result.metric for result in bundle.results).items():
        if count > 1:
            yield f"{name[:100]} occurs {count} times"
    findings = sum(len(result.findings) for result in bundle.results)
    if findings > (most := bounds()[RESULTS].findings):
        yield f"the results have {findings:,} findings; at most {most:,} are accepted"
    sizes = [[len(level) for level in _levels(result.details)] for result in bundle.results]
    if (details := sum(map(sum, sizes))) > (most := bounds()[RESULTS].details):
        yield f"the results have {details:,} values in their details; at most {most:,} are accepted"
    if max(map(len, sizes), default=0) > (most := bounds()[RESULTS].depth):
        yield f"details are nested more than {most} levels deep"
    registry = metrics.load()
    for result in bundle.results:
        yield from (f"{result.metric[:100]}: {problem}" for problem in _result_problems(result, registry))


def _result_problems(result: Result, registry: Registry[Metric]) -> Iterator[str]:
    if result.metric not in registry or registry.get(result.metric).name != result.metric:
        yield "is not a metric of this version"
        return
    declared = registry.get(result.metric)
    if (result.unit, result.better) != (declared.unit, declared.better):
        yield f"is in {declared.unit}, {declared.better} is better"
    if result.provenance.metric_revision != declared.revision:
        revision = result.provenance.metric_revision
        yield f"has revision {revision} of its definition; this program has {declared.revision}"
    if result.schema_version != SCHEMA_VERSION:
        yield f"has schema {result.schema_version}; this program supports {SCHEMA_VERSION}"
    if (result.status == "ok") != (result.value is not None):
        yield "has a value that contradicts its status"
    elif result.value is not None and not math.isfinite(result.value):
        yield "is not a finite number"


def _levels(value: object) -> Iterator[list[object]]:
    """Yield the values at each depth of nested lists and mappings, without recursion."""
    level = [value]
    while level:
        yield level
        mappings = [each.values() for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [inner for each in (*mappings, *lists) for inner in each]


def _report_problems(bundle: Bundle) -> Iterator[str]:
    if REPORT not in bundle.files:
        return
    if bundle.report.results != bundle.results:
        yield f"{REPORT} has different results from the bundle"
    series, most = bundle.report.series, bounds()[REPORT]
    shown = {"series": series, "inspection": bundle.report.inspection, "diagnosed": bundle.report.diagnosed}
    values = [each for level in _levels(msgspec.to_builtins(shown)) for each in level]
    longest = max(len(each) for each in values if isinstance(each, list | dict))
    if longest > most.items:
        yield f"{REPORT} has a series of {longest:,} items; at most {most.items:,} are accepted"
    rows = sum(isinstance(item, dict) for each in values if isinstance(each, list) for item in each)
    if rows > most.rows:
        yield f"{REPORT} has {rows:,} rows; at most {most.rows:,} are accepted"
    grids = [grid for grid in (series.step_times and series.step_times.grid, series.waits) if grid]
    cells = max((sum(map(len, grid.values_s)) for grid in grids), default=0)
    if cells > most.cells:
        yield f"{REPORT} has a grid of {cells:,} cells; at most {most.cells:,} are accepted"
    if bundle.report.inspection.run != bundle.provenance.run:
        yield f"{REPORT} describes another run"


def _consistency_problems(provenance: BundleProvenance, results: Iterable[Result]) -> Iterator[str]:
    """Yield contradictions between the results and the provenance of the bundle."""
    hashes = {trace.file: trace.sha256 for trace in provenance.traces}
    for result in results:
        name, claim = result.metric, result.provenance
        if claim.tool_version != provenance.tool_version:
            yield f"{name} was measured with another version than the bundle: {claim.tool_version[:50]!r}"
        if provenance.metric_revisions.get(name) != claim.metric_revision:
            yield f"{name} has a different revision in provenance.json"
        if any(hashes.get(trace.file.partition("#")[0]) != trace.sha256 for trace in claim.traces):
            yield f"{name} uses a trace that provenance.json lacks or lists with another hash"
    if len({result.provenance.steps for result in results if result.provenance.steps}) > 1:
        yield "the results use different choices of steps"


class _RepeatedNameError(ValueError):
    """A name that occurs twice in one object."""


def _repetition_problems(bundle: Bundle) -> Iterator[str]:
    """Yield files in which a name occurs twice: some programs read the first value, and this one the last."""

    def check(pairs: list[tuple[str, object]]) -> None:
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:
            raise _RepeatedNameError(repeated[0])

    for file in (RESULTS, PROVENANCE, REPORT):
        if file in bundle.files:
            try:
                json.loads(bundle.text(file), object_pairs_hook=check)
            except _RepeatedNameError as error:
                yield f"{file}: {str(error)[:100]!r} occurs twice in an object"


def _run_file_problems(provenance: BundleProvenance, hashes: Mapping[str, str]) -> Iterator[str]:
    """Yield differences between the received files and those that provenance.json names."""
    claimed = {trace.file: trace.sha256 for trace in provenance.traces} | provenance.files
    for name in sorted(claimed.keys() - hashes.keys()):
        yield f"{name} is missing: send every file of the run, or none"
    for name in sorted(hashes.keys() - claimed.keys()):
        yield f"{name} is not among the files that provenance.json names"
    for name in sorted(claimed.keys() & hashes.keys()):
        if claimed[name] != hashes[name]:
            yield f"{name} is not the file that provenance.json names: its hash is {hashes[name][:12]}..."
