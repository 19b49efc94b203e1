"""Links are fitted, tables read, and a run replayed on another network; what is not measured is refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ccl_bench.base.errors import InputError, NotMeasurable, UsageError
from ccl_bench.catalog.collective_reference import reference_curve
from ccl_bench.predict.networks import (
    HockneyNetwork,
    Kind,
    fit_line,
    interpolation_error,
    parse_network,
    read_times,
)
from ccl_bench.predict.prediction import Asked, predict_run
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_line_is_found_again() -> None:
    sizes = np.array([1e3, 1e5, 1e7, 1e9])
    line = fit_line(sizes, 5e-6 + sizes / 1e11)
    assert line is not None
    assert (line.alpha_s, line.beta_s_per_byte) == pytest.approx((5e-6, 1e-11))
    assert line.error_ratio == pytest.approx(0, abs=1e-9)


def test_no_line_has_a_negative_latency_and_one_size_has_none() -> None:
    line = fit_line(np.array([1e6, 2e6]), np.array([1e-3, 3e-3]))
    assert line is not None
    assert line.alpha_s == 0
    # Least squares of relative errors through the origin: b = sum(s/t) / sum((s/t)^2).
    rates = np.array([1e9, 2e6 / 3e-3])
    assert line.beta_s_per_byte == pytest.approx(rates.sum() / (rates**2).sum())
    assert math.isnan(line.error_ratio)
    assert fit_line(np.array([1e6, 1e6]), np.array([1e-3, 2e-3])) is None
    assert fit_line(np.array([1e6, 2e6]), np.array([2e-3, 1e-5])) is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_fits_of_measured_all_reduces_hold_at_unseen_sizes(corpus: Path, ranks: int) -> None:
    tests = read_times(corpus / "config-ground-truth/allreduce-a100" / f"ar_a100_{ranks}.csv")
    assert {one.ranks for one in tests.measured} == {ranks}
    sizes = np.array([one.size_bytes for one in tests.measured], dtype=float)
    times = np.array([one.time_s for one in tests.measured])
    line = fit_line(sizes[::4], times[::4])
    assert line is not None
    unseen = np.arange(len(sizes)) % 4 != 0
    assert np.mean(np.abs(line.time_s(sizes[unseen]) / times[unseen] - 1)) < 0.02
    order = np.argsort(sizes)
    error = interpolation_error(sizes[order].astype(int).tolist(), times[order].tolist())
    assert error < 0.01


def test_the_hockney_error_on_nccl_tests_is_the_published_one(corpus: Path) -> None:
    """4.0 % on 4 H100, and less on the logarithms, as measured for this project with other code."""
    tests = read_times(corpus / "nccl-tests/results" / "all_reduce.txt")
    shortest: dict[int, float] = {}
    for one in tests.measured:
        shortest[one.size_bytes] = min(one.time_s, shortest.get(one.size_bytes, 1.0))
    sizes, times = map(np.array, zip(*sorted(shortest.items()), strict=True))
    line = fit_line(sizes.astype(float), times)
    assert line is not None
    assert line.error_ratio == pytest.approx(0.040, abs=0.003)
    assert interpolation_error(sizes.tolist(), times.tolist()) < line.error_ratio


ALL_REDUCE_8 = Kind("all_reduce", 8, None)


@pytest.mark.parametrize(
    ("text", "alpha_s", "bandwidth"),
    [
        ("alpha=5us,B=200GB/s", 5e-6, 200e9),
        ("B=200,alpha=5", 5e-6, 200e9),
        ("alpha=0.01ms,B=400Gbit/s", 1e-5, 50e9),
        ("alpha=900ns,B=500MB/s", 9e-7, 5e8),
    ],
)
def test_latency_and_bandwidth_have_units(text: str, alpha_s: float, bandwidth: float) -> None:
    network = parse_network(text)
    assert isinstance(network, HockneyNetwork)
    assert (network.alpha_s, network.bus_bandwidth) == pytest.approx((alpha_s, bandwidth))
    # 2 (n - 1) / n of an all-reduce over 8 is 1.75.
    assert network.time_s(ALL_REDUCE_8, 8_000_000)[0] == pytest.approx(alpha_s + 14e6 / bandwidth)


@pytest.mark.parametrize(
    "text",
    ["alpha=5", "B=200", "alpha=5,B=0", "alpha=-1,B=2", "alpha=5,alpha=6", "B=1,B=2", "B=2TB/s,alpha=1"],
)
def test_half_a_network_is_wrong(text: str) -> None:
    with pytest.raises(UsageError):
        parse_network(text)


def test_a_device_names_its_links() -> None:
    network = parse_network("h100-nvlink8")
    curve = reference_curve("H100 SXM", "all_reduce", 8)
    assert network.time_s(ALL_REDUCE_8, 1 << 20)[0] == curve.time_s(1 << 20)
    with pytest.raises(NotMeasurable, match="joins 4 devices"):
        parse_network("H100-NVLink4").time_s(ALL_REDUCE_8, 1 << 20)
    with pytest.raises(NotMeasurable, match="spans several") as refused:
        network.time_s(Kind("all_reduce", 8, spans_nodes=True), 1 << 20)
    assert "mpirun -np 8 all_reduce_perf" in refused.value.fix
    with pytest.raises(UsageError, match="no network and no file"):
        parse_network("X9000-NVLink8")


def test_tables_state_units_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_text("collective,ranks,size_bytes,time_us\nall_gather,4,1024,10\nall_gather,4,4096,20\n\n")
    network = parse_network(str(path))
    # Half way between the logarithms of the sizes, the time is the geometric mean.
    assert network.time_s(Kind("all_gather", 4, None), 2048)[0] == pytest.approx(1e-5 * math.sqrt(2))
    with pytest.raises(NotMeasurable, match="over 4 ranks, not over 8") as refused:
        network.time_s(Kind("all_gather", 8, None), 2048)
    assert "all_gather_perf -b 8 -e 8G -f 2 -g 8" in refused.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "",
        "size,time\n1,2\n",
        "size,time(us)\n1024,5\n",
        "size,time_us,ranks\n",
        "size,time_us,ranks\nx,1,2\n",
        "size,time_us,ranks\n1024,inf,2\n",
        "size,time_us,ranks\n1024,1,1\n",
        "size,time_us,ranks\n1e999,1,4\n",
    ],
)
def test_other_tables_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links.csv"
    path.write_text(text)
    with pytest.raises(InputError):
        read_times(path)


def test_a_run_on_its_own_links_takes_what_it_took(corpus: Path) -> None:
    run = open_run(corpus / "kineto/megatron-tp8")
    own = predict_run(run, Asked(doubling=True))
    (link,) = own.links
    assert (link.collective, link.members, link.calls) == ("all_reduce", 8, 84)
    # 67.1 MB take what the report's bus bandwidth of wait-free calls says: 194.8 GB/s.
    size = 67_108_864
    assert size * 1.75 / (link.alpha_s + size * 1.75 / link.bus_bandwidth) == pytest.approx(194.8e9, rel=0.02)
    text = f"alpha={link.alpha_s!r}s,B={link.bus_bandwidth / 1e9!r}GB/s"
    again = predict_run(run, Asked(network=text))
    assert own.step_s and again.step_s and again.recorded["step_s"] == own.recorded["step_s"]
    assert again.step_s["p50"] == pytest.approx(own.step_s["p50"], rel=1e-9)
    (call,) = again.calls
    assert call.predicted_s == pytest.approx(call.recorded_s, rel=1e-9)
    # It is host-bound: twice the bandwidth is worth nothing, however much of it transfers take.
    assert all(0 <= each.share < 1e-3 for each in own.doubling)


def test_a_run_bound_by_its_links_gains_from_faster_ones(corpus: Path) -> None:
    run = open_run(corpus / "kineto/gloo-fsdp2-tp2-args")
    answer = predict_run(run, Asked(network="alpha=1us,B=1000GB/s", doubling=True))
    assert answer.refused is None
    assert answer.gain_s is not None
    moved = sum(call.recorded_s for call in answer.calls)
    gone = sum(call.predicted_s for call in answer.calls)
    assert gone < 0.01 * moved
    worth = {each.link: each.share for each in answer.doubling}
    assert 0 < worth["tp"] < worth["nodes unknown"] < 0.5
    assert worth["dp_shard"] < worth["nodes unknown"]


def test_a_network_is_for_the_recorded_configuration(corpus: Path) -> None:
    run = open_run(corpus / "kineto/megatron-tp8")
    with pytest.raises(UsageError, match="recorded configuration alone"):
        predict_run(run, Asked(pp=2, network="alpha=5,B=200"))


def test_a_network_without_a_time_of_the_calls_is_refused(corpus: Path) -> None:
    run = open_run(corpus / "kineto/megatron-tp8")
    table = corpus / "config-ground-truth/allreduce-a100"
    refused = predict_run(run, Asked(network=str(table / "ar_a100_4.csv")))
    assert refused.step_s is None
    assert refused.refused is not None
    assert "over 4 ranks, not over 8" in refused.refused
    # Lengths of 0.2 % of the transfers, below the smallest measured one, keep their time.
    answered = predict_run(run, Asked(network=str(table / "ar_a100_8.csv")))
    assert answered.refused is None
    assert "calls-kept" in [finding.code for finding in answered.findings]
