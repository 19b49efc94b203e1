"""Python programs in children of one process that has loaded torch, which takes seconds of a processor.

    loaded.py PROGRAM.py ARGUMENTS
    loaded.py -c CODE ARGUMENTS

Runs a program as this Python would: with this process's environment, folder and streams, and what stands on
PYTHONPATH. The process with torch is started by whoever asks first, and ends with the process whose number is
in the variable LOADED_FOR.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

STREAMS = (0, 1, 2)
KEPT = ("HOME", "LOADED_FOR", "OMP_NUM_THREADS", "PATH")
"""Variables of the process with torch; all others, such as PYTHONPATH, are those of each program alone."""

START_S = 120.0
"""Longest wait for the process with torch to listen, which it does before it loads torch."""


def main() -> None:
    """Ask for a program, or be the process that others ask and then, in its children, the program."""
    if sys.argv[1:] != ["--serve"]:
        end_as(asked())
    elif wanted := serve():
        run(**wanted)
    os._exit(0)


def end_as(status: int) -> None:
    """End with an exit status, or by the signal whose negative number it is."""
    if status >= 0:
        os._exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


def asked() -> int:
    """Have the program run, and return how it ended."""
    wanted = {"words": sys.argv[1:], "environment": {**os.environ}, "folder": os.getcwd()}  # noqa: PTH109
    with connected() as server:
        socket.send_fds(server, [b"?"], STREAMS)
        server.sendall(json.dumps(wanted).encode())
        server.shutdown(socket.SHUT_WR)
        status = server.makefile().read()
    if not status:
        with open(log()) as said:  # noqa: PTH123
            print("the process with torch ended:", said.read(), file=sys.stderr)
    return int(status or 1)


def address() -> str:
    """Return a name of Linux's own, which leaves no file."""
    return f"\0loaded-for-{os.environ['LOADED_FOR']}"


def log() -> str:
    """Return the file with the errors of the process with torch: it outlives the streams of who starts it."""
    return f"/tmp/loaded-for-{os.environ['LOADED_FOR']}.log"


def connected() -> socket.socket:
    """Return a connection to the process with torch, which is started where there is none."""
    deadline, started = time.monotonic() + START_S, None
    while True:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(address())
        except ConnectionRefusedError:
            server.close()
            if time.monotonic() > deadline:
                raise
        else:
            return server
        if started is None:
            with open(log(), "w") as said:  # noqa: PTH123
                started = subprocess.Popen(
                    [sys.executable, __file__, "--serve"],
                    env={name: os.environ[name] for name in KEPT if name in os.environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                )
        time.sleep(0.02)


def serve() -> dict[str, object] | None:
    """Fork a child for every program that is asked for, and return there what it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(address())
    except OSError:
        return None  # Somebody else was faster.
    listener.listen(64)
    load_torch()
    user = os.pidfd_open(int(os.environ["LOADED_FOR"]))
    while True:
        ready, _, _ = select.select([listener, user], [], [])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if user in ready:
            os.unlink(log())  # noqa: PTH108
            return None
        asking, _ = listener.accept()
        if not os.fork():
            os.close(user)
            listener.close()
            return watched(asking)
        asking.close()


def load_torch() -> None:
    """Import what all programs need, as no garbage that they would have to look through."""
    import gc

    gc.disable()
    import torch._inductor.config  # the profiler imports it when it starts
    import torch.distributed.run  # noqa: F401

    gc.freeze()
    gc.enable()


def watched(asking: socket.socket) -> dict[str, object]:
    """Fork the program, say how it ends, and end it with whoever asks; return in the program what it is."""
    _, streams, _, _ = socket.recv_fds(asking, 1, len(STREAMS))
    wanted = json.loads(asking.makefile().read())
    if program := os.fork():
        for stream in streams:
            os.close(stream)
        ended, gone = os.pidfd_open(program), select.poll()
        gone.register(ended, select.POLLIN)
        gone.register(asking, select.POLLHUP)
        if all(descriptor != ended for descriptor, _ in gone.poll()):
            os.killpg(program, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        with contextlib.suppress(OSError):
            asking.sendall(str(status).encode())
        os._exit(0)
    asking.close()
    os.setsid()
    for stream, number in zip(streams, STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    return wanted


def run(words: list[str], environment: dict[str, str], folder: str) -> None:
    """Do what Python does when it starts, and run the program."""
    from ending import become, run_to_the_end, run_words

    become(words, environment, folder)
    watch_torch()
    run_to_the_end(lambda: run_words(words))


def watch_torch() -> None:
    """Have the `sitecustomize` of `collect` see torch being imported."""
    import torch

    for finder in sys.meta_path:
        if type(finder).__name__ == "WaitForFrameworks":
            finder.loaded.append("torch")
            type(finder).act_after.__globals__["watch"](torch)


main()
