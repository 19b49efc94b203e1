"""The historical entry points: `tools/main.py`, `python -m tools.main`, `metric_cal`."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tools import folders
from tools.folders import tool_names
from tools.main import main

from ccl_bench.base.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

UNITS = ("_s", "_bytes", "_gb_per_s", "_flop_per_byte", "_pct", "_ratio", "_count")
TEXTS = ("_reason", "_settings", "_kind", "_rank", "_name", "windows", "ranks", "findings")
NINE = {
    "throughput",
    "communication",
    "memory",
    "overlap",
    "training_phases",
    "fsdp",
    "straggler",
    "kernel",
    "gpu_utilization",
}

Captured = pytest.CaptureFixture[str]


@cache
def _dict_of(tool: str, run: Path) -> dict[str, Any]:
    found: dict[str, Any] = importlib.import_module(f"tools.{tool}").metric_cal(run)
    return found


def test_there_are_nine_tools() -> None:
    assert set(tool_names()) == NINE


@pytest.mark.parametrize("tool", tool_names())
def test_every_key_of_a_tool_ends_in_its_unit(tool: str, sharded: Path) -> None:
    assert [key for key in _dict_of(tool, sharded) if not key.endswith(UNITS + TEXTS)] == []


@pytest.mark.parametrize("tool", tool_names())
def test_a_tool_gives_plain_numbers_texts_and_lists_in_two_levels(tool: str, sharded: Path) -> None:
    for value in _dict_of(tool, sharded).values():
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        assert all(isinstance(item, int | float | str) for item in inner)


def test_throughput_agrees_with_the_metrics(sharded: Path) -> None:
    found = _dict_of("throughput", sharded)
    assert found["tokens_per_step_count"] == 16 * 128
    assert found["tokens_per_s"] == pytest.approx(16 * 128 / found["iteration_mean_s"])
    assert found["per_gpu_tokens_per_s"] == pytest.approx(found["tokens_per_s"] / 4)
    assert found["mfu_reason"].startswith("not applicable: ")
    assert "mfu_pct" not in found


def test_the_parts_of_a_step_come_to_the_step(sharded: Path) -> None:
    found = _dict_of("overlap", sharded)
    parts = ("compute_s", "exposed_communication_s", "exposed_memory_s", "idle_s")
    assert sum(found[part] for part in parts) == pytest.approx(found["step_s"])
    assert found["overlap_ratio"] == pytest.approx(found["overlap_pct"] / 100)


def test_busy_and_idle_come_to_the_whole(sharded: Path) -> None:
    found = _dict_of("gpu_utilization", sharded)
    assert found["busy_pct"] + found["idle_pct"] == pytest.approx(100)


def test_a_tool_refuses_what_is_not_there(tmp_path: Path, sharded: Path) -> None:
    from tools.throughput import metric_cal

    with pytest.raises(InputError):
        metric_cal(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        metric_cal(sharded, None, "nvprof")


def test_the_command_prints_the_number(sharded: Path, capsys: Captured) -> None:
    assert main([f"--trace={sharded}", "--metric=coll_call_num"]) == 0
    assert capsys.readouterr().out == "16\n"


def test_the_command_has_the_exit_statuses_of_ccl_metrics(sharded: Path, capsys: Captured) -> None:
    assert main(["--trace", str(sharded), "--metric", "mfu"]) == 3
    assert main(["--trace", str(sharded), "--metric", "mfuu"]) == 2
    assert main(["--trace", "nowhere", "--metric", "mfu"]) == 4
    assert capsys.readouterr().err.startswith("tools/main.py: mfu: not applicable")


def test_the_other_form_prints_a_dict_for_each_tool_and_metric(sharded: Path, capsys: Captured) -> None:
    arguments = ["--workload-dir", str(sharded), "--tools", "overlap,coll_call_num", "--tools", "throughput"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["overlap", "coll_call_num", "throughput"]
    assert found["coll_call_num"]["coll_call_num"] == 16
    assert found["coll_call_num"]["unit"] == "calls"


def test_all_stands_for_the_nine_tools_and_reads_the_run_once(
    sharded: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ccl_bench import engine

    monkeypatch.setenv("CCL_BENCH_CACHE", str(tmp_path))

    read: list[int] = []
    together = engine.read_concatenated

    def counting(tasks: list[engine.Task], *arguments: Any, **how: Any) -> Any:
        read.append(len(tasks))
        return together(tasks, *arguments, **how)

    monkeypatch.setattr(engine, "read_concatenated", counting)
    assert main(["--workload-dir", str(sharded), "--tools", "all"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == NINE
    assert read == [4]
    assert found["fsdp"] == _dict_of("fsdp", sharded)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--tools", ",", "--workload-dir", "x"], 2, "no tool is named"),
        (["--tools", "throughputs", "--workload-dir", "x"], 2, "did you mean throughput"),
        (["--tools", "throughput"], 2, "--workload-dir is missing"),
        (["--tools", "throughput", "--workload-dir", "nowhere"], 4, "no such file"),
    ],
)
def test_the_other_form_fails_like_every_command(
    arguments: list[str], status: int, message: str, capsys: Captured
) -> None:
    assert main(arguments) == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("names", [["overlap", "coll_call_num"], ["overlap,coll_call_num"]])
def test_names_may_be_apart_by_spaces_or_commas(names: list[str], sharded: Path, capsys: Captured) -> None:
    assert main(["--tools", *names, "--workload-dir", str(sharded)]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["overlap", "coll_call_num"]


@pytest.fixture
def own_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a folder whose subfolders are tools beside those of the checkout."""
    import tools

    monkeypatch.setattr(tools, "__path__", [*tools.__path__, str(tmp_path)])
    monkeypatch.setattr(folders, "_HERE", tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("tools.mine")]:
        del sys.modules[name]


