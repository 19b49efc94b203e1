"""A trace format whose files kill whoever reads them, or keep it until a file appears.

Workers of a cluster import this module, as they would a plug-in; tests register it with the fixture `poison`.
"""

import json
import os
import signal
import time
from pathlib import Path

from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats import Format, Identity, register

PATIENCE_S = 1000
"""Time after which a reader that is kept gives up, s."""


def recognises(head):
    return head.startswith(b'{"poison"')


def identity(head):
    return Identity(json.loads(head)["rank"])


def read(stream, file):
    wanted = json.load(stream)
    if wanted["poison"] == "keep":
        _keep(Path(wanted["folder"]))
        return TraceContent(rank=wanted["rank"])
    os.kill(os.getpid(), signal.SIGKILL if wanted["poison"] == "kill" else signal.SIGSEGV)
    raise AssertionError("still alive")


def _keep(folder):
    """Leave a file that is named after this process, and wait for one that is called `go`."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} has not said go after {PATIENCE_S} s")
        time.sleep(0.02)


def readers(folder):
    """Return the processes that have begun to read what keeps them."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def reads_in_threads():
    return True


TABLES = frozenset({"kernels"})
POISON = Format("poison", "torch", 1, TABLES, recognises, identity, read, reads_in_threads=reads_in_threads)


def dask_setup(_worker):
    """Make the format known to a worker that was started with `--preload poison_format`."""
    register(POISON)


def main():
    """Run `ccl-metrics` with the format known."""
    from ccl_bench.cli.metrics import main as ccl_metrics

    register(POISON)
    return ccl_metrics()
