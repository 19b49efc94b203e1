"""Reading run_metadata.json."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.card import Severity
from ccl_bench.side_files import RunMetadata, metadata_in_text, read_metadata

FULL = {
    "world_size": 8,
    "global_batch_size": 32,
    "seq_len": 4096,
    "tokens_per_step": 131072,
    "model_flops_per_token": 4.8e10,
    "gpu_peak_tflops": 312,
    "gpu_hbm_bytes": 42949672960,
}


def test_all_numbers_are_read_without_issues(written_json):
    reading = read_metadata(written_json("run_metadata.json", FULL))
    assert reading.value == RunMetadata(**FULL)
    assert reading.issues == []


def test_every_key_may_be_missing(written_json):
    reading = read_metadata(written_json("run_metadata.json", {}))
    assert reading.value == RunMetadata()
    assert reading.issues == []


def test_written_tokens_that_differ_from_batch_times_length_are_reported():
    reading = metadata_in_text('{"global_batch_size": 2, "seq_len": 10, "tokens_per_step": 19}')
    assert reading.value.tokens_per_step == 19
    assert [(issue.path, issue.severity) for issue in reading.issues] == [
        ("tokens_per_step", Severity.WARNING)
    ]


def test_more_keys_are_tolerated_in_silence():
    assert metadata_in_text('{"world_size": 8, "host": "n1", "git": {"commit": "x"}}').issues == []


def test_a_misspelt_key_is_a_warning():
    reading = metadata_in_text('{"world_sise": 8}')
    assert reading.value.world_size is None
    assert "world_size" in reading.issues[0].fix


@pytest.mark.parametrize("peak", ["312e12", "-1", "0", "NaN", "Infinity", '"fast"', "true", "[312]"])
def test_an_impossible_peak_is_absent_with_an_error(peak):
    reading = metadata_in_text(f'{{"world_size": 8,\n "gpu_peak_tflops": {peak}}}')
    assert reading.value.gpu_peak_tflops is None
    assert reading.value.world_size == 8
    assert [(issue.path, issue.line) for issue in reading.errors] == [("gpu_peak_tflops", 2)]


def test_memory_in_gigabytes_is_not_taken_for_bytes():
    reading = metadata_in_text('{"gpu_hbm_bytes": 80}')
    assert reading.value.gpu_hbm_bytes is None
    assert "in bytes" in reading.errors[0].fix


def test_a_number_in_text_is_read_with_a_note():
    reading = metadata_in_text('{"world_size": "8"}')
    assert reading.value.world_size == 8
    assert [issue.severity for issue in reading.issues] == [Severity.NOTE]


def test_a_key_written_twice_with_different_values_is_absent():
    reading = metadata_in_text('{"world_size": 8, "world_size": 16}')
    assert reading.value.world_size is None
    assert reading.errors


@pytest.mark.parametrize(
    "text", ["", "[1]", "8", "{", '{"a": 1}}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_what_is_no_json_mapping_is_refused(text):
    with pytest.raises(InputError):
        metadata_in_text(text, file="run_metadata.json")
