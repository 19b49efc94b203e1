"""What operators and named ranges took and launched, on a timeline that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
from frames import derive, table

from ccl_bench.analysis.by_origin import innermost_at, nested, own_lengths


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


def _spans(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Return ranges given as (thread, start, end)."""
    return pl.DataFrame([*rows], schema=["thread", "start_ns", "end_ns"], orient="row")


RANGES = nested(
    _spans((2, 50, 60), (1, 0, 100), (1, 20, 30), (1, 0, 100), (1, 10, 20), (1, 5, 5), (2, 0, 50))
)


def test_ranges_lie_in_the_innermost_range_around_them_on_their_thread() -> None:
    assert RANGES.select("row", "thread", "start_ns", "end_ns", "parent").rows() == [
        (0, 1, 0, 100, None), (1, 1, 0, 100, 0), (2, 1, 10, 20, 1), (3, 1, 20, 30, 1),
        (4, 2, 0, 50, None), (5, 2, 50, 60, None),
    ]  # fmt: skip
    assert own_lengths(RANGES).to_list() == [0, 80, 10, 10, 50, 10]


def test_a_moment_is_in_a_range_from_its_start_until_before_its_end() -> None:
    asked = [
        (1, 0),
        (1, 9),
        (1, 10),
        (1, 20),
        (1, 30),
        (1, 99),
        (1, 100),
        (2, 49),
        (2, 50),
        (2, 60),
        (3, 5),
        (1, None),
    ]
    points = pl.DataFrame(asked, schema={"thread": pl.Int64, "at_ns": pl.Int64}, orient="row")
    assert innermost_at(points, RANGES, "at_ns").to_list() == [1, 1, 2, 3, 1, 1, None, 4, 5, None, None, None]


def test_products_of_one_shape_are_put_together_with_the_kernels_that_they_launched() -> None:
    shape = {
        "name": "aten::mm",
        "batch": 1,
        "rows": 2,
        "inner": 3,
        "columns": 4,
        "dtype": "float",
        "thread": 1,
    }
    products = [shape | {"start_ns": at, "end_ns": at + 10} for at in (20, 40, 70, 120)]
    odd = shape | {"start_ns": 80, "end_ns": 85, "dtype": "odd"}
    second = KERNELS[0] | {"start_ns": 80, "end_ns": 84}  # of the first product, too
    found = derive(
        "product_shapes",
        annotations=table("annotations", [STEP, LATER]),
        products=table("products", [*products, odd]),
        launches=table("launches", LAUNCHES),
        kernels=table("kernels", [KERNELS[0] | {"name": "tf32_gemm"}, *KERNELS[1:], second]),
    )
    # launches at 25 and 45 are in the first two products, that at 60 in none; one of three kernels says TF32
    shown = (
        "step",
        "rows",
        "inner",
        "columns",
        "is_tf32",
        "count",
        "flops",
        "host_ns",
        "launched",
        "device_ns",
        "timed",
    )
    assert found.select(shown).rows() == [
        (1, 2, 3, 4, True, 3, 48.0, 30, 3, 39, 2),
        (2, 2, 3, 4, None, 1, 48.0, 10, 0, 0, 0),
    ]
