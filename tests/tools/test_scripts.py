"""`scripts/get_<metric>.sh`: one script, the metric taken from the name it is called by.

The manual shows what it prints without a run, where the bundled one is measured and named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ccl_bench.metrics import load

if TYPE_CHECKING:
    from pathlib import Path


def _ran(script: Path, *arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        [str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment,
        **options,
    )


HISTORICAL = {"coll_call_num", "iter_time_16", "mfu", "sm", "training_quality_16", "TTFT", "TPOT"}
"""Names that other programs call a script by; other metrics have one if somebody wants it."""


def test_every_script_is_of_a_metric_and_the_historical_ones_are_there(root: Path) -> None:
    registry = load()
    links = {path.name for path in (root / "scripts").glob("get_*.sh") if path.is_symlink()}
    known = {f"get_{name}.sh" for name in (*registry.names(), *registry.aliases())}
    assert links - known == set(), "run scripts/link_metrics.py"
    assert {f"get_{name}.sh" for name in HISTORICAL} <= links


def test_every_script_is_the_same_one(root: Path) -> None:
    links = [path for path in (root / "scripts").glob("get_*.sh") if path.is_symlink()]
    assert {str(path.readlink()) for path in links} == {"get_metric.sh"}


def test_a_link_prints_the_number_from_anywhere_of_a_path_with_spaces_and_signs(
    root: Path, sharded: Path, tmp_path: Path
) -> None:
    place, link = tmp_path / "fsdp + tp (4 ranks)", tmp_path / "my bin" / "get_coll_call_num_16.sh"
    place.symlink_to(sharded)
    link.parent.mkdir()
    link.symlink_to(root / "scripts" / "get_coll_call_num.sh")
    done = _ran(link, place.name, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "16\n", "")


def test_options_are_passed_on_and_the_exit_status_is_that_of_the_command(root: Path, sharded: Path) -> None:
    done = _ran(root / "scripts" / "get_mfu.sh", sharded, "--format", "csv")
    assert (done.returncode, done.stdout.startswith("metric,value,unit")) == (3, True)


def test_the_script_itself_says_how_it_is_called(root: Path) -> None:
    done = _ran(root / "scripts" / "get_metric.sh", "somewhere")
    assert done.returncode == 2
    assert "call a link" in done.stderr


def test_without_a_chosen_python_the_environment_of_the_checkout_is_taken(
    root: Path, sharded: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "check out"
    (copy / ".venv" / "bin").mkdir(parents=True)
    for name in ("scripts", "tools", "src"):
        (copy / name).symlink_to(root / name)
    python = copy / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho taken >&2\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (copy / "scripts").unlink()
    (copy / "scripts").mkdir()
    script = (root / "scripts" / "get_metric.sh").read_bytes()
    (copy / "scripts" / "get_coll_call_num.sh").write_bytes(script)
    (copy / "scripts" / "get_coll_call_num.sh").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    done = subprocess.run(
        [str(copy / "scripts" / "get_coll_call_num.sh"), str(sharded)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=600,
    )
    assert (done.stdout, done.stderr) == ("16\n", "taken\n")
