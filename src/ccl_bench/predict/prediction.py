"""Predictions from one recorded run: the step of another configuration, with its interval or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from ccl_bench.analysis.facts import tokens_per_step
from ccl_bench.base.errors import InputError, NotMeasurable, NoValue, UsageError
from ccl_bench.base.findings import Finding
from ccl_bench.evaluate.load import load_tables
from ccl_bench.predict.memory import MemoryModel
from ccl_bench.predict.networks import predict_on_network
from ccl_bench.predict.recorded_run import recorded_pipeline
from ccl_bench.predict.recorded_trials import configuration_of_run, table_of
from ccl_bench.predict.schedule_graph import Shape, predicted_steps, replay_error, stage_work
from ccl_bench.result.prediction import Memory, Prediction
from ccl_bench.whatif.answer import MOST_UNEXPLAINED, replay_recorded
from ccl_bench.whatif.pipeline_orders import GPIPE, ONE_F_ONE_B, Schedule, parse_schedule, stage_order
from ccl_bench.whatif.run_graph import TABLES, graph_of
from ccl_bench.whatif.run_replays import RunReplays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.analysis.facts import Facts
    from ccl_bench.engine import Progress
    from ccl_bench.predict.recorded_run import RecordedPipeline
    from ccl_bench.result.prediction import Quantiles
    from ccl_bench.run import Run
    from ccl_bench.whatif.event_graph import Times

DRAWS = 400
"""Draws of a prediction: the standard error of the tenth percentile's rank is 1.5 %."""

_MOST_TIMES = 4_000_000
"""Largest number of slots times draws; larger pipelines are drawn less often, for memory."""

_FEWEST_DRAWS = 40

MODEL_ERROR = 0.05
"""Standard deviation of the logarithm of predicted over measured median steps.

Held-out recordings over gloo, on a machine whose load changed little between them; docs/predict.md has them.
"""

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}

_SEVERAL_RUNS = "give several measured configurations: ccl-bench predict --from TRIALS"


@dataclass(frozen=True)
class Asked:
    """The configuration to predict; None is as recorded."""

    dp: int | None = None
    pp: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    layers: int | None = None
    """Layers of the model; None is as the run states."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Degrees that one run cannot answer unless they are as recorded: tp, cp, ep, micro_batch."""
    allow_other_batch: bool = False
    network: str | None = None
    """Another network for the recorded configuration, as `parse_network` takes it."""
    doubling: bool = False
    """Whether to answer what twice the bandwidth of each link is worth."""


@dataclass(frozen=True)
class _Configuration:
    """A configuration of the run, recorded or asked for."""

    dp: int
    pp: int
    microbatches: int
    schedule: Schedule
    inner: int
    """Ranks of one stage and replica: tp times cp."""
    micro_batch: float | None
    """Sequences of a microbatch; None if unknown."""

    @property
    def ranks(self) -> int:
        return self.dp * self.pp * self.inner

    @property
    def shape(self) -> Shape:
        return Shape(self.pp, self.dp * self.inner, self.microbatches, self.schedule)

    def shown(self, facts: Facts) -> dict[str, object]:
        """Return the configuration as answers have it."""
        others = {name: fact.value for name in ("tp", "cp", "ep") if (fact := getattr(facts, name))}
        batch = None if self.micro_batch is None else self.micro_batch * self.microbatches * self.dp
        return {
            "dp": self.dp,
            "pp": self.pp,
            **others,
            "microbatches": self.microbatches,
            "micro_batch": self.micro_batch,
            "global_batch": batch,
            "schedule": str(self.schedule),
            "gpus": self.ranks,
        }


