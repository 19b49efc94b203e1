"""Files made to do harm: they run nothing, cost little, and end in InputError or a reading."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pytest
from card_examples import FULL_CARD, changed
from hypothesis import example, given
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.card import card_in_text, read_card
from ccl_bench.card.yaml_tree import MAX_DEPTH


def bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "tag",
    [
        '!!python/object/apply:os.system ["touch {path}"]',
        "!!python/name:os.system",
        "!!python/object/new:os.system [touch {path}]",
        "!exec touch {path}",
    ],
)
def test_a_tag_that_names_an_object_runs_nothing(tag, tmp_path):
    victim = tmp_path / "touched"
    text = changed("dataset: c4", f"dataset: {tag.format(path=victim)}")
    reading = card_in_text(text)
    assert not victim.exists()
    assert reading.value.data.dataset is None
    assert [issue.path for issue in reading.errors] == ["workload.data.dataset"]
    assert reading.value.data.seq_len == 8192


@pytest.mark.parametrize(("written", "text"), [(r"\ud83d\ude00", "\U0001f600"), (r"a\ud800b", "a\ufffdb")])
def test_escapes_as_json_writes_them_give_characters(written, text):
    """Half of a pair is none: every file and page with it would fail."""
    reading = card_in_text(changed("dataset: c4", f'dataset: "{written}"'))
    assert reading.value.data.dataset == text


def test_aliases_that_expand_without_end_are_refused():
    started = time.process_time()
    with pytest.raises(InputError, match="expands to"):
        card_in_text(bomb(30))
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_file_expands_to_100_000_values_at_most(more, is_read):
    # The file, five keys, and lists of 100, 1 + 10 x 100, 1 + 98 x 1,001, 1 + 7 x 100 and 1 + 92 values.
    x, lists = ", ".join(["x"] * 99), [", ".join([name] * times) for name, times in (("*a", 10), ("*b", 98))]
    text = f"a: &a [{x}]\nb: &b [{lists[0]}]\nc: [{lists[1]}]\nd: [{', '.join(['*a'] * 7)}]\n"
    text += f"e: [{', '.join(['x'] * (92 + more))}]\n"
    if is_read:
        assert card_in_text(text).value.version is None
        return
    with pytest.raises(InputError, match="expands to, more than 100,000 values"):
        card_in_text(text)


def test_an_alias_to_itself_is_refused():
    with pytest.raises(InputError, match="refers to nothing"):
        card_in_text("a: &a [*a]")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_endless_nesting_is_refused(opening):
    started = time.process_time()
    with pytest.raises(InputError, match="nested more than"):
        card_in_text("a:\n  " + opening * 100_000)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_nesting_is_read_up_to_the_limit(more, is_read):
    depth = MAX_DEPTH - 1 + more
    text = "a: " + "[" * depth + "]" * depth
    if is_read:
        assert card_in_text(text).value.version is None
        return
    with pytest.raises(InputError, match="nested more than 64 levels"):
        card_in_text(text)


def test_a_file_over_the_limit_is_refused_by_its_size(written):
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_card(written("card.yaml", "# " + "x" * (1 << 20)))


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="binary"):
        read_card(path)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "card.yaml"
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        read_card(path)


def test_bad_utf8_in_one_value_does_not_lose_the_others(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_bytes(FULL_CARD.replace("Ada Lovelace", "Ad\0").encode().replace(b"\0", b"\xe9"))
    assert read_card(path).value.parallelism.tp == 4


def test_a_message_never_carries_control_characters():
    text = changed("precision: bf16", 'precision: "\\e[31mred\\x07"')
    assert all(str(issue).replace("\n", "").isprintable() for issue in card_in_text(text).issues)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
@example("!<tag:yaml.org,2002:str")
@example("%TAG ! !\n--- !a b: c")
@example("a: 2025-13-45")
@example("? [a]\n: 1")
@example("<<: 3")
@example("workload: &x {model: *x}")
def test_any_text_gives_a_reading_or_an_input_error(text):
    with suppress(InputError):
        card_in_text(text)


YAML_WORDS = st.sampled_from(
    [
        "workload:",
        "model:",
        "data:",
        "batch_size:",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "!!int ",
        "|",
        ">",
        "8",
        "x",
        "\n",
        "  ",
        ": ",
        "? ",
        "#",
        '"',
        "<<: ",
    ]
)


@given(st.lists(YAML_WORDS, max_size=40).map("".join))
def test_any_mixture_of_yaml_gives_a_reading_or_an_input_error(text):
    with suppress(InputError):
        card_in_text(text)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = [
    "workload",
    "model",
    "data",
    "hardware",
    "Model-executor",
    "seq_len",
    "bandwidth_gbps",
    "network_topo",
    "framework",
    "env",
    "traces",
    "metric_source",
    "precision",
    "hf_url",
]


@given(
    st.recursive(
        VALUES, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=20
    )
)
def test_any_data_under_a_cards_keys_gives_a_reading(data):
    from ccl_bench.card import card_in_mapping

    card_in_mapping({"workload": data, "Model-executor": data, "metric_source": data})


def test_thousands_of_unknown_keys_are_counted_and_not_listed():
    started = time.process_time()
    issues = card_in_text(FULL_CARD + "".join(f"k{n}: 1\n" for n in range(5_000))).issues
    assert len(issues) == 51
    assert time.process_time() - started < 10
