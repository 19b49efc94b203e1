"""`ccl-bench`: inspect, validate, help."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from ccl_bench.cli import commands
from ccl_bench.cli.bench import main
from ccl_bench.metrics import load

if TYPE_CHECKING:
    from pathlib import Path

OK, WRONG_USAGE, NO_INPUT = 0, 2, 4

Captured = pytest.CaptureFixture[str]


def test_inspect_shows_traces_groups_facts_and_what_can_be_measured(sharded: Path, capsys: Captured) -> None:
    assert main(["inspect", str(sharded)]) == OK
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert err == ""
    assert lines[0] == str(sharded)
    assert "traces 4 kineto files, 907 kB" in lines
    assert "ranks 4 of 4: 0-3" in lines
    assert "steps 3 steps in each trace, from ProfilerStep" in lines
    assert "communication 192 calls: all_gather 60, all_reduce 96, reduce_scatter 36" in lines
    assert "tp 2 2-3 2 ranks mesh_tp" in lines
    assert "world_size 4 run_metadata.json" in lines
    assert "workload_card.yaml workload card" in lines
    assert any(line.startswith("mfu: not applicable: ") for line in lines)


def test_inspect_shows_what_is_missing(sharded: Path, tmp_path: Path, capsys: Captured) -> None:
    for name in ("kineto_trace_1.json.gz", "run_metadata.json"):
        shutil.copy(sharded / name, tmp_path)
    (tmp_path / "notes.txt").write_text("by hand")
    main(["inspect", str(tmp_path)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "ranks 1 of 4: 1; missing 0, 2-3" in lines
    assert "warning 3 of 4 ranks have no trace: 0, 2, 3 (ranks-missing)" in lines
    assert "notes.txt not recognised, not used" in lines


def test_inspect_as_json_has_a_place_for_everything(sharded: Path, capsys: Captured) -> None:
    assert main(["inspect", str(sharded), "--format", "json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == [0, 1, 2, 3]
    assert found["missing_ranks"] == []
    assert [trace["steps"] for trace in found["traces"]] == [[2, 3, 4]] * 4
    assert found["facts"]["tp"] == {"value": 2, "source": "workload card"}
    assert [metric["metric"] for metric in found["metrics"]] == load().names()


@pytest.mark.parametrize("name", ["deepseek-dualpipe", "nccl-args"])
def test_inspect_reads_real_traces(kineto: Path, name: str, capsys: Captured) -> None:
    assert main(["inspect", str(kineto / name)]) == OK
    out = capsys.readouterr().out
    assert "Can be measured" in out
    assert not [line for line in out.splitlines() if line != line.rstrip()]


def test_validate_finds_nothing_wrong_with_the_examples(
    sharded: Path, pipelined: Path, capsys: Captured
) -> None:
    assert main(["validate", str(sharded), str(pipelined)]) == OK
    assert capsys.readouterr().out.splitlines() == [
        f"{sharded} (run): nothing wrong",
        f"{pipelined} (run): nothing wrong",
    ]


def test_validate_reports_every_mistake_with_its_line(
    sharded: Path, tmp_path: Path, capsys: Captured
) -> None:
    card = tmp_path / "workload_card.yaml"
    text = (sharded / "workload_card.yaml").read_text()
    broken = text.replace("phase: training", "phase: traning").replace("tp: 2", "tp: two")
    assert broken.count("traning") == 1
    assert broken.count("tp: two") == 1
    card.write_text(broken)
    assert main(["validate", str(card), "--format", "json"]) == NO_INPUT
    [found] = json.loads(capsys.readouterr().out)
    lines = broken.splitlines()
    wrong = {lines[issue["line"] - 1].strip() for issue in found["issues"] if issue["severity"] == "error"}
    assert {"phase: traning", "tp: two"} <= {line.split("  #")[0].strip() for line in wrong}
    main(["validate", str(card)])
    out = capsys.readouterr().out
    assert f"{card}:" in out
    assert "fix: " in out


def test_validate_goes_on_after_a_path_that_is_not_there(sharded: Path, capsys: Captured) -> None:
    assert main(["validate", "nowhere", str(sharded)]) == NO_INPUT
    out = capsys.readouterr().out
    assert "nowhere: there is no such file or directory" in out
    assert f"{sharded} (run): nothing wrong" in out


def test_validate_asks_for_traces_and_a_card(tmp_path: Path, capsys: Captured) -> None:
    assert main(["validate", str(tmp_path)]) == NO_INPUT
    out = capsys.readouterr().out
    assert "(trace-missing)" in out
    assert "(card-missing)" in out
    assert "1 error, 1 warning" in out


@pytest.mark.parametrize("name", ["run_metadata.json", "training_metrics.json", "step_times_per_rank.json"])
def test_validate_reads_a_side_file_alone(sharded: Path, name: str, capsys: Captured) -> None:
    assert main(["validate", str(sharded / name)]) == OK
    assert f"({name.removesuffix('.json')}): nothing wrong" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["board"], ["board", "token"]])
def test_help_begins_with_what_a_command_does_and_ends_with_an_example(
    arguments: list[str], capsys: Captured
) -> None:
    assert main([*arguments, "--help"]) == OK
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[0][0].isupper()
    assert not lines[0].startswith("Usage")
    assert "Example:" in lines
    assert "ccl-bench" in lines[-1]


EARLIER = {
    "approve": "board approve",
    "audit": "board audit",
    "backup": "board backup",
    "import": "board import",
    "index": "board index",
    "key": "board key",
    "keygen": "sign new",
    "review": "board review",
    "site": "board site",
    "token": "board token",
    "verify": "sign verify",
    "withdraw": "board withdraw",
    "worker": "board worker",
}


@pytest.mark.parametrize(("earlier", "name"), EARLIER.items())
def test_an_earlier_name_works_and_is_listed_nowhere(earlier: str, name: str, capsys: Captured) -> None:
    printed = []
    for words in ([earlier], name.split()):
        statuses = [main([*words, "--help"]), main([*words, "--no-such-option"]), main(words)]
        assert statuses == [OK, WRONG_USAGE, WRONG_USAGE]
        printed.append(capsys.readouterr())
    assert printed[0] == printed[1]
    assert f"Usage: ccl-bench {name} " in printed[0].out
    assert not {earlier} & set(commands.app([]))
