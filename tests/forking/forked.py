"""Programs of Python in children of a process that has imported what they need, which costs most.

    forked.py DESCRIPTOR MODULES

It imports the modules and forks a child for every program that is asked for on the socket, whose other end is
that of the only one who asks: the process and all programs end with it. Each program is in a session of its
own, and comes with a socket of its own, to which go its number and, at its end, how it ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys

from ending import become, run_to_the_end, run_words

MOST_BYTES = 1 << 17
"""Of the words, environment and folder of a program."""
NUMBER = struct.Struct("q")


def main() -> None:
    """Import what programs need and, in a child of this process, run one."""
    gc.disable()  # What is imported stays: looking for garbage in it takes as long as importing it.
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted:
        words, environment, folder = wanted
        become(words, environment, folder)
        run_to_the_end(lambda: run_words(words))


def serve(asking: socket.socket) -> tuple[list[str], dict[str, str], str] | None:
    """Fork a child for every program that is asked for, and return there what it is to run."""
    running: dict[int, tuple[int, socket.socket]] = {}
    ready = select.poll()
    ready.register(asking, select.POLLIN)
    while True:
        for number, _ in ready.poll():
            if number in running:
                program, asker = running.pop(number)
                ready.unregister(number)
                os.close(number)
                status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
                with contextlib.suppress(OSError):  # who asked no longer listens
                    asker.sendall(NUMBER.pack(status))
                asker.close()
                continue
            text, descriptors, _, _ = socket.recv_fds(asking, MOST_BYTES, 4)
            if not text:
                for program, _ in running.values():
                    os.killpg(program, signal.SIGKILL)
                return None
            asker = socket.socket(fileno=descriptors.pop())
            program = os.fork()
            if not program:
                os.setsid()
                asking.close()
                asker.close()
                for other, (_, of_other) in running.items():
                    os.close(other)
                    of_other.close()
                for place, stream in enumerate(descriptors):
                    os.dup2(stream, place)
                    os.close(stream)
                open_streams()
                words, environment, folder = json.loads(text)
                return words, environment, folder
            for stream in descriptors:
                os.close(stream)
            asker.sendall(NUMBER.pack(program))
            ended = os.pidfd_open(program)
            running[ended] = program, asker
            ready.register(ended, select.POLLIN)


def open_streams() -> None:
    """Open the standard streams as Python does: those of before are of other files."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


main()
