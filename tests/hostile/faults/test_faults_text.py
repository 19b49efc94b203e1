"""Text that acts rather than shows, wherever a stranger can place it: no command lets it out."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING

import pytest
from acting_text import ACTING, ACTS, NAME, write_hostile_run
from commands import invoke
from hypothesis import given, settings
from hypothesis import strategies as st

from ccl_bench.api.display import as_html
from ccl_bench.base.text import csv_lines, encode_json, harmless, plain, shown_json
from ccl_bench.integrations.agents.answer import Answer, call, quoted
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.report.console import Text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return such a run, whose folder and files have such names too."""
    run = write_hostile_run(tmp_path_factory.mktemp("text") / NAME, 0, 1)
    (run / "kineto_trace_1.json.gz").rename(run / f"{NAME}_kineto_trace_1.json.gz")
    (run / f"{NAME}.sqlite").write_bytes(b"SQLite format 3\0")
    return run


READING = {
    "metrics": ("ccl-metrics --all", ("table", "csv", "json")),
    "inspect": ("ccl-bench inspect", ("text", "json")),
    "diagnose": ("ccl-bench diagnose", ("text", "json")),
    "validate": ("ccl-bench validate", ("text", "json")),
    "compare": ("ccl-bench compare RUN", ("text", "markdown", "json")),
    "what-if": ("ccl-bench what-if", ("text", "json")),
    "hang": ("ccl-bench hang", ("text", "json")),
    "publish": ("ccl-bench publish --to nowhere --dry-run", (None,)),
    "chakra": ("ccl-bench chakra --output /dev/null/x", (None,)),
}


@pytest.mark.parametrize("command", READING)
def test_no_command_prints_text_that_acts(run: Path, command: str) -> None:
    words, forms = READING[command]
    for form in forms:
        given_words = [str(run) if word == "RUN" else word for word in words.split()]
        done = invoke([*given_words, str(run), *(["--format", form] if form else [])])
        assert done.returncode in {0, 1, 3, 4}, done.stderr
        assert ACTING.findall(done.stdout + done.stderr) == []


WRITTEN = ("report.html", "report.md", "report.json", "report.txt", "timeline.json", "compare.html", "tables")


@pytest.mark.parametrize("name", WRITTEN)
def test_no_file_that_is_written_holds_text_that_acts(run: Path, tmp_path: Path, name: str) -> None:
    command = name.partition(".")[0]
    words = ["--format", "csv"] if command == "tables" else [str(run)] * (command == "compare")
    done = invoke(["ccl-bench", command, str(run), *words, "--output", str(tmp_path / name)])
    assert done.returncode == 0, done.stderr
    assert ACTING.findall(done.stdout + done.stderr) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert ACTING.findall(path.name + path.read_text(encoding="utf-8")) == []


def test_the_text_was_placed_where_it_is_read(run: Path) -> None:
    """JSON keeps it, as escapes: so it reached what the tests look at."""
    printed = {
        name: json.loads(invoke([*words, "--format", "json"]).stdout)
        for name, words in (
            ("metrics", ["ccl-metrics", str(run), "--all"]),
            ("inspect", ["ccl-bench", "inspect", str(run)]),
        )
    }
    assert "\u202e" in json.dumps(printed["metrics"], ensure_ascii=False)
    stated = json.dumps(printed["inspect"]["facts"], ensure_ascii=False)
    assert "\u202e" in stated


def test_no_answer_to_an_agent_notebook_or_log_holds_text_that_acts(tmp_path: Path) -> None:
    answer = Answer({NAME: NAME, "quoted": quoted(NAME)}, calls=[call("metric", run=NAME)]).text()
    tokens.log_event(tmp_path, "refused", reason=NAME)
    logged = (tmp_path / tokens.FILE).read_text(encoding="utf-8")
    assert ACTING.findall("".join((answer, as_html(Text(NAME)), logged))) == []
    assert json.loads(answer)[NAME] == json.loads(logged)["reason"] == NAME


SHAPED = (
    "👩‍👩‍👧",
    "❤️‍🔥",
    "1️⃣",
    "می‌خواهم",
    "क्‍ष",
    "שלום עולם",
    "مرحبا",
    "葛\U000e0100城",
    "ᠮᠣᠩᠭᠣᠯ᠋",
    "日本",
    "µs",
)
"""Emoji and words of several scripts, some of which need a joiner or a selector."""


@pytest.mark.parametrize("text", SHAPED)
def test_text_in_any_language_stays_readable(text: str) -> None:
    assert harmless(text) == plain(text) == text
    assert text in encode_json([text]).decode()


@pytest.mark.parametrize(
    "text", ["a\u200db", "\u200cb", "é\u200d\u200d", "x\ufe0f", "é\ufe0f\ufe0f", "1\u200d"]
)
def test_a_joiner_or_selector_that_shapes_nothing_is_shown(text: str) -> None:
    """Such rows hide text from people that a program reads."""
    assert "?" in harmless(text)
    assert json.loads(encode_json([text])) == [text]


def test_every_control_and_format_character_acts_but_for_signs_that_are_seen() -> None:
    """The signs stand before numbers of Arabic, Syriac and Kaithi, and join hieroglyphs."""
    characters = [chr(code) for code in range(0x110000)]
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown = [
        each for each in characters if unicodedata.category(each) in kinds and harmless(f"x{each}") != "x?"
    ]
    assert all(
        each in "\n\t" or unicodedata.name(each).startswith(("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN"))
        for each in shown
    )


TEXT = st.text(st.sampled_from([*ACTS, *'\u200d\ufe0f\ud800"\\=;,<\n\r\tné1', "👩"]))


@settings(max_examples=50)
@given(TEXT)
def test_what_is_cleaned_is_clean_however_it_is_written(text: str) -> None:
    texts = (harmless(text), plain(text), encode_json({text: text}).decode(), "".join(csv_lines([[text]])))
    assert ACTING.findall("".join([*texts, shown_json({text: text}), json.loads(shown_json(text))])) == []
    assert harmless(harmless(text)) == harmless(text)
    assert set(plain(text)) & set("\n\t\r") == set()
    if text.isprintable() or "\ud800" not in text:
        assert json.loads(encode_json([text])) == [text]
