"""The shape that the style guide asks of every module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from checkout import ROOT, modules, tree

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_there_are_modules_to_look_at() -> None:
    assert len(modules()) > 80


def test_every_module_says_in_its_first_line_what_it_is() -> None:
    silent = []
    for path in modules():
        docstring = ast.get_docstring(tree(path)) or ""
        first = docstring.split("\n\n", 1)[0].rstrip()
        if not first.endswith((".", ":")):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


_RESOLVED_BY_PYTHON = {"Any", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "tuple"}
_OF_A_DECODER = {"decoder", "type_"}
"""Names of what a decoder that is made at import has its type from."""


def _types_of_msgspec(node: ast.AST) -> Iterator[str]:
    """Yield the classes that a call of msgspec is given as types to decode into."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        given = [word.value for word in call.keywords if word.arg == "type"] if "msgspec" in name else []
        if name in {"Decoder", "json_decoder"} or name.endswith("json.Decoder"):
            given += call.args[:1]
        elif name == "msgspec.convert":
            given += call.args[1:2]
        for each in given:
            yield from (name.id for name in ast.walk(each) if isinstance(name, ast.Name))


def test_types_of_msgspec_are_known_before_there_are_threads() -> None:
    """msgspec 0.22 crashes where two threads are the first to need a type, so decoders are made at import."""
    late = set()
    for path in modules():
        text = path.read_text(encoding="utf-8")
        if "msgspec" not in text and "Decoder" not in text:
            continue
        statements = tree(path).body
        blocks = [each for each in statements if isinstance(each, ast.FunctionDef | ast.ClassDef)]
        early = {name for each in statements if each not in blocks for name in _types_of_msgspec(each)}
        for block in blocks:
            late |= {
                f"{path.relative_to(ROOT)}: {name}"
                for name in {*_types_of_msgspec(block)} - early - _RESOLVED_BY_PYTHON - _OF_A_DECODER
            }
    assert late == set()
