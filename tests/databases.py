"""A PostgreSQL server of its own for tests: in a folder of its own, reached by a socket in it, no port."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = "postgres"


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Give the address of a server's empty database, without its name: `.../?host=...`; skip without one."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: make services")
    folder = Path(tempfile.mkdtemp(prefix="ccl-bench-postgresql-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER, USER)
    data = folder / "data"
    try:
        how = ("-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        _ran(programs / "initdb", "-D", data, *how)
        server = f"postgresql+psycopg://{USER}@/{{}}?host={folder}"
        start_server(server)
        try:
            yield server
        finally:
            _ran(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start_server(server: str) -> None:
    """Start a server on the data that it has, and wait until it answers."""
    programs, folder = _programs(), _folder(server)
    assert programs is not None
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
    how = ("-o", options, "-l", folder / "log", "-w", "-t", "60")
    _ran(programs / "pg_ctl", "-D", folder / "data", *how, "start")


def is_running(server: str) -> bool:
    """Whether the first process of a server is there."""
    return Path(f"/proc/{_first(server)}/stat").exists()


def kill_server(server: str) -> None:
    """Kill every process of a server at once, as a machine that loses its power does."""
    processes = [_first(server), *_children(_first(server))]
    for process in processes:
        os.kill(process, signal.SIGKILL)
    while any(Path(f"/proc/{process}/stat").exists() for process in processes):
        time.sleep(0.005)


def kill_backends(server: str) -> None:
    """Kill the processes that serve connections; the server ends all others and recovers by itself."""
    for process in _children(_first(server)):
        if b"[local]" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)


def _first(server: str) -> int:
    return int((_folder(server) / "data" / "postmaster.pid").read_text(encoding="ascii").split()[0])


def _children(process: int) -> list[int]:
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split())]


def _folder(server: str) -> Path:
    """Return the folder of a server, or of the server of a database."""
    return Path(server.partition("?host=")[2])


def create_database(server: str, name: str, template: str = "template1") -> str:
    """Create a database on a server, empty or as a template is, and return its address."""
    from sqlalchemy import create_engine, text

    engine = create_engine(server.format(USER), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
        connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    engine.dispose()
    return server.format(name)


def _programs() -> Path | None:
    """Return the folder with the server's programs, of the latest version that is installed."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else []
    found += sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        key=lambda path: int(path.parent.name) if path.parent.name.isdecimal() else 0,
        reverse=True,
    )
    return found[0] if found else None


def _ran(program: Path, *arguments: str | Path) -> None:
    """Run one of the server's programs, as the user that it insists on."""
    command = [str(program), *map(str, arguments)]
    if os.geteuid() == 0:
        command = ["runuser", "-u", USER, "--", *command]
    # The server inherits the output of pg_ctl: a pipe would stay open as long as it runs.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", check=False, timeout=300
        )
        output.seek(0)
        assert done.returncode == 0, output.read().decode()
