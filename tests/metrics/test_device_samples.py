"""Power, energy, clocks and NVLink from the logs of monitoring tools, joined with steps in time.

A run of two ranks with a step of one second and one of two, from `START_S` on. Device 0 takes 100 W at
first, 300 W from one second on, and 100 W again after three; device 1 always 200 W. So device 0 takes
200 + 300 + 200 J in the steps and device 1 600 J: 650 J a step.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from commands import invoke

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import Result
from ccl_bench.run import open_run

START_S = 1_790_000_000
CURVE = {-1: 100.0, 0: 100.0, 1: 300.0, 2: 300.0, 3: 100.0, 4: 100.0}
JOULES = (700.0, 600.0)


def trace(folder: Path, rank: int, device: int, base_s: int = START_S) -> None:
    """Write a trace of two steps, each with a kernel."""
    events: list[dict[str, object]] = []
    for step, (start, length) in enumerate([(0, 1_000_000), (1_000_000, 2_000_000)], 1):
        place = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            place | {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": start, "dur": length},
            place | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 2}
            | {"args": {"correlation": step}},
            place | {"cat": "kernel", "name": "gemm", "ts": start + 10, "dur": 1000}
            | {"args": {"device": device, "stream": 7, "correlation": step}},
        ]  # fmt: skip
    content = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": base_s * 10**9,
        "distributedInfo": {"rank": rank, "world_size": 2},
        "traceEvents": events,
    }
    (folder / f"rank{rank}_trace.json").write_text(json.dumps(content))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        trace(tmp_path, rank, rank)
    return tmp_path


def power(device: int) -> dict[int, float]:
    """Return the watts of a device by second of the run."""
    return CURVE if device == 0 else dict.fromkeys(CURVE, 200.0)


def local(second: float, hours: float = 0) -> str:
    """Return a time as nvidia-smi writes it on a host so many hours ahead of UTC."""
    moment = datetime.fromtimestamp(START_S + second + 3600 * hours, UTC)
    return moment.strftime("%Y/%m/%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def nvidia_smi(
    folder: Path, hours: float = 0, devices: tuple[int, ...] = (0, 1), name: str = "smi.csv"
) -> None:
    names = "timestamp, index, uuid, power.draw [W], clocks.current.sm [MHz], clocks.max.sm [MHz]"
    lines = [f"{names}, temperature.gpu, clocks_event_reasons.active"]
    for second in CURVE:
        for device in devices:
            mask = 0x4 if second == 2 and device == 0 else 0x1
            clock = 1980 if second != 2 else 1500
            lines.append(
                f"{local(second, hours)}, {device}, GPU-{device}, {power(device)[second]:.2f} W, "
                f"{clock} MHz, 1980 MHz, {50 + second}, 0x{mask:016x}"
            )
    (folder / name).write_text("\n".join(lines) + "\n")


def results(folder: Path, *names: str) -> list[Result]:
    return evaluate(open_run(folder), names, jobs=1, use_cache=False)


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def test_power_and_energy_of_steps(run: Path) -> None:
    nvidia_smi(run)
    (run / "run_metadata.json").write_text('{"tokens_per_step": 1000}')
    draw, energy, each = results(run, "power_draw", "energy_per_step", "energy_per_token")
    assert draw.value == pytest.approx(sum(JOULES) / 3 / 2)
    assert draw.details["per_rank_w"] == pytest.approx({"0": JOULES[0] / 3, "1": JOULES[1] / 3})
    assert (draw.details["max_w"], draw.details["samples_count"]) == (300, 6)
    assert draw.details["rank_source"] == "device numbers of the kernels"
    assert energy.value == pytest.approx(sum(JOULES) / 2)
    assert energy.details["per_rank_j"] == pytest.approx({"0": 350, "1": 300})
    assert each.value == pytest.approx(0.65)
    assert codes(draw) >= {"samples-sparse", "sample-zone-assumed"}
    assert list(draw.provenance.files) == ["smi.csv"]


def test_clocks_temperature_and_what_holds_clocks_down(run: Path) -> None:
    nvidia_smi(run)
    clock, hot, held = results(run, "sm_clock", "device_temperature", "throttled_time")
    assert clock.value == pytest.approx((1980 + (1980 + 1500) / 2 + (1500 + 1980) / 2) / 3)
    assert clock.details["per_rank_below_maximum_pct"] == pytest.approx({"0": 100 / 3, "1": 100 / 3})
    assert hot.value == 52
    assert held.value == pytest.approx((100 / 3 + 0) / 2)
    assert held.details["per_rank_pct"] == pytest.approx({"0": 100 / 3, "1": 0})
    assert held.details["per_reason_pct"]["sw_power_cap"] == pytest.approx(100 / 6)


@pytest.mark.parametrize(
    ("hours", "zone"),
    [(2, "UTC+02:00"), (-7, "UTC-07:00"), (5.75, "UTC+05:45"), (14, "UTC+14:00"), (-12, "UTC-12:00")],
)
def test_local_times_are_in_the_one_zone_that_meets_the_steps(run: Path, hours: float, zone: str) -> None:
    nvidia_smi(run, hours)
    (draw,) = results(run, "power_draw")
    assert draw.value == pytest.approx(sum(JOULES) / 6)
    assert any(zone in finding.message for finding in draw.findings if finding.code == "sample-zone-assumed")


@pytest.mark.parametrize("hours", [0.3, 15, -13])  # no clock of the world is so far from UTC
def test_samples_of_another_time_are_refused(run: Path, hours: float) -> None:
    nvidia_smi(run, hours)
    (draw,) = results(run, "power_draw")
    assert (draw.status, draw.value) == ("not_measurable", None)
    assert "do not overlap in any time zone" in draw.reason


def test_local_times_that_meet_the_steps_in_several_zones_are_refused(run: Path) -> None:
    rows = [f"{local(60 * minute)}, {d}, 100 W" for minute in range(-100, 100) for d in (0, 1)]
    (run / "smi.csv").write_text("\n".join(["timestamp, index, power.draw [W]", *rows]))
    (draw,) = results(run, "power_draw")
    assert "time zones, so their zone is unknown" in draw.reason
    assert "TZ=UTC" in draw.fix


def test_a_log_that_skips_the_steps_is_refused(run: Path) -> None:
    rows = [f"{START_S + second},{device},400" for second in (-10, 10) for device in (0, 1)]
    (run / "amd.csv").write_text("\n".join(["timestamp,gpu,socket_power", *rows]))
    (draw,) = results(run, "power_draw")
    assert "no sample of power_w falls in the steps of rank 0: one comes every 20 s" in draw.reason


def test_amd_smi_repeats_its_header_and_is_cut_off(run: Path) -> None:
    header = "timestamp,gpu,socket_power,vcn_activity,hotspot"
    rows = [
        line
        for second in CURVE
        for line in (header, *(f'{START_S + second},{d},{power(d)[second]},"[0, 0]",N/A' for d in (0, 1)))
    ]
    text = "'CTRL' + 'C' to stop watching output:\n" + "\n".join(rows) + f"\n{START_S + 5},0,5"
    (run / "gpu_metrics.csv").write_text(text)
    draw, hot = results(run, "power_draw", "device_temperature")
    assert draw.value == pytest.approx(sum(JOULES) / 6)
    assert "sample-zone-assumed" not in codes(draw)
    assert "temperature_c was not sampled, only power_w" in hot.reason


def test_amd_smi_as_json(run: Path) -> None:
    rows = [
        {
            "timestamp": START_S + second,
            "gpu": device,
            "power": {"socket_power": {"value": watts, "unit": "W"}},
        }
        for device in (0, 1)
        for second, watts in power(device).items()
    ]
    (run / "amd.json").write_text(json.dumps(rows))
    (draw,) = results(run, "power_draw")
    assert draw.value == pytest.approx(sum(JOULES) / 6)


def test_nvidia_smi_dmon_with_dates_and_times(run: Path) -> None:
    names = "#Date       Time        gpu    pwr  gtemp  mtemp     sm   mclk   pclk"
    units = "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %    MHz    MHz"
    rows = []
    for second in CURVE:
        moment = datetime.fromtimestamp(START_S + second, UTC).strftime("%Y%m%d   %H:%M:%S")
        rows += [f" {moment}   {d}   {power(d)[second]:.0f}   60   -   98   2619   1980" for d in (0, 1)]
    (run / "dmon.txt").write_text("\n".join([names, units, *rows, names, units]))
    draw, clock = results(run, "power_draw", "sm_clock")
    assert draw.value == pytest.approx(sum(JOULES) / 6)
    assert clock.value == 1980


def dcgm(name: str, device: int, values: dict[int, float], host: str = "n1") -> dict[str, object]:
    labels = {"__name__": name, "gpu": str(device), "UUID": f"GPU-{device}", "Hostname": host}
    return {"metric": labels, "values": [[START_S + s + 0.0, str(value)] for s, value in values.items()]}


def prometheus(folder: Path, *series: dict[str, object]) -> None:
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [*series]}}
    (folder / "dcgm.json").write_text(json.dumps(answer))


def test_dcgm_s_counter_of_energy_is_better_than_power(run: Path) -> None:
    ramps = [{second: 1e6 + 1000 * watts * second for second in CURVE} for watts in (250, 150)]
    energy = [dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", device, ramps[device]) for device in (0, 1)]
    prometheus(run, *energy, *(dcgm("DCGM_FI_DEV_POWER_USAGE", device, power(device)) for device in (0, 1)))
    joules, draw = results(run, "energy_per_step", "power_draw")
    assert joules.value == pytest.approx((250 + 150) * 3 / 2)
    assert joules.details["source"] == "counters of energy"
    assert draw.value == pytest.approx(sum(JOULES) / 6)


def test_a_counter_of_energy_is_taken_in_line_between_its_samples(run: Path) -> None:
    # Device 0 is at 750 J when the steps begin and at 2,000 + 3/8 x 4,000 J when they end; device 1 is
    # sampled at those very times.
    counted = [{-0.75: 0, 0.25: 1e6, 2.25: 2e6, 4.25: 6e6}, {0: 1e6, 1: 1.1e6, 3: 1.5e6, 4: 9e6}]
    prometheus(run, *(dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", d, own) for d, own in enumerate(counted)))
    (joules,) = results(run, "energy_per_step")
    assert joules.details["per_rank_j"] == pytest.approx({"0": 2750 / 2, "1": 500 / 2})


def test_a_counter_of_energy_that_begins_anew_is_refused(run: Path) -> None:
    once = {second: 1e6 * (second if second < 3 else second - 1.5) for second in CURVE}
    prometheus(run, *(dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", d, once) for d in (0, 1)))
    (joules,) = results(run, "energy_per_step")
    assert "was reset" in joules.reason


def test_nvlink_rates_of_both_directions_add_up(run: Path) -> None:
    rates = {"TX": 40e9, "RX": 20e9}
    series = [
        dcgm(f"DCGM_FI_PROF_NVLINK_{way}_BYTES", device, dict.fromkeys(CURVE, rate * (1 + device)))
        for way, rate in rates.items()
        for device in (0, 1)
    ]
    prometheus(run, *series)
    (link,) = results(run, "nvlink_throughput")
    assert link.value == pytest.approx(90)
    assert link.details == pytest.approx({"tx_gb_per_s": 60, "rx_gb_per_s": 30})


def test_a_page_of_dcgm_s_exporter_with_times(run: Path) -> None:
    lines = ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge"] + [
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{d}",UUID="GPU-{d}"}} {watts} {(START_S + second) * 1000}'
        for d in (0, 1)
        for second, watts in power(d).items()
    ]
    (run / "federate.prom").write_text("\n".join(lines))
    assert results(run, "power_draw")[0].value == pytest.approx(sum(JOULES) / 6)


TIMELESS = {
    "smi.csv": ("index, power.draw [W]\n0, 100 W\n", "without times"),
    "dmon.txt": ("# gpu    pwr  gtemp\n# Idx      W      C\n    0    100   60\n", "-o DT"),
    "dcgmi.txt": ("#Entity   POWER\nID        W\nGPU 0     100.0\n", "dcgmi dmon"),
    "exporter.prom": ('DCGM_FI_DEV_POWER_USAGE{gpu="0"} 100\n', "query_range"),
    "kilo.csv": ("timestamp, index, power.draw [kW]\n2026/09/21 12:00:00.000, 0, 0.1 kW\n", "not in W"),
}


@pytest.mark.parametrize("name", TIMELESS)
def test_a_log_that_cannot_be_used_is_a_finding_that_says_what_to_do(run: Path, name: str) -> None:
    text, fix = TIMELESS[name]
    (run / name).write_text(text)
    opened = open_run(run)
    (finding,) = (found for found in opened.findings if found.file == name)
    assert fix in finding.message
    (draw,) = evaluate(opened, ["power_draw"], jobs=1, use_cache=False)
    assert draw.status == "not_measurable"


def test_devices_that_ranks_alone_see_are_matched_in_order_with_a_warning(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, 0)
    nvidia_smi(tmp_path)
    (draw,) = results(tmp_path, "power_draw")
    assert draw.details["per_rank_w"] == pytest.approx({"0": JOULES[0] / 3, "1": JOULES[1] / 3})
    assert "sampled-devices-assumed" in codes(draw)


def test_ranks_json_states_whose_samples_are_whose(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, 0)
    nvidia_smi(tmp_path, devices=(0,), name="node0.csv")
    nvidia_smi(tmp_path, devices=(1,), name="node1.csv")
    (draw,) = results(tmp_path, "power_draw")
    assert "2 hosts or files" in draw.reason
    (tmp_path / "ranks.json").write_text('{"node0.csv#GPU-0": 1, "node1.csv#1": 0}')
    (draw,) = results(tmp_path, "power_draw")
    assert draw.details["per_rank_w"] == pytest.approx({"0": JOULES[1] / 3, "1": JOULES[0] / 3})
    assert draw.details["rank_source"] == "ranks.json"


def test_more_devices_than_ranks_are_refused_where_kernels_do_not_say(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path, rank, 0)
    nvidia_smi(tmp_path, devices=(0, 1, 2, 3)[:2])
    rows = (tmp_path / "smi.csv").read_text()
    (tmp_path / "smi.csv").write_text(rows + rows.partition("\n")[2].replace(", 1, GPU-1", ", 2, GPU-2"))
    (draw,) = results(tmp_path, "power_draw")
    assert "3 devices were sampled, but 2 ranks traced" in draw.reason


def test_energy_of_some_ranks_is_not_that_of_the_job(run: Path) -> None:
    nvidia_smi(run)
    (run / "ranks.json").write_text('{"smi.csv#0": 0}')
    draw, energy = results(run, "power_draw", "energy_per_step")
    assert draw.value == pytest.approx(JOULES[0] / 3)
    assert "1 of 2 ranks have samples" in energy.reason


def test_a_run_without_samples_says_how_to_take_them(run: Path) -> None:
    for found in results(run, "power_draw", "energy_per_step", "sm_clock", "throttled_time"):
        assert (found.status, found.value) == ("not_measurable", None)
        assert "nvidia-smi" in found.fix


CARD = """
version: 1
workload:
  model: {phase: training}
  hardware:
    xpu_spec: {type: GPU, model: nvidia_h100_sxm, total_count: 2}
