"""`ccl-bench serve`, `site` and `index`, as somebody runs them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from commands import ROOT, invoke, ran
from leaderboard_bundles import Made, placed

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(sys.executable).parent / "ccl-bench"
RUNS = [Made(name=str(place), values={"mfu": float(place)}) for place in range(3)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory that runs were published into."""
    placed(tmp_path, RUNS)
    return tmp_path


@pytest.fixture
def serving(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Return a server that was started by its command, and the address that it printed."""
    server = subprocess.Popen(
        [PROGRAM, "serve", data, "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    yield server, server.stdout.readline().strip()
    server.kill()
    server.communicate()


def test_a_server_prints_its_address_answers_and_stops_when_asked(
    serving: tuple[subprocess.Popen[str], str],
) -> None:
    """By SIGTERM; tests/docs/test_docs_stories.py presses Ctrl-C."""
    server, address = serving
    page = httpx.get(address, timeout=300)
    assert "3 runs" in page.text
    assert "server" not in page.headers
    server.send_signal(signal.SIGTERM)
    _, reported = server.communicate(timeout=300)
    assert server.returncode == 0
    assert "Traceback" not in reported


def test_a_port_that_is_taken_is_said_in_words(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = invoke(["ccl-bench", "serve", str(data), "--port", str(port)])
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    for command in (["serve"], ["board", "index"], ["board", "site", "-o", str(tmp_path / "out")]):
        done = invoke(["ccl-bench", *command, str(tmp_path / "nothing")])
        assert done.returncode == 4
        assert "ccl-bench publish" in done.stderr


def test_a_site_is_written_and_its_place_printed(data: Path, tmp_path: Path) -> None:
    done = invoke(["ccl-bench", "board", "site", str(data), "-o", str(tmp_path / "public")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'public'}/index.html  3 runs, ")
    assert (tmp_path / "public" / "index.html").is_file()


def test_the_index_is_made_anew_and_names_what_was_changed(data: Path) -> None:
    done = invoke(["ccl-bench", "board", "index", str(data)])
    assert (done.returncode, done.stdout) == (0, "3 runs in the index\n")
    card = next((data / "runs").glob("*/workload_card.yaml"))
    card.write_text(card.read_text().replace("H100", "B200"))
    done = invoke(["ccl-bench", "board", "index", str(data)])
    assert (done.returncode, done.stdout) == (4, "2 runs in the index\n")
    assert f"left out: {card.parent}" in done.stderr
    assert "fix: restore" in done.stderr


def test_without_its_packages_the_way_to_them_is_reported(data: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'fastapi' else find(name, *rest)\n"
    )
    done = ran(["ccl-bench", "serve", str(data)], PYTHONPATH=str(hidden))
    assert done.returncode == 1
    assert "not installed: fastapi" in done.stderr
    assert 'pip install "ccl-bench[leaderboard]"' in done.stderr
