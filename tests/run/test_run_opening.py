"""Opening a run: which files it consists of, and what is wrong with the set of its ranks."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.run import open_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"
EXAMPLE = EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"
DRIVE = "https://drive.google.com"


def write_trace(path: Path, rank: int | None = None, world: int | None = None) -> Path:
    """Write a trace of one event."""
    known = {key: value for key, value in {"rank": rank, "world_size": world}.items() if value is not None}
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"aten::mm in {path}",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": known, "traceEvents": [event]}))
    return path


def messages(folder: Path, code: str) -> list[str]:
    """Return the messages of the findings with this code."""
    return [finding.message for finding in open_run(folder).findings if finding.code == code]


def test_an_example_is_complete_and_all_its_files_are_understood():
    run = open_run(EXAMPLES / "llama-tiny-pp4-gloo")

    assert run.ranks == [0, 1, 2, 3]
    assert (run.findings, run.others) == ([], [])
    assert sorted(run.documents.files.values()) == [
        "run_metadata.json",
        "step_times_per_rank.json",
        "training_metrics.json",
        "workload card",
    ]


def test_files_that_nobody_understands_are_listed(tmp_path: Path):
    write_trace(tmp_path / "rank0_trace.json", 0, 1)
    (tmp_path / "notes.txt").write_text("hello")

    assert [path.name for path in open_run(tmp_path).others] == ["notes.txt"]


def test_missing_ranks_are_named(tmp_path: Path):
    for rank in (0, 2):
        write_trace(tmp_path / f"kineto_trace_{rank}.json", rank, 4)

    assert messages(tmp_path, "ranks-missing") == ["2 of 4 ranks have no trace: 1, 3"]


def test_of_many_missing_ranks_the_first_are_named(tmp_path: Path):
    write_trace(tmp_path / "kineto_trace_0.json", 0, 64)

    (message,) = messages(tmp_path, "ranks-missing")

    assert message == "63 of 64 ranks have no trace: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ..."


def test_a_world_too_large_to_list_is_counted(tmp_path: Path):
    write_trace(tmp_path / "kineto_trace_0.json", 0)
    (tmp_path / "run_metadata.json").write_text('{"world_size": 1000000000}')

    (message,) = messages(tmp_path, "ranks-missing")

    assert message.startswith("999999999 of 1000000000 ranks have no trace: 1, 2, ")


def test_ranks_missing_from_one_window_are_named_with_it(tmp_path: Path):
    for window, ranks in ((10, (0, 1)), (20, (1,))):
        for rank in ranks:
            write_trace(tmp_path / f"iteration_{window}" / f"kineto_trace_{rank}.json", rank, 2)

    assert messages(tmp_path, "ranks-missing") == ["in window 20, 1 of 2 ranks have no trace: 0"]


def test_ranks_missing_from_every_window_are_named_once(tmp_path: Path):
    for window in (10, 20):
        write_trace(tmp_path / f"iteration_{window}" / "kineto_trace_0.json", 0, 2)

    assert messages(tmp_path, "ranks-missing") == ["1 of 2 ranks have no trace: 1"]


def test_a_file_named_like_the_traces_that_is_none_is_reported(tmp_path: Path):
    write_trace(tmp_path / "kineto_trace_0.json", 0, 3)
    (tmp_path / "kineto_trace_1.json").write_bytes(b"")
    (tmp_path / "kineto_trace_2.json").write_text("<html>503 Service Unavailable</html>")
    (tmp_path / "notes_2.txt").write_text("hello")

    assert messages(tmp_path, "trace-unrecognised") == [
        "these files look like traces but are empty or invalid: kineto_trace_1.json, kineto_trace_2.json"
    ]


def test_ranks_beyond_the_world_are_an_error(tmp_path: Path):
    for rank in (0, 5):
        write_trace(tmp_path / f"kineto_trace_{rank}.json", rank)
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')

    assert messages(tmp_path, "ranks-beyond-world") == ["ranks 5 do not fit world_size 2 (run_metadata.json)"]


def test_traces_of_no_known_rank_are_named_with_the_way_out(tmp_path: Path):
    for name in ("a.json", "b.json"):
        write_trace(tmp_path / name)

    assert messages(tmp_path, "rank-unknown") == [
        "the rank of a.json, b.json is unknown; state it in ranks.json"
    ]


def test_a_single_trace_of_no_known_rank_needs_no_map(tmp_path: Path):
    write_trace(tmp_path / "a.json")

    assert messages(tmp_path, "rank-unknown") == []


def test_a_map_shows_ranks_where_files_do_not(tmp_path: Path):
    for name in ("a.json", "b.json"):
        write_trace(tmp_path / name)
    (tmp_path / "ranks.json").write_text('{"a.json": 1, "b.json": 0}')

    run = open_run(tmp_path)

    assert {trace.relative: trace.rank for trace in run.traces} == {"a.json": 1, "b.json": 0}
    assert run.others == []


def test_a_map_that_is_none_is_refused_with_an_example(tmp_path: Path):
    write_trace(tmp_path / "a.json")
    (tmp_path / "ranks.json").write_text("[0, 1]")

    with pytest.raises(InputError, match="does not map files to ranks") as error:
        open_run(tmp_path)

    assert '{"host1_trace.json": 0' in error.value.fix


def test_a_place_that_is_not_there_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="no such file or directory"):
        open_run(tmp_path / "nowhere")


@pytest.mark.parametrize("address", [f"{DRIVE}/drive/folders/a?usp=sharing", f"{DRIVE}/file/d/b"])
def test_an_address_of_google_drive_is_answered_with_how_to_download_it(address: str):
    with pytest.raises(UsageError, match="is a page of Google Drive") as caught:
        open_run(address)
    assert f"gdown --folder {shlex.quote(address)} -O DIR" in caught.value.fix


def test_a_card_may_end_in_yml(tmp_path: Path):
    for name in ("workload_card.yml", "qwen.YML"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(EXAMPLE / "workload_card.yaml", folder / name)
        run = open_run(folder)
        assert run.facts.tp == open_run(EXAMPLE).facts.tp
        assert run.documents.files == {folder / name: "workload card"}


def test_an_unknown_profile_mode_is_wrong_usage():
    with pytest.raises(UsageError, match="unknown profile mode 'rocprof'"):
        open_run(EXAMPLES / "llama-tiny-pp4-gloo", profile_mode="rocprof")


def test_a_profile_mode_leaves_out_traces_of_the_other():
    assert open_run(EXAMPLES / "llama-tiny-pp4-gloo", profile_mode="nsys").traces == []


def test_a_card_given_by_name_wins_over_the_one_in_the_run(tmp_path: Path):
    card = tmp_path / "other.yaml"
    card.write_text("workload: {model: {phase: inference}}")

    facts = open_run(EXAMPLES / "llama-tiny-pp4-gloo", card=card).facts

    assert facts.phase.value == "inference"


def test_a_card_given_by_name_that_is_not_there_is_an_input_error(tmp_path: Path):
    with pytest.raises(InputError):
        open_run(EXAMPLES / "llama-tiny-pp4-gloo", card=tmp_path / "nowhere.yaml")


def test_a_device_of_type_cpu_is_no_accelerator():
    assert open_run(EXAMPLES / "llama-tiny-pp4-gloo").facts.device is None


def test_an_unreadable_metadata_file_is_a_finding_and_the_card_fills_in(tmp_path: Path):
    write_trace(tmp_path / "kineto_trace_0.json", 0)
    (tmp_path / "run_metadata.json").write_text("{")
    (tmp_path / "workload_card.yaml").write_text("workload: {data: {seq_len: 12}}")

    run = open_run(tmp_path)

    assert [(f.code, f.file) for f in run.findings] == [("file-malformed", "run_metadata.json")]
    assert (run.facts.seq_len.value, run.facts.seq_len.source) == (12, "workload card")
