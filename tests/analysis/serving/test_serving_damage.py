"""Damaged and hostile results: each impossible request is left out by name, and nothing is guessed."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_files import aiperf, as_lines, codes, genai_bench, llmperf, measured, read, sglang, vllm

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

NAN, HUGE = float("nan"), 1e300

IMPOSSIBLE = (NAN, float("inf"), -0.1, HUGE, 10**400, "0.1", True, [], {})


def _lost(content: Any) -> str:
    (message,) = [finding.message for finding in content.findings if finding.code == "requests-lost"]
    return message


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=str)
def test_an_impossible_time_leaves_its_request_out_and_says_which(value: Any) -> None:
    content = read(vllm(ttfts=[0.1, value, 0.2], completed=2, mean_ttft_ms=150, mean_tpot_ms=20))
    assert content.table("requests")["request"].to_list() == ["0", "2"]
    assert codes(content) == ["requests-lost"]
    assert _lost(content).startswith("left out as damaged or impossible: 1 request: request 1: ttft is")


@pytest.mark.parametrize("value", [*IMPOSSIBLE, 1.5], ids=str)
def test_an_impossible_number_of_tokens_leaves_its_request_out(value: Any) -> None:
    for content in (read(vllm(output_lens=[3, value, 1])), read(vllm(input_lens=[10, value, 30]))):
        assert content.table("requests")["request"].to_list() == ["0", "2"]


@pytest.mark.parametrize("gaps", [[0.02, NAN], [-1.0], [None], 5, "x", [[0.1]]], ids=str)
def test_an_impossible_gap_leaves_its_request_out(gaps: Any) -> None:
    content = read(vllm(itls=[[0.02, 0.02], gaps, []]))
    assert content.table("requests")["request"].to_list() == ["0", "2"]
    assert "request 1: " in _lost(content)


@pytest.mark.parametrize("write", [genai_bench, llmperf], ids=["genai_bench", "llmperf"])
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=str)
def test_impossible_times_of_other_tools_leave_their_request_out(write: Any, value: Any) -> None:
    whole = write()
    listed = whole if isinstance(whole, list) else whole["individual_request_metrics"]
    for key in ("ttft", "ttft_s"):
        listed[1] |= {key: value} if key in listed[1] else {}
    assert read(whole).table("requests")["request"].to_list() == ["0", "2"]


def test_a_request_that_ends_before_its_first_token_is_left_out() -> None:
    content = read(llmperf(ttft_s=0.15))
    assert content.table("requests")["latency_s"].to_list() == [0.36, 0.2]
    assert "request 0: it ended after 0.14 s, before its first token after 0.15 s" in _lost(content)


def test_lists_that_disagree_in_length_are_refused_with_their_lengths() -> None:
    with pytest.raises(InputError, match="ttfts 2, itls 3") as refused:
        read(vllm(ttfts=[0.1, 0.2]), "here.json")
    assert refused.value.where == "here.json"


def test_a_list_that_is_none_is_refused_with_its_name() -> None:
    with pytest.raises(InputError) as refused:
        read(vllm(itls="0.1, 0.2"), "here.json")
    assert refused.value.where == "here.json: itls of result 0"


def test_missing_lists_take_only_what_rests_on_them(tmp_path: Path) -> None:
    names = ("TTFT", "TPOT", "ITL", "output_throughput")
    results = measured(tmp_path, *names, bench__json=vllm(itls=None, errors=None))
    assert [result.status for result in results] == ["ok", "ok", "not_measurable", "ok"]
    assert results[1].value == pytest.approx(0.04)  # mean_tpot_ms of the file: no request has a latency


def test_a_result_cut_off_is_refused_with_the_place() -> None:
    whole = json.dumps(vllm())
    with pytest.raises(InputError, match=r"no whole JSON: .*line 1 column \d+"):
        read(whole[: whole.index("itls") + 20])


def test_the_metrics_of_a_cut_off_result_say_that_it_could_not_be_read(tmp_path: Path) -> None:
    (result,) = measured(tmp_path, "TTFT", bench__json=json.dumps(vllm())[:-30])
    assert result.status == "not_measurable"
    assert [finding.code for finding in result.findings] == ["trace-unreadable"]


def test_a_line_cut_off_leaves_the_lines_before_it() -> None:
    text = as_lines(aiperf())
    content = read(text[:-40], "profile_export.jsonl")
    assert content.table("requests")["request"].to_list() == ["r0", "r1"]
    assert "line 3: it is not complete JSON" in _lost(content)


def test_a_damaged_line_in_the_middle_leaves_the_others() -> None:
    first, _, third = as_lines(aiperf()).splitlines()
    content = read(f'{first}\n{{"metadata": nonsense\n\n{third}\n[1, 2]')
    assert content.table("requests")["request"].to_list() == ["r0", "r2"]
    assert codes(content) == ["requests-lost"]
    assert content.findings[0].count == 2


def test_a_damaged_line_of_several_results_is_refused_with_its_number() -> None:
    with pytest.raises(InputError, match="line 2 is not complete JSON"):
        read(as_lines([sglang(), sglang()])[:-20])


def test_a_compressed_result_that_is_cut_off_gives_what_stands_before(tmp_path: Path) -> None:
    records = aiperf() * 2000
    for number, record in enumerate(records):
        record["metadata"] = record["metadata"] | {"x_request_id": f"{number * 7919 % 104729:x}"}
    packed = gzip.compress(as_lines(records).encode())
    (tmp_path / "profile_export.json.gz").write_bytes(packed[: len(packed) // 2])
    (result,) = evaluate(open_run(tmp_path), ["TTFT"])
    assert result.status == "ok"
    assert 0 < result.details["requests"]["ok"] < len(records)
    assert "requests-lost" in [finding.code for finding in result.findings]


@pytest.mark.parametrize("changes", [{"metrics": []}, {"metadata": "x"}, {"metrics": {"request_latency": 5}}])
def test_records_of_another_shape_are_left_out(changes: dict[str, Any]) -> None:
    good = json.dumps(aiperf()[0])
    content = read(good + "\n" + json.dumps(aiperf()[1] | changes))
    assert content.table("requests").height == 1
    assert codes(content) == ["requests-lost"]


def test_a_unit_that_is_unknown_is_never_guessed() -> None:
    records = aiperf()
    records[1]["metrics"]["request_latency"]["unit"] = "fortnights"
    assert "line 2: request_latency is in fortnights" in _lost(read(as_lines(records)))
    with pytest.raises(InputError, match="_time_unit is 'min'"):
        read(genai_bench(_time_unit="min"))


def test_a_mean_that_the_requests_do_not_give_is_found() -> None:
    content = read(vllm(mean_ttft_ms=250.0))
    assert codes(content) == ["statistics-disagree"]
    assert content.findings[0].message == "the mean ttft is stated as 0.25 s, and the requests give 0.2 s"


@pytest.mark.parametrize("stated", [-20.0, 0, 1e308, 2**70])
def test_a_duration_that_no_benchmark_has_is_left_out_and_reported(stated: float) -> None:
    content = read(vllm(duration=stated))
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("statistics-impossible", 1, ("requests",))
    assert "duration" not in content.tables["serving_statistics"]["quantity"].to_list()


@pytest.mark.parametrize("stated", [-1.0, 1e9, 1e300])
def test_a_mean_that_no_benchmark_measures_is_left_out_and_reported(stated: float) -> None:
    content = read(vllm(mean_tpot_ms=stated * 1000))
    assert codes(content) == ["statistics-impossible"]


def test_true_is_no_duration() -> None:
    content = read(vllm(duration=True))
    assert "duration" not in content.tables["serving_statistics"]["quantity"].to_list()


def test_a_count_that_the_requests_do_not_give_is_found() -> None:
    assert codes(read(vllm(completed=5))) == ["statistics-disagree"]


@pytest.mark.parametrize("value", [NAN, "x", None, [], 10**400, HUGE])
def test_impossible_statistics_do_no_harm(value: Any) -> None:
    whole = vllm() | {"p99_ttft_ms": value, "total_input_tokens": value}
    assert read(whole).table("requests").height == 3


def test_text_that_no_table_can_hold_is_replaced() -> None:
    error = "\ud800" + "x" * 10_000
    requests = read(vllm(errors=["", error, ""], completed=2)).table("requests")
    assert requests["error"][1].startswith("?xxx")
    assert len(requests["error"][1]) <= 500


def test_nesting_without_end_is_refused() -> None:
    deep = '{"model_id": 1, "num_prompts": 1, "duration": 1, "completed": 1, "itls": ' + "[" * 100_000
    with pytest.raises(InputError, match="no whole JSON"):
        read(deep)


def test_byte_order_marks_and_bad_utf8_are_tolerated(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(vllm()).encode().replace(b'"vllm"', b'"vl\xfflm"')
    (tmp_path / "bench.json").write_bytes(raw)
    (result,) = evaluate(open_run(tmp_path), ["TTFT"])
    assert result.value == pytest.approx(0.2)


WHOLE = [json.dumps(vllm()), as_lines([sglang()] * 2), json.dumps(genai_bench()), as_lines(aiperf())]
WHOLE += [json.dumps(llmperf())]
VALUE = re.compile(r'-?\d+\.?\d*(?:e-?\d+)?|null|"[^"]*"(?!:)|\[[^\[\]]*\]|\{[^{}]*\}')
JUNK = ("null", "-1", "NaN", "1e999", '"x"', "[]", "{}", "true", "9" * 40, '"\\ud800"', "[[", "\x00")


@given(whole=st.sampled_from(WHOLE), place=st.integers(0, 10_000), junk=st.sampled_from(JUNK))
def test_any_value_may_be_anything(whole: str, place: int, junk: str) -> None:
    values = list(VALUE.finditer(whole))
    value = values[place % len(values)]
    damaged = (whole[: value.start()] + junk + whole[value.end() :]).encode()
    form = formats.recognised(whole.encode())
    with contextlib.suppress(InputError):
        requests = form.read(io.BytesIO(damaged), "result.json").table("requests")
        assert all(time >= 0 for time in requests["ttft_s"].drop_nulls())
