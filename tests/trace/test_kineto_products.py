"""Operators that multiply matrices become rows with the sizes that their recorded shapes give."""

import pytest
from writing import bare, event, read

COLUMNS = ("name", "batch", "rows", "inner", "columns", "dtype")


def row(name, dims, types):
    """Return the row of one operator with these inputs."""
    shapes = {"Input Dims": dims, "Input type": types}
    (found,) = read(bare([event("cpu_op", name, **shapes)])).table("products").select(COLUMNS).rows()
    return found


@pytest.mark.parametrize(
    ("name", "dims", "types", "expected"),
    [
        ("aten::mm", [[4, 8], [8, 16]], ["float", "float"], (1, 4, 8, 16, "float")),
        ("aten::bmm", [[3, 4, 8], [3, 8, 16]], ["c10::Half", "c10::Half"], (3, 4, 8, 16, "c10::Half")),
        (
            "aten::addmm",
            [[16], [4, 8], [8, 16], [], []],
            ["float", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"],
            (1, 4, 8, 16, "c10::BFloat16"),
        ),
        ("aten::mm", [["4", 8], [8, "16"]], ["float", "float"], (1, 4, 8, 16, "float")),
    ],
)
def test_sizes_are_those_of_the_factors(name, dims, types, expected):
    assert row(name, dims, types) == (name, *expected)


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        ([], []),
        ("[[4, 8], [8, 16]]", "float"),
        ([[4, 8]], ["float"]),
        ([[4, 8], [7, 16]], ["float", "float"]),
        ([[4, 8], None], [3, None]),
        ([[4, -8], [-8, 16]], ["float", "float"]),
        ([[4, 1e300], [1e300, 16]], ["float", "float"]),
        ([[2, 4, 8], [3, 8, 16]], ["float", "float"]),
        ([[[4], 8], [8, 16]], ["float", "float"]),
    ],
)
def test_shapes_that_fit_no_product_give_no_sizes(dims, types):
    assert row("aten::mm", dims, types)[1:5] == (None, None, None, None)


def test_other_operators_and_operators_without_arguments_are_distinguished():
    names = ("aten::mm", "aten::mm_out", "aten::matmul", "aten::addmm_")
    content = read(bare([event("cpu_op", name, start) for start, name in enumerate(names)]))
    assert content.table("products")["name"].to_list() == ["aten::mm"]
    assert content.table("cpu_ops").height == len(names)


@pytest.mark.parametrize(
    ("thread", "kept"), [("<script>", None), ("7", 7), (1.5, None), (1 << 70, None), (7, 7)]
)
def test_a_thread_that_is_no_number_is_unknown(thread, kept):
    called = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float"}
    events = [event("cpu_op", "aten::mm", tid=thread), event("cpu_op", "record_param_comms", **called)]
    events[1]["tid"] = thread
    content = read(bare(events))
    assert content.table("products")["thread"].to_list() == [kept]
    assert content.table("collectives")["thread"].to_list() == [kept]
