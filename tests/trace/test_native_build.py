"""Installing compiles the native reader where it can, and goes on where it cannot."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")


@pytest.fixture
def build():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hook(build):
    return build.GeneratedFiles(str(ROOT), {}, None, None, "", "wheel")


def test_without_a_compiler_that_works_nothing_is_made(build, tmp_path):
    commands = [["no-such-compiler"], ["false"]]
    assert not build.compiled(ROOT, tmp_path / "librows.so", commands)
    assert list(tmp_path.iterdir()) == []


@needs_gcc
def test_the_first_compiler_that_works_is_used(build, tmp_path):
    assert build.compiled(ROOT, tmp_path / "librows.so", [["false"], ["gcc"]])
    assert [file.name for file in tmp_path.iterdir()] == ["librows.so"]


@needs_gcc
def test_no_other_compiler_is_asked_for_where_there_is_one(build, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    assert hook(build).dependencies() == []


def test_a_compiler_is_asked_for_where_there_is_none(build, monkeypatch):
    monkeypatch.delenv("CCL_BENCH_NATIVE", raising=False)
    monkeypatch.setattr(build, "system_compilers", list)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    assert hook(build).dependencies() == ["ziglang>=0.13"]


@pytest.mark.parametrize("why", ["switched off", "no wheel of it"])
def test_none_is_asked_for_in_vain(build, monkeypatch, why):
    monkeypatch.setattr(build, "system_compilers", list)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64" if why == "switched off" else "riscv64")
    monkeypatch.setitem(os.environ, "CCL_BENCH_NATIVE", "0" if why == "switched off" else "1")
    assert hook(build).dependencies() == []
