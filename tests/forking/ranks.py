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

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import lasting_groups  # noqa: E402, F401
import torch._inductor.config  # noqa: E402, F401  the profiler imports it when it starts
from torch.distributed.run import main  # noqa: E402

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