"""
PRICE = """
[[price]]
device = "H100 SXM"
price_per_device_hour = 3.6
currency = "USD"
date = 2026-03-01
source = "https://example.org/prices"
"""


def test_a_user_sees_energy_and_cost_from_card_samples_prices_and_traces(run: Path) -> None:
    nvidia_smi(run, hours=-7)
    (run / "workload_card.yaml").write_text(CARD)
    (run / "prices.toml").write_text(PRICE)
    (run / "run_metadata.json").write_text('{"tokens_per_step": 1000}')
    names = ("energy_per_token", "throughput_per_watt", "cost_per_step", "cost_per_million_tokens")
    wanted = " ".join(f"--metric {name}" for name in names)
    shown = invoke(f"ccl-metrics {run} {wanted} --format json --no-cache")
    answers = {answer["metric"]: answer for answer in json.loads(shown.stdout)}
    values = {name: answers[name]["value"] for name in names}
    # 650 J a step; 2 devices at 0.001 USD a second for a step of 1.5 s
    expected = {"energy_per_token": 0.65, "throughput_per_watt": 1 / 0.65, "cost_per_step": 0.003}
    assert values == pytest.approx(expected | {"cost_per_million_tokens": 3.0})
    cost = answers["cost_per_step"]
    assert cost["details"]["price_date"] == "2026-03-01"
    assert "prices.toml" in cost["provenance"]["files"]
    (run / "prices.toml").write_text(PRICE.replace("date", "day"))
    again = invoke(f"ccl-metrics {run} --metric cost_per_step --no-cache")
    assert again.returncode == 3
    assert "prices.toml contains no usable data" in again.stderr + again.stdout


def test_a_serving_benchmark_has_energy_and_cost_of_its_output_tokens(tmp_path: Path) -> None:
    nvidia_smi(tmp_path)
    (tmp_path / "workload_card.yaml").write_text(CARD.replace("training", "inference"))
    (tmp_path / "prices.toml").write_text(PRICE)

    def record(name: str, start_s: float, end_s: float, tokens: int) -> str:
        start, end = (round((START_S + second) * 1e9) for second in (start_s, end_s))
        numbers = {"time_to_first_token": 100, "request_latency": (end_s - start_s) * 1000}
        metrics = {key: {"value": value, "unit": "ms"} for key, value in numbers.items()}
        metrics["output_sequence_length"] = {"value": tokens, "unit": "tokens"}
        metadata = {"x_request_id": name, "request_start_ns": start, "request_end_ns": end}
        metadata["benchmark_phase"] = "profiling"
        return json.dumps({"metadata": metadata, "metrics": metrics, "error": None})

    lines = [record("a", 0, 2, 40), record("b", 0.5, 3, 10)]
    (tmp_path / "profile_export.jsonl").write_text("\n".join(lines))
    names = ("energy_per_output_token", "output_throughput_per_watt", "power_draw")
    joules, rate, draw, cost = results(tmp_path, *names, "cost_per_million_output_tokens")
    assert joules.value == pytest.approx(sum(JOULES) / 50)
    assert rate.value == pytest.approx(50 / sum(JOULES))
    assert draw.value == pytest.approx(sum(JOULES) / 3 / 2)
    # 0.002 USD a second for 3 s and 50 tokens
    assert cost.value == pytest.approx(0.006 / 50 * 1e6)
    assert {"smi.csv", "workload_card.yaml"} <= {*joules.provenance.files}
    assert {"prices.toml", "workload_card.yaml"} <= {*cost.provenance.files}
