"""Patterns that meet a stranger's text take time linear in its length, whatever the text is."""

from __future__ import annotations

import re
import time
import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from pattern_texts import repeated

from ccl_bench.base.text import csv_lines
from ccl_bench.card.fields import is_address
from ccl_bench.catalog import devices
from ccl_bench.catalog.collectives import SEARCHED
from ccl_bench.leaderboard.bundle import redaction
from ccl_bench.leaderboard.bundle.format import name_problem
from ccl_bench.leaderboard.pages import render
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.publications import is_readable_storage
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.web import app, protocol
from ccl_bench.report.comparison import phrases
from ccl_bench.side_files import device_samples
from ccl_bench.trace.formats.ascend import reader as ascend
from ccl_bench.trace.formats.jax_trace import work
from ccl_bench.trace.formats.kineto import events
from ccl_bench.trace.formats.nsys import counters
from ccl_bench.trace.formats.xplane import rows
from ccl_bench.trace.hlo import instruction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STORAGE = Settings(trace_storage=("s3://traces/public/",))


def _searched(text: str, group: str = "secret") -> None:
    for pattern in redaction._patterns():
        if pattern.is_secret == (group == "secret"):
            pattern.pattern.search(text.encode())


READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "labels of DCGM": (lambda text: device_samples._LABEL.findall(text), ("a", 'a="', 'a="b', "_ ")),
    "operators of Kineto": (events.is_range, ("Backward", "Backward ", "A", ":", "detach")),
    "operators of Ascend": (lambda text: ascend._OPERATOR.search(text), ("Backward", "Backward:")),
    "counters of Nsight Systems": (lambda text: counters._UNIT.search(text), (" ", "[", " [", "[a")),
    "details in an XPlane": (lambda text: rows._DETAIL.findall(text), ("a", "a:", "a ")),
    "instructions of JAX": (work._without_numbers, (".1", ".clone", ".")),
    "copies of JAX": (lambda text: work._COPY_KIND.search(text), ("kind", "kind_", "kind ", "kind:")),
    "groups of a mesh": (
        lambda text: instruction._MESH_GROUPS.search(text),
        ("replica_groups=mesh[", "replica_groups=mesh['a'=2] "),
    ),
    "settings of a report": (lambda text: redaction._SETTING.findall(text), ("A", "A=", "7", "_")),
    "secrets of an upload": (_searched, ("_", "TOKEN", "A_", "TOKEN=", "://a:", "sk-", "eyJ", "-----BEGIN ")),
    "names in an upload": (
        lambda text: _searched(text, "personal"),
        ("/home/", "a@", "a.", "10.", "a-", "::"),
    ),
    "a query of the board": (lambda text: RunQuery(q=text[:200], model=[text[:200]]), ("a ", "%", "_", "\0")),
    "a name of a file": (name_problem, ("a/", "../", "a", ".", "\\")),
    "an address in a card": (is_address, ("a", "http://", "[", "@", "a:")),
    "an address of storage": (
        lambda text: is_readable_storage(f"s3://traces/public/{text}", _STORAGE),
        ("a/", "../"),
    ),
    "a token": (lambda text: tokens._TOKEN.fullmatch(text), ("cclb_", "a", "cclb_000000000000_a")),
    "a token in a log": (
        lambda text: app._SECRET.sub(r"\1", text),
        ("cclb_", "cclb_000000000000_", "cclb_0000"),
    ),
    "headers of a request": (
        lambda text: protocol._READ_DIFFERENTLY.search(text.encode()),
        ("\r", "a: b\r\n"),
    ),
    "a cell of a spreadsheet": (
        lambda text: list(csv_lines([[text]])),
        ("=", " ", ";", '"', "\t ", "; ", "|", "\n", "\n ", " \n", "\n;", "\ufeff"),
    ),
    "a version in a plot": (lambda text: re.split(r"([0-9]+)", text), ("1", "a", "1a")),
    "a name on a page": (lambda text: render._JOINTS.sub("", text), (".", "._", "a.")),
    "code on a page": (lambda text: render._CODE.sub("", text), ("`", "`a", "``")),
    "a name in a comparison": (
        lambda text: phrases._BRACKETS.sub("", text),
        ("<", "(", "<a>", "((anonymous)"),
    ),
}
"""Text from strangers, and pieces that are repeated for a pattern that begins anew at each of them."""


