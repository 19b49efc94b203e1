"""A text that Python repairs gives what it gives as it stands, and gaps give the same in any parts."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_files import aiperf, as_lines, genai_bench, llmperf, read, sglang, vllm

from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace import formats
from ccl_bench.trace.formats.serving import aiperf as aiperf_files
from ccl_bench.trace.formats.serving import json_values
from ccl_bench.trace.formats.serving import vllm as vllm_files
from ccl_bench.trace.formats.serving.requests import lists_of

WHOLE = {
    "vllm": json.dumps(vllm()),
    "vllm, pretty": json.dumps(vllm(start_times=[1.5, 2.25, 3.0]), indent=1),
    "sglang": as_lines([sglang()] * 2),
    "genai_bench": json.dumps(genai_bench("ms")),
    "aiperf": as_lines(aiperf()),
    "aiperf, older": as_lines(aiperf("old")),
    "llmperf": json.dumps(llmperf()),
}
ODD = [
    *(
        "null",
        "true",
        "false",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1",
        "-0",
        "-0.0",
        "0",
        "0.0",
        "5.0",
        "5.5",
    ),
    *(
        "864000",
        "864000.0000001",
        "1e9",
        "1000000001",
        str(2**53 + 1),
        str(2**63),
        str(2**64),
        str(-(2**63) - 1),
    ),
    *("9" * 400, "9" * 5000, "0." + "1" * 5000, "01", "1.", ".5", "+1", "1e", "--1", "0x10", "1_0"),
    *(
        '""',
        '"x"',
        '"0.5"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\u0000"',
        '"\\q"',
        '"tab\there"',
        '"null"',
        '"[0.1]"',
    ),
    *(
        "[]",
        "{}",
        "[0.5]",
        "[[0.5]]",
        "[true]",
        "[null]",
        "[[]]",
        '{"value": 5}',
        "[-0.0]",
        "[0.1, 0.2,]",
        "[1 2]",
    ),
    *(
        "[864000, 864000, 864000]",
        "[1e308, 1e308]",
        '["]", "["]',
        "[[0.1], [0.2]]",
        "",
        " ",
        ",",
        "]",
        "[" * 2000,
    ),
    *('"a": 1', '"unit": "us"', '"unit": null', "\x00", "\ufeff", "\xa0", "\udcff", "\n", "\n\n1\n"),
]
PLACES = max(1, settings().max_examples // 50)
"""Places in which each odd value is tried."""
VALUE = re.compile(r'-?\d+\.?\d*(?:e-?\d+)?|null|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}')


def _everything(raw: bytes, tool: str) -> tuple[object, ...]:
    """Return all that reading comes to, with every digit of it."""
    form = formats.recognised(WHOLE[tool].encode())
    assert form is not None
    assert form.read is not None
    try:
        content = form.read(io.BytesIO(raw), "result.json")
    except InputError as error:
        return str(error), error.where, error.fix
    written = io.BytesIO()
    content.table("requests").rechunk().write_parquet(written, statistics=False)
    statistics = content.table("serving_statistics").rows()
    return written.getvalue(), repr(statistics), content.findings, content.attributes


class _Refusing:
    """A decoder that leaves every text to be repaired."""

    def decode(self, _: object) -> None:
        raise msgspec.DecodeError


def _all_repaired(raw: bytes, tool: str) -> tuple[object, ...]:
    """Return the same where every text is repaired."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (json_values, aiperf_files):
            patch.setattr(module, "decoded", json_values.repaired)
        patch.setattr(json_values, "_OBJECTS", _Refusing())
        patch.setattr(vllm_files, "_ROWS", _Refusing())
        return _everything(raw, tool)


def _same(text: str, tool: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    assert _everything(raw, tool) == _all_repaired(raw, tool)


@pytest.mark.parametrize("tool", WHOLE)
def test_an_odd_value_anywhere_gives_what_it_gives_repaired(tool: str) -> None:
    whole = WHOLE[tool]
    values = [*VALUE.finditer(whole)]
    apart = 1 + len(values) // PLACES
    for number, odd in enumerate(ODD):
        for value in values[number % apart :: apart]:
            _same(whole[: value.start()] + odd + whole[value.end() :], tool)


@given(st.sampled_from([*WHOLE]), st.integers(0, 10_000), st.sampled_from(ODD), st.integers(0, 3))
def test_an_odd_text_at_any_place_gives_what_it_gives_repaired(
    tool: str, place: int, odd: str, dropped: int
) -> None:
    whole = WHOLE[tool]
    at = place % len(whole)
    _same(whole[:at] + odd + whole[at + dropped :], tool)


TIMES = st.floats(-1, 1e6) | st.floats() | st.integers(-1, 10) | st.integers() | st.none() | st.booleans()
COUNTS = st.integers(0, 5) | st.integers() | st.floats(0, 5) | st.none() | st.booleans() | st.text(max_size=3)
ENTRY = st.tuples(
    TIMES, st.lists(TIMES, max_size=4) | st.none(), COUNTS, COUNTS, st.text(max_size=3) | TIMES, TIMES
)
LISTS = ("ttfts", "itls", "input_lens", "output_lens", "errors", "start_times")
USUAL = st.tuples(
    st.floats(0, 10),
    st.lists(st.floats(0, 10) | st.integers(0, 3), max_size=4),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["", "", "timeout"]),
    st.floats(0, 1e10),
)


@given(st.lists(USUAL, max_size=5), st.lists(ENTRY, max_size=1), st.sets(st.sampled_from(LISTS), min_size=3))
def test_lists_of_any_values_give_what_they_give_repaired(usual: Any, odd: Any, names: set[str]) -> None:
    columns = dict(zip(LISTS, map(list, zip(*usual, *odd, strict=True)), strict=False))
    lists = {name: columns.get(name, []) if name in names else None for name in LISTS}
    _same(json.dumps(vllm(**lists, mean_itl_ms=20, mean_ttft_ms=5000)), "vllm")


