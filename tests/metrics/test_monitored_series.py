"""Samples of monitoring tools on the time of steps: zones, means between samples, holes, and doubts."""

from __future__ import annotations

import polars as pl
import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics.shared.monitored import inside, integral, mean_in, monitored
from ccl_bench.side_files.device_samples import DeviceSamples, SampledDevice, SampleSeries

SECOND = 1_000_000_000
DEVICE = SampledDevice("log.csv", index=0)
START_S = 1_790_000_000


def series(values: dict[float, float], *, shift_s: float = 0, is_local: bool = False) -> SampleSeries:
    """Return samples given as second → value."""
    times = [int((second + shift_s) * SECOND) for second in values]
    return SampleSeries(DEVICE, "power_w", is_local, times, [*values.values()])


def step(start_s: float, end_s: float) -> dict[str, int]:
    return {
        "trace": 0,
        "rank": 0,
        "device_start_ns": int((START_S + start_s) * SECOND),
        "device_end_ns": int((START_S + end_s) * SECOND),
    }


def joined(own: SampleSeries, *steps: dict[str, int]):
    """Return samples of rank 0 beside its steps."""
    samples = DeviceSamples((own,), {"log.csv#0": 0})
    return monitored(samples, "power_w", pl.DataFrame(list(steps)), pl.DataFrame())


PARTS_OF_HOURS = {
    -570: "Marquesas", -210: "Newfoundland", -150: "Newfoundland in summer", 210: "Iran", 270: "Afghanistan",
    330: "India", 345: "Nepal", 390: "Myanmar", 525: "Eucla", 570: "Darwin", 630: "Adelaide in summer",
    765: "Chatham", 825: "Chatham in summer",
}  # fmt: skip


@pytest.mark.parametrize("minutes", [*range(-720, 841, 60), *PARTS_OF_HOURS])
def test_local_times_of_every_zone_of_the_world_are_understood(minutes: int) -> None:
    own = series({0: 1.0, 1: 2.0, 2: 3.0}, shift_s=START_S + 60 * minutes, is_local=True)
    found = joined(own, step(0, 3))
    assert not found.series[0].is_local
    assert found.series[0].times_ns == [(START_S + second) * SECOND for second in (0, 1, 2)]
    sign, hours, rest = "-" if minutes < 0 else "+", abs(minutes) // 60, abs(minutes) % 60
    assert f"UTC{sign}{hours:02}:{rest:02} is the only one" in found.findings[0].message


@pytest.mark.parametrize("minutes", [-780, -719, -569, 211, 269, 331, 346, 524, 631, 764, 900])
def test_local_times_of_no_zone_are_refused(minutes: int) -> None:
    own = series({0: 1.0, 1: 2.0}, shift_s=START_S + 60 * minutes, is_local=True)
    with pytest.raises(NotMeasurable, match="do not overlap in any time zone"):
        joined(own, step(0, 3))


def test_a_sample_at_the_very_start_of_a_step_is_in_it_and_one_at_the_very_end_is_not() -> None:
    early, late = ({START_S + second: 1.0 for second in pair} for pair in ((-2, 0), (3, 5)))
    assert joined(series(early), step(0, 3)).findings[0].count == 1
    with pytest.raises(NotMeasurable, match="falls in the steps of rank 0: one comes every 2 s"):
        joined(series(late), step(0, 3))


def test_samples_of_another_hour_say_how_far_they_are() -> None:
    for apart in ({START_S - 70: 1.0, START_S - 60: 1.0}, {START_S + 63: 1.0, START_S + 70: 1.0}):
        with pytest.raises(NotMeasurable, match=r"do not overlap in time \(they are 60 s apart\)"):
            joined(series(apart), step(0, 3))


def test_steps_on_another_clock_than_the_wall_s_are_refused() -> None:
    boot = {"trace": 0, "rank": 0, "device_start_ns": 5 * SECOND, "device_end_ns": 8 * SECOND}
    for is_local in (False, True):
        with pytest.raises(
            NotMeasurable, match="times of the steps are not those of a wall clock"
        ) as refused:
            joined(series({START_S: 1.0, START_S + 5: 1.0}, is_local=is_local), boot)
        assert "torch.profiler" in refused.value.fix


