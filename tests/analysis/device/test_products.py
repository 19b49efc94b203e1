"""The operations and the data of a step's matrix products, by hand."""

from pathlib import Path

import pytest
from local_traces import op, result, step, table, value, write


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
