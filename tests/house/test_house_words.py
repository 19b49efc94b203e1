"""Words that have no place in the repository."""

from __future__ import annotations

import ast
import gzip
import re
from typing import TYPE_CHECKING

from checkout import ROOT, files, modules, tree

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
_PLACES = ("/" + "root/", "/" + "work/", str(ROOT))
ABSOLUTE_PATH = re.compile(rf"(?<![\w.$}}])/(?:root|work)/|{re.escape(str(ROOT))}(?![\w-])")


VERDICT = "cannot tell"
"""A verdict of comparisons, which is data and stays."""


def _text(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    return raw.decode("utf-8", errors="replace")


def _holding(pattern: re.Pattern[str], words: tuple[str, ...]) -> list[str]:
    """Return the files in which the pattern is found; it holds one of the words, which are found faster."""
    texts = {path.relative_to(ROOT): _text(path) for path in files()}
    marked = {path: text for path, text in texts.items() if any(w.lower() in text.lower() for w in words)}
    return [f"{path}: {found[0]}" for path, text in marked.items() if (found := pattern.search(text))]


def test_no_package_registry_is_named() -> None:
    assert _holding(REGISTRY_HOST, _HOSTS) == []


def test_no_path_of_the_machine_it_was_made_on_is_left() -> None:
    assert _holding(ABSOLUTE_PATH, _PLACES) == []


def test_nothing_is_marked_as_unfinished() -> None:
    assert _holding(UNFINISHED, _UNFINISHED) == []


def test_the_words_are_found_where_they_stand() -> None:
    assert REGISTRY_HOST.search(f"https://{_HOSTS[0]}/project")
    assert ABSOLUTE_PATH.search("see /" + "work/notes")
    assert UNFINISHED.search(f"# {_UNFINISHED[0]}: later")


def _listed_words() -> list[str]:
    """Return the words on the right of the table in the style guide."""
    table = (ROOT / "docs" / "style.md").read_text(encoding="utf-8").split("| we write | not |", 1)[1]
    return [word for row in table.splitlines() for word in re.findall(r"`([^`]+)`", row)]


def _prose() -> dict[str, str]:
    """Return what people read: pages, and every text in the source, by file."""
    pages = [p for p in files() if p.suffix in {".md", ".toml", ".html"} and "tests" not in p.parts]
    found = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in pages if p.name != "style.md"}
    for path in modules():
        nodes = ast.walk(tree(path))
        texts = [
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found[str(path.relative_to(ROOT))] = "\n".join(texts)
    return found


def test_no_word_that_the_style_guide_replaces_is_read_anywhere() -> None:
    words = _listed_words()
    assert len(words) > 10
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    prose = {name: text.replace(VERDICT, "") for name, text in _prose().items()}
    assert [f"{name}: {found[0]}" for name, text in prose.items() if (found := pattern.search(text))] == []


NAMELESS = {"asked", "found", "given", "known", "made", "own", "said", "stated", "told"}
"""Words that say nothing of what a variable holds."""


def _names(node: ast.AST) -> list[str]:
    """Return the names that a node of the syntax gives to a variable, a parameter or a function."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def test_a_name_is_a_noun_of_what_it_holds() -> None:
    for path in modules():
        names = {(name, node.lineno) for node in ast.walk(tree(path)) for name in _names(node)}
        nameless = [f"{path}:{line}: {name}" for name, line in sorted(names) if name.strip("_") in NAMELESS]
        assert nameless == [], "name each for what it holds, see docs/style.md"
