"""An installed wheel has all that `ccl-bench demo` needs; what `make wheels` makes is what it is named."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from commands import ROOT
from shared import shared_cache_folder

LIBRARY = "ccl_bench/trace/native/librows.so"
MAN = ("ccl-bench.1", "ccl-metrics.1")


def ran(*command: str | Path, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CAN_MAKE_WHEELS = all(importlib.util.find_spec(name) for name in ("ziglang", "auditwheel"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of packages that are made here: the source, and wheels of this machine at least."""
    folder = tmp_path_factory.mktemp("packages")
    if CAN_MAKE_WHEELS:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ran("bash", ROOT / ".ci" / "wheels", folder, folder=folder, PATH=path)
    else:
        ran(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
        unpacked = _unpacked(folder, tmp_path_factory.mktemp("unpacked"))
        ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=unpacked)
    return folder


def _unpacked(packages: Path, folder: Path) -> Path:
    """Unpack the source package into a folder, and return where its files are."""
    [package] = packages.glob("ccl_bench-*.tar.gz")
    ran("tar", "--extract", "--file", package, folder=folder)
    return folder / package.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def source(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the unpacked source package."""
    return _unpacked(packages, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def installed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel of this machine, and what it depends on from this one."""
    folder = tmp_path_factory.mktemp("installed")
    [wheel] = packages.glob(f"ccl_bench-*_{platform.machine()}.whl")
    place, uv = folder / "environment", [sys.executable, "-m", "uv", "--quiet", "--offline", "--no-config"]
    ran(*uv, "venv", "--python", sys.executable, place, folder=folder)
    ran(*uv, "pip", "install", "--no-deps", "--python", place / "bin" / "python", wheel, folder=folder)
    # A folder on the path, whose own .pth files are not read: they name the checkout.
    packages = place / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return place


def test_the_source_package_holds_what_a_wheel_is_made_of_and_no_more(source: Path) -> None:
    assert {path.name for path in source.iterdir()} == {
        ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "clusters", "docs", "examples",
        "hatch_build.py", "perlmutter", "pyproject.toml", "src", "tools", "workloads",
    }  # fmt: skip


def test_the_demo_runs_in_an_empty_folder(
    installed: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = {"CCL_BENCH_CACHE": str(shared_cache_folder(tmp_path_factory))}
    shown = ran(installed / "bin" / "python", "-m", "ccl_bench", "demo", folder=tmp_path, **cache)
    assert [path.name for path in tmp_path.iterdir()] == ["ccl-bench-demo"]
    report = (tmp_path / "ccl-bench-demo" / "report.html").read_text(encoding="utf-8")
    assert report.lower().startswith("<!doctype html>")
    assert "megatron" in report
    with gzip.open(tmp_path / "ccl-bench-demo" / "timeline.json.gz") as file:
        assert json.load(file)["traceEvents"]
    [examples] = installed.glob("lib/*/site-packages/ccl_bench/examples")
    assert f"ccl-bench what-if {examples}/megatron-tp8-a100 --without rank:0" in shown


def test_an_installed_wheel_makes_workloads_and_has_the_scripts_that_they_source(
    installed: Path, tmp_path: Path
) -> None:
    bench = (installed / "bin" / "python", "-m", "ccl_bench")
    names = [line.split()[0] for line in ran(*bench, "new", "--list", folder=tmp_path).splitlines()[1:]]
    assert names == sorted(path.stem for path in (ROOT / "workloads").glob("*.toml"))
    ran(*bench, "new", "mine", "--from", names[0], folder=tmp_path)
    [root] = installed.glob("lib/*/site-packages/ccl_bench/checkout")
    parts = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    sourced = [*(ROOT / "clusters").iterdir(), *(ROOT / "workloads" / "torchtitan").glob("*.*")]
    sourced += [ROOT / "perlmutter" / name for name in ("common.sh", "nsys.sh", "nsys_tables.sh")]
    assert {path.relative_to(ROOT) for path in sourced} <= parts
    # Outside of a cluster, run.sh gets as far as the first thing that this machine lacks.
    place = {"CCL_BENCH_ROOT": str(root), "CLUSTER": "none"}
    done = subprocess.run(
        ["bash", "mine/run.sh"], cwd=tmp_path, env={**os.environ, **place}, capture_output=True, text=True
    )
    assert f"CLUSTER=none has no profile {root}/clusters/none.sh" in done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")
def test_an_installed_wheel_reads_natively(installed: Path, tmp_path: Path) -> None:
    python = installed / "bin" / "python"
    shown = ran(python, "-m", "ccl_bench.trace.formats.kineto.native", folder=tmp_path)
    assert shown == "native reader: used\n"
    assert len([*installed.glob(f"lib/*/site-packages/{LIBRARY}")]) == 1


def test_an_installed_wheel_has_the_licences_of_what_it_bundles(installed: Path) -> None:
    [notices] = installed.glob("lib/*/site-packages/ccl_bench-*.dist-info/licenses/**/vega-licences.txt")
    assert "vega-lite 6.4.1" in notices.read_text(encoding="utf-8")
    [scripts] = installed.glob("lib/*/site-packages/ccl_bench/report/render/assets/vega.js")
    assert b"vegaEmbed" in scripts.read_bytes()
    [terms] = installed.glob(
        "lib/*/site-packages/ccl_bench-*.dist-info/licenses/**/collective_reference-*.txt"
    )
    assert "Apache License" in terms.read_text(encoding="utf-8")
    [times] = installed.glob("lib/*/site-packages/ccl_bench/catalog/collective_reference.parquet")
    assert times.read_bytes() == (ROOT / "src/ccl_bench/catalog/collective_reference.parquet").read_bytes()


def test_man_finds_the_pages_of_an_installed_wheel(installed: Path) -> None:
    found = {path.name: path.read_bytes() for path in (installed / "share" / "man" / "man1").iterdir()}
    assert found == {name: (ROOT / "docs" / "man" / name).read_bytes() for name in MAN}


OWN = (ROOT / "src" / LIBRARY).read_bytes() if (ROOT / "src" / LIBRARY).exists() else None
"""The library of the checkout, before any test."""


@pytest.mark.skipif(not CAN_MAKE_WHEELS, reason="ziglang and auditwheel are not installed: make wheels")
def test_wheels_hold_the_library_that_their_names_state(packages: Path) -> None:
    machines = {"any": None, "manylinux_2_17_x86_64": 62, "manylinux_2_17_aarch64": 183}
    assert len([*packages.glob("*.tar.gz")]) == 1
    assert len([*packages.glob("*.whl")]) == len(machines)
    for tag, machine in machines.items():
        [wheel] = packages.glob(f"ccl_bench-*-py3-none-{tag}.whl")
        with zipfile.ZipFile(wheel) as archive:
            # Bytes 18 and 19 of an ELF file are the number of its kind of processor.
            library = archive.read(LIBRARY) if LIBRARY in archive.namelist() else None
        assert (library and int.from_bytes(library[18:20], "little")) == machine
    assert OWN is None or (ROOT / "src" / LIBRARY).read_bytes() == OWN
