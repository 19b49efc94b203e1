"""How commands begin and end: start-up time, closed pipes, Ctrl-C, bugs, missing packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import cpu_seconds

from ccl_bench.cli import runner
from ccl_bench.cli.metrics import main

PROGRAMS = Path(sys.executable).parent

MOST_STARTS = 6.0
"""Processor time of a start, in those of Python with the parser of command lines; benchmarks/ has seconds."""

HEAVY = ("polars", "pydantic", "ruamel", "multiprocessing.pool")


def _command(name: str, *arguments: str | Path) -> list[str]:
    return [str(PROGRAMS / name), *map(str, arguments)]


def _ran(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = _command(name, *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_installed_command_prints_the_number(sharded: Path) -> None:
    done = _ran("ccl-metrics", "--trace", sharded, "--metric", "coll_call_num")
    assert (done.returncode, done.stdout, done.stderr) == (0, "16\n", "")


@pytest.fixture(scope="module")
def least() -> float:
    """Return the processor time of Python with the parser of command lines."""
    return cpu_seconds([sys.executable, "-c", "import cyclopts"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["ccl-metrics", "--help"],
        ["ccl-bench", "--help"],
    ],
    ids=" ".join,
)
def test_a_command_without_a_run_starts_quickly(arguments: list[str], least: float) -> None:
    assert cpu_seconds(_command(*arguments)) < MOST_STARTS * least


def test_commands_without_a_run_import_nothing_heavy() -> None:
    commands = [["--help"], ["--list-metrics"], ["--explain", "mfu"], ["--metrik"]]
    program = (
        "import sys\n"
        "from ccl_bench.cli.metrics import main\n"
        f"assert [main(words) for words in {commands!r}] == [0, 0, 0, 2]\n"
        f"loaded = [name for name in {HEAVY!r} if type(sys.modules.get(name)).__name__ == 'module']\n"
        "sys.exit(f'LOADED {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_metric_of_a_run_without_a_card_imports_no_model_of_cards(small: Path, tmp_path: Path) -> None:
    for trace in small.glob("*_trace.json"):
        shutil.copy(trace, tmp_path)
    program = (
        "import sys\n"
        "from ccl_bench.cli.metrics import main\n"
        f"main([{str(tmp_path)!r}, '--all', '--jobs', '1'])\n"
        "sys.exit('LOADED pydantic' if 'pydantic' in sys.modules else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_enough_is_no_error(small: Path) -> None:
    command = _command("ccl-metrics", "--trace", small, "--metric", "coll_call_num")
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=300) == runner.CLOSED_PIPE


@pytest.mark.parametrize(
    "arguments",
    [["ccl-metrics", "--metric", "coll_call_num", "--trace"], ["ccl-bench", "validate"]],
    ids=lambda words: words[0],
)
def test_a_full_device_is_reported_without_a_traceback(arguments: list[str], small: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        command = _command(*arguments, small)
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=300
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"{arguments[0]}: the output cannot be written: No space left on device\n"
        "  fix: free space there, or write elsewhere\n"
    )


def test_an_interruption_is_quiet(sharded: Path) -> None:
    program = (
        "import sys\n"
        "from ccl_bench.evaluate import compute\n"
        "def wait(*_, **__):\n"
        "    import time\n"
        "    sys.stderr.write('ready')\n"
        "    sys.stderr.flush()\n"
        "    time.sleep(1000)\n"
        "compute.evaluate = wait\n"
        "from ccl_bench.cli.metrics import main\n"
        "sys.exit(main())\n"
    )
    command = [sys.executable, "-c", program, "--trace", str(sharded), "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.read(5) == b"ready"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (runner.INTERRUPTED, b"", b"")


def test_a_bug_shows_where_it_is(sharded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ccl_bench.api.measured_run.MeasuredRun.results", broken)
    with pytest.raises(ZeroDivisionError):
        main(["--trace", str(sharded), "--metric", "mfu"])


def test_a_missing_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'cyclopts'", name="cyclopts")

    assert runner.run("ccl-metrics", command, []) == 1
    assert "the package cyclopts is not installed" in capsys.readouterr().err


def test_a_missing_module_of_our_own_is_a_bug() -> None:
    def command(_: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'ccl_bench.nowhere'", name="ccl_bench.nowhere")

    with pytest.raises(ModuleNotFoundError):
        runner.run("ccl-metrics", command, [])


def test_characters_that_steer_a_terminal_are_not_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "no\x1b[31mwhere", "--metric", "mfu"]) == 4
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("program", ["ccl-metrics", "ccl-bench"])
def test_the_version_is_reported(program: str) -> None:
    from ccl_bench import __version__

    assert _ran(program, "--version").stdout == f"{program} {__version__}\n"


def test_names_that_the_encoding_lacks_are_printed_with_escapes(sharded: Path, tmp_path: Path) -> None:
    place = tmp_path / "Läufe"
    command = _command("ccl-metrics", "--trace", place, "--metric", "mfu")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=300)
    assert done.returncode == 4
    assert b"L\\xe4ufe" in done.stderr
