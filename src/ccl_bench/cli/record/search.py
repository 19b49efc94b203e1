"""The command `ccl-bench search`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.record.new import definition_named
from ccl_bench.predict.forecasting import replay_answer
from ccl_bench.predict.search import replay as play
from ccl_bench.predict.trials import Trials, read_trials
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
command.

--replay plays the search on a table of trials: it sees only the trials that it asks for.

Exit status: 0; 1 no trial was measured; 2 wrong usage; 4 a file cannot be read.
"""

NOTHING = 1

_VARY = ("tp", "dp", "pp", "micro_batch", "recompute")

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
    ] = ",".join(_VARY),
    trials: Annotated[
        str | None,
        Parameter(metavar="TRIALS", help="Earlier trials of the same workload, which calibrate too."),
    ] = None,
    replay: Annotated[
        str | None, Parameter(metavar="TRIALS", help="Table of trials, or set of the catalog, to play on.")
    ] = None,
    study: Annotated[str | None, Parameter(metavar="NAME", help="Rows of the table to use.")] = None,
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the first configuration of a replay.")] = 0,
    form: options.TextOrJson = "text",
) -> int:
    """Search for the fastest configuration."""
    if replay is not None:
        table = read_trials(replay).of_study(study)
        played = replay_answer(play(table, budget, seed), table)
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
    names = tuple(name.strip() for name in vary.split(","))
    unknown = [name for name in names if name not in _VARY]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be varied", fix=f"choose from {', '.join(_VARY)}")
    answer = _measured(base, run, Path(output), budget, names, trials, study, is_shown=form == "text")
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
    else:
        show(search_page(answer))
    return 0 if answer.best is not None else NOTHING


def _measured(
    base: str,
    command: str,
    folder: Path,
    budget: int,
    vary: tuple[str, ...],
    earlier: str | None,
    study: str | None,
    *,
    is_shown: bool,
) -> SearchAnswer:
    from ccl_bench.collect.search_runs import HISTORY, Base, Search

    is_card = Path(base).suffix in {".yaml", ".yml", ".json"}
    origin = Base.of_card(Path(base)) if is_card else Base.of_definition(definition_named(base))
    calibrating: Trials | None = read_trials(earlier).of_study(study) if earlier else None
    campaign = Search(origin, folder, command, vary=vary, earlier=calibrating)
    ended: list[TrialAnswer] = []
    for trial in campaign.trials(budget):
        ended.append(trial)
        if is_shown:
            sys.stdout.write(trial_line(trial) + "\n")
            sys.stdout.flush()
    best, speed = campaign.best
    return SearchAnswer(ended, best, speed, str(folder / HISTORY))
