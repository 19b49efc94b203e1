"""Events of two processes in one file are not taken for those of one."""

from pathlib import Path

import pytest
from writing import compact, event, finding_codes, kernel, names, op, read

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run
from ccl_bench.testing import Plan, Straggler, trace_path, write_run


def of_rank(process: int, at: int) -> list[dict[str, object]]:
    """Return two steps of a process with ten operators each, begun at a time, us."""
    steps = [event("user_annotation", f"ProfilerStep#{n}", at + 100 * n, 90, pid=process) for n in (1, 2)]
    operators = [
        event("cpu_op", "aten::add", at + 100 * n + 9 * k, 5, pid=process) for n in (1, 2) for k in range(10)
    ]
    return [*steps, *operators]


def test_operators_of_two_processes_are_refused():
    with pytest.raises(InputError, match=r"several processes \(11 and 12\) are mixed in it"):
        read(compact([*of_rank(11, 0), *of_rank(12, 7)]))


def test_two_ranks_whose_processes_have_one_number_are_refused_by_their_steps():
    with pytest.raises(InputError, match="two loops of steps run concurrently"):
        read(compact([*of_rank(7, 0), *of_rank(7, 3)]))


def test_steps_that_follow_each_other_and_repeat_their_numbers_are_of_one_process():
    content = read(compact([*of_rank(7, 0), *of_rank(7, 1000)]))
    assert content.height("annotations") == 4


def test_a_damaged_number_makes_no_second_process():
    many = [op("aten::add", 10 * k) for k in range(200)]
    content = read(compact([*many, event("cpu_op", "aten::mul", 5000, 5, pid=91)]))
    assert content.height("cpu_ops") == 201


def test_a_second_trace_behind_the_first_is_an_error_and_not_read():
    text = compact([kernel("gemm", 5)])
    content = read(text + compact([kernel("add", 5)]))
    assert names(content, "kernels") == ["gemm"]
    assert "events-lost" in finding_codes(content)


@pytest.mark.parametrize("how", ["whole", "first cut short"])
def test_two_ranks_in_one_file_do_not_change_who_is_late(how: str, tmp_path: Path):
    plan = Plan(dp_shard=4, steps=3, layers=1, stragglers=(Straggler(1, layer_ns=90_000),))
    write_run(plan, tmp_path)
    first, second = (trace_path(tmp_path, rank) for rank in (2, 3))
    text = first.read_text()
    kept = text if how == "whole" else text[: int(0.9 * len(text))]
    first.write_text(kept + second.read_text())
    second.unlink()
    (found,) = evaluate(open_run(tmp_path), ["straggler"], jobs=1, use_cache=False)
    assert (found.details["slowest_rank"], found.details["members_complete"]) == ("1", False)
    assert {"trace-unreadable", "events-lost"} & {finding.code for finding in found.findings}