def predict_run(
    run: Run,
    request: Asked,
    *,
    seed: int = 0,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> Prediction:
    """Return the predicted step of a run in another configuration; `refused` states why there is none.

    Raises UsageError for an unknown schedule, or one that its stages and microbatches do not fit.
    """
    shape = (request.dp, request.pp, request.microbatches, request.schedule, request.layers)
    if (request.network or request.doubling) and any(each is not None for each in shape):
        fix = "ask for one, and then for the other"
        raise UsageError("a network is predicted for the recorded configuration alone", fix=fix)
    loaded = load_tables(run, (*TABLES, "phased_work"), jobs=jobs, use_cache=use_cache, progress=progress)
    name = run.path.name
    try:
        graph = graph_of(run, loaded)
        replays = RunReplays(graph)
        _, unexplained = replay_recorded(replays)
        facts: Facts = loaded.inputs["facts"]
        if request.network or request.doubling:
            return predict_on_network(
                name, replays, facts, unexplained, request.network, doubling=request.doubling
            )
        recorded = recorded_pipeline(graph, replays.recorded_s, loaded.inputs.get("phased_work"))
    except NoValue as error:
        return _refusal(name, request, error, seed)
    prediction = predict_pipeline(
        name, recorded, facts, request, unexplained=unexplained, seed=seed, findings=graph.findings
    )
    return replace(prediction, memory=_memory(run, prediction.configuration))


def _memory(run: Run, configuration: Mapping[str, object]) -> Memory:
    """Return what a configuration of a run needs; nothing if the run does not state its shapes."""
    settings = {name: configuration.get(name) for name in ("dp", "pp", "micro_batch", "global_batch", "gpus")}
    try:
        rows = table_of([{**configuration_of_run(run), **settings}], run.path.name).rows
    except InputError:
        return Memory()
    return MemoryModel(rows.clear()).judge(rows)[0]


def predict_pipeline(
    name: str,
    recorded: RecordedPipeline,
    facts: Facts,
    request: Asked,
    *,
    unexplained: float = 0.0,
    seed: int = 0,
    findings: Sequence[Finding] = (),
) -> Prediction:
    """Return the predicted step of a recorded pipeline in another configuration, or a refusal."""
    try:
        return _predict(name, recorded, facts, request, unexplained, seed, [*findings, *recorded.findings])
    except NoValue as error:
        return _refusal(name, request, error, seed)


def _refusal(name: str, request: Asked, error: NoValue, seed: int) -> Prediction:
    wanted = {key: value for key, value in vars(request).items() if value and key != "others"}
    return Prediction(name, wanted | {**request.others}, refused=error.message, fix=error.fix, seed=seed)


def _predict(
    name: str,
    recorded: RecordedPipeline,
    facts: Facts,
    request: Asked,
    unexplained: float,
    seed: int,
    findings: list[Finding],
) -> Prediction:
    was = _recorded_configuration(recorded, facts)
    now = _asked_configuration(was, facts, request)
    layers = request.layers or (facts.num_layers.value if facts.num_layers else None)
    regroups = layers is not None and (now.pp != was.pp or now.schedule.chunks > 1)
    if regroups:
        parts = now.pp * now.schedule.chunks
        for count, of in ((was.pp, "recorded"), (parts, "asked")):
            if layers and layers % count:
                message = f"{layers} layers do not divide into {count} equal parts of the {of} pipeline"
                raise NotMeasurable(message, fix="choose stages that divide the layers, or give --layers")
    same_model = regroups or now.pp == was.pp
    if not same_model:
        message = (
            "the number of layers is unknown, so that a stage computes as long as a recorded one, whatever "
            "their number: that is a model of another size"
        )
        findings.append(Finding("stage-work-kept", "note", message))
    draws = min(
        DRAWS, max(_FEWEST_DRAWS, _MOST_TIMES // (2 * now.shape.replicas * now.pp * now.microbatches))
    )
    error = float(replay_error(recorded, was.shape).mean() - 1)
    if abs(error) > MOST_UNEXPLAINED:
        message = (
            f"its schedule with its own durations gives steps that are {100 * error:+.0f} % off, more than "
            f"{100 * MOST_UNEXPLAINED:.0f} %: its steps do other things than slots, messages and reductions"
        )
        raise NotMeasurable(
            message, where=name, fix="leave out steps that differ from the others with --steps"
        )
    work = stage_work(recorded, now.shape, regroups=regroups)
    steps = predicted_steps(recorded, now.shape, work, draws, seed)
    if now != was:
        # Quantiles of the normal distribution in random order: of so few draws the tenth percentile is exact.
        normal = NormalDist(0, MODEL_ERROR).quantiles(draws + 1)
        steps = steps * np.exp(np.random.default_rng(seed + 1).permutation(normal))
    same_work = same_model and not _other_batch(was, now)
    tokens = tokens_per_step(facts)
    rates = None
    if tokens and same_work:
        rates = _quantiles(tokens.value / steps / now.ranks)
    return Prediction(
        run=name,
        configuration=now.shown(facts),
        recorded={**was.shown(facts), "step_s": _quantiles(recorded.recorded_s)},
        step_s=_quantiles(steps),
        tokens_per_s_per_gpu=rates,
        gain_s=float(np.median(recorded.recorded_s) - np.median(steps)) if same_work else None,
        stage_work="regrouped" if regroups else "recorded",
        error_ratio=error,
        unexplained=unexplained,
        draws=draws,
        seed=seed,
        findings=findings,
    )


def _quantiles(values: Times) -> Quantiles:
    return {name: float(np.quantile(values, at)) for name, at in _QUANTILES.items()}


def _recorded_configuration(recorded: RecordedPipeline, facts: Facts) -> _Configuration:
    """Return the recorded configuration; raise NotMeasurable if facts and traces contradict each other."""
    ranks = recorded.stages * recorded.replicas
    if facts.world_size and facts.world_size.value != ranks:
        message = f"{ranks} of {facts.world_size.value} ranks have a trace"
        raise NotMeasurable(message, fix="record every rank")
    replicas = [facts.dp_replicate, facts.dp_shard] if not facts.dp else [facts.dp]
    degrees = [degree.value for degree in replicas if degree]
    inner = (facts.tp.value if facts.tp else 1) * (facts.cp.value if facts.cp else 1)
    dp = int(np.prod(degrees)) if degrees else max(1, recorded.replicas // inner)
    if dp * inner != recorded.replicas:
        message = f"a stage has {recorded.replicas} ranks, but the run states dp {dp}, tp and cp {inner}"
        raise NotMeasurable(message, fix="correct the degrees in the workload card")
    if facts.microbatches and facts.microbatches.value != recorded.microbatches:
        message = (
            f"the traces show {recorded.microbatches} microbatches, but the {facts.microbatches.source} "
            f"states {facts.microbatches.value}"
        )
        raise NotMeasurable(
            message, fix="correct the workload card; interleaved schedules are not understood"
        )
    for name in (ONE_F_ONE_B, GPIPE):
        schedule = Schedule(name)
        orders = [
            tuple(slot.kind for slot in stage_order(schedule, recorded.stages, stage, recorded.microbatches))
            for stage in range(recorded.stages)
        ]
        if orders == [*recorded.orders]:
            break
    else:
        message = "the recorded schedule is neither 1f1b nor gpipe"
        raise NotMeasurable(message, fix="record one of these; others can be predicted, not started from")
    batch = facts.global_batch_size
    size = batch.value / (recorded.microbatches * dp) if batch else None
    return _Configuration(dp, recorded.stages, recorded.microbatches, schedule, inner, size)


def _asked_configuration(was: _Configuration, facts: Facts, request: Asked) -> _Configuration:
    """Return the configuration asked for; raise NotMeasurable if one run does not answer it."""
    recorded_values: dict[str, Any] = {"micro_batch": was.micro_batch}
    recorded_values |= {name: fact.value for name in ("tp", "cp", "ep") if (fact := getattr(facts, name))}
    for name, value in request.others.items():
        if value != recorded_values.get(name, 1):
            raise NotMeasurable(f"one run does not show what another {name} changes", fix=_SEVERAL_RUNS)
    dp, pp = request.dp or was.dp, request.pp or was.pp
    if was.dp == 1 < dp:
        message = "the run has one replica, so that it shows no reduction of gradients"
        raise NotMeasurable(message, fix="record two replicas")
    microbatches = request.microbatches
    if microbatches is None:
        microbatches, rest = divmod(was.microbatches * was.dp, dp)
        if rest or not microbatches:
            message = f"{was.microbatches * was.dp} microbatches do not divide over dp {dp}"
            raise NotMeasurable(message, fix="give --microbatches and --allow-other-batch")
    schedule = parse_schedule(request.schedule) if request.schedule else was.schedule
    now = _Configuration(dp, pp, microbatches, schedule, was.inner, was.micro_batch)
    if _other_batch(was, now) and not request.allow_other_batch:
        message = (
            f"dp {dp} times {microbatches} microbatches is another global batch than the recorded dp "
            f"{was.dp} times {was.microbatches}, and steps of different work do not rank configurations"
        )
        fix = (
            f"keep dp times microbatches at {was.dp * was.microbatches}, or give --allow-other-batch to "
            "predict the step time alone"
        )
        raise NotMeasurable(message, fix=fix)
    return now


def _other_batch(was: _Configuration, now: _Configuration) -> bool:
    return was.dp * was.microbatches != now.dp * now.microbatches