def test_a_rank_that_was_sampled_and_not_traced_is_left_out() -> None:
    other = SampleSeries(SampledDevice("log.csv", index=1), "power_w", False, [START_S * SECOND], [9.0])
    own = series({0: 1.0, 1: 2.0}, shift_s=START_S)
    samples = DeviceSamples((own, other), {"log.csv#0": 0, "log.csv#1": 1})
    found = monitored(samples, "power_w", pl.DataFrame([step(0, 3)]), pl.DataFrame())
    assert (list(found.series), found.devices) == ([0], 2)


@pytest.mark.parametrize(("count", "is_doubtful"), [(1, True), (9, True), (10, False), (11, False)])
def test_fewer_than_ten_samples_in_steps_are_doubtful(count: int, is_doubtful: bool) -> None:
    found = joined(series({START_S + number: 1.0 for number in range(20)}), step(0, count))
    assert [(finding.code, finding.count) for finding in found.findings] == (
        [("samples-sparse", count)] if is_doubtful else []
    )


def test_steps_that_overlap_count_once_and_empty_ones_not() -> None:
    own = series({START_S + number: 1.0 for number in range(20)})
    found = joined(own, step(0, 5), step(3, 9), step(4, 6), step(12, 12))
    bounds = [(0, 5), (5, 9)]
    assert found.windows == {
        0: [((START_S + start) * SECOND, (START_S + end) * SECOND) for start, end in bounds]
    }


RAMP = SampleSeries(DEVICE, "power_w", False, [0, 10, 20, 30], [0.0, 10.0, 10.0, 40.0])


@pytest.mark.parametrize(
    ("start", "end", "area", "covered"),
    [
        (0, 10, 50.0, 10),  # a triangle
        (0, 30, 50.0 + 100.0 + 250.0, 30),
        (5, 15, 5 * 7.5 + 5 * 10.0, 10),
        (22, 28, 6 * 25.0, 6),  # 16 at 22, 34 at 28
        (-10, 10, 50.0, 10),  # before the first sample nothing is known
        (20, 90, 250.0, 10),
        (30, 40, 0.0, 0),
        (-20, -10, 0.0, 0),
        (10, 10, 0.0, 0),
    ],
)
def test_between_samples_a_quantity_changes_evenly(start: int, end: int, area: float, covered: int) -> None:
    assert integral(RAMP, start, end) == (pytest.approx(area), covered)


@pytest.mark.parametrize(("hole", "covered"), [(100, 130), (101, 30)])
def test_gaps_of_more_than_ten_times_the_usual_are_holes(hole: int, covered: int) -> None:
    times = [0, 10, 20, 20 + hole, 30 + hole]  # gaps of 10, 10, the hole, 10
    own = SampleSeries(DEVICE, "power_w", False, times, [2.0] * 5)
    assert integral(own, 0, 200) == (pytest.approx(2.0 * covered), covered)


def test_a_sample_at_the_end_of_a_step_is_in_the_next() -> None:
    assert inside(RAMP, [(0, 10), (10, 20)]) == [(0, 0.0), (10, 10.0)]
    assert inside(RAMP, [(1, 10), (11, 31)]) == [(20, 10.0), (30, 40.0)]


def test_the_mean_over_steps_says_how_much_of_them_is_known() -> None:
    # 50 over the first ten, and 250 over the ten from 20 of the twenty there
    assert mean_in(RAMP, [(0, 10), (20, 40)]) == (pytest.approx(300 / 20), pytest.approx(20 / 30))
    with pytest.raises(NotMeasurable, match="no two samples are near each other"):
        mean_in(RAMP, [(30, 40)])


