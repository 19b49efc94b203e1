"""Run the application until it is stopped; requests in progress finish."""

from __future__ import annotations

import contextlib
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from ccl_bench.base.errors import UsageError
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.leaderboard.store import Store

_SHUTDOWN_TIMEOUT_S = 10
"""Time for requests to finish after a request to stop."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """A server that ends without an error when it is stopped."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at Ctrl-C and SIGTERM, with the exit status of a success."""
        before = {each: signal.signal(each, self.handle_exit) for each in _STOPPING}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Yield a listening socket and its address for a browser."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port}: {reason}", fix="choose another --port") from error
    with listener:
        found = listener.getsockname()[1]
        yield listener, f"http://{f'[{host}]' if ':' in host else host}:{found}"


def run_server(store: Store, listener: socket.socket, *, root_path: str = "") -> None:
    """Serve a store on a socket until the process is stopped."""
    config = uvicorn.Config(
        create_app(store),
        root_path=root_path,
        log_level="info",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    _Server(config).run(sockets=[listener])
