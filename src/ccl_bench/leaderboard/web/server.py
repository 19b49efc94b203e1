"""Run the application until it is stopped; requests in progress finish."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn

from ccl_bench.base.errors import UsageError
from ccl_bench.leaderboard.web.app import create_app
from ccl_bench.leaderboard.web.protocol import BoundedProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.leaderboard.store import Store

_SHUTDOWN_TIMEOUT_S = 10
"""Time for requests to finish after a request to stop."""
_BACKLOG = 100
"""Connections that wait to be accepted, and that are accepted at once."""
_UNSENT_BYTES = 16 << 10
"""Size of the send buffer in bytes; a small one lets `protocol` see how slow a client is."""
_OBJECTS_OF_A_PAGE = 100_000
"""New objects before the collector looks for cycles: the page of a board of 50,000 rows makes fewer."""
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
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port}: {reason}", fix="choose another --port") from error
    with listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        # asyncio sets this only for sockets that name their protocol; those of the standard library do not.
        # Without it, the second write of an answer waits 40 ms for the reader to acknowledge the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound_port = listener.getsockname()[1]
        yield listener, f"http://{f'[{host}]' if ':' in host else host}:{bound_port}"


def check_proxies(proxies: Sequence[str]) -> None:
    """Raise UsageError unless it is the address of a proxy or of its network."""
    for proxy in proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            fix = "give an address such as 10.0.0.7, or a network such as 10.0.0.0/24"
            raise UsageError(f"--trusted-proxy {proxy[:100]!r} is not an address", fix=fix) from error


def run_server(
    store: Store, listener: socket.socket, *, root_path: str = "", proxies: Sequence[str] = ()
) -> None:
    """Serve a store on a socket until the process is stopped.

    `proxies` are the addresses whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted.
    """
    config = uvicorn.Config(
        create_app(store),
        http=BoundedProtocol,
        ws="none",
        backlog=_BACKLOG,
        root_path=root_path,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        log_level="info",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    # A page makes thousands of rows for a moment: collections in between take a fifth of its time.
    gc.freeze()
    gc.set_threshold(_OBJECTS_OF_A_PAGE)
    _Server(config).run(sockets=[listener])