def of_ranks(samples: DeviceSamples, ranks: list[int | None], *, steps: dict[int, float] | None = None):
    """Return samples beside a step of 3 s of each rank, which begins at the seconds given."""
    begins = steps or {}
    rows = [
        step(begins.get(rank or 0, 0), begins.get(rank or 0, 0) + 3) | {"trace": place, "rank": rank}
        for place, rank in enumerate(ranks)
    ]
    used = pl.DataFrame(schema={"rank": pl.Int64, "device": pl.Int64})
    return monitored(samples, "power_w", pl.DataFrame(rows), used)


def test_devices_are_matched_by_number_then_by_identifier() -> None:
    named = [(None, "a"), (2, "b"), (0, "d"), (1, "c"), (None, "A")]
    watts = {each: float(place) for place, each in enumerate(named)}
    all_series = tuple(
        SampleSeries(
            SampledDevice("log.csv", index=number, uuid=uuid),
            "power_w",
            False,
            [(START_S + second) * SECOND for second in range(3)],
            [watts[number, uuid]] * 3,
        )
        for number, uuid in named
    )
    found = of_ranks(DeviceSamples(all_series), [4, 0, 2, 1, 3])
    assert {rank: own.values[0] for rank, own in found.series.items()} == {0: 2, 1: 3, 2: 1, 3: 4, 4: 0}


