"""The command `ccl-bench search`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.predict.candidates import VARY
from ccl_bench.predict.search import replay as play
from ccl_bench.predict.search_folder import HISTORY, Objective
from ccl_bench.predict.trials import read_trials
from ccl_bench.report.console import show
from ccl_bench.report.forecast import replay_page, search_page, trial_line
from ccl_bench.result.forecast import SearchAnswer, to_json

if TYPE_CHECKING:
    from ccl_bench.result.forecast import TrialAnswer

ABOUT = """\
BASE is a workload card, or the definition of a workload as `new --from` takes it: its name, or a .toml \
file. Every trial shares its devices, global batch and sequence length, and has a folder of its own in \
--output, in which the command of --run starts. The command reads TP, DP, PP, MICRO_BATCH, GLOBAL_BATCH, \
SEQ_LEN and RECOMPUTE, and leaves a run in CCL_BENCH_OUTPUT, or in a folder of TRACES as the scripts of \
`new` do; a job that it submits to Slurm is waited for. A search that was killed goes on with the same \
command. After each trial, search.html in --output shows all of them.

--replay plays the search on a table of trials: it sees only the trials that it asks for.

Exit status: 0; 1 no trial was measured; 2 wrong usage; 4 a file cannot be read.
"""

NOTHING = 1

app = options.app(
    "search",
    ABOUT,
    [
        f"{PROGRAM} search workload_card.yaml --run 'sbatch run.sbatch' --budget 8 -o my-search",
        f"{PROGRAM} search --replay trials.csv --budget 5 --seed 1",
    ],
)
app.usage = f"{PROGRAM} search [OPTIONS] [BASE]"


@app.default
def search(
    base: Annotated[
        str | None, Parameter(metavar="", help="Workload card, or definition of a workload.")
    ] = None,
    /,
    *,
    run: Annotated[
        str | None, Parameter(metavar="COMMAND", help="Command for bash that records one trial.")
    ] = None,
    output: Annotated[
        str,
        Parameter(
            alias="-o", metavar="DIR", help="Folder of the search; its history.csv is a table of trials."
        ),
    ] = "search",
    budget: Annotated[int, Parameter(metavar="N", help="Trials in all.")] = 8,
    vary: Annotated[
        str, Parameter(metavar="NAMES", help="Settings to vary, separated by commas.")
    ] = ",".join(VARY),
    trials: Annotated[
        str | None,
        Parameter(metavar="TRIALS", help="Earlier trials of the same workload, which calibrate too."),
    ] = None,
    replay: Annotated[
        str | None, Parameter(metavar="TRIALS", help="Table of trials, or set of the catalog, to play on.")
    ] = None,
    objective: Annotated[
        Objective,
        Parameter(
            converter=options.choice,
            help="What to maximise: tokens a second and device, or tokens per dollar at the card's price.",
        ),
    ] = "tokens",
    study: Annotated[str | None, Parameter(metavar="NAME", help="Rows of the table to use.")] = None,
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the first configuration of a replay.")] = 0,
    form: options.TextOrJson = "text",
) -> int:
    """Search for the fastest configuration."""
    if replay is not None:
        table = read_trials(replay).of_study(study)
        played = play(table, budget, seed)
        if form == "json":
            sys.stdout.write(to_json(played).decode() + "\n")
        else:
            show(replay_page(played))
        return 0
    if base is None or run is None:
        raise UsageError(
            "a search needs a base and a command",
            fix="give BASE and --run, or a table of trials with --replay",
        )
    from ccl_bench.collect import search_runs

    names = [name.strip() for name in vary.split(",")]
    measuring = search_runs.search(
        base,
        run=run,
        folder=output,
        budget=budget,
        vary=names,
        trials=trials,
        study=study,
        objective=objective,
    )
    ended: list[TrialAnswer] = []
    for trial in measuring:
        ended.append(trial)
        if form == "text":
            sys.stdout.write(trial_line(trial) + "\n")
            sys.stdout.flush()
    best, speed = measuring.best, measuring.best_tokens_per_s_per_gpu
    answer = SearchAnswer(ended, best, speed, str(Path(output) / HISTORY), str(measuring.page))
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
    else:
        show(search_page(answer))
    return 0 if best is not None else NOTHING
