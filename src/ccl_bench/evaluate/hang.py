"""Analysis of hanging jobs, from the Flight Recorder dumps of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ccl_bench.analysis.recorder.hang import find_hang
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import issue_of
from ccl_bench.evaluate.load import load_tables
from ccl_bench.trace.file_names import rank_at_end

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.engine import Progress
    from ccl_bench.result.hang import Hang
    from ccl_bench.run import Run

TABLES = ("recorder_dumps", "recorded_calls", "recorded_groups", "recorded_status", "recorded_stacks")
FORMAT = "flight_recorder"

RECORD = (
    "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE=DIR/comm_lib_trace_rank_ before the job starts"
)


def hang_of_run(
    run: Run, *, jobs: int | None = None, use_cache: bool = True, progress: Progress | None = None
) -> Hang:
    """Return the missing ranks and their place, from the dumps of the last recording window.

    Raises NotMeasurable if the run has no dump of a known rank.
    """
    dumps = [trace for trace in run.traces if trace.form.name == FORMAT]
    if not dumps:
        raise NotMeasurable("the run has no dump of torch's Flight Recorder", where=str(run.path), fix=RECORD)
    last = max((trace.iteration for trace in dumps if trace.iteration is not None), default=None)
    dumps = [trace for trace in dumps if trace.iteration == last]
    twice = [f for f in run.findings if f.code == "rank-duplicate" and "recorded_calls" in f.touches]
    if 2 * len({finding.rank for finding in twice}) > len(dumps):
        reason = f"most ranks have several dumps: {twice[0].message.partition(';')[0]}"
        raise NotMeasurable(reason, where=str(run.path), fix="give the folder of a single hang")
    dump_run = replace(run, traces=dumps)
    loaded = load_tables(dump_run, TABLES, jobs=jobs, use_cache=use_cache, progress=progress)
    world_size = run.facts.world_size
    read = {*loaded.inputs["recorder_dumps"]["rank"]}
    # A file with the name of a dump may be so damaged that it is not recognised as one.
    names = {_without_numbers(trace.path) for trace in dumps}
    damaged = {rank_at_end(path.name) for path in run.others if _without_numbers(path) in names}
    unreadable = {rank for rank in damaged | {trace.rank for trace in dumps} if rank is not None} - read
    hang = find_hang(loaded.inputs, world_size.value if world_size else None, str(run.path), unreadable)
    if not hang.ranks:
        reason = "the names of the dumps do not end in the rank, which the dumps themselves do not contain"
        raise NotMeasurable(
            reason, where=str(run.path), fix="rename the files, such as comm_lib_trace_rank_0"
        )
    if len(hang.ranks) == 1 and not hang.without_dump and not hang.damaged:
        reason = f"only rank {hang.ranks[0]} has a dump, but the analysis compares calls between ranks"
        raise NotMeasurable(reason, where=str(run.path), fix="put the dumps of all ranks into one folder")
    issues = [issue_of(each) for each in loaded.findings if not each.touches or {*each.touches} & {*TABLES}]
    return replace(hang, findings=issues)


def _without_numbers(path: Path) -> tuple[Path, str]:
    """Return folder and name of a file, the numbers of hosts and ranks left out."""
    return path.parent, re.sub(r"\d+", "0", path.name)
