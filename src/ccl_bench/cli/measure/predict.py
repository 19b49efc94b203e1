"""The command `ccl-bench predict`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar
from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.evaluation import joined, leave_one_out, split
from ccl_bench.predict.forecasting import Forecaster, evaluation_answer
from ccl_bench.predict.recorded_trials import gathered_trials
from ccl_bench.predict.trials import devices_of, parsed_configuration
from ccl_bench.report.console import show
from ccl_bench.report.forecast import evaluation_page, forecast_page, ranking_page
from ccl_bench.report.prediction import prediction_page
from ccl_bench.result.forecast import to_json
from ccl_bench.result.prediction import to_json as prediction_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.predict.trials import Trials
    from ccl_bench.result.forecast import EvaluationAnswer, Forecast, Ranking
    from ccl_bench.result.prediction import Prediction

ABOUT = """\
RUN holds traces of all ranks. Its pipeline is replayed with another number of stages, replicas or \
microbatches, another schedule, or on another network; durations are drawn from the recorded ones.

--from takes a table of trials: measured steps of several configurations, in CSV, Parquet or JSON, or the \
name of a set of the catalog. A model of the step is fitted to them; it states how sure it is of others.

Exit status: 0; 2 wrong usage; 3 the prediction is refused; 4 the run or the table cannot be read.
"""

REFUSED = 3

Degree = Annotated[int | None, Parameter(metavar="N", validator=options.positive)]

_SPLIT = re.compile(r"split:(\d+)")

app = options.app(
    "predict",
    ABOUT,
    [
        f"{PROGRAM} predict examples/runs/llama-tiny-pp4-gloo --pp 2",
        f"{PROGRAM} predict --from trials.csv --config tp=4,dp=1,pp=4,micro_batch=2,global_batch=8",
        f"{PROGRAM} predict --from vtrain-single-node --evaluate split:40 --seed 1",
    ],
)


@app.default
def predict(
    run: Annotated[str | None, Parameter(metavar="", help="Directory, trace file or URL of the run.")] = None,
    /,
    *,
    dp: Annotated[Degree, Parameter(help="Replicas; microbatches change so that the batch stays.")] = None,
    pp: Annotated[Degree, Parameter(help="Pipeline stages.")] = None,
    microbatches: Annotated[Degree, Parameter(help="Microbatches of one replica in a step.")] = None,
    schedule: Annotated[
        str | None,
        Parameter(
            metavar="NAME", help="Schedule: gpipe, 1f1b, interleaved:V with V chunks on a stage, or zb."
        ),
    ] = None,
    layers: Annotated[
        Degree, Parameter(help="Layers of the model, if the run does not state them, to divide over stages.")
    ] = None,
    allow_other_batch: Annotated[
        bool, Parameter(help="Predict also if the global batch changes: step time alone, no comparison.")
    ] = False,
    network: Annotated[
        str | None,
        Parameter(
            metavar="NETWORK",
            help="Move calls to H100-NVLink8, to alpha=5us,B=200GB/s, or to a network measured in a file: "
            "output of nccl-tests, or a CSV table of size and time.",
        ),
    ] = None,
    doubling: Annotated[
        bool, Parameter(help="Show what twice the bandwidth of each kind of link is worth.")
    ] = False,
    sources: Annotated[
        list[str] | None,
        Parameter(
            name="--from",
            metavar="TRIALS",
            negative="",
            consume_multiple=True,
            help="Tables of trials, sets of the catalog, or folders of recorded runs.",
        ),
    ] = None,
    study: Annotated[str | None, Parameter(metavar="NAME", help="Rows of the table to use.")] = None,
    config: Annotated[
        str | None,
        Parameter(
            metavar="NAME=VALUE,...",
            help="Configuration to predict; what it leaves out is that of the trials.",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        Parameter(metavar="N", help="Rank all ways to share the step of --config among its devices, show N."),
    ] = None,
    evaluate: Annotated[
        str | None,
        Parameter(
            metavar="HOW",
            help="Predict measured steps from others: leave-one-out, or split:N to calibrate on N rows.",
        ),
    ] = None,
    seed: Annotated[
        int, Parameter(metavar="N", help="Seed of the draws.", validator=options.not_negative)
    ] = 0,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    form: options.TextOrJson = "text",
) -> int:
    """Predict the step time of a configuration."""
    if run is not None and sources:
        raise UsageError("a run and trials are two questions", fix="name one of them")
    if run is not None:
        if any(option is not None for option in (study, config, rank, evaluate)):
            fix = "give --dp, --pp, --microbatches, --schedule or --network"
            raise UsageError("--config and the like belong to trials, not to a run", fix=fix)
        with reading.open(run, card=workload_card) as measured:
            predicted = measured.predict(
                dp=dp,
                pp=pp,
                microbatches=microbatches,
                schedule=schedule,
                layers=layers,
                network=network,
                doubling=doubling,
                allow_other_batch=allow_other_batch,
                seed=seed,
            )
        return _answered(predicted, measured.place, form)
    if not sources:
        fix = "name a run, or a table of trials with --from"
        raise UsageError("there is nothing to predict from", fix=fix)
    if any((dp, pp, microbatches, schedule, layers, allow_other_batch, network, doubling)):
        fix = "give the configuration with --config"
        raise UsageError("--dp and the like belong to a run, not to trials", fix=fix)
    trials = gathered_trials(sources, study)
    answer: Forecast | Ranking | EvaluationAnswer
    page: RenderableType
    if evaluate is not None:
        answer = _evaluated(trials, evaluate, seed)
        page = evaluation_page(answer)
    elif config is None:
        raise UsageError("no configuration to predict", fix="give one with --config, such as tp=4,dp=2")
    else:
        trials = trials.of_devices(devices_of(config))
        wanted = parsed_configuration(config, trials.rows)
        if rank is None:
            answer = Forecaster(trials).forecasts(wanted)[0]
            page = forecast_page(answer)
        else:
            answer = Forecaster(trials).ranking(candidates(wanted), rank)
            page = ranking_page(answer)
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
    else:
        show(page)
    return REFUSED if getattr(answer, "refused", None) else 0


def _answered(prediction: Prediction, place: str, form: str) -> int:
    """Print the prediction of a run, and return the exit status."""
    if form == "json":
        sys.stdout.write(prediction_json(prediction).decode() + "\n")
        return REFUSED if prediction.refused else 0
    if prediction.refused:
        raise NotMeasurable(prediction.refused, where=place, fix=prediction.fix)
    show(prediction_page(prediction))
    return 0


def _evaluated(trials: Trials, how: str, seed: int) -> EvaluationAnswer:
    if how == "leave-one-out":
        # Each study is predicted from its own rows.
        parts = [trials.of_study(name) for name in trials.studies] or [trials]
        with progress_bar(1, "predicting") as progress:
            return evaluation_answer(joined([leave_one_out(part, progress) for part in parts]), trials)
    match = _SPLIT.fullmatch(how)
    if match is None:
        raise UsageError(f"{how!r} is no evaluation", fix="write leave-one-out, or split:N as in split:40")
    return evaluation_answer(split(trials.of_study(None), int(match[1]), seed), trials)
