"""The proxy of the manual, nginx with the configuration of `docs/leaderboard.md`, in front of a server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from commands import ROOT
from publishing_server import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from publishing_server import Leaderboard

_PAGE = ROOT / "docs" / "leaderboard.md"
_AROUND = """\
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format seen escape=json
        '{{"client": "$remote_addr", "request": "$request", "status": "$upstream_status"}}';
    access_log {folder}/access.log seen;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_timeout 1s;
    lingering_timeout 1s;
{documented}
}}
"""
_SHARED = "upstream server {{ server {there}; keepalive 4; }}\n"
"""What the manual advises against: connections to the server that clients share."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs, in front of a server."""

    server: Leaderboard
    folder: Path
    port: int

    def connected(self, source: str = "127.0.0.1") -> socket.socket:
        """Return a connection from an address of this machine."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S, (source, 0))

    def exchanged(self, sent: bytes, source: str = "127.0.0.1") -> bytes:
        """Return all that is answered to some bytes until the connection is closed."""
        found = bytearray()
        with self.connected(source) as line, contextlib.suppress(ConnectionError):
            line.sendall(sent)
            while block := line.recv(1 << 16):
                found += block
        return bytes(found)

    @property
    def forwarded(self) -> list[dict[str, Any]]:
        """The requests to which the server gave an answer, as the proxy saw them."""
        lines = (self.folder / "access.log").read_text(encoding="utf-8").splitlines()
        return [each for each in map(json.loads, lines) if each["status"] not in {"", "-"}]


@contextlib.contextmanager
def proxied(
    server: Leaderboard, folder: Path, *, patience: str = "1s", shared: bool = False
) -> Iterator[Proxy]:
    """Give a proxy that waits for clients as long as `patience`; its connections may be shared."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: make services")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (found,) = re.findall(r"```nginx\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    there = server.address.removeprefix("http://")
    text = re.sub(r"\n *(ssl_certificate|server_name)\b[^\n]*", "", found)
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8000", there)
    text = re.sub(r"(client_\w+_timeout) \w+;", rf"\1 {patience};", text)
    if shared:
        text = _SHARED.format(there=there) + text.replace(f"http://{there}", "http://server")
        text = text.replace("proxy_http_version", 'proxy_set_header Connection "";\n    proxy_http_version')
    folder.mkdir()
    (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, documented=text), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        yield Proxy(server, folder, port)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
