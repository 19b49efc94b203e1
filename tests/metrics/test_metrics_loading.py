"""Metrics are imported by name: one that is asked for brings no other along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
