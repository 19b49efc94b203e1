"""Export of results to experiment trackers: TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench import metrics
from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.base.extras import require
from ccl_bench.base.registry import did_you_mean, spelling
from ccl_bench.base.text import plain
from ccl_bench.comparison.load_results import load_results
from ccl_bench.integrations.watching.watch import LIST, MeasuredWindow, last_step
from ccl_bench.result import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccl_bench.engine import Progress
    from ccl_bench.integrations.watching.watch import Sink

PREFIX = "ccl_bench/"
"""Prefix of the names of all numbers."""

FINDINGS = f"{PREFIX}findings"
UNITS = f"{PREFIX}units"

_TEXT_CHARACTERS = 4_000
_TAG_CHARACTERS = 60
_WAY_OUT = "check the address, the credentials, the network and the disk that the tracker's own settings name"


def log_results(run: str | Path, to: str, *, step: int | None = None, name: str = "") -> int:
    """Log the results of a run to a tracker and return the number of logged values.

    `run` is a directory, a trace file, a file of results, or a directory from `ccl-bench watch -o`, of
    which every window is logged with its step. `to` is `tensorboard:DIR`, `wandb:PROJECT` or
    `mlflow:EXPERIMENT`; an active run of the last two in this process is used. `step` is for a run without
    own steps, `name` for the tracker's run.
    """
    parse_tracker(to)
    windows = load_windows(run, step=step, name=name)
    tracker = open_tracker(to, windows[0].run)
    with contextlib.closing(tracker):
        for window in windows:
            tracker.show(window)
    return sum(len(window.values) for window in windows)


def load_windows(
    place: str | Path,
    names: Sequence[str] = (),
    *,
    step: int | None = None,
    name: str = "",
    progress: Progress | None = None,
) -> list[MeasuredWindow]:
    """Return the data to log of a run, or of the windows of a watch, in order of steps."""
    folder = Path(place)
    if (folder / LIST).is_file():
        windows = list(_kept_windows(folder, {*names}))
        if not windows:
            raise InputError(
                "contains no measured window", where=str(folder / LIST), fix="wait for the first one"
            )
        return sorted((replace(w, run=name or w.run) for w in windows), key=lambda w: (w.step or 0, w.at))
    metric_names = names or [metric.name for metric in metrics.load() if not metric.variant_of]
    results = [*load_results(str(place), metric_names, progress=progress).results.values()]
    results = [result for result in results if not names or result.metric in names]
    findings = [*dict.fromkeys(each for result in results for each in result.findings)]
    at = last_step(results) if step is None else step
    run_name = name or Path(str(place)).resolve().name
    return [MeasuredWindow(run_name, "", at, 0, [], results, findings, "", "")]


def _kept_windows(folder: Path, names: set[str]) -> Iterator[MeasuredWindow]:
    """Yield the last measurement of each window in the list of a watch."""
    last: dict[str, dict[str, Any]] = {}
    for line in (folder / LIST).read_bytes().splitlines():
        with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
            record = msgspec.json.decode(line)
            last[record["window"]] = record
    for record in last.values():
        file = folder / Path(str(record.get("results"))).name
        try:
            results = from_json(file.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            fix = f"remove its line from {LIST}, or measure the window again"
            raise InputError(f"holds no results: {error}", where=str(file), fix=fix) from error
        results = [result for result in results if not names or result.metric in names]
        findings = [*dict.fromkeys(each for result in results for each in result.findings)]
        step = record["step"] if isinstance(record.get("step"), int) else None
        run, window, at = (str(record.get(key, "")) for key in ("run", "window", "at"))
        yield MeasuredWindow(run, window, step, 0, [], results, findings, "", at)


def parse_tracker(to: str) -> tuple[str, str]:
    """Return name and place of the tracker at `NAME:PLACE`; raise UsageError for an unknown tracker."""
    kind, _, place = to.partition(":")
    kind = spelling(kind)
    if kind not in _TRACKERS:
        fix = did_you_mean(kind, _TRACKERS) or "write tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT"
        raise UsageError(f"there is no tracker {kind!r}", fix=fix)
    if not place:
        raise UsageError(f"{to!r} has no place", fix=f"write {kind}:{_PLACES[kind]}")
    return kind, place


def open_tracker(to: str, run: str) -> Sink:
    """Return the tracker at `NAME:PLACE`, for a run of this name; raise UsageError for an unknown one."""
    kind, place = parse_tracker(to)
    with _errors_of(to):
        return _TRACKERS[kind](place, plain(run)[:_TAG_CHARACTERS])


@contextlib.contextmanager
def _errors_of(tracker: str) -> Iterator[None]:
    """Convert any exception of a tracker into our own error."""
    try:
        yield
    except CclBenchError:
        raise
    except ModuleNotFoundError as error:
        message = f"{tracker} needs the package {error.name}, which is not installed"
        raise UsageError(message, fix=f"pip install {error.name}") from error
    except Exception as error:
        first = plain(str(error).strip().partition("\n")[0])[:300]
        raise CclBenchError(f"{tracker}: {type(error).__name__}: {first}", fix=_WAY_OUT) from error


def _numbers(window: MeasuredWindow) -> dict[str, float]:
    """Return name → value of the metrics with a value, in their units."""
    return {f"{PREFIX}{each.metric}": each.value for each in window.results if each.value is not None}


def _units(window: MeasuredWindow) -> dict[str, str]:
    return {result.metric: result.unit for result in window.values}


def _codes(window: MeasuredWindow) -> list[str]:
    return sorted({finding.code for finding in window.findings})


def _text(window: MeasuredWindow) -> str:
    """Return the findings as a list in Markdown."""
    lines = [f"- {f.severity} `{f.code}`: {plain(f.message)[:400]}" for f in window.findings]
    return "\n".join(lines)[:_TEXT_CHARACTERS] or "no findings about the data"


_event_files = itertools.count()
"""Numbers of the event files of this process, which distinguish those of one second."""


class TensorBoard:
    """An event file in a directory, written without torch or TensorFlow.

    TensorBoard's own writer has a thread, which prints a traceback if the disk is full.
    """

    def __init__(self, place: str, run: str) -> None:
        records = require("tensorboard.summary.writer.record_writer", "tensorboard")
        self._events = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summaries = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._tensors = require("tensorboard.compat.proto.tensor_pb2", "tensorboard")
        folder = Path(place).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file", fix="give a directory for event files")
        self._place = place
        self._run = run
        self._described: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        at = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_event_files)}"
        path = folder / f"events.out.tfevents.{at}"
        self._writer = records.RecordWriter(path.open("xb"))
        try:
            self._write(file_version="brain.Event:2")
        except OSError:
            path.unlink()
            self.close()
            raise

    def show(self, window: MeasuredWindow) -> None:
        """Log a window; its findings are a text."""
        units = _units(window)
        metadata, value_of = self._summaries.SummaryMetadata, self._summaries.Summary.Value
        values = []
        for tag, number in _numbers(window).items():
            described = None  # only the first occurrence of a number has its unit
            if tag not in self._described:
                self._described.add(tag)
                about = f"in {units[tag.removeprefix(PREFIX)]}, of {self._run}"
                of_scalars = metadata.PluginData(plugin_name="scalars")
                described = metadata(summary_description=about, plugin_data=of_scalars)
            values.append(value_of(tag=tag, simple_value=number, metadata=described))
        # TensorBoard's text plug-in reads a tensor of one text.
        content = self._tensors.TensorProto(dtype="DT_STRING", string_val=[_text(window).encode()])
        content.tensor_shape.dim.add(size=1)
        of_texts = metadata(plugin_data=metadata.PluginData(plugin_name="text"))
        values.append(value_of(tag=FINDINGS, metadata=of_texts, tensor=content))
        summary = self._summaries.Summary(value=values)
        with _errors_of(f"tensorboard:{self._place}"):
            self._write(step=window.step or 0, summary=summary)

    def _write(self, **content: Any) -> None:
        self._writer.write(self._events.Event(wall_time=time.time(), **content).SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        with _errors_of(f"tensorboard:{self._place}"):
            self._writer.close()


class WeightsAndBiases:
    """A run of a project, the active one or a new one; WANDB_MODE and others set the destination."""

    def __init__(self, place: str, run: str) -> None:
        wandb = require("wandb", "wandb")
        self._place = place
        self._is_own = wandb.run is None
        settings = wandb.Settings(console="off", disable_code=True, x_disable_stats=True, silent=True)
        self._run = wandb.run or wandb.init(project=place, name=run, job_type="ccl-bench", settings=settings)

    def show(self, window: MeasuredWindow) -> None:
        """Log a window; findings are tags by code, and a text in the summary."""
        with _errors_of(f"wandb:{self._place}"):
            self._run.config.update({UNITS: _units(window)}, allow_val_change=True)
            codes = (code[:_TAG_CHARACTERS] for code in _codes(window))
            self._run.tags = tuple(dict.fromkeys([*(self._run.tags or ()), *codes]))
            self._run.log(_numbers(window), step=window.step)
            self._run.summary[FINDINGS] = _text(window)

    def close(self) -> None:
        """End the run, unless somebody else began it."""
        if self._is_own:
            with _errors_of(f"wandb:{self._place}"):
                self._run.finish()


class MlFlow:
    """A run of an experiment, the active one or a new one; MLFLOW_TRACKING_URI sets the destination."""

    def __init__(self, place: str, run: str) -> None:
        self._place = place
        mlflow = require("mlflow", "mlflow")
        active = mlflow.active_run()
        self._is_own = active is None
        self._client = mlflow.MlflowClient()
        if active is None:
            existing = self._client.get_experiment_by_name(place)
            number = existing.experiment_id if existing else self._client.create_experiment(place)
            active = self._client.create_run(number, run_name=run)
        self._run_id = str(active.info.run_id)

    def show(self, window: MeasuredWindow) -> None:
        """Log a window; findings are a tag with their text, and one for each code."""
        from mlflow.entities import Metric, RunTag

        now_ms, step = round(1_000 * time.time()), window.step or 0
        numbers = [Metric(name, number, now_ms, step) for name, number in _numbers(window).items()]
        tags = [RunTag(FINDINGS, _text(window)), RunTag(UNITS, json.dumps(_units(window)))]
        tags += [RunTag(f"{PREFIX}finding/{code}", "yes") for code in _codes(window)]
        with _errors_of(f"mlflow:{self._place}"):
            self._client.log_batch(self._run_id, metrics=numbers, tags=tags[:100])  # the most of one call

    def close(self) -> None:
        """End the run, unless somebody else began it."""
        if self._is_own:
            with _errors_of(f"mlflow:{self._place}"):
                self._client.set_terminated(self._run_id)


_TRACKERS: dict[str, Callable[[str, str], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MlFlow,
}
_PLACES = {"tensorboard": "DIR", "wandb": "PROJECT", "mlflow": "EXPERIMENT"}
