"""`ccl-bench hang`: the answer on real dumps, and what it says where there is none."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from commands import EXAMPLE, invoke
from flight_recorder import call, dump, write_dumps

if TYPE_CHECKING:
    from pathlib import Path

SETS = {
    "ok": [],
    "missing": [("missing", "default_pg", 4, [0, 1, 3], [2], [])],
    "type": [("mismatch", "default_pg", 4, [0, 2, 3], [], [1])],
}
"""Set of four gloo processes → kind, group, collective, who waits, who is missing, who differs."""


def answer(run: Path) -> dict[str, Any]:
    ended = invoke(["ccl-bench", "hang", str(run), "--format", "json"])
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("name", SETS)
def test_recorded_dumps_show_who_is_missing_and_who_differs(name: str, corpus: Path) -> None:
    found = answer(corpus / "flight-recorder" / name)
    places = [
        (
            each["kind"],
            each["description"],
            each["sequence"],
            [waiter["rank"] for waiter in each["waiting"]],
            [missing["rank"] for missing in each["missing"]],
            [other["rank"] for other in each["differing"]],
        )
        for each in found["divergences"]
    ]
    assert places == SETS[name]
    assert (found["ranks"], found["without_dump"], found["findings"]) == ([0, 1, 2, 3], [], [])


def test_what_is_wrong_with_traces_beside_the_dumps_is_not_repeated(corpus: Path, tmp_path: Path) -> None:
    """Two traces claim rank 0, which says nothing about the dumps."""
    shutil.copytree(corpus / "flight-recorder/missing", tmp_path / "dumps")
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        shutil.copy(EXAMPLE.parent / "llama-tiny-pp4-gloo/kineto_trace_0.json.gz", tmp_path / folder)
    found = answer(tmp_path)
    assert (found["culprits"], found["findings"]) == ([2], [])


def test_json_dumps_alone_give_the_same_answer_without_frames(corpus: Path, tmp_path: Path) -> None:
    for file in (corpus / "flight-recorder/missing").glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = answer(tmp_path)
    assert found["culprits"] == [2]
    assert {waiter["frame"] for waiter in found["divergences"][0]["waiting"]} == {None}


def test_the_text_names_ranks_operation_file_and_line(corpus: Path) -> None:
    out = invoke(["ccl-bench", "hang", str(corpus / "flight-recorder/missing")]).stdout
    assert "Rank 2 is missing in all_reduce, collective 4 of default_pg, where ranks 0-1, 3 wait." in out
    assert "waits: ranks 0-1, 3 in all_reduce 4 Float[1024] at /src/train/rec.py:29 (<module>)" in out
    assert "missing: rank 2, last call all_gather 4 Float[1024] of dp (group 3) at /src" in out


def test_a_run_without_a_dump_has_no_answer_and_says_how_to_record_one() -> None:
    ended = invoke(["ccl-bench", "hang", str(EXAMPLE)])
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "no dump of torch's Flight Recorder" in ended.stderr
    assert "TORCH_FR_BUFFER_SIZE" in ended.stderr


def test_dumps_whose_names_hold_no_rank_have_no_answer(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text(json.dumps(dump([call("all_reduce", 1)])))
    ended = invoke(["ccl-bench", "hang", str(tmp_path)])
    assert ended.returncode == 3
    assert "rename the files" in ended.stderr


def test_one_dump_alone_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    run = write_dumps(tmp_path, {0: dump([call("all_reduce", 1)])})
    ended = invoke(["ccl-bench", "hang", str(run)])
    assert ended.returncode == 3
    assert "only rank 0 has a dump" in ended.stderr


def test_dumps_of_several_times_are_not_mixed(tmp_path: Path) -> None:
    for name, at_ms in (("monday", 0), ("friday", 5)):
        write_dumps(tmp_path / name, {rank: dump([call("all_reduce", 1, at_ms=at_ms)]) for rank in (0, 1)})
    ended = invoke(["ccl-bench", "hang", str(tmp_path)])
    assert ended.returncode == 3
    assert "most ranks have several dumps" in ended.stderr
    assert answer(tmp_path / "monday")["ranks"] == [0, 1]


def test_of_several_windows_the_last_is_looked_at(tmp_path: Path) -> None:
    """In window 10 rank 1 is missing, in window 20 rank 0."""
    for window, absent in ((10, 1), (20, 0)):
        there = {rank: [call("all_reduce", 1, at_ms=window)] if rank != absent else [] for rank in (0, 1)}
        folder = tmp_path / f"iteration_{window}"
        write_dumps(folder, {rank: dump(calls, {"0": [0, 1]}) for rank, calls in there.items()})
    assert answer(tmp_path)["culprits"] == [0]


def test_a_report_states_that_stragglers_are_of_recorded_calls() -> None:
    out = invoke(["ccl-bench", "report", "examples/hang"]).stdout
    assert "of the recorded time; slowest: rank 1" in out
    assert "Flight Recorder dumps show when each rank made its calls." in out


def test_a_misspelt_directory_is_met_with_the_nearest_one(tmp_path: Path) -> None:
    write_dumps(tmp_path / "dumps", {0: dump([])})
    ended = invoke(["ccl-bench", "hang", str(tmp_path / "dump")])
    assert ended.returncode == 4
    assert "did you mean dumps?" in ended.stderr


@pytest.mark.parametrize(
    ("kept", "code"),
    [(-40, "trace-unreadable"), (3, "trace-unrecognised"), (0, "trace-unrecognised")],
    ids=["cut off", "the first bytes", "no byte"],
)
def test_a_damaged_dump_is_a_finding_and_its_rank_a_suspect(kept: int, code: str, tmp_path: Path) -> None:
    waits = dump([call("all_reduce", 1)])
    write_dumps(tmp_path, dict.fromkeys(range(3), waits))
    cut = tmp_path / "comm_lib_trace_rank_1"
    cut.write_bytes(cut.read_bytes()[:kept])
    found = answer(tmp_path)
    assert (found["culprits"], found["damaged"], found["without_dump"]) == ([1], [1], [])
    assert [each["kind"] for each in found["suspects"]] == ["damaged-dump"]
    assert [each["code"] for each in found["findings"]] == [code]
    assert all(cut.name in (each["file"] or each["message"]) for each in found["findings"])
    out = invoke(["ccl-bench", "hang", str(tmp_path)]).stdout
    assert "Rank 1 left a damaged dump, and ranks 0, 2 wait in all_reduce, collective 1 of default_pg" in out
    assert "no dump" not in out


def test_a_file_that_is_not_named_like_the_dumps_is_no_damaged_dump(tmp_path: Path) -> None:
    write_dumps(tmp_path, dict.fromkeys(range(2), dump([call("all_reduce", 1)])))
    (tmp_path / "other_rank_5").touch()
    found = answer(tmp_path)
    assert (found["culprits"], found["damaged"], found["ranks"]) == ([], [], [0, 1])


@pytest.mark.parametrize("kept", range(200, 6000, 450))
def test_json_that_is_cut_off_accuses_its_rank_unless_it_shows_the_call(kept: int, tmp_path: Path) -> None:
    """Two ranks wait in the sixth call, of which the end in the text of rank 1 is known."""
    calls = [call("all_reduce", number, ended_ms=number) for number in range(1, 6)] + [call("all_reduce", 6)]
    code = json.dumps(dump(calls, {"0": [0, 1, 2]}))
    for rank in range(3):
        (tmp_path / f"rank_{rank}.json").write_text(code[:kept] if rank == 1 else code)
    shows_all = kept > code.index('"record_id": 5') and kept >= code.rindex("}]}")
    found = answer(tmp_path)
    assert found["culprits"] == ([] if shows_all else [1])
    assert [each["kind"] for each in found["suspects"]] == ([] if shows_all else ["damaged-dump"])
    assert found["without_dump"] == []


@pytest.mark.parametrize("name", ["fr-empty-dump", "fr-empty-and-damaged", "fr-hostnames"])
def test_dumps_of_reported_issues_name_the_ranks_that_are_known(name: str, corpus: Path) -> None:
    folder = corpus / "cases" / name
    expected = json.loads((folder / "expected.json").read_text())
    assert answer(folder / "run")["culprits"] == expected["expect"]["culprits"]
    out = invoke(["ccl-bench", "hang", str(folder / "run")]).stdout
    assert expected.get("must_not_say", "no such words") not in out


def test_dumps_beside_traces_disturb_no_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in EXAMPLE.iterdir():
        (run / file.name).symlink_to(file)
    write_dumps(run / "dumps", {rank: dump([call("all_reduce", 1)]) for rank in range(4)})
    asked = ["--metric", "coll_call_num"]
    plain, beside = (invoke(["ccl-metrics", str(each), *asked]).stdout for each in (EXAMPLE, run))
    assert plain == beside != ""
    assert answer(run)["ranks"] == [0, 1, 2, 3]
