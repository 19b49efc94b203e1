"""Results in trackers of experiments, read back from what TensorBoard, W&B and MLflow wrote."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke, ran
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.integrations.trackers import load_windows, log_results, open_tracker
from ccl_bench.testing import Expected, Plan, timeline, values, write_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAN = Plan(dp_shard=2, steps=2)
EXPECTED = values(Expected(timeline(PLAN)))
NAMES = ("coll_call_num", "gpu_busy", "ttft")
METRICS = [word for name in NAMES for word in ("-m", name)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a watch kept of two windows, of which the second lacks a rank."""
    folder = tmp_path_factory.mktemp("watched")
    for number in (10, 20):
        write_run(PLAN, folder / "outputs", iteration=number)
    (folder / "outputs" / "profile_trace" / "iteration_20" / "rank1_trace.json").unlink()
    command = ["ccl-bench", "watch", str(folder / "outputs"), "--once", "--settle", "0", "--patience", "0"]
    done = invoke([*command, "-o", str(folder / "kept"), "--run", "seven", *METRICS])
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    return folder / "kept"


def test_tensorboard_reads_values_with_their_steps_and_findings_as_text(
    measured: Path, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    done = invoke(["ccl-bench", "log", str(measured), "--to", f"tensorboard:{events}"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"logged 4 numbers of 2 windows to tensorboard:{events}\n"
    found = EventAccumulator(str(events)).Reload()
    assert set(found.Tags()["scalars"]) == {"ccl_bench/coll_call_num", "ccl_bench/gpu_busy"}
    calls = [(event.step, event.value) for event in found.Scalars("ccl_bench/coll_call_num")]
    assert calls == [(10, EXPECTED["coll_call_num"]), (20, EXPECTED["coll_call_num"])]
    busy = found.Scalars("ccl_bench/gpu_busy")[0].value
    assert busy == pytest.approx(EXPECTED["gpu_busy"], rel=1e-6)
    assert found.SummaryMetadata("ccl_bench/gpu_busy").summary_description == "in %, of seven"
    texts = [event.tensor_proto.string_val[0].decode() for event in found.Tensors("ccl_bench/findings")]
    assert texts[0] == "no findings about the data"
    assert "`ranks-missing`" in texts[1]


def _wandb_records(raw: bytes) -> Iterator[Any]:
    """Yield the records of a file of W&B: LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = 7, b""
    while at + 7 <= len(raw):
        left = 32_768 - at % 32_768
        size, kind = struct.unpack_from("<HB", raw, at + 4) if left >= 7 else (0, 0)
        if not kind:
            at += left
            continue
        whole += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def test_wandb_keeps_them_offline(measured: Path, tmp_path: Path) -> None:
    command = ["ccl-bench", "log", str(measured), "--to", "wandb:project", "--name", "eight"]
    done = ran(command, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "logged 4 numbers of 2 windows to wandb:project\n"
    (file,) = tmp_path.rglob("*.wandb")
    records = list(_wandb_records(file.read_bytes()))
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (runs[0].project, runs[0].display_name) == ("project", "eight")
    assert "ranks-missing" in runs[-1].tags
    history = [r.history.item for r in records if r.WhichOneof("record_type") == "history"]
    rows = [{(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items} for items in history]
    assert [row["_step"] for row in rows] == [10, 20]
    assert rows[0]["ccl_bench/gpu_busy"] == pytest.approx(EXPECTED["gpu_busy"])
    assert not any("ttft" in key for row in rows for key in row)
    summaries = [r.summary.update for r in records if r.WhichOneof("record_type") == "summary"]
    said = {(u.key or u.nested_key[0]): u.value_json for updates in summaries for u in updates}
    assert "ranks-missing" in said["ccl_bench/findings"]


def test_mlflow_keeps_them_in_its_store(measured: Path, tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    command = ["ccl-bench", "log", str(measured), "--to", "mlflow:experiment"]
    done = ran(command, MLFLOW_TRACKING_URI=f"sqlite:///{store}")
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(store) as database:
        numbers = database.execute("SELECT key, step, value FROM metrics ORDER BY key, step").fetchall()
        tags = dict(database.execute("SELECT key, value FROM tags").fetchall())
        runs = database.execute(
            "SELECT runs.name, status, experiments.name FROM runs JOIN experiments USING (experiment_id)"
        ).fetchall()
    database.close()
    assert [(key, step) for key, step, _ in numbers] == [
        ("ccl_bench/coll_call_num", 10),
        ("ccl_bench/coll_call_num", 20),
        ("ccl_bench/gpu_busy", 10),
        ("ccl_bench/gpu_busy", 20),
    ]
    assert numbers[0][2] == EXPECTED["coll_call_num"]
    assert runs == [("seven", "FINISHED", "experiment")]
    assert "ranks-missing" in tags["ccl_bench/findings"]
    assert tags["ccl_bench/finding/ranks-missing"] == "yes"
    assert json.loads(tags["ccl_bench/units"])["gpu_busy"] == "%"


def test_a_run_is_logged_from_python_at_its_last_step(measured: Path, tmp_path: Path) -> None:
    run = measured.parent / "outputs" / "profile_trace" / "iteration_10"
    assert log_results(run, f"tensorboard:{tmp_path / 'a'}") > 20
    found = EventAccumulator(str(tmp_path / "a")).Reload()
    assert [event.step for event in found.Scalars("ccl_bench/coll_call_num")] == [PLAN.steps]
    assert log_results(measured / "iteration_10.json", f"tensorboard:{tmp_path / 'b'}", step=7) == 2
    found = EventAccumulator(str(tmp_path / "b")).Reload()
    assert [event.step for event in found.Scalars("ccl_bench/coll_call_num")] == [7]


def test_a_watch_logs_windows_as_they_come(measured: Path, tmp_path: Path) -> None:
    command = ["ccl-bench", "watch", str(measured.parent / "outputs"), "--once", "--settle", "0"]
    done = invoke([*command, "--patience", "0", "--to", f"tensorboard:{tmp_path}", "-m", "coll_call_num"])
    assert done.returncode == 0
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in found.Scalars("ccl_bench/coll_call_num")] == [10, 20]


def test_a_list_that_names_files_elsewhere_reads_only_its_own_directory(
    measured: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(measured, kept)
    line = (kept / "windows.jsonl").read_text().splitlines()[0]
    (kept / "windows.jsonl").write_text(
        line.replace("iteration_10.json", "../../iteration_20.json") + "\n{\n[]\n"
    )
    (window,) = load_windows(kept)
    assert {finding.code for finding in window.findings} == {"ranks-missing"}
    (kept / "iteration_20.json").unlink()
    with pytest.raises(InputError, match="holds no results"):
        load_windows(kept)
    (kept / "windows.jsonl").write_text("")
    with pytest.raises(InputError, match="contains no measured window"):
        load_windows(kept)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("tensorbord:x", "did you mean tensorboard"),
        ("here", "write tensorboard:DIR"),
        ("wandb:", "write wandb:PROJECT"),
        (f"tensorboard:{__file__}", "is a file"),
    ],
)
def test_a_wrong_tracker_says_what_to_write(to: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_tracker(to, "run")


def test_a_wrong_tracker_is_refused_before_the_run_is_looked_at() -> None:
    ended = invoke(["ccl-bench", "log", "no-such-run", "--to", "tensorboard:x", "--to", "wand:x"])
    assert ended.returncode == 2
    assert "did you mean wandb" in ended.stderr


def test_what_a_tracker_refuses_is_an_error_that_names_it() -> None:
    with pytest.raises(CclBenchError, match="tensorboard:/proc/none"):
        open_tracker("tensorboard:/proc/none", "run")


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("tensorboard", "tensorboard.summary.writer.record_writer"),
        ("wandb", "wandb"),
        ("mlflow", "mlflow"),
    ],
)
def test_without_its_package_the_error_names_the_extra(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match="is not installed") as raised:
        open_tracker(f"{kind}:x", "run")
    assert raised.value.fix == f"pip install 'ccl-bench[{kind}]'"
