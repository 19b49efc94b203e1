"""Search by measuring: propose a configuration, write its folder, start it, measure it, until a budget.

The folder of a search has `history.csv`, a table of trials with the state of each, and a folder for each
trial. The history is written before a trial starts and after it ends, and a trial keeps the process and the
exit status of its command, so that a search that was killed goes on where it was, also while the command
still runs.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench.api.measured_run import open as open_measured
from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.registry import did_you_mean
from ccl_bench.card import card_in_text, read_card, write_card
from ccl_bench.collect.workloads import definition_named, workload_card, write_folder
from ccl_bench.predict.candidates import VARY, candidates
from ccl_bench.predict.recorded_trials import METRIC
from ccl_bench.predict.search import propose
from ccl_bench.predict.search_folder import (
    HISTORY,
    PREDICTED,
    Objective,
    Settings,
    read_earlier,
    read_history,
    search_report,
    write_settings,
)
from ccl_bench.predict.trials import (
    CONFIGURATION,
    Trials,
    complete_trials,
    read_trials,
    shown_configuration,
    table_text,
)
from ccl_bench.report.render import render_page
from ccl_bench.report.render.html import library
from ccl_bench.report.search import page_of_search
from ccl_bench.result.forecast import Percentiles, TrialAnswer
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccl_bench.card import Card
    from ccl_bench.collect.workloads import WorkloadDefinition

PAGE = "search.html"
OUTPUT, STATUS, PROCESS, RUN = "output.log", "exit_status", "process", "run"
"""Entries of a trial: what the command printed, its exit status, its process with its start, and its run."""

_MEMORY = re.compile(rb"OutOfMemoryError|out of memory|CUDA_ERROR_OUT_OF_MEMORY|oom[-_]kill", re.IGNORECASE)
"""What torch, CUDA, HIP and Slurm print if memory is too small."""
_LOG_BYTES = 1 << 20
"""End of a log that is searched: the failure is the last that it shows."""

_JOB = re.compile(r"Submitted batch job (\d+)")
_POLL_S = (0.2, 5.0)
"""First and longest wait between two looks at a process or a job."""

_DEGREES = {
    "tp": "tensor_parallel_degree",
    "dp": "data_parallel_shard_degree",
    "pp": "pipeline_parallel_degree",
}


@dataclass(frozen=True)
class Base:
    """What every trial shares: a card, and the definition of a workload if there is one."""

    card: Card
    definition: WorkloadDefinition | None
    row: pl.DataFrame
    """The configuration of the card, one row."""

    @classmethod
    def named(cls, name: str | Path) -> Base:
        """Return the base of a workload card, by its file, or of a definition, by its file or its name."""
        if Path(name).suffix in {".yaml", ".yml", ".json"}:
            return cls.of_card(Path(name))
        return cls.of_definition(definition_named(str(name)))

    @classmethod
    def of_card(cls, path: Path) -> Base:
        """Return the base that a workload card describes; InputError names what it lacks."""
        reading = read_card(path)
        for issue in reading.issues:
            if issue.severity == "error":
                raise InputError(issue.message, where=f"{path}: {issue.path}", fix=issue.fix)
        return cls(reading.value, None, _row(reading.value, str(path)))

    @classmethod
    def of_definition(cls, definition: WorkloadDefinition) -> Base:
        """Return the base of a definition; its configuration of torchtitan is that of its trials."""
        card = card_in_text(workload_card(definition)).value
        settings = definition.settings
        recomputes = definition.config.get("activation_checkpoint", {}).get("mode", "none") != "none"
        row = _row(card, definition.name, recompute=recomputes, accumulates=True)
        local = settings.training.local_batch_size
        size = row["micro_batch"][0] if row["pp"][0] > 1 else local
        return cls(card, definition, row.with_columns(micro_batch=pl.lit(float(size or 1))))

    def write(self, configuration: dict[str, Any], folder: Path) -> None:
        """Write the folder of one configuration: its card, and the scripts and settings of a definition."""
        if self.definition is None:
            plan = self.card.parallelism.model_copy(
                update={
                    "dp_replicate": None,
                    "dp_shard": None,
                    **{name: int(configuration[name]) for name in ("tp", "dp", "pp")},
                    "microbatch_size": int(configuration["micro_batch"]),
                }
            )
            executor = self.card.executor.model_copy(update={"parallelism": plan})
            folder.mkdir(parents=True, exist_ok=True)
            write_card(
                self.card.model_copy(update={"executor": executor}),
                folder / "workload_card.yaml",
                overwrite=True,
            )
            return
        pipelined = configuration["pp"] > 1
        size, batch = int(configuration["micro_batch"]), int(configuration["global_batch"])
        local = batch // int(configuration["dp"])
        tables: dict[str, dict[str, Any]] = {
            "parallelism": {name: int(configuration[short]) for short, name in _DEGREES.items()},
            "training": {"global_batch_size": batch, "local_batch_size": local if pipelined else size},
            "activation_checkpoint": {"mode": "full" if configuration["recompute"] else "none"},
        }
        if pipelined:
            tables["parallelism"]["pipeline_parallel_microbatch_size"] = size
        write_folder(self.definition.replace(name=folder.name, train_config=tables), folder, force=True)


def _row(
    card: Card, source: str, *, recompute: bool = False, accumulates: bool | None = None
) -> pl.DataFrame:
    """Return the configuration that a card states, as a row of trials."""
    plan, data, shape = card.parallelism, card.workload.data, card.workload.model.architecture
    device = card.workload.hardware.device
    multiplied = shape.num_params_active or shape.num_params
    per_layer = None
    if multiplied and shape.num_layers and shape.num_params_embedding:
        per_layer = (multiplied - 2 * shape.num_params_embedding) / shape.num_layers
    values = {
        "framework": card.executor.framework.name,
        "model": card.workload.model.model_family,
        "gpu": device.model,
        "gpus": device.device_count,
        "gpus_per_node": device.devices_per_node,
        "seq_len": data.seq_len,
        "global_batch": card.global_batch_size,
        "micro_batch": plan.microbatch_size or 1,
        "tp": plan.tp,
        "dp": plan.data_parallel,
        "pp": plan.pp,
        "ep": plan.ep,
        "cp": plan.cp,
        "layers": shape.num_layers,
        "hidden": shape.hidden_size,
        "heads": shape.num_heads,
        "vocabulary": shape.vocab_size,
        "layer_parameters": per_layer,
        "recompute": recompute,
        "accumulates": accumulates,
    }
    return complete_trials(
        pl.DataFrame({name: [None if value is None else str(value)] for name, value in values.items()}),
        source,
    ).rows


def search(
    base: str | Path,
    *,
    run: str,
    folder: str | Path = "search",
    budget: int = 8,
    vary: Iterable[str] = VARY,
    trials: str | Path | None = None,
    study: str | None = None,
    objective: Objective = "tokens",
) -> Search:
    """Return a search for the fastest configuration; iterating over it measures, trial by trial.

    `base` is a workload card, or a definition of a workload by its file or name; `run` is the command for
    bash that records one trial, as `ccl-bench search --run` takes it. The history, the page and a folder for
    each trial are in `folder`, where a search that was interrupted goes on. `budget` counts all trials in the
    folder; `trials` is a table of earlier ones of the same workload, of which `study` chooses rows.
    `objective` is `tokens` per second and device, or tokens per `dollar` at the price of the card.

    Raises UsageError for a setting that cannot be varied or an objective without its data, and InputError for
    a file that cannot be read.
    """
    varied = tuple(vary)
    unknown = [name for name in varied if name not in VARY]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} cannot be varied",
            fix=did_you_mean(unknown[0], VARY) or f"choose from {', '.join(VARY)}",
        )
    earlier = read_trials(trials).of_study(study) if trials is not None else None
    origin = Base.named(base)
    return Search(origin, Path(folder), run, budget=budget, vary=varied, earlier=earlier, objective=objective)


class Search:
    """A search in a folder; each trial that it yields has ended, and is in the history and on the page."""

    def __init__(
        self,
        base: Base,
        folder: Path,
        command: str,
        *,
        budget: int = 8,
        vary: tuple[str, ...] = VARY,
        earlier: Trials | None = None,
        objective: Objective = "tokens",
    ) -> None:
        """`command` is for bash; `earlier` trials of the same workload calibrate too; see `search`."""
        price = base.card.workload.hardware.price_per_device_hour
        if objective == "dollar" and price is None:
            raise UsageError(
                "the card states no price, so tokens per dollar are unknown",
                fix="add workload.hardware.price_per_device_hour, in US dollars",
            )
        if objective == "joule":
            raise UsageError(
                "a search cannot maximise tokens per joule: nothing predicts the power of a configuration",
                fix="search for tokens, and compare energy_per_token of the trials",
            )
        library()  # what the page lacks shows before a trial runs
        self._base = base
        self._budget = budget
        self._folder = folder
        self._command = command
        self._candidates = candidates(base.row, vary=vary)
        self._process: subprocess.Popen[bytes] | None = None
        if not self._candidates.height:
            raise UsageError(
                "no configuration shares this step evenly", fix="change the global batch or the devices"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder, Settings(vary, objective, price), earlier)
        calibrating = read_earlier(folder)
        self._earlier = calibrating.rows if calibrating else None

    @property
    def history(self) -> pl.DataFrame | None:
        """The trials so far, None before the first."""
        return read_history(self._folder)

    @property
    def best(self) -> dict[str, object] | None:
        """The best measured configuration; None before one ran."""
        row = self._best
        return None if row is None else shown_configuration(row)

    @property
    def best_tokens_per_s_per_gpu(self) -> float | None:
        """Tokens per second and device of the best measured configuration; None before one ran."""
        row = self._best
        if row is None:
            return None
        return float(row["global_batch"] * row["seq_len"] / row["gpus"] / row["step_s"])

    @property
    def _best(self) -> dict[str, Any] | None:
        history = self.history
        ran = None if history is None else history.filter(pl.col("step_s").is_not_null())
        # Trials share devices, batch and sequence length, so that the shortest step has most tokens.
        return ran.sort("step_s").row(0, named=True) if ran is not None and ran.height else None

    @property
    def page(self) -> Path:
        """The page of the search, of the state after the last trial."""
        return self._folder / PAGE

    def __iter__(self) -> Iterator[TrialAnswer]:
        """Measure until the budget is used, or nothing is left; first end what was cut off."""
        history = self.history
        while True:
            pending = None if history is None else history.filter(pl.col("status") == "running")
            if pending is not None and pending.height:
                row = pending.row(0, named=True)
                ended = self._ended(row)
                replace_text(self.page, render_page(page_of_search(search_report(self._folder)), "html"))
                yield ended
                history = self.history
                continue
            if history is not None and history.height >= self._budget:
                return
            following = self._next(history)
            if following is None:
                return
            self._keep(following)
            self._start(following)
            history = self.history

    def _next(self, history: pl.DataFrame | None) -> dict[str, Any] | None:
        """Return the row of the next trial: the configuration of the base first, then what may gain most."""
        number = 1 if history is None else history.height + 1
        if history is None:
            row, predicted = self._base.row.row(0, named=True), None
            same = [pl.col(name) == row[name] for name in CONFIGURATION if row[name] is not None]
            first = self._candidates.filter(pl.all_horizontal(same))
            if first.height:
                row = first.row(0, named=True)
        else:
            tables = [history, *([] if self._earlier is None else [self._earlier])]
            shared = [each.select(self._candidates.columns) for each in tables]
            proposal = propose(self._candidates, pl.concat(shared))
            if proposal is None:
                return None
            row, predicted = self._candidates.row(proposal.index, named=True), proposal.step_s
        numbered = {**row, "number": number}
        return {
            **numbered,
            "folder": _folder_name(numbered),
            "status": "running",
            **dict(zip(PREDICTED, astuple(predicted) if predicted else (None, None, None), strict=True)),
            "reason": None,
        }

    def _start(self, row: dict[str, Any]) -> None:
        """Write the folder of a trial and start its command, whose exit status it keeps by itself."""
        self._reap()
        folder = self._folder / _folder_name(row)
        self._base.write(row, folder)
        (folder / STATUS).unlink(missing_ok=True)
        if (folder / RUN).exists():
            # A recording that was cut off stays beside the one that replaces it.
            (folder / RUN).rename(folder / f"{RUN}-cut-off-{time.time_ns()}")
        names = ("tp", "dp", "pp", "micro_batch", "global_batch", "seq_len")
        environment = {
            **os.environ,
            "CCL_BENCH_OUTPUT": str((folder / RUN).resolve()),
            "TRACES": str((folder / "runs").resolve()),
            **{name.upper(): f"{row[name]:g}" for name in names},
            "RECOMPUTE": str(int(row["recompute"])),
        }
        script = f"( {self._command}\n); echo $? > {STATUS}.new; mv {STATUS}.new {STATUS}"
        with (folder / OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 (running what the user asked for is the purpose)
                ["bash", "-c", script],  # noqa: S607 (the user's own bash)
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid = self._process.pid
        replace_text(folder / PROCESS, f"{pid} {_started(pid)}\n")

    def _ended(self, row: dict[str, Any]) -> TrialAnswer:
        """Wait for the end of a trial, measure it, and return it; one that vanished is started again."""
        folder = self._folder / _folder_name(row)
        while not (folder / STATUS).exists():
            if not _is_running(folder / PROCESS) and not (folder / STATUS).exists():
                self._start(row)
            self._wait(lambda: (folder / STATUS).exists() or not _is_running(folder / PROCESS), folder)
        output = (folder / OUTPUT).read_text(errors="replace")
        self._reap()
        failures = []
        for job in _JOB.findall(output):
            self._wait(partial(_has_left_queue, job), folder)
            state = _state_of(job)
            failures += [f"job {job}: {state}"] if state not in {"", "COMPLETED"} else []
        row = {**row, **self._measured(folder, failures)}
        self._keep(row)
        predicted = [row[name] for name in PREDICTED]
        return TrialAnswer(
            row["number"],
            shown_configuration(row),
            None if predicted[1] is None else Percentiles(*predicted),
            row["step_s"],
            row["status"],
            row["reason"],
            str(folder),
        )

    def _reap(self) -> None:
        """Take the exit status of the last process, which has ended, from the system."""
        if self._process is not None:
            self._process.wait()

    @staticmethod
    def _wait(ends: Callable[[], bool], folder: Path) -> None:
        pause, longest = _POLL_S
        try:
            while not ends():
                time.sleep(pause)
                pause = min(pause * 1.5, longest)
        except KeyboardInterrupt:
            _stop(folder / PROCESS)
            raise

    def _measured(self, folder: Path, failures: list[str]) -> dict[str, Any]:
        """Return step time, status and reason of a trial that has ended; `failures` are those of its jobs."""
        status = (folder / STATUS).read_text().strip()
        if status != "0":
            failures = [f"exit status {status}", *failures]
        run = _run_of(folder)
        if not failures and run is None:
            failures = ["the command left no run"]
        if failures or run is None:
            logs = [folder / OUTPUT, *folder.rglob("*.log"), *folder.rglob("*.out")]
            is_memory = any(_MEMORY.search(_end(each)) for each in logs if each.is_file())
            return {"step_s": None, "status": "oom" if is_memory else "failed", "reason": ", ".join(failures)}
        try:
            result = open_measured(str(run)).results([METRIC])[0]
        except CclBenchError as error:
            return {"step_s": None, "status": "failed", "reason": error.message}
        if result.value is None:
            return {"step_s": None, "status": "failed", "reason": f"no step time: {result.reason}"}
        return {"step_s": float(result.value), "status": "measured", "reason": None}

    def _keep(self, row: dict[str, Any]) -> None:
        """Put a trial into the history, in place of an earlier state of it."""
        history = self.history
        others = [] if history is None else history.filter(pl.col("number") != row["number"]).to_dicts()
        table = pl.DataFrame([*others, row], infer_schema_length=None).sort("number")
        replace_text(self._folder / HISTORY, table_text(table))


def _folder_name(row: dict[str, Any]) -> str:
    """Return the folder of a trial; what a history states is not used, because it may lead elsewhere."""
    degrees = "-".join(f"{name}{row[name]:g}" for name in ("tp", "dp", "pp"))
    return f"{row['number']:02}-{degrees}-mb{row['micro_batch']:g}{'-recompute' * bool(row['recompute'])}"


def _run_of(folder: Path) -> Path | None:
    """Return the run that the command of a trial left, the newest of several."""
    places = [folder / RUN, *sorted((folder / "runs").glob("*"), reverse=True)]
    return next((each for each in places if each.is_dir() and any(each.iterdir())), None)


def _end(path: Path) -> bytes:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return log.read()


def _started(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty if it has ended (proc(5): 3 and 22)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _is_running(path: Path) -> bool:
    pid, _, started = path.read_text().strip().partition(" ") if path.exists() else ("", "", "")
    return bool(started) and _started(int(pid)) == started


def _stop(path: Path) -> None:
    if _is_running(path):
        os.killpg(int(path.read_text().split()[0]), signal.SIGTERM)


def _has_left_queue(job: str) -> bool:
    """Whether Slurm has no such job any more; a controller that does not answer says nothing of it."""
    answer = _asked_of_slurm(f"squeue --noheader --jobs={job} --format=%T")
    if answer.returncode:
        return "Invalid job id" in answer.stderr
    return not answer.stdout.strip()


def _state_of(job: str) -> str:
    """Return the state in which a job ended, such as FAILED; empty once Slurm has forgotten it."""
    shown = re.search(r"\bJobState=(\w+)", _asked_of_slurm(f"scontrol --oneliner show job {job}").stdout)
    return shown[1] if shown else ""


def _asked_of_slurm(command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 (Slurm's own, with a number)
            shlex.split(command), capture_output=True, text=True, check=False
        )
    except OSError:
        fix = "search where Slurm's commands are, or let the command of --run wait for its job"
        raise InputError(f"a job was submitted, and {command.split()[0]} is missing", fix=fix) from None
