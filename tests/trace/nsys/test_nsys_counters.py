"""Hardware counters beyond SM Active: tensor cores, memory, NVLink and PCIe, by step."""

import pytest
from exports import export, kernel, mark

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.trace.formats.nsys.counters import counter

STEPS = {"NVTX_EVENTS": [mark(0, 100, "step 1"), mark(100, 400, "step 2")]}
WORK = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(10, 60), kernel(110, 160)]}
USER, PROTOCOL = "User Data [Throughput %]", "Protocol Data [Throughput %]"


def report(folder, samples):
    """Write a report of two steps of 100 and 300 ns; `samples` gives each counter its (time, value) pairs."""
    metrics = [{"typeId": 1 << 40, "metricId": n, "metricName": name} for n, name in enumerate(samples)]
    taken = [
        {"timestamp": time, "typeId": 1 << 40, "metricId": n, "value": value}
        for n, pairs in enumerate(samples.values())
        for time, value in pairs
    ]
    more = {"GPU_METRICS": taken, "TARGET_INFO_GPU_METRICS": metrics}
    return export(folder / "rank0_report.sqlite", STEPS | WORK | more, ("gemm",))


def measured(folder, samples, name):
    report(folder, samples)
    (found,) = evaluate(open_run(folder), [name], use_cache=False, jobs=1)
    return found


def test_a_share_is_the_mean_of_samples_with_steps_by_their_length(tmp_path):
    samples = {"Tensor Active [Throughput %]": [(10, 20), (90, 40), (200, 80), (500, 1)]}
    found = measured(tmp_path, samples, "tensor_core_active")
    assert found.value == (30 * 100 + 80 * 300) / 400
    assert found.details["per_step_pct"] == {"1": 30, "2": 80}
    assert found.details["samples_count"] == 3


def test_reads_and_writes_of_the_memory_add_up(tmp_path):
    samples = {
        "DRAM Read Bandwidth [Throughput %]": [(10, 20), (200, 30)],
        "DRAM Write Bandwidth [Throughput %]": [(10, 10), (200, 50)],
    }
    found = measured(tmp_path, samples, "dram_utilization")
    assert found.value == (30 * 100 + 80 * 300) / 400
    assert found.details["per_counter_pct"] == {"DRAM Read": 27.5, "DRAM Write": 40.0}


def test_half_of_the_memory_s_traffic_is_no_number(tmp_path):
    found = measured(tmp_path, {"DRAM Read Bandwidth [Throughput %]": [(10, 20)]}, "dram_utilization")
    assert found.status == "not_measurable"
    assert "only DRAM Read was sampled" in found.reason


def test_the_one_counter_of_both_directions_is_enough(tmp_path):
    found = measured(tmp_path, {"VRAM Bandwidth [Throughput %]": [(10, 20), (200, 40)]}, "dram_utilization")
    assert found.value == (20 * 100 + 40 * 300) / 400


def test_kinds_of_nvlink_traffic_add_up_and_directions_do_not(tmp_path):
    samples = {
        f"NVLink RX Requests {USER}": [(200, 10)],
        f"NVLink RX Responses {USER}": [(200, 20)],
        f"NVLink RX Requests {PROTOCOL}": [(200, 1)],
        f"NVLink TX Requests {USER}": [(200, 40)],
        f"NVLink TX Responses {PROTOCOL}": [(200, 3)],
    }
    found = measured(tmp_path, samples, "nvlink_utilization")
    assert found.value == (31 + 43) / 2
    assert found.details["per_direction_pct"] == {"RX": 31, "TX": 43}


def test_pcie_traffic_is_the_mean_of_its_directions(tmp_path):
    samples = {"PCIe RX Throughput [Throughput %]": [(10, 4)], "PCIe TX Throughput": [(20, 8)]}
    assert measured(tmp_path, samples, "pcie_utilization").value == 6


@pytest.mark.parametrize(
    "name", ["tensor_core_active", "dram_utilization", "nvlink_utilization", "pcie_utilization"]
)
def test_what_was_not_sampled_is_refused_with_how_to_sample_it(tmp_path, name):
    found = measured(tmp_path, {"SMs Active [Throughput %]": [(10, 20)]}, name)
    assert (found.status, found.value) == ("not_measurable", None)
    assert "--gpu-metrics-devices" in found.fix


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("NVLink RX Responses Protocol Data [Throughput %]", "NVLink RX Responses Protocol"),
        ("NVLink TX Bandwidth", "NVLink TX"),
        ("PCIe RX Throughput [Throughput %]", "PCIe RX"),
        ("PCIe Read Requests to BAR1", None),
    ],
)
def test_a_counter_has_one_name_in_all_versions(recorded, name):
    assert counter(recorded) == name


def with_network(folder, unit="bytes/ms"):
    """Write a report whose card sends 2 GB/s in the first step and 4 GB/s after, and receives 1 GB/s."""
    names = {6: "IB: Bytes sent", 7: "IB: Bytes received", 10: "IB: Send waits"}
    rates = {6: [(0, 100, 2e6), (100, 400, 4e6)], 7: [(0, 400, 1e6)], 10: [(0, 400, 99.0)]}
    place = {"globalId": 1 << 48, "portId": 1, "metricsListId": 0}
    taken = [
        place | {"metricsIdx": n, "start": start, "end": end, "value": value}
        for n, rows in rates.items()
        for start, end, value in rows
    ]
    listed = [{"metricsListId": 0, "metricsIdx": n, "name": name, "unit": unit} for n, name in names.items()]
    more = {
        "NET_NIC_METRIC": taken,
        "TARGET_INFO_NETWORK_METRICS": listed,
        "NIC_ID_MAP": [{"nicId": 0, "globalId": 1 << 48}],
        "TARGET_INFO_NIC_INFO": [{"nicId": 0, "name": "mlx5_0"}],
    }
    export(folder / "rank0_report.sqlite", STEPS | WORK | more, ("gemm",))
    (found,) = evaluate(open_run(folder), ["network_throughput"], use_cache=False, jobs=1)
    return found


def test_network_cards_send_and_receive_over_the_time_of_steps(tmp_path):
    found = with_network(tmp_path)
    assert found.value == pytest.approx((2 * 100 + 4 * 300) / 400 + 1)
    assert found.details["per_card_sent_gb_per_s"] == pytest.approx({"mlx5_0:1": 3.5})
    assert found.details["per_card_received_gb_per_s"] == pytest.approx({"mlx5_0:1": 1})


def test_traffic_in_an_unknown_unit_is_no_number(tmp_path):
    found = with_network(tmp_path, "furlongs")
    assert (found.status, found.value) == ("not_measurable", None)
    assert "--nic-metrics" in found.fix
