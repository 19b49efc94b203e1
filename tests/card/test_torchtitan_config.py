"""Reading torchtitan's TOML files, releases 0.1.0 to 0.2.2."""

from __future__ import annotations

from contextlib import suppress

import pytest
from card_examples import TITAN_010, TITAN_022
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.card import Precision, Severity
from ccl_bench.side_files import TrainConfig, is_train_config, read_train_config, train_config_in_text


def test_a_file_of_0_1_0_is_read_without_issues(written):
    reading = read_train_config(written("train_config.toml", TITAN_010))
    config = reading.value
    assert reading.issues == []
    assert (config.model.name, config.model.flavor) == ("llama3", "8B")
    assert config.parallelism.dp_replicate == 2
    assert config.parallelism.tp == 2
    assert config.parallelism.schedule == "Interleaved1F1B"
    assert config.training.seq_len == 4096
    assert config.profiling.is_profiled is True
    assert config.profiling.frequency == 5
    assert config.activation_checkpoint.mode == "none"
    assert config.is_compiled
    assert config.is_in_float8


def test_a_file_of_0_2_2_is_read_without_issues():
    reading = train_config_in_text(TITAN_022)
    config = reading.value
    assert reading.issues == []
    assert config.parallelism.ep == 4
    assert config.training.mixed_precision_param is Precision.BF16
    assert config.is_compiled
    assert config.is_in_float8


def test_a_key_that_is_missing_has_the_releases_default():
    config = train_config_in_text("[training]\nsteps = 5\n").value
    assert config.parallelism.tp == 1
    assert config.training.seq_len == 2048
    assert config.training.model_fields_set == {"steps"}


def test_a_value_that_cannot_be_read_hides_the_default():
    reading = train_config_in_text('[parallelism]\ntensor_parallel_degree = "many"\n')
    assert reading.value.parallelism.tp is None
    assert [(issue.path, issue.line) for issue in reading.errors] == [
        ("parallelism.tensor_parallel_degree", 2)
    ]


def test_minus_one_shards_over_the_rest_of_the_ranks():
    config = train_config_in_text(TITAN_010).value  # 2 replicas x tp 2 x pp 2 = 8 ranks
    assert config.dp_shard(32) == 4
    assert config.dp_shard(12) is None
    assert config.dp_shard(4) is None


def test_a_written_shard_degree_is_taken_as_it_is():
    assert train_config_in_text(TITAN_022).value.dp_shard(1000) == 8


def test_the_global_batch_follows_from_the_local_one():
    assert train_config_in_text(TITAN_010).value.global_batch_size(32) == 8 * 2 * 4
    assert train_config_in_text(TITAN_022).value.global_batch_size(8) == 64


@pytest.mark.parametrize(
    ("local", "replicate", "shard", "is_wrong"),
    [(2, 2, 4, False), (3, 2, 4, True), (2, 3, 4, True), (2, 2, 3, True), (2, 2, -1, False)],
)
def test_a_global_batch_that_local_batch_and_degrees_do_not_divide_is_a_warning(
    local: int, replicate: int, shard: int, is_wrong: bool
):
    text = f"[training]\nglobal_batch_size = 16\nlocal_batch_size = {local}\n[parallelism]\n"
    text += f"data_parallel_replicate_degree = {replicate}\ndata_parallel_shard_degree = {shard}\n"
    issues = train_config_in_text(text).issues
    assert [issue.path for issue in issues] == ["training.global_batch_size"] * is_wrong


def test_microbatches_are_local_batch_over_microbatch_size():
    assert train_config_in_text(TITAN_010).value.microbatches == 8 // 2


def test_a_microbatch_that_does_not_divide_is_a_warning():
    reading = train_config_in_text(TITAN_010.replace("microbatch_size = 2", "microbatch_size = 3"))
    assert reading.value.microbatches is None
    assert [issue.severity for issue in reading.issues] == [Severity.WARNING]


def test_a_degree_of_zero_is_an_error():
    reading = train_config_in_text("[parallelism]\ndata_parallel_shard_degree = 0\n")
    assert reading.value.parallelism.dp_shard is None
    assert reading.errors


def test_the_older_batch_size_key_is_understood():
    reading = train_config_in_text("[training]\nbatch_size = 4\n")
    assert reading.value.training.local_batch_size == 4
    assert [issue.severity for issue in reading.issues] == [Severity.NOTE]


def test_a_misspelt_key_is_a_warning_and_strange_sections_are_not():
    reading = train_config_in_text("[parallelism]\ntensor_parallel_degre = 4\n[my_extension]\nx = 1\n")
    assert [issue.path for issue in reading.issues] == ["parallelism.tensor_parallel_degre"]
    assert "tensor_parallel_degree" in reading.issues[0].fix


def test_a_configuration_is_recognised_by_its_sections():
    assert is_train_config({"training": {}, "model": {}})
    assert not is_train_config({"project": {}, "tool": {}})


@pytest.mark.parametrize("text", ["[a", "a = ", "x = 1\nx = 2", "a = " + "[" * 20_000, "a = " + "9" * 5000])
def test_what_is_not_toml_is_refused(text):
    with pytest.raises(InputError):
        train_config_in_text(text, file="train.toml")


@pytest.mark.parametrize("form", ["a{} = 1", "[a{}]", "b = {{a{} = 1}}", "[[a{}]]"])
@pytest.mark.parametrize(("dots", "is_read"), [(64, True), (65, False), (100_000, False)])
def test_keys_have_65_parts_at_most(form, dots, is_read):
    """Reading one takes time that grows with the square of its parts."""
    text = "[job]\nx = 0.5\n" + form.format(".a" * dots)
    if is_read:
        assert train_config_in_text(text).errors == []
        return
    with pytest.raises(InputError, match="a key has more than 65 parts"):
        train_config_in_text(text)


def test_dots_of_numbers_texts_and_comments_are_no_parts_of_keys():
    numbers = ", ".join(["0.5"] * 100)
    text = f"[training]\nx = [{numbers}]  # {'.' * 100}\ny = \"{'.' * 100}\"\nz = '{'.' * 100}'\n"
    assert train_config_in_text(text).value == TrainConfig()


def test_an_empty_file_is_all_defaults():
    assert train_config_in_text("").value == TrainConfig()


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=100)
    | st.sampled_from(["training = 3", "training.steps = [1]", "[[training]]", "training = 2024-01-01"])
)
def test_any_text_gives_a_reading_or_an_input_error(text):
    with suppress(InputError):
        train_config_in_text(text)
