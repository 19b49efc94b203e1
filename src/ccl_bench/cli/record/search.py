"""The command `ccl-bench search`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.predict.forecasting import replay_answer
from ccl_bench.predict.search import replay as play
from ccl_bench.predict.trials import read_trials
from ccl_bench.report.console import show
from ccl_bench.report.forecast import replay_page
from ccl_bench.result.forecast import to_json

ABOUT = """\
--replay plays the search on a table of trials: it sees only the trials that it asks for.

Exit status: 0; 2 wrong usage; 4 the table cannot be read.
"""

app = options.app("search", ABOUT, [f"{PROGRAM} search --replay trials.csv --budget 5 --seed 1"])


@app.default
def search(
    *,
    replay: Annotated[
        str, Parameter(metavar="TRIALS", help="Table of trials, or set of the catalog, to play on.")
    ],
    study: Annotated[str | None, Parameter(metavar="NAME", help="Rows of the table to use.")] = None,
    budget: Annotated[int, Parameter(metavar="N", help="Configurations to measure.")] = 8,
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the first configuration.")] = 0,
    form: options.TextOrJson = "text",
) -> int:
    """Search for the fastest configuration."""
    trials = read_trials(replay).of_study(study)
    answer = replay_answer(play(trials, budget, seed), trials)
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
    else:
        show(replay_page(answer))
    return 0
