"""What CONTRIBUTING shows works as pasted: metric, table, format and rule, in a copy of the checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from commands import ROOT

from ccl_bench.testing import Plan, write_run

if TYPE_CHECKING:
    from pathlib import Path

PASTED = re.compile(r"^`((?:src|tests)/[\w/]+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COPIED = ("src", "scripts", "tests/house", "tests/tools", "pyproject.toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout into which the files of CONTRIBUTING are pasted.

    Its git knows these alone: the shape of all others is looked at in the checkout itself.
    """
    folder = tmp_path_factory.mktemp("checkout")
    for name in (*COPIED, *(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py"))):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, symlinks=True)  # with what is compiled of it
        else:
            shutil.copyfile(ROOT / name, place)
    shown = PASTED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(shown) == 5
    for path, text in shown:
        assert not (folder / path).exists()
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    ignored = ["*.py", *(f"!/{path}" for path, _ in shown)]
    (folder / ".git" / "info" / "exclude").write_text("\n".join(ignored), encoding="utf-8")
    return folder


def _ran(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _metrics(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from ccl_bench.cli.metrics import main; sys.exit(main(sys.argv[1:]))"
    return _ran(checkout, "-c", program, *arguments)


def test_the_metric_is_listed_and_explained(checkout: Path) -> None:
    assert "kernel_count" in _metrics(checkout, "--list-metrics").stdout
    shown = _metrics(checkout, "--explain", "number_of_kernels").stdout
    assert "kernel_count = kernels that start inside steps / steps, mean over ranks" in shown


def test_the_metric_measures_a_run_in_the_new_format(checkout: Path, tmp_path: Path) -> None:
    for rank, count in ((0, 2), (1, 4)):
        document = {
            "kernel-list": 1,
            "rank": rank,
            "kernels": [["gemm", 10 * n, 10 * n + 5] for n in range(count)],
        }
        (tmp_path / f"kernels_{rank}.json").write_text(json.dumps(document))
    found = _metrics(checkout, "--trace", str(tmp_path), "--metric", "kernel_count")
    assert (found.returncode, found.stdout.strip()) == (0, f"{(2 + 4) // 2}")


def test_the_test_of_the_metric_passes(checkout: Path) -> None:
    ran = _ran(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/metrics/test_kernel_count.py")
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout[-3000:]


def test_a_file_of_the_format_that_is_cut_off_is_a_finding(checkout: Path, tmp_path: Path) -> None:
    whole = json.dumps({"kernel-list": 1, "rank": 0, "kernels": [["gemm", 0, 5]]})
    (tmp_path / "kernels_0.json").write_text(whole)
    (tmp_path / "kernels_1.json").write_text(whole.replace('"rank": 0', '"rank": 1')[:-9])
    found = _metrics(checkout, "--trace", str(tmp_path), "--metric", "kernel_count")
    assert (found.returncode, found.stdout.strip()) == (0, "1")
    assert "kernels_1.json" in found.stderr
    assert "trace-unreadable" in found.stderr


def test_the_rule_gains_half_of_the_optimizer(checkout: Path, tmp_path: Path) -> None:
    write_run(Plan(dp_shard=2, steps=3, optimizer_ns=4_000_000), tmp_path)
    program = "import sys; from ccl_bench.cli.bench import main; sys.exit(main(sys.argv[1:]))"
    found = _ran(checkout, "-c", program, "diagnose", str(tmp_path), "--format", "json")
    gains = {each["name"]: each["gain_s"] for each in json.loads(found.stdout)["diagnoses"]}
    assert gains["slow_optimizer"] == pytest.approx(0.004 / 2)


def test_what_every_checkout_must_hold_holds_with_the_new_files(checkout: Path) -> None:
    tests = [f"tests/house/test_house_{subject}.py" for subject in ("registries", "shape", "diagnoses")]
    scripts = (
        "tests/tools/test_scripts.py::test_every_script_is_of_a_metric_and_the_historical_ones_are_there"
    )
    # Of the tests of a metric, those of the new one: the others' are run in the checkout itself.
    chosen = ("-k", "kernel_count or not test_a_metric and not test_there_are_modules")
    pytest_s = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    ran = _ran(checkout, *pytest_s, *chosen, *tests, scripts, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert ran.returncode == 0, ran.stdout[-3000:]


def test_the_new_files_pass_the_linter(checkout: Path) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed: make test")
    files = [path for path, _ in PASTED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))]
    for task in (("check",), ("format", "--check")):
        ran = _ran(checkout, "-m", "ruff", *task, "--no-cache", *files)
        assert ran.returncode == 0, ran.stdout + ran.stderr
