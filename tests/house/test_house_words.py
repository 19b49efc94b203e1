"""Words that have no place in the repository."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

from checkout import ROOT, files

if TYPE_CHECKING:
    from pathlib import Path

# Put together here, so that this file does not hold them.
_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry.npm" + "js.org",
    "anaconda" + ".org",
    "crates" + ".io",
)
_UNFINISHED = ("TO" + "DO", "FIX" + "ME", "XX" + "X")

REGISTRY_HOST = re.compile("|".join(map(re.escape, _HOSTS)), re.IGNORECASE)
UNFINISHED = re.compile(rf"\b(?:{'|'.join(_UNFINISHED)})\b")
ABSOLUTE_PATH = re.compile(rf"(?<![\w.$}}])/(?:root|work)/|{re.escape(str(ROOT))}(?![\w-])")


def _text(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="replace")


def _holding(pattern: re.Pattern[str]) -> list[str]:
    return [f"{p.relative_to(ROOT)}: {found[0]}" for p in files() if (found := pattern.search(_text(p)))]


def test_no_package_registry_is_named() -> None:
    assert _holding(REGISTRY_HOST) == []


def test_no_path_of_the_machine_it_was_made_on_is_left() -> None:
    assert _holding(ABSOLUTE_PATH) == []


def test_nothing_is_marked_as_unfinished() -> None:
    assert _holding(UNFINISHED) == []


def test_the_words_are_found_where_they_stand() -> None:
    assert REGISTRY_HOST.search(f"https://{_HOSTS[0]}/project")
    assert ABSOLUTE_PATH.search("see /" + "work/notes")
    assert UNFINISHED.search(f"# {_UNFINISHED[0]}: later")