@pytest.mark.parametrize(
    ("begins", "seconds", "zones"),
    [
        ((0, 0), ((0, 3), (0, 7200)), 3),  # up to the last sample of any device
        ((0, 0), ((0, 3), (-7200, 3)), 3),  # from the first
        ((0, 3600), ((0, 3), (3600, 3603)), 3),  # up to the last step, from the first
        ((0, 0), ((0, 3), (0, 3600)), 2),
    ],
)
def test_zones_are_of_all_samples_and_steps(
    begins: tuple[int, int], seconds: tuple[tuple[int, int], ...], zones: int
) -> None:
    both = tuple(
        SampleSeries(
            SampledDevice("log.csv", index=number), "power_w", True,
            [(START_S + second) * SECOND for second in own], [1.0, 1.0],
        )
        for number, own in enumerate(seconds)
    )  # fmt: skip
    samples = DeviceSamples(both, {"log.csv#0": 0, "log.csv#1": 1})
    with pytest.raises(NotMeasurable, match=f"in {zones} time zones"):
        of_ranks(samples, [0, 1], steps=dict(enumerate(begins)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_only_local_times_are_moved_where_another_log_states_its_zone(order: tuple[int, int]) -> None:
    # rank 0 was logged two hours ahead of UTC by a tool without zones, rank 1 by one that writes UTC
    logs = [
        SampleSeries(
            SampledDevice("log.csv", index=rank), "power_w", rank == 0,
            [(START_S + ahead + second) * SECOND for second in (0, 1, 2)], [5.0, 6.0, 7.0],
        )
        for rank, ahead in ((0, 7200), (1, 0))
    ]  # fmt: skip
    samples = DeviceSamples(tuple(logs[place] for place in order), {"log.csv#0": 0, "log.csv#1": 1})
    found = of_ranks(samples, [0, 1])
    for own in found.series.values():
        assert own.times_ns == [(START_S + second) * SECOND for second in (0, 1, 2)]
    assert any("UTC+02:00" in finding.message for finding in found.findings)


def test_quantities_that_were_sampled_are_listed_in_order() -> None:
    quantities = ("power_w", "temperature_c", "energy_j")
    logs = tuple(SampleSeries(DEVICE, quantity, False, [0], [1.0]) for quantity in quantities)
    table = pl.DataFrame([step(0, 3)])
    with pytest.raises(NotMeasurable, match="only energy_j, power_w, temperature_c"):
        monitored(DeviceSamples(logs), "sm_clock_mhz", table, pl.DataFrame())
    for nothing in (None, DeviceSamples()):
        with pytest.raises(NotMeasurable, match="no samples"):
            monitored(nothing, "power_w", table, pl.DataFrame())


@pytest.mark.parametrize(
    ("used", "ranks", "how"),
    [
        ([(0, 1), (1, 0)], {0: 11.0, 1: 10.0}, "device numbers of the kernels"),
        ([(0, 1), (0, 1), (1, 0), (None, 5), (7, None)], {0: 11.0, 1: 10.0}, "device numbers of the kernels"),
        ([(0, 1), (1, 1)], {0: 10.0, 1: 11.0}, "order of ranks and devices"),  # both alike
        ([(0, 1), (0, 0), (1, 0)], {0: 10.0, 1: 11.0}, "order of ranks and devices"),  # two devices
        ([(0, 1)], {0: 10.0, 1: 11.0}, "order of ranks and devices"),  # none
        ([(0, 1), (1, 2)], {0: 10.0, 1: 11.0}, "order of ranks and devices"),  # not sampled
    ],
)
def test_kernels_show_which_device_a_rank_used_if_each_used_one_of_its_own(
    used: list[tuple[int | None, int | None]], ranks: dict[int, float], how: str
) -> None:
    logs = tuple(
        SampleSeries(
            SampledDevice("log.csv", index=number), "power_w", False,
            [(START_S + second) * SECOND for second in range(3)], [10.0 + number] * 3,
        )
        for number in (0, 1)
    )  # fmt: skip
    steps = pl.DataFrame([step(0, 3) | {"trace": rank, "rank": rank} for rank in (0, 1)])
    table = pl.DataFrame(used, schema={"rank": pl.Int64, "device": pl.Int64}, orient="row")
    found = monitored(DeviceSamples(logs), "power_w", steps, table)
    assert {rank: own.values[0] for rank, own in found.series.items()} == ranks
    assert found.how == how
    doubts = [each.code for each in found.findings if each.code == "sampled-devices-assumed"]
    assert len(doubts) == (how != "device numbers of the kernels")


def test_one_rank_and_one_device_belong_together_without_a_doubt() -> None:
    logs = (series({START_S + number: 1.0 for number in range(20)}),)
    found = of_ranks(DeviceSamples(logs), [None], steps={0: 0})
    assert [each.code for each in found.findings] == ["samples-sparse"]
    assert [*found.series] == [None]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_rank_with_fewest_samples_is_the_doubtful_one(order: tuple[int, int, int]) -> None:
    counts = {0: 12, 1: 4, 2: 7}
    logs = [
        SampleSeries(
            SampledDevice(f"log{rank}.csv", index=rank), "power_w", False,
            [START_S * SECOND + number * 2 * SECOND // counts[rank] for number in range(counts[rank])],
            [1.0] * counts[rank],
        )
        for rank in order
    ]  # fmt: skip
    found = of_ranks(DeviceSamples(tuple(logs), {f"log{rank}.csv#{rank}": rank for rank in order}), [0, 1, 2])
    (finding,) = found.findings
    assert (finding.code, finding.count, finding.file) == ("samples-sparse", 4, "log1.csv")


@pytest.mark.parametrize(("seconds", "often"), [((-1,), "there is one"), ((-1, 4), "one comes every 5 s")])
def test_a_log_whose_samples_miss_the_steps_says_how_many_or_how_often_they_are(
    seconds: tuple[int, ...], often: str
) -> None:
    # rank 1 has samples in its steps, so that the logs overlap them
    logs = tuple(
        SampleSeries(
            SampledDevice("log.csv", index=rank), "power_w", False,
            [(START_S + second) * SECOND for second in own], [1.0] * len(own),
        )
        for rank, own in ((0, seconds), (1, (0, 1, 2)))
    )  # fmt: skip
    with pytest.raises(NotMeasurable, match=f"of rank 0: {often}"):
        of_ranks(DeviceSamples(logs, {"log.csv#0": 0, "log.csv#1": 1}), [0, 1])


def test_the_mean_of_a_single_sample_is_not_known() -> None:
    with pytest.raises(NotMeasurable, match="no two samples"):
        mean_in(SampleSeries(DEVICE, "power_w", False, [5], [2.0]), [(0, 10)])
    assert integral(SampleSeries(DEVICE, "power_w", False, [2, 6], [2.0, 4.0]), 0, 10) == (12.0, 4)
