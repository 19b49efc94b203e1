"""Phases of a step, and ranges around launches, on tables that can be followed by hand."""

from __future__ import annotations

from typing import Any

import polars as pl

from ccl_bench.analysis.device.fsdp import fsdp
from ccl_bench.analysis.device.markers import enclosing
from ccl_bench.analysis.device.phases import PHASES, phases

STEPS = pl.DataFrame(
    {"step": [4, 5], "start_ns": [0, 100], "end_ns": [100, 250]}
    | {"device_start_ns": [0, 100], "device_end_ns": [100, 250], "length_ns": [100, 150]}
)


def test_each_phase_has_its_times_in_each_step() -> None:
    work = pl.DataFrame(
        [
            (10, 30, "compute", "forward", False), (20, 40, "memory", "forward", False),
            (25, 60, "communication", "forward", False), (90, 120, "compute", "backward", True),
            (110, 130, "compute", "backward", False), (200, 210, "communication", "backward", True),
        ],
        schema=["start_ns", "end_ns", "kind", "phase", "recomputed"],
        orient="row",
    )  # fmt: skip
    found = phases(STEPS, work)
    assert found["phase"].to_list() == [*PHASES, *PHASES]
    assert found["step"].to_list() == [4] * len(PHASES) + [5] * len(PHASES)
    columns = ("step", "phase", "window_ns", "count", "time_ns", "duration_ns", "communication_ns", "busy_ns")
    shown = found.filter(pl.col("busy_ns") > 0).select(*columns, "recomputed_ns", "start_ns", "end_ns")
    assert shown.rows() == [
        (4, "forward", 100, 2, 30, 40, 35, 50, 0, 10, 40),
        (4, "backward", 100, 1, 10, 10, 0, 10, 10, 90, 100),
        (5, "backward", 150, 1, 30, 40, 10, 40, 20, 100, 130),
    ]
    rest = found.filter(pl.col("busy_ns") == 0)
    assert rest.select(pl.sum_horizontal("count", "time_ns", "duration_ns").sum()).item() == 0
    assert rest["start_ns"].null_count() == rest.height


def test_the_outermost_range_around_a_moment_is_on_its_thread() -> None:
    def opened(*ranges: tuple[int, int, int]) -> list[int | None]:
        schema = dict.fromkeys(("thread", "start_ns", "end_ns"), pl.Int64)
        asked = [
            (1, 9),
            (1, 10),
            (1, 29),
            (1, 30),
            (1, 40),
            (2, 15),
            (2, 24),
            (2, 25),
            (3, 16),
            (1, None),
            (None, 12),
        ]
        points = pl.DataFrame(asked, schema={"thread": pl.Int64, "at_ns": pl.Int64}, orient="row")
        return enclosing(points, pl.DataFrame([*ranges], schema=schema, orient="row"), "at_ns").to_list()

    first = (1, 10, 20), (1, 12, 30), (1, 40, 40)
    nothing = [None] * 6
    assert opened(*first) == [None, 10, 10, None, None, *nothing]
    assert opened(*first, (2, 15, 25)) == [None, 10, 10, None, None, 15, 15, None, None, None, None]
    assert opened() == [None] * 11


def test_what_ranges_of_fsdp_launch_is_divided_into_parts() -> None:
    names = ("FSDP::all_gather (a)", "FSDP::all_gather_copy_out (a)", "FSDP::post_backward_reduce (a)",
             "FSDP::post_forward_reshard", "FSDP::other")  # fmt: skip
    annotations = pl.DataFrame(
        [(name, 10 * place, 10 * place + 10, 1, False) for place, name in enumerate(names)],
        schema=["name", "start_ns", "end_ns", "thread", "on_device"],
        orient="row",
    ).with_columns(pl.col("name").cast(pl.Categorical))

    def work(
        start: int, end: int, launch: int, kind: str = "compute", collective: str | None = None
    ) -> dict[str, Any]:
        known = {"start_ns": start, "end_ns": end, "launch_ns": launch, "thread": 1}
        return known | {"kind": kind, "collective": collective, "on_device": True}

    origins = pl.DataFrame(
        [
            work(0, 4, 1), work(4, 24, 2, "communication", "all_gather"), work(24, 30, 11),
            work(30, 50, 21, "communication", "reduce_scatter"), work(50, 53, 22), work(53, 55, 31),
            work(55, 60, 41, "memory"), work(14, 40, 60), work(110, 120, 3, "communication", "all_gather"),
        ],
        schema_overrides={"collective": pl.String},
    )  # fmt: skip
    first, second = fsdp(STEPS, origins, annotations).to_dicts()
    # the model computes from 14 to 40
    assert first == {
        "step": 4, "window_ns": 100, "all_gathers": 1, "reduce_scatters": 1, "all_gather_ns": 20,
        "all_gather_hidden_ns": 10, "reduce_scatter_ns": 20, "reduce_scatter_hidden_ns": 10,
        "copy_in_ns": 4 + 3, "copy_out_ns": 6, "reshard_ns": 2, "other_ns": 5, "work_ns": 60,
        "exposed_ns": 34, "host_ns": 50, "communication_ns": 20 + 20,
    }  # fmt: skip
    assert (second["all_gathers"], second["all_gather_ns"], second["exposed_ns"], second["host_ns"]) == (
        1,
        10,
        10,
        0,
    )
