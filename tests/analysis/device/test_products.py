"""The operations and the data of a step's matrix products, by hand."""

from pathlib import Path

import polars as pl
import pytest
from local_traces import op, result, step, table, value, write

from ccl_bench.analysis.flops import et_product_work


def product(start: int, end: int, dims: list[list[int]], kind: str = "float"):
    return op("aten::mm", start, end, **{"Input Dims": dims, "Input type": [kind] * 2})


def test_products_that_call_no_other_count_with_their_factors_and_results(tmp_path: Path) -> None:
    """Of the first two the outer one has the shapes of the job; the last one's type has no known width."""
    events = [
        step(1, 0, 100),
        product(10, 30, [[8, 4], [4, 6]]),
        product(12, 22, [[2, 4], [4, 6]]),
        product(40, 45, [[2, 3], [3, 2]], "c10::Half"),
        product(50, 55, [[2, 3], [3, 2]], "some::Type"),
        product(200, 205, [[2, 3], [3, 2]]),
    ]
    write(tmp_path, events)
    flops, moved = 2 * 2 * 4 * 6 + 2 * 2 * 3 * 2, 4 * (8 + 24 + 12) + 2 * (6 + 6 + 4)
    work = table(tmp_path, "product_work").select("step", "products", "sized", "flops", "bytes")
    assert work.rows() == [(1, 3, 2, flops, moved)]
    assert value(tmp_path, "compute_intensity") == pytest.approx(flops / moved)


def test_products_without_shapes_have_no_intensity(tmp_path: Path) -> None:
    write(tmp_path, [step(1, 0, 100), op("aten::mm", 10, 15)])
    found = result(tmp_path, "compute_intensity")
    assert (found.status, found.value) == ("not_measurable", None)
    assert "record_shapes=True" in found.fix


def test_products_of_an_execution_trace_count_in_the_step_that_they_follow() -> None:
    # 10 calls 11 and 12 through 20, which is none; of the steps one begins at 5 and one at 30
    steps = pl.DataFrame({"step": [1, 2, 3], "first_node": [5, 30, 50]})
    nodes = pl.DataFrame({"node": [10, 20, 11, 12, 40, 2], "parent": [1, 10, 20, 10, 40, 1]})
    shapes = {"batch": 1, "rows": 2, "inner": 3, "columns": 4, "dtype": "float"}
    products = pl.DataFrame([{"node": node, **shapes} for node in (2, 10, 11, 12, 40)])
    found = et_product_work(steps, products.with_columns(dtype=pl.lit("float")), nodes)
    flops, moved = 2 * 2 * 3 * 4, 4 * (6 + 12 + 8)
    assert found.select("step", "products", "sized", "flops", "bytes").rows() == [
        (1, 2, 2, 2 * flops, 2 * moved),
        (2, 1, 1, flops, moved),
        (3, 0, 0, 0, 0),
    ]