@given(st.tuples(TIMES, TIMES, TIMES, COUNTS, COUNTS, COUNTS))
def test_entries_of_any_values_give_what_they_give_repaired(values: tuple[Any, ...]) -> None:
    keys = ("ttft", "e2e_latency", "tpot", "num_input_tokens", "num_output_tokens", "error_code")
    for unit in ("s", "ms"):
        whole = genai_bench(unit)
        whole["individual_request_metrics"][1] |= zip(keys, values, strict=True)
        _same(json.dumps(whole), "genai_bench")
    keys = ("ttft_s", "end_to_end_latency_s", "inter_token_latency_s")
    keys += ("number_input_tokens", "number_output_tokens", "error_code")
    entries = llmperf()
    entries[1] |= zip(keys, values, strict=True)
    _same(json.dumps(entries), "llmperf")


@pytest.mark.parametrize(
    "doubled",
    [
        '{"ttfts": [9], "ttfts": [0.1, 0.3, 0.2], ',
        '{"ttfts": null, "itls": "x", ',
        '{"\\u0074tfts": [0.4, 0.5, 0.6], ',
        '{"ttfts": [0.4, 0.5, 0.6], ',
    ],
)
def test_of_a_key_that_is_there_twice_the_last_counts(doubled: str) -> None:
    whole = WHOLE["vllm"]
    _same(doubled + whole[1:], "vllm")
    _same(whole[:-1] + ", " + doubled[1:-2] + "}", "vllm")


@pytest.mark.parametrize(
    "rate", ["Infinity", "-Infinity", " \n Infinity", "Infinityx", "nInfinity", '"Infinity"']
)
@pytest.mark.parametrize("quote", ['"', '\\\\"', '\\"'])
def test_a_rate_without_limit_changes_nothing_else(rate: str, quote: str) -> None:
    key = f"{quote}request_rate{quote}"
    for at in ("{", "[", ", ", '": "'):
        _same(WHOLE["vllm"].replace(at, f"{at}{key}:{rate}, "), "vllm")
        _same(WHOLE["vllm"].replace(at, f"{at}{key}:{rate}, ", 1), "vllm")


def test_numbers_of_failed_requests_are_not_kept() -> None:
    found = read(vllm(errors=["", "timeout", ""], output_lens=[3, 7, 0], completed=1)).table("requests")
    assert found["status"].to_list() == ["ok", "failed", "failed"]
    assert found["ttft_s"].to_list() == [0.1, None, None]
    assert found["gaps_s"].to_list() == [[0.02, 0.02], None, None]


def test_gaps_that_are_decoded_in_many_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vllm(**{name: vllm()[name] * 7 for name in LISTS[:-1]}, completed=21)
    at_once = [_everything(json.dumps(whole, indent=indent).encode(), "vllm") for indent in (None, 1)]
    for size in range(1, 60, 3):
        monkeypatch.setattr(vllm_files, "_GAPS_BYTES", size)
        for indent, expected in zip((None, 1), at_once, strict=True):
            assert _everything(json.dumps(whole, indent=indent).encode(), "vllm") == expected


@pytest.mark.parametrize("itls", ["[[0.02, 0.02], [0.06], []]", "[0.02], [0.06], []"])
def test_a_text_that_looks_like_gaps_is_none(itls: str) -> None:
    with pytest.raises(InputError) as refused:
        read(vllm(itls=itls), "here.json")
    assert refused.value.where == "here.json: itls of result 0"


def test_a_mean_at_the_edge_of_the_tolerance_is_compared_exactly() -> None:
    for mean in (200.2002002, 200.2002003, 199.8, 199.79999, 200.19, 199.81):
        _same(json.dumps(vllm(mean_ttft_ms=mean)), "vllm")
    for mean in (33.3, 33.33333, 33.366, 33.3666999, 33.36671, 33.29999, 33.3, 20, 0):
        _same(json.dumps(vllm(mean_itl_ms=mean)), "vllm")
        _same(json.dumps(vllm(mean_itl_ms=mean, itls=[[], [], []], output_lens=[1, 1, 1])), "vllm")
    assert read(vllm(mean_itl_ms=33.4)).findings
    assert not read(vllm(mean_itl_ms=33.35)).findings
    assert read(vllm(mean_ttft_ms=200.2002003)).findings
    assert not read(vllm(mean_ttft_ms=200.19)).findings


@pytest.mark.parametrize("rows", [[], [None], [[]], [[1.0], [2.0]], [[1.0], None, [], [-0.0, 3.0]]], ids=str)
def test_lists_become_a_column(rows: list[list[float] | None]) -> None:
    column = lists_of(rows)
    assert column.dtype == pl.List(pl.Float64)
    assert str(column.to_list()) == str(rows)


@pytest.mark.parametrize("tool", ["vllm", "sglang", "genai_bench", "aiperf"])
def test_a_number_without_end_does_no_harm_where_nobody_reads_it(tool: str) -> None:
    whole = WHOLE[tool]
    longer = whole.replace("{", '{"unread": ' + "9" * 5000 + ", ", 1)
    assert _everything(longer.encode(), tool) == _everything(whole.encode(), tool)


@pytest.mark.parametrize("gaps", [[[0.1]], [[0.1]] * 2, [[0.1]] * 4, [[]] * 9])
def test_lists_of_gaps_of_another_length_are_refused(gaps: list[list[float]]) -> None:
    with pytest.raises(InputError, match=f"ttfts 3, itls {len(gaps)}, input_lens 3"):
        read(vllm(itls=gaps))
