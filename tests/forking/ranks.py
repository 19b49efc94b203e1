"""`torchrun` whose ranks are forked from it, so that torch and what the program imports are loaded once.

    ranks.py OPTIONS-OF-TORCHRUN PROGRAM.py ARGUMENTS

Loading takes seconds of a processor, and each rank of a plain `torchrun` spends them again.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import torch._inductor.config  # noqa: E402, F401  the profiler imports it when it starts
from torch.distributed import distributed_c10d  # noqa: E402
from torch.distributed.run import main  # noqa: E402

# Under the profiler torch 2.13 hangs now and then where a group of gloo is destroyed: the destructor waits,
# with the interpreter's lock, for a thread that asks for that lock. So groups live as long as their rank.
alive: list[Any] = []
make_group = distributed_c10d._new_process_group_helper


def make_lasting_group(*arguments: Any, **options: Any) -> Any:
    """Make a process group, and keep it."""
    made = make_group(*arguments, **options)
    alive.append(made)
    return made


distributed_c10d._new_process_group_helper = make_lasting_group

words = sys.argv[1:]
sys.argv = words[next(place for place, word in enumerate(words) if word.endswith(".py")) :]
sys.path[0] = str(Path(sys.argv[0]).parent)
# Under another name than __main__ it only imports what it needs, some of which looks at the arguments.
runpy.run_path(sys.argv[0], run_name="imported")
gc.freeze()
gc.enable()
# The launcher's own way to end is none of its ranks'.
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
main(["--start-method=fork", "--run-path", *words])
sys.stdout.flush()
os._exit(0)
