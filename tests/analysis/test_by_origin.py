"""What operators and named ranges took and launched, on a timeline that can be followed by hand."""

from __future__ import annotations

from typing import Any

from frames import derive, table


def _range(name: str, start: int, end: int, thread: int = 1) -> dict[str, Any]:
    return {
        "name": name,
        "start_ns": start,
        "end_ns": end,
        "on_device": False,
        "process": 1,
        "thread": thread,
    }


STEP = _range("ProfilerStep#1", 0, 100)
LATER = _range("ProfilerStep#2", 100, 200)
LAUNCHES = [
    {"name": "cudaLaunchKernel", "start_ns": at, "end_ns": at + 2, "correlation": number, "thread": 1}
    for number, at in enumerate((25, 45, 60), 1)
]
KERNELS = [
    {"name": "gemm", "start_ns": start, "end_ns": end, "device": 0, "stream": 7, "correlation": number}
    for number, (start, end) in enumerate(((30, 60), (60, 65), (70, 77)), 1)
]


def _derived(name: str, annotations: list[dict[str, Any]], operators: list[dict[str, Any]]) -> Any:
    return derive(
        name,
        annotations=table("annotations", [STEP, LATER, *annotations]),
        cpu_ops=table("cpu_ops", operators),
        launches=table("launches", LAUNCHES),
        kernels=table("kernels", KERNELS),
    )


def test_an_operator_has_its_own_time_and_what_it_launched_itself() -> None:
    # linear from 10 to 50 calls mm from 20 to 40; of three launches one is in mm, one in linear, one in none
    operators = [_range("linear", 10, 50), _range("mm", 20, 40), _range("mm", 110, 125)]
    found = _derived("operator_time", [], operators)
    columns = ("step", "name", "count", "host_ns", "own_ns", "launched", "device_ns")
    assert found.select(columns).rows() == [
        (1, "linear", 1, 40, 40 - 20, 1, 5),
        (1, "mm", 1, 20, 20, 1, 30),
        (2, "mm", 1, 15, 15, 0, 0),
    ]


def test_a_range_has_the_path_around_it_and_what_no_range_inside_it_launched() -> None:
    ranges = [_range("model", 5, 55), _range("aten::mm", 6, 54), _range("layer", 15, 45)]
    found = _derived("range_time", ranges, [])
    assert found.select("step", "path", "count", "host_ns", "launched", "device_ns").rows() == [
        (1, ["model"], 1, 50, 1, 5),  # the launch at 45 is after the layer
        (1, ["model", "layer"], 1, 30, 1, 30),
    ]
