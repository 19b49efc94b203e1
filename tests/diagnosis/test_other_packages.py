"""Rules of other packages are found by their entry point, and harmless when they fail."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest
from injected import SHARDED, diagnosed

from ccl_bench import diagnosis
from ccl_bench.base import registry
from ccl_bench.base.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

RULES = '''
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import diagnosis


@diagnosis(kind="device")
def slow_softmax(gains):
    """Kernels take long."""
    variant = gains.replays.scaled(gains.where(pl.col("kind") == "compute"), 0.5)
    (gain,) = gains.of(variant)
    yield gains.opportunity(gain, variant, title="It is slow", remedy="fuse it", change="half of it")


@diagnosis(kind="device")
def broken(gains):
    """It fails."""
    raise ValueError("no such thing")
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with two rules, and no others."""
    (tmp_path / "strangers_rules.py").write_text(RULES)
    (tmp_path / "strange-1.dist-info").mkdir()
    (tmp_path / "strange-1.dist-info" / "METADATA").write_text("Name: strange\nVersion: 1\n")
    entry = f"[{diagnosis.GROUP}]\nstrange = strangers_rules\n"
    (tmp_path / "strange-1.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_installed", entry_points)
    fresh: Registry[diagnosis.Diagnosis] = Registry("diagnosis", diagnosis.GROUP, "ccl_bench.diagnosis.rules")
    monkeypatch.setattr(diagnosis, "DIAGNOSES", fresh)
    monkeypatch.setattr(diagnosis, "load", lambda: fresh)
    fresh.load_plugins()
    monkeypatch.delitem(sys.modules, "strangers_rules")


@pytest.mark.usefixtures("installed")
def test_a_rule_of_another_package_is_asked_and_one_that_fails_costs_nothing(tmp_path: Path) -> None:
    found = diagnosed(SHARDED, tmp_path / "run")
    assert [(each.name, each.kind) for each in found.diagnoses] == [("slow_softmax", "device")]
    assert found.silent == {"broken": "it failed: ValueError: no such thing"}
    assert [each.code for each in found.findings] == ["diagnosis-failed"]
