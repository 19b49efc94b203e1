"""Run programs, each in a child of this process, which has loaded its framework once for all of them."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def run_loops(loops: Mapping[str, Callable[[], object]]) -> None:
    """Run the loops that the command line names, all by default, and write down the exit status of each.

    The first argument is the folder that gets a run directory and a file of output for each.
    """
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    statuses = {}
    gc.freeze()  # What has been imported is no garbage, and no loop need look through it.
    gc.enable()
    for name in wanted or loops:
        (folder / name).mkdir()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.environ["CCL_BENCH_OUTPUT"] = str(folder / name)
            said = os.open(folder / f"{name}.txt", os.O_CREAT | os.O_WRONLY)
            os.dup2(said, 1)
            os.dup2(said, 2)
            loops[name]()
            sys.exit()
        statuses[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / "statuses.json").write_text(json.dumps(statuses))
    os._exit(0)
