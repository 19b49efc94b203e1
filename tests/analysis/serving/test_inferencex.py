"""Aggregates of InferenceX: rates of all devices, and clear errors for bad values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from serving_files import codes, read, text_of

import ccl_bench as ccl
from ccl_bench.base.errors import InputError
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent


def aggregate(**changes: Any) -> dict[str, Any]:
    """Return an aggregate on 4 devices: 800 tokens/s in and 400 out. A change to None takes a key away."""
    whole = {
        "hw": "b200",
        "conc": 64,
        "image": "vllm/vllm-openai:v0.19.0",
        "model": "m",
        "framework": "vllm",
        "precision": "fp8",
        "spec_decoding": "none",
        "disagg": False,
        "isl": 1024,
        "osl": 1024,
        "is_multinode": False,
        "tp": 4,
        "ep": 1,
        "dp_attention": "false",
        "tput_per_gpu": 300.0,
        "output_tput_per_gpu": 100.0,
        "input_tput_per_gpu": 200.0,
        "mean_ttft": 0.5,
        "p99.9_ttft": 0.9,
        "mean_tpot": 0.02,
        "mean_intvty": 50.0,
        "std_intvty": 1e9,
        "mean_itl": 0.021,
        "mean_e2el": 20.0,
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def disaggregated(**changes: Any) -> dict[str, Any]:
    """Return one on 4 devices that prefill and 8 that decode, with the rates of `process_result.py`."""
    parts = {"num_prefill_gpu": 4, "num_decode_gpu": 8, "disagg": True, "is_multinode": True, "tp": None}
    rates = {"tput_per_gpu": 1200 / 12, "output_tput_per_gpu": 400 / 8, "input_tput_per_gpu": 800 / 4}
    return aggregate(**(parts | rates | changes))


def numbers(content: TraceContent) -> dict[tuple[str, str], float]:
    """Return the statistics of a result."""
    rows = content.table("serving_statistics").select("quantity", "statistic", "value").iter_rows()
    return {(quantity, statistic): value for quantity, statistic, value in rows}


@pytest.mark.parametrize("value", [aggregate(), [aggregate(), aggregate(conc=128)]], ids=["one", "list"])
def test_it_is_recognised_by_content_alone(value: Any) -> None:
    head = text_of(value).encode()
    assert [form.name for form in formats.load() if form.recognises(head)] == ["inferencex"]


@pytest.mark.parametrize("whole", [aggregate(), disaggregated()], ids=["together", "disaggregated"])
def test_rates_are_of_all_devices_and_times_in_seconds(whole: dict[str, Any]) -> None:
    content = read(whole)
    values = numbers(content)
    assert values["total_token_throughput", "total"] == pytest.approx(1200)
    assert values["output_throughput", "total"] == pytest.approx(400)
    assert values["concurrency", "total"] == 64
    assert (values["ttft", "mean"], values["ttft", "p99.9"], values["latency", "mean"]) == (0.5, 0.9, 20.0)
    assert codes(content) == []


def test_a_disaggregated_sweep_counts_prefill_and_decode_devices(tmp_path: Path) -> None:
    for concurrency, factor in ((64, 1), (128, 2)):
        slower = {"conc": concurrency, "mean_tpot": 0.02 * factor, "mean_intvty": 50 / factor}
        (tmp_path / f"agg_{concurrency}.json").write_text(text_of(disaggregated(**slower)))
    found = ccl.open(tmp_path, use_cache=False).sweep()
    assert (found.data.devices, found.data.throughput(0)) == (12, pytest.approx(400 / 12))
    assert (found.data.input_tokens, found.data.configuration["disaggregated"]) == (1024, "true")


def test_workers_give_the_devices_that_are_not_counted() -> None:
    workers = {"prefill_num_workers": 2, "prefill_tp": 2, "decode_num_workers": 1, "decode_tp": 8}
    whole = disaggregated(num_prefill_gpu=None, num_decode_gpu=None, **workers)
    assert numbers(read(whole))["output_throughput", "total"] == pytest.approx(400)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        (aggregate(conc=0), "conc is 0, not a whole number above 0"),
        (aggregate(tp=2.5), "tp is 2.5, not a whole number"),
        (aggregate(mean_ttft="soon"), "mean_ttft is not a number: 'soon'"),
        (aggregate(mean_tpot=float("nan")), "mean_tpot is not a number: 'nan'"),
        (aggregate(mean_tpot=-0.1), "mean_tpot is -0.1, which no benchmark measures"),
        (aggregate(tput_per_gpu=0), "tput_per_gpu is missing or 0"),
        (
            aggregate(input_tput_per_gpu=100.0),
            "input and output are 800 tokens/s, but tput_per_gpu gives 1200",
        ),
        (aggregate(output_tput_per_gpu=400.0, input_tput_per_gpu=None), "output alone is 1600 tokens/s"),
        (aggregate(mean_e2el=0.1), "mean_e2el is 0.1 s, shorter than mean_ttft"),
        (disaggregated(num_decode_gpu=None), "num_decode_gpu is missing"),
        ([aggregate(), aggregate(isl=0)], "result 1: isl is 0"),
    ],
)
def test_bad_values_are_errors_that_name_the_key(whole: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(whole, "agg_x.json")
    assert message in str(error.value)
    assert "agg_x.json" in str(error.value)


def test_an_interactivity_that_contradicts_tpot_is_a_finding() -> None:
    assert codes(read(aggregate(mean_intvty=60.0))) == ["statistics-disagree"]
