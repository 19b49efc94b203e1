"""Metrics are imported by name: one that is asked for brings no other along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ccl_bench import metrics
from ccl_bench.metrics import Measurement, Metric

_LOAD = """
import json, sys
from ccl_bench import metrics
found = metrics.load(json.loads(sys.argv[1]))
print(json.dumps(sorted(found.names())))
"""


def loaded(*names: str) -> list[str]:
    command = [sys.executable, "-c", _LOAD, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_one_metric_is_loaded_with_its_variants_alone() -> None:
    assert loaded("coll_call_num") == ["coll_call_num"]
    assert loaded("comm_comp_overlap") == ["comm_comp_overlap", "comm_comp_overlap_16"]


@pytest.mark.parametrize("name", ["iter_time_16", "comm_comp_overlap_16", "conditions", "no_such_metric"])
def test_for_a_name_that_is_no_module_of_a_metric_every_metric_is_loaded(name: str) -> None:
    assert len(loaded(name)) > 50


class _Registry(dict[str, str]):
    """A registry that tells whether every metric was loaded."""

    is_whole = False
    has_plugin = False

    def has_plugins(self) -> bool:
        return self.has_plugin

    def load(self) -> _Registry:
        self.is_whole = True
        return self


@pytest.mark.parametrize(
    ("names", "is_whole"),
    [
        (["mfu"], False),
        (["mfu", "straggler"], False),
        (["mfu", "hockney"], True),  # a module that holds metrics of other names
        (["mfu", "no_such_metric"], True),
        ([], False),
        (None, True),
    ],
)
def test_every_metric_is_loaded_if_one_name_is_no_metric(
    names: list[str] | None, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_plugin in (False, True):
        registry = _Registry(mfu="", straggler="")
        registry.has_plugin = has_plugin
        monkeypatch.setattr(metrics, "METRICS", registry)
        assert metrics.load(names) is registry
        assert registry.is_whole is (is_whole or has_plugin)


def test_the_manual_is_the_documentation_without_its_margin_and_may_be_missing() -> None:
    def explained() -> Measurement:
        """Time of
        a step.

        Caveats:
            None.
        """
        return Measurement(1.0)

    def bare() -> Measurement:
        return Measurement(1.0)

    metric = Metric("explained", "s", "lower", (), explained)
    assert metric.manual == "Time of\na step.\n\nCaveats:\n    None."
    assert metric.summary == "Time of a step."
    assert Metric("bare", "s", "lower", (), bare).manual == ""
