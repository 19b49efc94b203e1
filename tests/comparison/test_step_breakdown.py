"""Where a step got longer, from details written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from results_by_hand import mean_of, result

from ccl_bench.comparison.step_breakdown import MOST_PARTS, Division, attribute_step, divide_step

if TYPE_CHECKING:
    from ccl_bench.result import Result


def results(metric: str, **details: object) -> dict[str, Result]:
    """Return one result with only these details."""
    return {metric: result(1.0, metric=metric, details=details)}


def busy(*ranks: dict[str, float], step_s: float | None = None, steps: tuple[float, ...] = ()) -> Result:
    """Return a result with the parts of a mean step of each rank, s; the step of the run is the longest."""
    listed = {str(rank): parts | {"window": sum(parts.values())} for rank, parts in enumerate(ranks)}
    longest = step_s or max(parts["window"] for parts in listed.values())
    lengths = {str(number): s for number, s in enumerate(steps or (longest,))}
    details = {"per_rank_parts_s_per_step": listed, "step_s": longest, "longest_s_by_step": lengths}
    return result(1.0, metric="gpu_busy", details=details)


def divided(one: dict[str, float], other: dict[str, float]) -> Division:
    """Return kernel types of two runs, s a step, as a division."""
    (found,) = divide_step(*(results("total_kernel_time", per_type_s=side) for side in (one, other)))
    return found


def test_the_largest_difference_comes_first_whatever_its_sign() -> None:
    found = divided({"gemm": 5.0, "copy": 1.0, "norm": 1.0}, {"gemm": 2.0, "copy": 3.0, "norm": 0.0})
    assert [(part.name, part.difference_s) for part in found.parts] == [
        ("gemm", -3.0),
        ("copy", 2.0),
        ("norm", -1.0),
    ]


def test_a_part_that_one_side_lacks_is_0_there_and_one_that_both_lack_is_left_out() -> None:
    found = divided({"gemm": 5.0, "none": 0.0}, {"copy": 3.0, "none": 0.0})
    assert [(part.name, part.baseline_s, part.other_s) for part in found.parts] == [
        ("gemm", 5.0, 0.0),
        ("copy", 0.0, 3.0),
    ]


@pytest.mark.parametrize(("count", "left_out"), [(MOST_PARTS, 0), (MOST_PARTS + 1, 1), (MOST_PARTS + 3, 3)])
def test_the_smallest_differences_beyond_ten_are_left_out_and_counted(count: int, left_out: int) -> None:
    types = [f"type {number:02}" for number in range(count)]
    found = divided(dict.fromkeys(types, 1.0), {name: 2.0 + place for place, name in enumerate(types)})
    assert (len(found.parts), found.left_out) == (10, left_out)
    assert found.parts[0].name == types[-1]
    assert found.parts[-1].name == types[left_out]


def test_kernels_that_one_side_does_not_list_are_unknown_there() -> None:
    sides = [
        results(
            "dominant_kernel_concentration", first=[{"name": n, "s_per_step": s} for n, s in listed.items()]
        )
        for listed in ({"a": 1.0, "b": 2.0}, {"b": 5.0, "c": 1.0})
    ]
    (found,) = divide_step(*sides)
    assert [(part.name, part.difference_s) for part in found.parts] == [("b", 3.0)]


def test_the_parts_of_a_step_are_means_over_ranks_and_add_up_to_the_step_of_the_slowest_rank() -> None:
    # ranks compute for 2 and 3 s in steps of 4 and 5 s, and the step of the run takes 5 s; then 5 and 5.75 s
    before = {"gpu_busy": busy({"compute": 2.0, "idle": 2.0}, {"compute": 3.0, "idle": 2.0}, step_s=5.0)}
    after = {"gpu_busy": busy({"compute": 4.0, "idle": 1.0}, {"compute": 4.0, "idle": 1.0}, step_s=5.75)}
    found = attribute_step(before, after)
    assert found is not None
    assert (found.step.baseline_s, found.step.other_s, found.step.difference_s) == (5.0, 5.75, 0.75)
    assert [(part.name, part.baseline_s, part.other_s, part.difference_s) for part in found.parts] == [
        ("compute", 2.5, 4.0, 1.5),
        ("idle", 2.0, 1.0, -1.0),
        ("beyond_the_mean_rank", 0.5, 0.75, 0.25),
    ]
    assert attribute_step(before, {}) is None
    assert attribute_step(before, results("gpu_busy", per_step_parts_s={})) is None


@pytest.mark.parametrize(("beyond_s", "has_part"), [(0.9e-12, False), (1.1e-12, True)])
def test_a_rounding_error_is_no_part_of_a_step(beyond_s: float, has_part: bool) -> None:
    side = {"gpu_busy": busy({"compute": 1e-3}, step_s=1e-3 + beyond_s)}
    found = attribute_step(side, side)
    assert found is not None
    assert [part.name for part in found.parts] == ["compute", *(["beyond_the_mean_rank"] * has_part)]


def test_equal_steps_are_within_noise() -> None:
    one, other = ({"gpu_busy": busy({"compute": 1.0})} for _ in range(2))
    found = attribute_step(one, other)
    assert found is not None
    assert (found.interval, found.is_within_noise) == (None, True)


@pytest.mark.parametrize(
    ("after", "is_within_noise"), [((1.0, 1.3, 0.9, 1.2), True), ((3.0, 3.3, 2.9, 3.2), False)]
)
def test_a_step_whose_interval_holds_0_is_within_noise(
    after: tuple[float, ...], is_within_noise: bool
) -> None:
    def side(steps: tuple[float, ...]) -> dict[str, Result]:
        return {"gpu_busy": busy({"compute": 1.0}, step_s=sum(steps) / len(steps), steps=steps)}

    found = attribute_step(side((1.0, 1.2, 0.9, 1.1)), side(after))
    assert found is not None
    assert found.step.difference_s > 0
    assert found.interval is not None
    assert (found.interval.low <= 0 <= found.interval.high, found.is_within_noise) == (is_within_noise,) * 2


def test_steps_without_the_profiler_are_compared_if_side_files_of_both_give_them() -> None:
    traced = {"gpu_busy": busy({"compute": 1.5}, steps=(1.5, 1.5))}
    file = {"window": "step_times.json"}
    one, other = (
        traced | {"iteration_wall_clock_time": mean_of(*steps, **file)}
        for steps in ((1.0, 1.0, 1.01, 0.99), (1.2, 1.2, 1.21, 1.19))
    )
    found = attribute_step(one, other)
    assert found is not None
    assert found.step.baseline_s == found.step.other_s == 1.5
    untraced = found.untraced
    assert untraced is not None
    assert untraced.step.difference_s == pytest.approx(0.2)
    assert untraced.interval is not None
    assert untraced.interval.low < 0.2 < untraced.interval.high
    assert not untraced.is_within_noise
    of_traces = traced | {"iteration_wall_clock_time": mean_of(1.5, 1.5)}
    for sides in ((one, of_traces), (of_traces, other), (of_traces, of_traces), (one, traced)):
        found = attribute_step(*sides)
        assert found is not None
        assert found.untraced is None


@pytest.mark.parametrize(("one", "other"), [({}, {"gemm": 1.0}), ({"gemm": 1.0}, {}), ({}, {})])
def test_what_one_side_has_no_details_of_is_not_divided(
    one: dict[str, float], other: dict[str, float]
) -> None:
    sides = (results("total_kernel_time", per_type_s=side) for side in (one, other))
    assert list(divide_step(*sides)) == []


@pytest.mark.parametrize(("unknown", "is_divided"), [(2.0, True), (2.1, False), (0.0, True)])
def test_exposed_communication_is_divided_if_at_most_half_is_unknown(
    unknown: float, is_divided: bool
) -> None:
    parts = {"waiting": 1.5, "transfer": 0.5, "unknown": unknown}
    one = results("exposed_communication_time", parts_s=parts)
    other = results("exposed_communication_time", parts_s={"waiting": 1.0, "transfer": 1.5, "unknown": 0.0})
    found = {part.name: part.difference_s for each in divide_step(one, other) for part in each.parts}
    expected = {"waiting": -0.5, "transfer": 1.0, "unknown communication": -unknown}
    assert found == ({name: s for name, s in expected.items() if s} if is_divided else {})


def test_idle_time_is_divided_by_the_causes_that_are_known() -> None:
    one = results("idle_breakdown", host_wait_s=0.5, kernel_wait_s=0.0)
    other = results("idle_breakdown", host_wait_s=0.25, kernel_wait_s=1.0)
    (found,) = divide_step(one, other)
    assert (found.of, [(part.name, part.difference_s) for part in found.parts]) == (
        "idle",
        [("before the next kernel", 1.0), ("waiting for the host", -0.25)],
    )


def test_what_has_no_value_is_not_divided() -> None:
    one, other = ({"total_kernel_time": result(1.0, details={"per_type_s": {"gemm": s}})} for s in (1.0, 2.0))
    assert len(list(divide_step(one, other))) == 1
    one["total_kernel_time"] = result(None, details={"per_type_s": {"gemm": 1.0}})
    assert list(divide_step(one, other)) == []


def test_waiting_and_transfer_replace_exposed_communication_in_the_finest_parts() -> None:
    parts = {"waiting": 1.5, "transfer": 0.5, "unknown": 0.0}
    side = {"gpu_busy": busy({"compute": 3.0, "exposed_communication": 2.0})}
    side |= results("exposed_communication_time", parts_s=parts)
    side |= results("total_kernel_time", per_type_s={"gemm": 3.0})
    found = attribute_step(side, side)
    assert found is not None
    assert [part.name for part in found.finest_parts] == ["compute", "transfer", "waiting"]
    assert [each.name for each in found.further_divisions] == ["kernel types", "step of each rank"]
    assert attribute_step({}, side) is None


def test_a_part_that_only_one_side_has_is_0_on_the_other() -> None:
    plain = {"gpu_busy": busy({"compute": 3.0})}
    fused = {"gpu_busy": busy({"compute": 1.0, "fused": 1.5})}
    found = attribute_step(plain, fused)
    assert found is not None
    assert [(part.name, part.difference_s) for part in found.parts] == [("compute", -2.0), ("fused", 1.5)]
    assert found.step.difference_s == -0.5
