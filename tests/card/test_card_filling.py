"""Filling cards that are laid out in other ways than the template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.card import card_in_text, fill, read_card

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Written = Callable[[str, str], Path]

LIBRARY = "Model-executor.communication_library"
BANDWIDTH = "workload.hardware.network_topo.bandwidth_gbps"
LINKS = "workload:\n  hardware:\n    network_topo:\n      bandwidth_gbps:"
TRACES = {"metric_source.traces": ["json", "nsys"]}
LENGTH = {"workload.data.seq_len": 8}


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        # the comment behind a parent is longer than the indentation and the key together
        ("workload:\n  data:  # sizes\n", LENGTH, "workload:\n  data:  # sizes\n    seq_len: 8\n"),
        ("workload:\n  data: ~  # sizes\n", LENGTH, "workload:\n  data:  # sizes\n    seq_len: 8\n"),
        ("workload:\n  data: []\n", LENGTH, "workload:\n  data:\n    seq_len: 8\n"),
        # behind the last of three keys, and of three items that are no deeper than their key
        (
            "workload:\n  data:\n    epochs: 3\n    dataset: c4\n    odd: 4\n  odd: 1\n",
            LENGTH,
            "workload:\n  data:\n    epochs: 3\n    dataset: c4\n    odd: 4\n    seq_len: 8\n  odd: 1\n",
        ),
        (
            "metric_source:\n  traces:\n  - json\n  - nsys\n  - vllm\nodd: 1\n",
            {"metric_source.metrics_specific_trace": ["x"]},
            (
                "metric_source:\n  traces:\n  - json\n  - nsys\n  - vllm\n"
                "  metrics_specific_trace:\n    - x\nodd: 1\n"
            ),
        ),
        # an alias stands where it is written, and not where its anchor is
        ("a: &a 1\nb: 2\nc: *a\n", {"version": 3}, "a: &a 1\nb: 2\nc: *a\nversion: 3\n"),
        # both ways to write a list; the margin of the first item is that of the others
        (
            "metric_source:\n  traces:\n  -   # kinds\nodd: 1\n",
            TRACES,
            "metric_source:\n  traces:\n  - json  # kinds\n  - nsys\nodd: 1\n",
        ),
        ("metric_source:\n  traces: # x\n", TRACES, "metric_source:\n  traces: [json, nsys] # x\n"),
        ("metric_source:\n", TRACES, "metric_source:\n  traces:\n    - json\n    - nsys\n"),
        # bandwidths in a list or by name
        (
            f"{LINKS}\n        - 50\n        -\n",
            {f"{BANDWIDTH}.scale_up": 900},
            f"{LINKS}\n        - 50\n        - 900\n",
        ),
        (f"{LINKS} []\n", {f"{BANDWIDTH}.scale_up": 900}, f"{LINKS}\n        scale_up: 900\n"),
        (
            f"{LINKS}\n        scale_out: 50\n",
            {f"{BANDWIDTH}.scale_up": 900},
            f"{LINKS}\n        scale_out: 50\n        scale_up: 900\n",
        ),
        # a variable by its path; names of variables that differ in case are two
        (
            "Model-executor:\n  communication_library:\n    env:\n      http_proxy: a\n",
            {f"{LIBRARY}.env.HTTP_PROXY": "b"},
            "Model-executor:\n  communication_library:\n    env:\n      http_proxy: a\n      HTTP_PROXY: b\n",
        ),
        # other names of a key are its names too, and an empty repetition is not the one that counts
        (
            "executor:\n  framework:\n    name: vllm\n",
            {"Model-executor.framework.version": "1.2"},
            'executor:\n  framework:\n    name: vllm\n    version: "1.2"\n',
        ),
        (
            "workload:\n  data:\n    sequence_length:\n",
            LENGTH,
            "workload:\n  data:\n    sequence_length: 8\n",
        ),
        (
            "workload:\nworkload:\n  data:\n    dataset: c4\n",
            LENGTH,
            "workload:\nworkload:\n  data:\n    dataset: c4\n    seq_len: 8\n",
        ),
    ],
)
def test_a_value_is_written_in_its_place(
    written: Written, before: str, values: dict[str, Any], after: str
) -> None:
    path = written("card.yaml", before)
    filling = fill(path, values)
    assert path.read_text(encoding="utf-8") == after
    assert (filling.filled, filling.kept) == (tuple(values), ())
    assert card_in_text(after).errors == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hf_url:\r\nworkload:\r\n", "hf_url:\r\nworkload:\r\n  data:\r\n    seq_len: 8\r\n"),
        ("hf_url:\r\nworkload:\n", "hf_url:\r\nworkload:\n  data:\n    seq_len: 8\n"),
        ("workload:", "workload:\n  data:\n    seq_len: 8"),
    ],
)
def test_lines_end_as_all_lines_of_the_file_do(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_bytes(before.encode())
    fill(path, LENGTH)
    assert path.read_bytes() == after.encode()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("workload:\n  data:\n    seq_len: {a: 1}\n", LENGTH),
        ("workload:\n  data:\n    seq_len: !x 1\n", LENGTH),
        ("metric_source:\n  traces:\n    -\n    - [x]\n", TRACES),
        ("workload:\n  data:\n    - 5\n", LENGTH),
        ("workload:\n  data: !x {}\n", LENGTH),
        (f"{LINKS}\n        - 50\n", {f"{BANDWIDTH}.scale_up": 900}),
        (f"{LINKS}\n        -\n        - 2400\n", {f"{BANDWIDTH}.scale_up": 900}),
        ("Model-executor:\n  communication_library:\n    env: [a]\n", {f"{LIBRARY}.env.X": "1"}),
        # said in other words, or in a place where it is understood too
        ("workload:\n  data:\n    sequence_length: 4\n", LENGTH),
        ("workload:\n  data:\n    seq_len:\n    seq_len: 4\n", LENGTH),
        ("Model-executor:\n  framework: vllm\n", {"Model-executor.framework.name": "sglang"}),
        ("Model-executor:\n  framework:\n    env: {A: x}\n", {"Model-executor.framework.env": {"A": "y"}}),
        ("workload:\n  model:\n    moe: false\n", {"workload.model.moe": True}),
    ],
)
def test_what_a_card_says_in_any_place_is_kept(written: Written, text: str, values: dict[str, Any]) -> None:
    path = written("card.yaml", text)
    assert fill(path, values).filled == ()
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("text", "values", "line"),
    [
        ("{}\n", LENGTH, ":1"),
        ("metric_source:\n  traces: [# none\n  ]\n", TRACES, ":2"),
        ("metric_source:\n  traces: [~, ~]\n", TRACES, ":2"),
        (f"{LINKS} [~, ~]\n", {f"{BANDWIDTH}.scale_up": 900}, ":4"),
        ("{\nworkload: {},\nodd: 1\n}\n", LENGTH, ""),
        # the second line of the quoted nothing would become a part of the value
        ('workload:\n  data:\n    dataset: "\n      "\n', {"workload.data.dataset": "c4"}, ""),
        # a value that would be said of two things
        (
            "Model-executor:\n  framework: &f\n    name: x\n  communication_library: *f\n",
            {f"{LIBRARY}.version": "2"},
            "",
        ),
        ("base: &b\n  odd: 1\nworkload:\n  data:\n    <<: *b\n", LENGTH, ""),
        # a list that would fall is read as no bandwidth at all
        (f"{LINKS}\n        - 900\n        -\n", {f"{BANDWIDTH}.scale_up": 50}, ""),
    ],
)
def test_a_value_that_would_change_others_is_refused_and_the_file_stays(
    written: Written, text: str, values: dict[str, Any], line: str
) -> None:
    path = written("card.yaml", text)
    with pytest.raises(InputError, match="cannot be filled") as refused:
        fill(path, values)
    assert refused.value.where == f"{path}{line}"
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "name",
    [
        "workload.env.X",
        "Model-executor.env.X",
        "workload.data.seq_len.x",
        "workload.data",
        f"{LIBRARY}.env.A.B",
    ],
)
def test_only_variables_lie_below_a_value(written: Written, name: str) -> None:
    with pytest.raises(UsageError, match="has no"):
        fill(written("card.yaml", "version: 1\n"), {name: "1"})


def test_empty_items_and_variables_are_left_out(written: Written) -> None:
    path = written("card.yaml", "version: 1\n")
    fill(
        path, {f"{LIBRARY}.env": {"A": "", "B": "b", "C": None}, "metric_source.traces": ["json", "", "nsys"]}
    )
    card = read_card(path).value
    assert card.executor.communication_library.env == {"B": "b"}
    assert card.metric_source.traces == ("json", "nsys")


def test_each_of_several_values_is_filled_or_kept(written: Written) -> None:
    path = written("card.yaml", "workload:\n  data:\n    seq_len: 4\n")
    values = {"workload.data.batch_size": 2, **LENGTH, "hf_url": "https://x.org", "contact": ""}
    filling = fill(path, values)
    assert (filling.filled, filling.kept) == (("workload.data.batch_size", "hf_url"), tuple(LENGTH))
    assert path.read_text(encoding="utf-8") == (
        "workload:\n  data:\n    seq_len: 4\n    batch_size: 2\nhf_url: https://x.org\n"
    )
