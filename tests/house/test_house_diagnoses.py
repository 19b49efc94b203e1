"""Every diagnosis has its manual page, and asks only for what exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ccl_bench import diagnosis
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.diagnosis.diagnose import REPLAYED
from ccl_bench.schema import TABLES as RAW_TABLES

if TYPE_CHECKING:
    from ccl_bench.diagnosis import Diagnosis

SECTIONS = ["How it is seen", "Why it costs", "What to do", "When it is no problem", "Reference"]
INPUTS = {*REPLAYED, "facts"}

DERIVED.load()
every_rule = pytest.mark.parametrize("rule", list(diagnosis.load()), ids=lambda rule: rule.name)


@every_rule
def test_its_manual_has_the_five_parts(rule: Diagnosis) -> None:
    assert re.findall(r"^(\w[\w ]+):$", rule.manual, flags=re.MULTILINE) == SECTIONS
    for section in SECTIONS:
        body = rule.manual.split(f"{section}:\n", 1)[1].split("\n\n", 1)[0]
        assert body.strip(), f"{section} of {rule.name} is empty"
    assert rule.summary[0].isupper()
    assert rule.summary.endswith(".")


@every_rule
def test_it_asks_only_for_what_exists(rule: Diagnosis) -> None:
    assert {need for need in rule.needs if need not in DERIVED and need not in RAW_TABLES} <= INPUTS
