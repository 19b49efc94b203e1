"""Files and folders whose names are no text: every command runs, and shows the bytes escaped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import invoke
from faulty import small_run

from ccl_bench.base.text import encode_json

pytestmark = pytest.mark.usefixtures("shared_cache")

FOLDER, TRACE = b"run\xff", b"kineto_\xfe_1.json.gz"
SHOWN, SHOWN_TRACE = "run\\udcff", "kineto_\\udcfe_1.json.gz"
USUAL = "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a run in a folder, and with a trace, whose names are not UTF-8, beside one of usual names."""
    place = tmp_path_factory.mktemp("names")
    small_run(place / USUAL)
    folder = small_run(place / os.fsdecode(FOLDER), compresses=True)
    (folder / "rank1_trace.json.gz").rename(folder / os.fsdecode(TRACE))
    return str(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["ccl-bench", "inspect", "RUN"],
        ["ccl-metrics", "--all", "--trace", "RUN"],
        ["ccl-bench", "diagnose", "RUN"],
        ["ccl-bench", "what-if", "RUN"],
        ["ccl-bench", "compare", USUAL, "RUN"],
    ],
    ids=lambda words: words[1],
)
def test_json_is_json_whatever_files_are_called(words: list[str], run: str) -> None:
    meant = {"RUN": run, USUAL: str(Path(run).with_name(USUAL))}
    done = invoke([*(meant.get(word, word) for word in words), "--format", "json"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if words[1] in ("inspect", "compare"):
        assert SHOWN in json.dumps(found, ensure_ascii=False).replace("\\\\", "\\")


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json", "timeline.json", "tables"])
def test_what_is_written_is_text(name: str, run: str, tmp_path: Path) -> None:
    command = name.partition(".")[0]
    done = invoke(["ccl-bench", command, run, "--output", str(tmp_path / name)])
    assert done.returncode == 0, done.stderr
    for file in (tmp_path / name, *tmp_path.rglob("*.json")):
        if file.suffix in (".html", ".md", ".json"):
            file.read_text(encoding="utf-8")
    if name == "report.json":
        observed = json.loads((tmp_path / name).read_bytes())["inspection"]
        assert observed["run"].endswith(SHOWN)
        assert SHOWN_TRACE in [trace["file"] for trace in observed["traces"]]


def test_a_name_that_other_machines_cannot_show_is_not_published(run: str, tmp_path: Path) -> None:
    (card := tmp_path / "renamed").symlink_to(run)
    for place in (run, str(card)):
        done = invoke(["ccl-bench", "publish", place, "--to", str(tmp_path / "board")])
        assert done.returncode == 4
        assert "has a name that other machines cannot display" in done.stderr
        assert "fix: rename it" in done.stderr


def test_keys_and_lists_are_escaped_too() -> None:
    """Text that is UTF-8 stays as it is, also beside a name that is not."""
    given = {"é\udcff": ["a", ("\udc80", 1.5, None)], "plain": "日本 \\udcff"}
    read = json.loads(encode_json(given))
    assert read == {
        "é\\udcff": ["a", ["\\udc80", 1.5, None]],
        "plain": "日本 \\udcff",
    }


def test_text_needs_no_codec_that_python_imports_late(tmp_path: Path) -> None:
    """A process that gave up its rights may be unable to import any."""
    (card := tmp_path / "card.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    program = (
        "import sys\n"
        "from ccl_bench.storage.files import read_text\n"
        "sys.modules['encodings.utf_8_sig'] = None\n"
        "print(read_text(sys.argv[1]), end='')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, card], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "a: 1\n"
