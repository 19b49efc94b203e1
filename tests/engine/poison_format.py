"""A trace format whose files kill whoever reads them, for engines that have to bear it.

Workers of a cluster import this module, as they would a plug-in; tests register it with the fixture `poison`.
"""

import json
import os
import signal
import time

from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.formats import Format, Identity, register


def recognises(head):
    return head.startswith(b'{"poison"')


def identity(head):
    return Identity(json.loads(head)["rank"])


def read(stream, file):
    wanted = json.load(stream)
    if wanted["poison"] == "slow":
        time.sleep(wanted["seconds"])
        return TraceContent(rank=wanted["rank"])
    os.kill(os.getpid(), signal.SIGKILL if wanted["poison"] == "kill" else signal.SIGSEGV)
    raise AssertionError("still alive")


POISON = Format("poison", "torch", 1, frozenset({"kernels"}), recognises, identity, read)


def dask_setup(_worker):
    """Make the format known to a worker that was started with `--preload poison_format`."""
    register(POISON)
