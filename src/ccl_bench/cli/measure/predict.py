"""The command `ccl-bench predict`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar
from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.evaluation import leave_one_out, split
from ccl_bench.predict.forecasting import Forecaster, evaluation_answer
from ccl_bench.predict.recorded_trials import gathered_trials
from ccl_bench.predict.trials import parsed_configuration
from ccl_bench.report.console import show
from ccl_bench.report.forecast import evaluation_page, forecast_page, ranking_page
from ccl_bench.result.forecast import to_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.predict.trials import Trials
    from ccl_bench.result.forecast import EvaluationAnswer, Forecast, Ranking

ABOUT = """\
--from takes a table of trials: measured steps of several configurations, in CSV, Parquet or JSON, or the \
name of a set of the catalog. A model of the step is fitted to them; it states how sure it is of others.

Exit status: 0; 2 wrong usage; 3 the prediction is refused; 4 the table cannot be read.
"""

REFUSED = 3

_SPLIT = re.compile(r"split:(\d+)")

app = options.app(
    "predict",
    ABOUT,
    [
        f"{PROGRAM} predict --from trials.csv --config tp=4,dp=1,pp=4,micro_batch=2,global_batch=8",
        f"{PROGRAM} predict --from vtrain-single-node --evaluate split:40 --seed 1",
    ],
)


@app.default
def predict(
    *,
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
            metavar="NAME=VALUE,…", help="Configuration to predict; what it leaves out is that of the trials."
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
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the drawn rows.")] = 0,
    form: options.TextOrJson = "text",
) -> int:
    """Predict the step time of a configuration."""
    if not sources:
        raise UsageError("there is nothing to predict from", fix="name a table of trials with --from")
    trials = gathered_trials(sources, study)
    answer: Forecast | Ranking | EvaluationAnswer
    page: RenderableType
    if evaluate is not None:
        answer = _evaluated(trials, evaluate, seed)
        page = evaluation_page(answer)
    elif config is None:
        raise UsageError("no configuration to predict", fix="give one with --config, such as tp=4,dp=2")
    else:
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


def _evaluated(trials: Trials, how: str, seed: int) -> EvaluationAnswer:
    if how == "leave-one-out":
        with progress_bar(1, "predicting") as progress:
            return evaluation_answer(leave_one_out(trials, progress), trials)
    match = _SPLIT.fullmatch(how)
    if match is None:
        raise UsageError(f"{how!r} is no evaluation", fix="write leave-one-out, or split:N as in split:40")
    return evaluation_answer(split(trials, int(match[1]), seed), trials)
