"""Tables of trials: headings, values, mistakes, and configurations on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tables import DENSE, rows

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.predict.trials import columns, configurations, devices_of, parsed_configuration, read_trials

if TYPE_CHECKING:
    from pathlib import Path

HEADINGS = "tp,dp,pp,micro_batch,global_batch,seq_len,layers,hidden,step_s,status,note"


def _table(folder: Path, *lines: str, headings: str = HEADINGS) -> Path:
    path = folder / "trials.csv"
    path.write_text("\n".join([headings, *lines]) + "\n")
    return path


def test_other_columns_are_kept_and_missing_ones_unknown(tmp_path: Path) -> None:
    table = read_trials(
        _table(tmp_path, "2,4,1,1,8,1024,8,512,0.5,measured,by hand", "4,2,1,1,8,1024,8,512,,failed,")
    )
    assert table.rows["note"].to_list() == ["by hand", None]
    assert table.rows["gpus"].to_list() == [8, 8]
    assert (table.measured.height, table.failed.height) == (1, 1)
    assert table.rows["study"].to_list() == [None, None]
    assert any("names no device" in each for each in table.remarks)


def test_headings_of_published_tables_and_their_units_are_read(tmp_path: Path) -> None:
    headings = (
        "\ufeff# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
        "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)"
    )
    row = read_trials(_table(tmp_path, "2,16,8,1024,16,24,1024,1,1,2,372.16", headings=headings)).rows.row(
        0, named=True
    )
    assert {name: row[name] for name in ("gpus", "layers", "heads", "pp", "step_s")} == {
        "gpus": 2, "layers": 24, "heads": 16, "pp": 2, "step_s": pytest.approx(0.37216),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-2,4,1,1,8,1024,8,512,1,measured,", "row 1: column tp: '-2' is no number above zero"),
        ("nan,4,1,1,8,1024,8,512,1,measured,", "row 1: column tp: 'nan' is no number above zero"),
        ("two,4,1,1,8,1024,8,512,1,measured,", "row 1: column tp: 'two' is no number above zero"),
        ("2,4,1,1,,1024,8,512,1,measured,", "row 1: no global_batch"),
        (
            "2,4,1,3,8,1024,8,512,1,measured,",
            "row 1: a global batch of 8.0, no multiple of dp · micro batch",
        ),
        ("2,4,1,1,8,1024,,,1,measured,", "the shape of the model is unknown"),
    ],
)
def test_a_mistake_is_named_with_its_row_and_column(tmp_path: Path, line: str, message: str) -> None:
    path = _table(tmp_path, line)
    with pytest.raises(InputError) as raised:
        read_trials(path)
    assert message in raised.value.message
    assert raised.value.where == str(path)


def test_rows_with_mistakes_are_left_out_and_named(tmp_path: Path) -> None:
    good = "2,4,1,1,8,1024,8,512,0.5,,"
    bad = [
        "x,4,1,1,8,1024,8,512,0.5,,",
        "2,4,1,3,8,1024,8,512,0.5,,",
        "2,4,1,1,8,,8,512,0.5,,",
        "2,4,1,1,8,1024,,,1,,",
    ]
    table = read_trials(_table(tmp_path, bad[0], good, *bad[1:], good, *[bad[0]] * 3))
    assert table.rows["step_s"].to_list() == [0.5, 0.5]
    left_out = next(each for each in table.remarks if each.startswith("left out"))
    assert "row 1: column tp: 'x'" in left_out
    assert "row 3: a global batch" in left_out
    assert "row 4: no seq_len" in left_out
    assert "row 5: the shape" in left_out
    assert left_out.endswith("; 2 more")


def test_what_stands_for_a_step_time_says_how_a_trial_failed(tmp_path: Path) -> None:
    lines = [
        f"2,4,1,1,8,1024,8,512,{step},{status},"
        for step, status in (("OOM", ""), ("0", ""), ("-", "failed"), ("2", ""))
    ]
    table = read_trials(_table(tmp_path, *lines))
    assert table.rows["status"].to_list() == ["oom", "0", "failed", None]
    assert table.rows["step_s"].to_list() == [None, None, None, 2.0]


def test_devices_that_the_degrees_do_not_share_are_a_mistake(tmp_path: Path) -> None:
    path = _table(tmp_path, f"16,{'2,4,1,1,8,1024,8,512,1,measured,'}", headings=f"gpus,{HEADINGS}")
    with pytest.raises(InputError, match="16 devices, but tp · dp · pp · cp is 2 · 4 · 1 · 1"):
        read_trials(path)


def test_what_is_no_table_is_refused_with_the_sets_of_the_catalog(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_trials("vtrain-single-nod")
    assert "vtrain-single-node" in raised.value.fix
    binary = tmp_path / "a.parquet"
    binary.write_bytes(b"\x00" * 64)
    with pytest.raises(InputError, match="this is no table"):
        read_trials(binary)
    empty = tmp_path / "empty.csv"
    empty.write_text(HEADINGS + "\n")
    with pytest.raises(InputError, match="no rows"):
        read_trials(empty)


def test_the_catalog_has_the_published_rows() -> None:
    # vTrain states 1,440 and 109 measured configurations; the first row of its table is 372.160408 ms.
    single, multi = read_trials("vtrain-single-node"), read_trials("vtrain-multi-node")
    assert (single.measured.height, multi.measured.height) == (1440, 109)
    assert single.rows["step_s"][0] == pytest.approx(0.372160408)
    assert single.rows["gpu"].unique().to_list() == ["A100-SXM4-80GB"]
    agent = read_trials("perlmutter-search")
    assert (agent.rows.height, agent.measured.height) == (49, 39)
    with pytest.raises(UsageError, match="2 studies"):
        agent.of_study(None)
    with pytest.raises(UsageError) as raised:
        agent.of_study("megatron-llama8b-8gp")
    assert "megatron-llama8b-8gpu" in raised.value.fix
    assert agent.of_study("megatron-llama8b-8gpu").measured.height == 7


def test_the_only_study_with_as_many_devices_is_used_and_said() -> None:
    agent = read_trials("perlmutter-search")
    chosen = agent.of_devices(devices_of("tp=4, dp=1,pp=4,micro_batch=2"))
    assert chosen.studies == ["torchtitan-llama8b-16gpu"]
    assert "the only one with trials on 16 devices" in chosen.remarks[-1]
    # Both have trials on eight devices, none has some on three.
    for text in ("tp=8", "tp=3"):
        with pytest.raises(UsageError, match="2 studies"):
            agent.of_devices(devices_of(text))
    assert read_trials("vtrain-single-node").of_devices(3).remarks == ()


def test_a_configuration_takes_from_the_trials_what_they_agree_on() -> None:
    trials = rows({"tp": 2, "dp": 2, "global_batch": 8}, {"tp": 4, "global_batch": 8})
    row = parsed_configuration("tp=1,dp=4", trials).row(0, named=True)
    assert {name: row[name] for name in ("tp", "dp", "pp", "gpus", "global_batch", "hidden", "gpu")} == {
        "tp": 1, "dp": 4, "pp": 1, "gpus": 4, "global_batch": 8, "hidden": 1024, "gpu": "A100-SXM4-80GB",
    }  # fmt: skip
    assert configurations(trials)[0] != configurations(trials)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tq=1", "'tq=1' is no setting"),
        ("tp", "'tp' is no setting"),
        ("step_s=1", "'step_s=1' is no setting"),
        ("tp=1,dp=3", "global batch of 8.0, no multiple"),
        ("tp=0", "'0' is no number above zero"),
    ],
)
def test_a_configuration_that_cannot_be_is_a_usage_error(text: str, message: str) -> None:
    trials = rows({"tp": 2, "dp": 2, "global_batch": 8})
    with pytest.raises(UsageError) as raised:
        parsed_configuration(text, trials)
    assert message in raised.value.message


def test_a_configuration_states_what_the_trials_disagree_on() -> None:
    trials = rows({"tp": 2, "dp": 2, "global_batch": 8}, {"tp": 4, "global_batch": 16})
    with pytest.raises(UsageError, match="no global_batch") as raised:
        parsed_configuration("tp=1,dp=4", trials)
    assert "8, 16" in raised.value.fix


def test_what_a_framework_shards_and_accumulates_is_its_default_unless_a_column_states_it() -> None:
    table = rows(
        {"framework": "torchtitan", "accumulates": None},
        {"framework": "torchtitan", "accumulates": "true"},
        {"framework": "Megatron-LM", "accumulates": None},
        {"framework": None, "accumulates": "false"},
        tp=4,
        global_batch=8,
    )
    numbers = columns(table)
    assert numbers["sharded"].tolist() == [1, 1, 0, 0]
    assert numbers["accumulates"].tolist() == [0, 1, 1, 0]
    assert numbers["peak_flops"].tolist() == [312e12] * 4
    assert DENSE["hidden"] == numbers["hidden"][0]