TIMED_S = 0.002
"""Time from which another length can be compared, s: a thousand times what the clock of a thread resolves."""


@pytest.mark.parametrize("reader", READERS)
def test_text_of_four_times_the_length_takes_about_four_times_as_long(reader: str) -> None:
    """Square time would take sixteen times as long; what takes too little time to tell takes no other."""
    read, pieces = READERS[reader]
    for piece in pieces:
        count = 4_000 // len(piece)
        while (first := _cpu_s(read, piece * count)) < TIMED_S and count < 64_000:
            count *= 4
        if first >= TIMED_S:
            longer = _quickest_s(read, piece * 4 * count)
            assert longer < 10 * max(first, _cpu_s(read, piece * count)), (piece, count, first, longer)


_LONGEST = {"devices.toml": devices.SEARCHED}
"""File of the catalog → characters that its patterns meet; those of others may meet `SEARCHED`."""


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text below a value, with the key that it or its list has."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, key)
    elif isinstance(value, str):
        yield key, value


CATALOG = {
    file.name: [
        text
        for key, text in _strings(tomllib.loads(file.read_text(encoding="utf-8")))
        if key in {"match", "pattern", "prefixes"}
    ]
    for file in resources.files("ccl_bench.catalog").iterdir()
    if file.name.endswith(".toml")
}


@pytest.mark.parametrize("file", [name for name, patterns in CATALOG.items() if patterns])
def test_patterns_of_the_catalog_take_time_linear_in_a_name_that_is_made_for_them(file: str) -> None:
    """The linear ones take 15 ms at most; those that were not took 350 ms and more."""
    length = _LONGEST.get(file, 4 * SEARCHED)
    for expression in CATALOG[file]:
        search = re.compile(expression).search
        for long, short in zip(repeated(expression, length), repeated(expression, length // 4), strict=True):
            if _cpu_s(search, long) > 0.03:
                assert _quickest_s(search, long) < 0.03 + 8 * _cpu_s(search, short), (expression, long[:80])


@pytest.mark.parametrize(
    ("expression", "linear"),
    [
        ("first.*second", "^(?>.*?first).*second"),
        (r"(?:one|two)\w*three", r"(?<!\w)(?>\w*?(?:one|two))\w*three"),
        (r"(?:^|\W)\w*ep::(?:\w+::)*get", r"(?<!\w)(?<!\w::)(?>(?:\w+::)*?\w*ep::)(?:\w+::)*get"),
        (r"^\w+::\w*first\w*second", r"^\w+::(?>\w*?first)\w*second"),
        (r"^first\w*(?:[._]\d+)*$", r"^first\w*+(?:[._]\d+)*$"),
    ],
)
def test_texts_are_made_for_each_way_to_take_the_square_of_the_time(expression: str, linear: str) -> None:
    slow, fast = (
        max(_quickest_s(re.compile(each).search, text) for text in repeated(each, 4_096))
        for each in (expression, linear)
    )
    assert slow > 8 * fast


def _quickest_s(read: Callable[[str], object], text: str) -> float:
    """Return the shortest of some times: what else a machine does makes one longer, and none shorter."""
    return min(_cpu_s(read, text) for _ in range(4))


def _cpu_s(read: Callable[[str], object], text: str) -> float:
    """Return the time of a processor that reading takes, of a text whose end no pattern expects."""
    text += " !"
    before = time.thread_time()
    read(text)
    return time.thread_time() - before