def _add_tool(folder: Path, module: str, body: str) -> None:
    folder.mkdir()
    (folder / f"{module}.py").write_text(f"def metric_cal(trace_dir{body}\n")


def test_a_folder_with_metric_cal_and_nothing_else_is_a_tool(
    own_tools: Path, sharded: Path, capsys: Captured
) -> None:
    _add_tool(own_tools / "mine_a", "__init__", "): return 3.5")
    _add_tool(own_tools / "mine_b", "metric", ", card=None, mode='auto'): return {'mode_kind': mode, 'n': 2}")
    _add_tool(own_tools / "mine_c", "mine_c", "): return 1 // 0")
    _add_tool(own_tools / "mine_d", "__init__", "): return None")
    (own_tools / "no_tool").mkdir()
    (own_tools / "no_tool" / "helpers.py").write_text("")
    assert main(["--workload-dir", str(sharded), "--tools", "all"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "mine_a": {"mine_a": 3.5},
        "mine_b": {"mode_kind": "auto", "n": 2},
        "mine_c": {
            "mine_c_reason": "failed: ZeroDivisionError: integer division or modulo by zero",
        },
        "mine_d": {"mine_d_reason": "not measurable: the tool returned nothing"},
    }


def test_a_users_tool_is_asked_for_like_a_metric(own_tools: Path, sharded: Path, capsys: Captured) -> None:
    _add_tool(own_tools / "mine_a", "__init__", "): return 3.5")
    _add_tool(own_tools / "mine_c", "__init__", "): raise RuntimeError('no such run')")
    assert main([f"--trace={sharded}", "--metric=mine_a"]) == 0
    assert capsys.readouterr().out == "3.5\n"
    assert main(["--trace", str(sharded), "--metric", "mine_c"]) == 3
    assert capsys.readouterr().err == "tools/main.py: mine_c: failed: RuntimeError: no such run\n"
    assert main(["--trace", "nowhere", "--metric", "mine_a"]) == 4


def test_a_users_tool_that_cannot_be_imported_takes_no_other_down(
    own_tools: Path, sharded: Path, capsys: Captured
) -> None:
    _add_tool(own_tools / "mine_a", "__init__", "): return 3.5")
    _add_tool(own_tools / "mine_e", "__init__", "): return 1\nimport nothing_of_this_name")
    assert main(["--workload-dir", str(sharded), "--tools", "mine_a", "mine_e", "coll_call_num"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mine_a"] == {"mine_a": 3.5}
    assert "No module named 'nothing_of_this_name'" in found["mine_e"]["mine_e_reason"]
    assert found["coll_call_num"]["coll_call_num"] == 16


def test_what_a_users_tool_prints_goes_to_stderr(own_tools: Path, sharded: Path, capsys: Captured) -> None:
    _add_tool(own_tools / "mine_f", "metric", "): print('called'); return 2.5\nprint('imported')")
    assert main(["--workload-dir", str(sharded), "--tools", "all"]) == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == ({"mine_f": {"mine_f": 2.5}}, "imported\ncalled\n")


def test_a_users_tool_that_exits_takes_no_other_down(
    own_tools: Path, sharded: Path, capsys: Captured
) -> None:
    _add_tool(own_tools / "mine_g", "__init__", "): raise SystemExit(3)")
    _add_tool(own_tools / "mine_h", "__init__", "): return 1\nraise SystemExit")
    _add_tool(own_tools / "mine_i", "__init__", "): return 4")
    assert main(["--workload-dir", str(sharded), "--tools", "all"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "mine_g": {"mine_g_reason": "failed: SystemExit: 3"},
        "mine_h": {"mine_h_reason": "failed: SystemExit"},
        "mine_i": {"mine_i": 4},
    }


def test_interrupting_a_users_tool_ends_the_command(own_tools: Path, sharded: Path) -> None:
    _add_tool(own_tools / "mine_j", "__init__", "): raise KeyboardInterrupt")
    assert main(["--workload-dir", str(sharded), "--tools", "mine_j"]) == 130


def test_a_number_that_is_none_has_a_reason(own_tools: Path, sharded: Path, capsys: Captured) -> None:
    _add_tool(own_tools / "mine_k", "__init__", "): return float('nan')")
    dictionary = "{'a_s': float('-inf'), 'b': {'c': float('inf'), 'd': 1}, 'e': [2, float('nan')]}"
    _add_tool(own_tools / "mine_l", "__init__", f"): return {dictionary}")
    assert main(["--workload-dir", str(sharded), "--tools", "mine_k"]) == 3
    assert main(["--workload-dir", str(sharded), "--tools", "mine_l"]) == 3
    reason = "not measurable: the tool returned "
    first, second = capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")
    assert json.loads(first) == {"mine_k": {"mine_k_reason": f"{reason}nan"}}
    assert json.loads(second) == {
        "mine_l": {
            "a_s_reason": f"{reason}-inf",
            "b": {"c_reason": f"{reason}inf", "d": 1},
            "e": [2, None],
            "e_reason": f"{reason}nan",
        }
    }


def test_tools_are_found_in_upper_and_lower_case_and_before_metrics(sharded: Path, capsys: Captured) -> None:
    assert main(["--workload-dir", str(sharded), "--tools", "Throughput", "OVERLAP", "Straggler"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {name: _dict_of(name, sharded) for name in ("throughput", "overlap", "straggler")}
    assert main(["--trace", str(sharded), "--metric", "Overlap"]) == 0
    assert json.loads(capsys.readouterr().out) == found["overlap"]


def test_all_may_be_in_upper_case(own_tools: Path, sharded: Path, capsys: Captured) -> None:
    _add_tool(own_tools / "mine_A", "__init__", "): return 3.5")
    assert main(["--workload-dir", str(sharded), "--tools", "ALL"]) == 0
    assert json.loads(capsys.readouterr().out) == {"mine_A": {"mine_A": 3.5}}
    assert main([f"--trace={sharded}", "--metric=MINE_a"]) == 0
    assert capsys.readouterr().out == "3.5\n"


def test_a_tool_says_what_to_ask_for_in_place_of_everyday_words(capsys: Captured) -> None:
    assert main(["--workload-dir", "x", "--tools", "GPU utilization"]) == 2
    assert "ask for gpu_busy" in capsys.readouterr().err


def test_a_metric_without_a_value_ends_with_its_status(sharded: Path, capsys: Captured) -> None:
    assert main(["--workload-dir", str(sharded), "--tools", "mfu"]) == 3
    assert json.loads(capsys.readouterr().out)["mfu"]["mfu_reason"].startswith("not applicable")


def test_help_shows_both_forms(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"--trace\b", out)
    assert re.search(r"--workload-dir\b", out)


@pytest.mark.parametrize(
    "command",
    [
        ["tools/main.py", "--trace", "examples/runs/llama-tiny-fsdp2-tp2-gloo", "--metric", "coll_call_num"],
        [
            "-c",
            "from tools.overlap import metric_cal as m; m('examples/runs/llama-tiny-pp4-gloo'); print(16)",
        ],
    ],
    ids=["script", "import"],
)
def test_they_work_from_the_root_of_the_checkout(command: list[str], root: Path) -> None:
    """As `main.py` there does, which README.md shows."""
    done = subprocess.run(
        [sys.executable, *command], cwd=root, capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "16\n", "")
