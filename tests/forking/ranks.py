"""`torchrun` whose ranks are forked from it, so that torch and what the program imports are loaded once.

    ranks.py OPTIONS-OF-TORCHRUN PROGRAM.py ARGUMENTS

Loading takes seconds of a processor, and each rank of a plain `torchrun` spends them again.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch._inductor.config  # noqa: F401  the profiler imports it when it starts
from torch.distributed.run import main

words = sys.argv[1:]
sys.argv = words[next(place for place, word in enumerate(words) if word.endswith(".py")) :]
sys.path[0] = str(Path(sys.argv[0]).parent)
# Under another name than __main__ it only imports what it needs, some of which looks at the arguments.
runpy.run_path(sys.argv[0], run_name="imported")
main(["--start-method=fork", "--run-path", *words])
