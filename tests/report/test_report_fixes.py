"""What to do about findings: the commands and the manual know the same codes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MANUAL = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
OWN = {"card-missing", "card-unranked", "trace-missing"}
"""Codes of `ccl-bench validate` and `inspect`, which state the fix themselves."""


def test_every_finding_of_the_manual_that_asks_for_something_has_a_fix() -> None:
    listed = ROOT / "src" / "ccl_bench" / "base" / "fixes.toml"
    fixes = tomllib.loads(listed.read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| ([^|]+) \|$", MANUAL, flags=re.MULTILINE)
    asking = {code for code, advice in rows if not advice.startswith("Nothing;") and advice != "Nothing."}
    assert set(fixes) == asking - OWN
