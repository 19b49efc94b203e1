"""`torchrun` whose ranks are forked, so that torch and what the program imports are loaded once.

    ranks.py OPTIONS-OF-TORCHRUN PROGRAM.py ARGUMENTS

Loading takes seconds of a processor, and each rank of a plain `torchrun` spends them again. Ranks are not
forked from the launcher: its threads answer the first ranks while it starts the others, and a rank that is
forked while one of them looks a name up waits for the lock of that thread for ever. They are forked from a
copy of this process that has no threads.
"""

from __future__ import annotations

import contextlib
import gc
import os
import runpy
import socket
import sys
from multiprocessing import forkserver
from pathlib import Path

gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.

import lasting_groups  # noqa: E402, F401
import torch._inductor.config  # noqa: E402, F401  the profiler imports it when it starts
from torch.distributed.run import main  # noqa: E402


def fork_from_a_copy_of_this_process() -> None:
    """Let a copy of this process be the server that forks, in place of one that starts from nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"\0ranks-{os.getpid()}"  # a name of Linux's own, which leaves no file
        listener.bind(address)
        listener.listen()
        asked, asks = os.pipe()
        copy = os.fork()
        if not copy:
            os.close(asks)
            with contextlib.suppress(SystemExit):
                forkserver.main(listener.fileno(), asked, [])
            os._exit(0)
        os.close(asked)
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, asks, copy


words = sys.argv[1:]
sys.argv = words[next(place for place, word in enumerate(words) if word.endswith(".py")) :]
sys.path[0] = str(Path(sys.argv[0]).parent)
# Under another name than __main__ it only imports what it needs, some of which looks at the arguments.
runpy.run_path(sys.argv[0], run_name="imported")
gc.freeze()
gc.enable()
del sys.modules["__main__"].__file__  # Ranks would run it again.
fork_from_a_copy_of_this_process()
main(["--start-method=forkserver", "--run-path", *words])
sys.stdout.flush()
os._exit(0)
