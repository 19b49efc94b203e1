"""Reading step times and training metrics that a run wrote beside its traces."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.card import Severity
from ccl_bench.card.yaml_tree import MOST_ALIKE
from ccl_bench.side_files import (
    Point,
    kind_named,
    kinds,
    read_rank_step_times,
    read_step_times,
    read_training_metrics,
    side_file,
)

NAN = float("nan")


@pytest.fixture
def step_times(written_json):
    return lambda data: read_step_times(written_json("step_times.json", data))


@pytest.fixture
def rank_times(written_json):
    return lambda data: read_rank_step_times(written_json("step_times_per_rank.json", data))


@pytest.fixture
def metrics(written_json):
    return lambda data: read_training_metrics(written_json("training_metrics.json", data))


def error_paths(reading):
    return [issue.path for issue in reading.errors]


@pytest.mark.parametrize(
    ("data", "seconds", "is_numbered"),
    [
        ([0.5, 0.25], {0: 0.5, 1: 0.25}, False),
        ({"10": 0.5, "11": 0.25}, {10: 0.5, 11: 0.25}, True),
        ({"step_3": 1}, {3: 1.0}, True),
        (
            {"steps": [{"step": 7, "duration_sec": 0.5}, {"step": 8, "duration": 0.25}]},
            {7: 0.5, 8: 0.25},
            True,
        ),
        ({"step_times": [0.5]}, {0: 0.5}, False),
        ({"unit": "s", "1": 0.5}, {1: 0.5}, True),
    ],
)
def test_every_layout_of_step_times_is_read(step_times, data, seconds, is_numbered):
    reading = step_times(data)
    assert reading.value.seconds == seconds
    assert reading.value.is_numbered is is_numbered
    assert reading.issues == []


@pytest.mark.parametrize(
    "bad", [NAN, float("inf"), -0.5, 0, "0.5", None, True, [0.5], {"a": 1}, 10**400, 5e-324, 1e308, 2**70]
)
def test_a_damaged_duration_is_left_out_and_reported_by_its_place(step_times, bad):
    reading = step_times([0.5, bad, 0.25])
    assert reading.value.seconds == {0: 0.5, 2: 0.25}
    assert error_paths(reading) == ["[1]"]


def test_durations_that_look_like_milliseconds_are_doubted_and_kept(step_times):
    reading = step_times([512.0, 498.0])
    assert reading.value.seconds == {0: 512.0, 1: 498.0}
    assert [issue.severity for issue in reading.issues] == [Severity.WARNING]
    assert "milliseconds" in reading.issues[0].message


def test_durations_that_say_another_unit_are_not_used(step_times):
    reading = step_times({"unit": "ms", "1": 512})
    assert reading.value.seconds == {}
    assert reading.errors


def test_a_duration_in_milliseconds_by_its_key_is_not_used(step_times):
    assert step_times([{"step": 1, "duration_ms": 512}]).value.seconds == {}


def test_a_step_written_twice_keeps_the_first_and_says_so(step_times):
    reading = step_times({"1": 0.5, "01": 0.7})
    assert reading.value.seconds == {1: 0.5}
    assert error_paths(reading) == ["01"]


def test_an_empty_file_of_step_times_is_an_error(step_times):
    for data in ([], {}, "x", 3):
        assert step_times(data).errors


@pytest.mark.parametrize(
    "data",
    [
        {"0": [0.5, 0.6], "1": [0.7, 0.8]},
        {"rank0": {"0": 0.5, "1": 0.6}, "rank_1": {"0": 0.7, "1": 0.8}},
        [[0.5, 0.6], [0.7, 0.8]],
    ],
)
def test_every_layout_of_times_per_rank_is_read(rank_times, data):
    reading = rank_times(data)
    assert reading.value.seconds == {0: {0: 0.5, 1: 0.6}, 1: {0: 0.7, 1: 0.8}}
    assert reading.issues == []


def test_a_damaged_duration_of_a_rank_names_the_rank(rank_times):
    reading = rank_times({"0": [0.5, 0.6], "3": [NAN, 0.8]})
    assert reading.value.seconds == {0: {0: 0.5, 1: 0.6}, 3: {1: 0.8}}
    assert error_paths(reading) == ["3[0]"]


def test_ranks_with_different_steps_are_a_warning(rank_times):
    assert [i.severity for i in rank_times({"0": [0.5], "1": [0.5, 0.6]}).issues] == [Severity.WARNING]


def test_one_number_for_a_rank_is_not_a_list_of_steps(rank_times):
    reading = rank_times({"0": 0.5})
    assert reading.value.seconds == {}
    assert reading.errors


@pytest.mark.parametrize(
    "data",
    [
        [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}],
        {"history": [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]},
        {"step": [1, 2], "loss": [3.0, 2.5]},
        {"loss": {"1": 3.0, "2": 2.5}},
        {"loss": [[1, 3.0], [2, 2.5]]},
    ],
)
def test_every_layout_of_training_metrics_is_read(metrics, data):
    reading = metrics(data)
    assert reading.value.series["loss"] == (Point(3.0, 1), Point(2.5, 2))
    assert reading.value.final_loss == 2.5
    assert reading.issues == []


def test_a_single_value_is_a_series_of_one(metrics):
    reading = metrics({"train_loss": 2.5, "perplexity": 12.2, "model": "llama"})
    assert reading.value.final_loss == 2.5
    assert reading.value.loss_name == "train_loss"
    assert reading.value.series["perplexity"] == (Point(12.2),)
    assert "model" not in reading.value.series


def test_the_final_loss_is_that_of_the_last_step_and_not_of_the_last_line(metrics):
    assert metrics([{"step": 9, "loss": 1.0}, {"step": 3, "loss": 2.0}]).value.final_loss == 1.0


def test_a_loss_that_ends_in_nan_has_no_final_value(metrics):
    reading = metrics({"loss": [3.0, 2.5, NAN]})
    assert reading.value.final_loss is None
    assert reading.value.series["loss"] == (Point(3.0), Point(2.5))
    assert error_paths(reading) == ["loss[2]", "loss"]


@pytest.mark.parametrize("bad", ["NaN", "2.5", None, True, -1.0, 0, 1e308, 2**70])
def test_a_loss_that_is_no_loss_is_left_out(metrics, bad):
    reading = metrics([{"step": 1, "loss": bad}, {"step": 2, "loss": 2.0}])
    assert reading.value.series["loss"] == (Point(2.0, 2),)
    assert error_paths(reading) == ["[0].loss"]


def test_two_losses_for_the_last_step_give_none(metrics):
    reading = metrics([{"step": 2, "loss": 2.0}, {"step": 2, "loss": 2.4}])
    assert reading.value.final_loss is None
    assert reading.errors


def test_a_stated_final_loss_is_used_and_compared(metrics):
    reading = metrics({"loss": [3.0, 2.5], "final_loss": 2.0})
    assert reading.value.final_loss == 2.0
    assert [issue.path for issue in reading.issues] == ["final_loss"]


def test_a_validation_loss_is_never_taken_for_the_training_loss(metrics):
    reading = metrics({"val_loss": [3.0, 2.5]})
    assert reading.value.final_loss is None
    assert reading.issues


@pytest.mark.parametrize(
    "data",
    [
        [{"step": 1, "perplexity": 40.0}, {"step": 2, "perplexity": 20.0}],
        {"step": [1, 2], "ppl": [40.0, 20.0]},
        {"Perplexity": {"1": 40.0, "2": 20.0}},
        {"perplexity": 20.0},
    ],
)
def test_the_final_perplexity_is_read_where_there_is_no_loss(metrics, data):
    reading = metrics(data)
    assert (reading.value.final_loss, reading.value.final_perplexity) == (None, 20.0)
    assert reading.issues == []


@pytest.mark.parametrize(
    ("value", "paths"), [(0.5, ["[1].ppl", "ppl"]), (1e300, ["[1].ppl", "ppl"]), ("x", ["[1].ppl", "ppl"])]
)
def test_a_perplexity_that_is_none_is_left_out(metrics, value, paths):
    reading = metrics([{"step": 1, "ppl": 40.0}, {"step": 2, "ppl": value}])
    assert (reading.value.final_perplexity, error_paths(reading)) == (None, paths)


def test_series_of_another_length_than_the_steps_are_a_warning(metrics):
    reading = metrics({"step": [1, 2, 3], "loss": [3.0, 2.5]})
    assert reading.value.series["loss"] == (Point(3.0), Point(2.5))
    assert [issue.path for issue in reading.issues] == ["loss"]


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("step_times.json", [0.5], kinds.STEP_TIMES),
        ("step_durations.json", {"1": 0.5}, kinds.STEP_TIMES),
        ("step_times_per_rank.json", {"0": [0.5]}, kinds.RANK_STEP_TIMES),
        ("training_metrics.json", {"loss": [2.0]}, kinds.TRAINING_METRICS),
        ("run_metadata.json", {"world_size": 2}, kinds.RUN_METADATA),
        ("step_times.json", {"traceEvents": []}, None),
        ("step_times_per_rank.json", [0.5, 0.6], None),
        ("training_metrics.json", {"traceEvents": []}, None),
        ("run_metadata.json", [], None),
        ("other.json", [0.5], None),
    ],
)
def test_a_side_file_is_recognised_by_name_and_content(written_json, name, data, kind):
    assert side_file(written_json(name, data)) is kind


def test_a_damaged_side_file_is_recognised_by_name_only(written):
    path = written("step_times.json", "[0.5, 0.")
    assert kind_named(str(path)) is kinds.STEP_TIMES
    assert side_file(path) is None
    with pytest.raises(InputError, match="not valid JSON"):
        read_step_times(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["1", "rank0", "step", "loss", "steps", "unit", "final_loss", "history", ""]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@pytest.mark.parametrize("reader", [read_step_times, read_rank_step_times, read_training_metrics])
@given(data=JSON)
def test_any_json_gives_a_reading(tmp_path_factory, reader, data):
    path = tmp_path_factory.getbasetemp() / f"{reader.__name__}.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    reader(path)


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=50))
def test_any_text_gives_a_reading_or_an_input_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(text, encoding="utf-8")
    with suppress(InputError):
        read_training_metrics(path)


@pytest.mark.parametrize("excess", [0, 1, 50_000])
def test_of_mistakes_that_are_alike_the_first_hundred_are_listed(rank_times, excess):
    mistakes = {f"k{number}": 1 for number in range(MOST_ALIKE + excess)}
    issues = rank_times({"0": [0.5], **mistakes}).issues
    assert [issue.path for issue in issues[:MOST_ALIKE]] == [f"k{number}" for number in range(MOST_ALIKE)]
    left_out = [f"is not a rank and is ignored; {excess:,} more are like this"] if excess else []
    assert [issue.message for issue in issues[MOST_ALIKE:]] == left_out
