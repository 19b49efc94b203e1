"""A PostgreSQL server of its own for tests: in a folder of its own, reached by a socket in it, no port."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
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
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
        _ran(programs / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "-t", "60", "start")
        try:
            yield f"postgresql+psycopg://{USER}@/{{}}?host={folder}"
        finally:
            _ran(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
