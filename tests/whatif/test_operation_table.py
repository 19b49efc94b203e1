"""Tables of operations: what they come to, and what is refused or reported in damaged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from made_tables import BACKWARD_S, FORWARD_S, OPTIMIZER_S, TRANSFER_S, MadeTable

from ccl_bench.base.errors import InputError, NotMeasurable
from ccl_bench.result.step_choice import step_choice
from ccl_bench.whatif import TableReplays, answer_what_if, parse_scenarios, read_operation_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMPUTE_S = FORWARD_S + BACKWARD_S


def expected_s(made: MadeTable, slow: float = 1.0) -> float:
    """Return the length of a step of GPipe by its formula, in which both stages compute alike.

    One stage after the other receives every microbatch between computing two of them.
    """
    computing = (made.microbatches + 1) * COMPUTE_S * slow
    return computing + 2 * made.microbatches * TRANSFER_S + OPTIMIZER_S


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_pipeline_replays_to_its_formula(tmp_path: Path, name: str) -> None:
    made = MadeTable()
    read = read_operation_table(made.write(tmp_path / name))
    found = answer_what_if(TableReplays(read))
    assert (found.t_original_s, found.t_ideal_s) == pytest.approx((expected_s(made),) * 2)
    assert found.slowdown == pytest.approx(1)
    assert (found.m_w, found.m_s) == (None, None)
    # Each stage computes and exchanges a message in both directions for three microbatches, and applies them.
    assert (len(read.steps), {*read.rank}, {*read.stage}) == (3, {0, 1}, {0, 1})
    assert len(read.operation) == 2 * 2 * (3 * 4 + 1)


def test_a_slow_rank_is_the_worst_and_without_it_the_step_is_that_of_the_others(tmp_path: Path) -> None:
    made = MadeTable(ranks=4, slow={(2, 0): 1.5, (2, 1): 1.5})
    read = read_operation_table(made.write(tmp_path / "a.parquet"))
    replays = TableReplays(read)
    scenarios = parse_scenarios(replays, ["rank:2", "stage:0,stage:1"], ["rank:2=2"], ["all"])
    found = answer_what_if(replays, scenarios)
    assert found.t_original_s == pytest.approx(expected_s(made, 1.5))
    # Ideal is the mean of four ranks, one of which takes 1.5 times as long.
    assert found.t_ideal_s == pytest.approx(expected_s(made, 1.125))
    without, everything, doubled, ideal = (each.t_s for each in found.scenarios)
    assert (without, everything, ideal) == pytest.approx((found.t_ideal_s,) * 3)
    assert doubled == pytest.approx(2 * expected_s(made, 1.5))
    assert found.scenarios[0].gain_s == pytest.approx(found.t_original_s - without)
    assert max(found.by["rank"], key=lambda rank: found.by["rank"][rank]) == "2"
    assert found.m_w is not None
    assert found.m_w.workers[0][0] == 2


def test_chosen_steps_alone_count(tmp_path: Path) -> None:
    path = MadeTable(steps=5).write(tmp_path / "a.parquet")
    assert read_operation_table(path, step_choice("1-2,4")).steps == [1, 2, 4]
    with pytest.raises(InputError, match="none of the chosen steps"):
        read_operation_table(path, step_choice("9"))


def test_time_that_nothing_explains_is_refused_above_a_twentieth(tmp_path: Path) -> None:
    little = read_operation_table(MadeTable(wait_s=0.5).write(tmp_path / "a.parquet"))
    found = answer_what_if(TableReplays(little))
    assert found.unexplained == pytest.approx(0.5 / (expected_s(MadeTable()) + 0.5))
    much = read_operation_table(MadeTable(wait_s=1.0).write(tmp_path / "b.parquet"))
    with pytest.raises(NotMeasurable, match="operations are missing"):
        answer_what_if(TableReplays(much))


def test_a_step_that_lacks_an_operation_is_left_out(tmp_path: Path) -> None:
    rows = MadeTable(steps=4).rows()
    rows.remove(next(row for row in rows if row["step"] == 2 and row["optype"] == "backward-recv"))
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    read = read_operation_table(tmp_path / "a.parquet")
    assert read.steps == [0, 1, 3]
    assert [(each.code, each.count) for each in read.findings if each.code == "steps-left-out"] == [
        ("steps-left-out", 1)
    ]


def test_sizes_that_no_file_states_are_reported(tmp_path: Path) -> None:
    path = MadeTable().write(tmp_path / "trace-x.parquet")
    assert [each.code for each in read_operation_table(path).findings] == ["table-sizes-assumed"]
    (tmp_path / "meta-x.yaml").write_text("dp_size: 2\npp_size: 2\ndsp_size: 1\n")
    assert read_operation_table(path).findings == []


@pytest.mark.parametrize("text", ["dp_size: 3", "pp_size: 4", "dp_size: two", "- 1", "dp_size: [1"])
def test_sizes_that_contradict_the_table_are_refused(tmp_path: Path, text: str) -> None:
    path = MadeTable().write(tmp_path / "trace-x.parquet")
    (tmp_path / "meta-x.yaml").write_text(text + "\n")
    with pytest.raises(InputError) as refused:
        read_operation_table(path)
    assert refused.value.where.startswith(str(tmp_path / "meta-x.yaml"))


def replaced(**values: Any) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return what puts values into one row."""
    return lambda frame: pl.concat(
        [frame.head(1).with_columns(**{name: pl.lit(value) for name, value in values.items()}), frame[1:]],
        how="vertical_relaxed",
    )


def without(name: str, number: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return what takes one operation out of every rank and step."""
    return lambda frame: frame.filter((pl.col("optype") != name) | (pl.col("seq_id") != number))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda frame: frame.drop("gmc", "mc"), "no column mc, gmc"),
        (lambda frame: frame.clear(), "no rows"),
        (lambda frame: pl.concat([frame, frame.head(2)]), "states 4 operations more than once"),
        (replaced(duration=float("nan")), "impossible values in duration"),
        (replaced(duration=-1.0), "impossible values in duration"),
        (replaced(start_ts=float("inf")), "impossible values in start_ts"),
        (replaced(start_ts=None), "impossible values in start_ts"),
        (replaced(dp_rank=-1), "impossible values in dp_rank"),
        (lambda frame: frame.with_columns(stage=pl.lit("first")), "column of another type"),
        (lambda frame: frame.with_columns(duration=pl.lit([1.0])), "column of another type"),
        (lambda frame: frame.filter(pl.col("step") == pl.col("seq_id")), "no two steps"),
        (without("forward-recv", 1), "2 forward-recv of stage 1, and 3 messages"),
        (without("backward-send", 0), "3 backward-recv of stage 0, and 2 messages"),
        (without("backward-compute", 2), "backward-"),
        (
            lambda frame: frame.filter(~((pl.col("dp_rank") == 1) & (pl.col("seq_id") == 2))),
            "other operations",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused(tmp_path: Path, damage: Any, problem: str) -> None:
    damage(pl.DataFrame(MadeTable().rows())).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=problem) as refused:
        read_operation_table(tmp_path / "a.parquet")
    assert refused.value.where == str(tmp_path / "a.parquet")
    assert refused.value.fix


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"\xff\xfe\x00text"])
@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        read_operation_table(tmp_path / name)


def test_a_damaged_table_never_ends_in_a_traceback(tmp_path: Path) -> None:
    whole = (tmp_path / "a.parquet", MadeTable().write(tmp_path / "a.parquet"))[0].read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        (tmp_path / "b.parquet").write_bytes(
            whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]
        )
        try:
            read_operation_table(tmp_path / "b.parquet")
        except InputError:
            continue
