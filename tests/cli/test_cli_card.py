"""`ccl-bench card`: values that a run shows, values that a user sets, and questions."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import ROOT, recorded_by

from ccl_bench.analysis.flops import precision_of_products
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.card import card_values, read_card
from ccl_bench.cli.bench import main
from ccl_bench.collect.describe.card_from_run import shown_card_values
from ccl_bench.collect.describe.complete_card import complete_card
from ccl_bench.collect.describe.fill_card import fillable
from ccl_bench.run import discover_run

if TYPE_CHECKING:
    from pathlib import Path

Captured = pytest.CaptureFixture[str]
PLAN = "Model-executor.model_plan_parallelization"
READING = {"jobs": 1, "use_cache": True, "progress": None}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a copy of an example without its card."""
    run = recorded_by((0, 1, 2, 3), tmp_path / "run")
    (run / "workload_card.yaml").unlink()
    return run


@pytest.mark.parametrize(
    ("name", "shown_too"),
    [
        (
            "llama-tiny-fsdp2-tp2-gloo",
            {f"{PLAN}.tp", f"{PLAN}.dp_shard", f"{PLAN}.pp", "workload.model.precision"},
        ),
        ("megatron-tp8-a100", {"workload.hardware.xpu_spec.model", "workload.model.precision"}),
    ],
)
def test_what_a_run_shows_is_what_its_author_wrote_into_the_card(name: str, shown_too: set[str]) -> None:
    run = discover_run(ROOT / "examples/runs" / name)
    written, shown = read_card(run.path / "workload_card.yaml").value, shown_card_values(run, **READING)
    values, remarks = fillable(written, shown)
    assert values == shown
    assert shown_too <= shown.keys() & card_values(written).keys()
    assert remarks == []  # nvidia_a100_80g and NVIDIA A100-SXM4-80GB are one device


def test_one_command_makes_a_card_that_ranks(bare: Path, capsys: Captured) -> None:
    command = ["card", str(bare), "--format", "json"]
    assert main([*command, "--set", "phase=training", "--set", "framework.version=2.10"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [*first["lacking"]] == ["workload.model.model_family"]
    assert first["changed"]["Model-executor.framework.version"] == "2.10"
    # The metadata states the batch of all ranks; 2 x 2 groups of 4 ranks leave nothing for other axes.
    assert (first["filled"]["workload.data.batch_size"], first["filled"][f"{PLAN}.cp"]) == (16, 1)
    assert main([*command, "--set", "model_family=llama-tiny", "--set", "tp=3"]) == 4
    second = json.loads(capsys.readouterr().out)
    assert (second["lacking"], second["filled"]) == ({}, {})
    assert [issue["severity"] for issue in second["issues"] if "product" in issue["message"]] == ["error"]
    # A later value replaces that one only.
    text = (bare / "workload_card.yaml").read_text()
    assert main(["card", str(bare / "workload_card.yaml"), "--set", "tp=2"]) == 0
    assert (bare / "workload_card.yaml").read_text() == text.replace("tp: 3 ", "tp: 2 ")
    assert "every field that ranking needs" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["precison=bf16", "precision=bf99", "precision", "env.A=b"])
def test_a_refused_value_writes_nothing(change: str, bare: Path, capsys: Captured) -> None:
    assert main(["card", "--set", "tp=2", "--set", change, str(bare)]) == 2
    assert "fix:" in capsys.readouterr().err
    assert not (bare / "workload_card.yaml").exists()


def test_a_card_further_below_is_not_changed_unless_it_is_named(bare: Path, capsys: Captured) -> None:
    text = "workload:\n  model:\n    phase: training\n"
    (bare / "of another").mkdir()
    (bare / "of another/workload_card.yaml").write_text(text)
    assert main(["card", str(bare)]) == 2
    assert "of another/workload_card.yaml" in capsys.readouterr().err
    assert (bare / "of another/workload_card.yaml").read_text() == text
    assert main(["card", str(bare), "--set", "tp=1", "cp=1"]) == 2
    assert "repeat the option" in capsys.readouterr().err


def test_questions_are_asked_until_the_card_is_complete(bare: Path) -> None:
    asked: dict[str, object] = {}

    def answer(path: str, default: object) -> object:
        asked[path] = default
        return {"workload.model.phase": "inference", "workload.data.input_len": 1024}.get(path, default)

    shown = {"workload.model.precision": "bf16", "workload.hardware.driver_version": "cuda_12"}
    completed = complete_card(discover_run(bare), shown, {"workload.model.model_family": "x"}, answer)
    # Inference needs lengths of requests, which training does not; what is shown is the default.
    assert asked["workload.model.precision"] == "bf16"
    assert {"workload.data.input_len", "workload.data.output_len"} <= asked.keys()
    assert "workload.model.model_family" not in asked
    assert completed.lacking.keys() == {"workload.data.output_len"}
    assert completed.filled == {"workload.hardware.driver_version": "cuda_12"}


def test_a_terminal_is_asked_and_its_end_keeps_the_answers(bare: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "ccl_bench", "card", str(bare)])
    replies, shown = [b"serving\n", b"gpt\n", b"bf99\n", b"\n", b"\x04"], b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # closed by its end
            break
        if shown.endswith(b"> ") and replies:
            os.write(terminal, replies.pop(0))
    assert os.waitpid(child, 0)[1] == 0
    assert b"bf99 is not a known value" in shown
    card = read_card(bare / "workload_card.yaml").value
    assert (card.model.phase, card.model.model_family, card.model.precision) == ("inference", "gpt", "fp32")
    assert card.parallelism.tp == 2  # was shown, and not asked


def _products(*rows: tuple[str | None, int, float], narrow: int = 0) -> pl.DataFrame:
    names = ("dtype", "products", "flops")
    return pl.DataFrame(rows, names, orient="row").with_columns(narrow_kernels=narrow)


def test_a_precision_is_that_of_nearly_all_products() -> None:
    # 95 of 100 operations suffice, 94 do not.
    assert precision_of_products(_products(("bf16", 95, 95.0), ("fp32", 5, 5.0))) == (
        "bf16",
        pytest.approx(0.95),
    )
    for products in (
        _products(("bf16", 94, 94.0), ("fp32", 6, 6.0)),
        _products(("bf16", 94, 100.0), (None, 6, 0.0)),
        _products(("bf16", 1, 1.0), narrow=1),
        _products(("bf16", 1, 0.0)),
    ):
        with pytest.raises(NotMeasurable):
            precision_of_products(products)
