"""Judges what is concluded of a simulated run, against its truth."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from simulated_kineto import Form, write_ranks

from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from drawn_runs import Case
    from training_job import Job

    from ccl_bench.result.diagnosis import Diagnosed, Opportunity

CLOSE = 0.1
"""Share of the true gain by which a gain may be off."""

CLOSE_S = 0.0003
"""The same in seconds, for gains of a few milliseconds: some launches' worth."""

LENGTH = 0.01
"""Share by which the length of a step may be off."""

TIED = 0.02
"""Share by which another gain must be larger to be larger: a cause on one rank has two true names."""


@dataclass(frozen=True)
class Judgement:
    """What is right in an answer."""

    case: str
    regime: str
    truth: str
    answer: str
    is_named: bool
    """Whether the cause is named first; of a healthy run, and one with a hidden cause, whether nothing is."""
    is_gain_right: bool
    is_length_right: bool
    error: float | None
    """Gain over the true one, less 1."""
    alarms: tuple[str, ...] = ()
    """Diagnoses of a run in which nothing is to be named."""

    @property
    def is_right(self) -> bool:
        """Whether all of it is."""
        return self.is_named and self.is_gain_right and self.is_length_right


def judge(case: Case, diagnosed: Diagnosed) -> Judgement:
    """Judge an answer.

    A cause is named right if one of its diagnoses is given, with its ranks and with the word that its title
    must hold, and no other diagnosis has a gain that is larger by more than 2 %. A diagnosis that is true as
    well may have a larger gain, up to 10 % above its own true one.
    """
    found = diagnosed.diagnoses
    verdict = diagnosed.verdict
    length_s = case.step_s if case.stated_s is None else case.stated_s
    is_length_right = verdict is not None and abs(verdict.step_s - length_s) <= LENGTH * length_s
    truth = f"step {1e3 * length_s:.2f} ms"
    answer = _answer(diagnosed)
    if not case.rules:
        alarms = tuple(each.name for each in found)
        is_silent = not alarms and not diagnosed.why_no_gains
        return Judgement(
            case.name,
            case.regime,
            f"nothing, {truth}",
            answer,
            is_silent,
            is_silent,
            is_length_right,
            None,
            alarms,
        )
    ranks = "" if not case.ranks else f" of ranks {[*case.ranks]}"
    truth = f"{' or '.join(case.rules)}{ranks}, gain {1e3 * case.gain_s:.2f} ms, {truth}"
    own = next((each for each in found if _is_the_cause(case, each)), None)
    gain = None if own is None else own.gain_s
    if own is None or gain is None:
        return Judgement(case.name, case.regime, truth, answer, False, False, is_length_right, None)
    is_named = not any(_is_larger(case, each, gain) for each in found if each is not own)
    is_gain_right = abs(gain - case.gain_s) <= max(CLOSE * case.gain_s, CLOSE_S)
    error = gain / case.gain_s - 1
    return Judgement(
        case.name, case.regime, truth, answer, is_named, is_named and is_gain_right, is_length_right, error
    )


def _is_the_cause(case: Case, each: Opportunity) -> bool:
    return (
        each.name in case.rules
        and (case.ranks is None or each.ranks == [*case.ranks])
        and case.word in each.title
    )


def _is_larger(case: Case, other: Opportunity, gain: float) -> bool:
    if other.gain_s is None or other.gain_s <= gain * (1 + TIED):
        return False
    return other.gain_s > case.also.get(other.name, 0.0) * (1 + CLOSE) + CLOSE_S


def _answer(diagnosed: Diagnosed) -> str:
    """Return in words what the program concluded."""
    verdict, why = diagnosed.verdict, diagnosed.why_no_verdict or diagnosed.why_no_gains
    named = [
        f"{each.name}{each.ranks or ''} " + ("?" if each.gain_s is None else f"{1e3 * each.gain_s:.2f} ms")
        for each in diagnosed.diagnoses
    ]
    length = "no verdict" if verdict is None else f"step {1e3 * verdict.step_s:.2f} ms"
    return f"{', '.join(named) or 'nothing'}, {length}{f' ({why})' if why else ''}"


def write(case: Case, folder: Path) -> None:
    """Write the run of a case as its profiler would have."""
    job = case.program.job
    write_ranks(case.program.run(), form_of(job), folder)
    if job.pp > 1:
        replicas = job.ranks // job.pp
        plan = f"model_plan_parallelization: {{dp_replicate: {replicas}, tp: {job.tp}, pp: {job.pp}}}"
        (folder / "workload_card.yaml").write_text(f"Model-executor:\n  {plan}\n", encoding="utf-8")


def form_of(job: Job) -> Form:
    """Return how a job's files are written: clocks some µs apart, with and without what is optional."""
    random = Random(job.seed)
    name = "AMD Instinct MI300X" if job.is_hip else "NVIDIA A100-SXM4-80GB"
    return Form(
        device="" if job.on_cpu else name,
        skews_ns=tuple(random.randint(-8_000, 8_000) for _ in range(job.ranks)),
        has_arrows=random.random() < 0.5,
        has_twins=random.random() < 0.3,
        groups=job.groups(),
    )


def concluded(case: Case, keep: Path | None = None) -> Judgement:
    """Write a run, diagnose it, and judge the answer; the run is kept in a folder, if there is one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else keep / case.name.replace(":", "-")
        write(case, folder)
        return judge(case, diagnose(open_run(folder), jobs=1, use_cache=False))
