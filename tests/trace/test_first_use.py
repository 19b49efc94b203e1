"""Threads that are the first to need the decoder of a reader, all at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, threading
from ccl_bench.trace.formats.kineto.decoding import decoder_for

EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2,"args":{"External id":1}}'
PIECE = b"[" + b",".join([EVENT] * 50) + b"]"
sys.setswitchinterval(1e-5)

def decode(meeting):
    meeting.wait()
    decoder_for(None, PIECE).decode(PIECE)

for _ in range(50):
    child = os.fork()
    if not child:
        meeting = threading.Barrier(4)
        threads = [threading.Thread(target=decode, args=(meeting,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("a process died")
"""


def test_threads_may_be_the_first_to_decode_events() -> None:
    """Each of fifty processes has never decoded an event; one in six died where the decoder was made late."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
