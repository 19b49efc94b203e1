"""What a trace came to is kept by all that it comes from, and is the same as what is computed again."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.engine import Task, kept_tables, read_trace
from ccl_bench.result.step_choice import StepChoice, step_choice
from ccl_bench.run import open_run
from ccl_bench.run.trace_tables import TraceTables
from ccl_bench.schema import TABLES
from ccl_bench.testing import Plan, write_run
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from ccl_bench.trace.formats import TraceFile

WANTED = ("steps", "breakdown", "calls")

RUNS = (
    *("kineto/gloo-fsdp2-tp2-args", "kineto/nccl-args", "memory"),
    *("execution_trace/megatron-tp8", "serving/vllm-tp8", "serving/aiperf", "flight-recorder/ok"),
    *("nsys/tiny", "xplane/tpu-v6e-4of8"),
)


def every_table() -> tuple[str, ...]:
    """Return every table that comes from one trace."""
    DERIVED.load()
    return (*(each.table.name for each in DERIVED if not each.across_ranks), *TABLES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that nobody changes."""
    folder = tmp_path_factory.mktemp("run")
    write_run(Plan(dp_shard=2, layers=1, steps=3), folder)
    return folder


@pytest.fixture
def trace(made: Path, tmp_path: Path) -> TraceFile:
    """Return a trace that a test may change."""
    shutil.copytree(made, tmp_path / "run")
    return open_run(tmp_path / "run").traces[0]


def refuse(*_: object) -> None:
    """Stand for all arithmetic."""
    raise AssertionError("it was computed again")


def is_computed(task: Task, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the answer to a task is computed, not taken as kept."""
    with monkeypatch.context() as patch:
        patch.setattr(read_trace, "_read_trace", refuse)
        try:
            read_trace.read_trace(task)
        except AssertionError:
            return True
    return False


def assert_same(one: TraceTables, other: TraceTables) -> None:
    """Check that two answers are the same in every field, row and type."""
    for field in fields(TraceTables):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if field.name not in {"tables", "further"}:
            assert first == second, field.name
            assert type(first) is type(second), field.name
    assert len(one.further) == len(other.further)
    for ours, theirs in zip([one.tables, *one.further], [other.tables, *other.further], strict=True):
        assert list(ours) == list(theirs)
        for name, table in ours.items():
            assert table.schema == theirs[name].schema, name
            assert table.equals(theirs[name], null_equal=True), name


@pytest.mark.parametrize("name", RUNS)
def test_kept_answers_of_real_traces_equal_computed_ones(
    name: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = open_run(corpus / name).traces
    assert traces
    for each in {trace.form.name: trace for trace in traces}.values():
        task = Task(each, every_table())
        first = read_trace.read_trace(task)
        assert not is_computed(task, monkeypatch)
        assert_same(first, read_trace.read_trace(task))
        assert_same(first, read_trace.read_trace(replace(task, use_cache=False)))


def test_each_device_of_a_process_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Plan(layers=1, steps=2), tmp_path)
    each = open_run(tmp_path).traces[0]
    text = each.path.read_text()
    half = text.rindex("ProfilerStep#")
    moved = text[:half] + text[half:].replace('"device":0', '"device":1')
    assert moved != text
    each.path.write_text(moved)
    task = Task(open_run(tmp_path).traces[0], every_table())
    first = read_trace.read_trace(task)
    assert len(first.further) == 1
    assert not is_computed(task, monkeypatch)
    assert_same(first, read_trace.read_trace(task))


@pytest.mark.parametrize(
    "choice", [step_choice("1"), step_choice(skip=1), step_choice(marker="ProfilerStep")]
)
def test_a_choice_of_steps_has_an_answer_of_its_own(
    trace: TraceFile, choice: StepChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_trace.read_trace(Task(trace, WANTED))
    task = Task(trace, WANTED, choice=choice)
    assert is_computed(task, monkeypatch)
    first = read_trace.read_trace(task)
    assert not is_computed(task, monkeypatch)
    assert_same(first, read_trace.read_trace(task))
    assert_same(first, read_trace.read_trace(replace(task, use_cache=False)))


@pytest.mark.parametrize(
    "stated",
    [{"rank": 7}, {"rank_source": "map"}, {"relative": "other.json"}, {"world_size": 9}, {"iteration": 4}],
    ids=str,
)
def test_what_the_run_says_of_a_trace_counts(
    trace: TraceFile, stated: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_trace.read_trace(Task(trace, WANTED))
    assert is_computed(Task(replace(trace, **stated), WANTED), monkeypatch)


def test_other_tables_have_an_answer_of_their_own(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    read_trace.read_trace(Task(trace, WANTED))
    assert is_computed(Task(trace, WANTED[:2]), monkeypatch)


def test_a_changed_file_is_read_again(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    read_trace.read_trace(Task(trace, WANTED))
    os.utime(trace.path, ns=(1, 1))
    assert is_computed(Task(trace, WANTED), monkeypatch)


def test_a_changed_program_computes_again(
    trace: TraceFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read_trace.read_trace(Task(trace, WANTED))
    package = tmp_path / "ccl_bench"
    (package / "analysis" / "steps").mkdir(parents=True)
    module = package / "analysis" / "steps" / "steps.py"
    module.write_text("1")
    monkeypatch.setattr(kept_tables.ccl_bench, "__file__", str(package / "__init__.py"))
    seen = []
    for text, modified in (("1", 5), ("2", 6), ("222", 6)):
        module.write_text(text)
        os.utime(module, ns=(modified, modified))
        kept_tables._program.cache_clear()
        seen.append(kept_tables._program())
        assert is_computed(Task(trace, WANTED), monkeypatch)
    kept_tables._program.cache_clear()
    assert len(set(seen)) == 3


def test_tables_of_other_packages_are_not_kept(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    DERIVED.load()
    known = DERIVED.get("breakdown")

    def of_another_package(*tables: pl.DataFrame) -> pl.DataFrame:
        return known.compute(*tables)

    monkeypatch.setitem(DERIVED._items, "breakdown", replace(known, compute=of_another_package))
    read_trace.read_trace(Task(trace, WANTED))
    assert is_computed(Task(trace, WANTED), monkeypatch)
    assert answers(trace) == []


def answers(trace: TraceFile) -> list[Path]:
    """Return the files of the kept answers."""
    return sorted(cache.cache_folder(trace).glob("*.answer"))


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "flipped", "another head", "no head", "foreign", "a folder"]
)
def test_a_damaged_answer_is_computed_again(
    trace: TraceFile, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_trace.read_trace(Task(trace, WANTED))
    (path,) = answers(trace)
    written = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(written[:-9])
        case "empty":
            path.write_bytes(b"")
        case "flipped":
            at = len(written) * 2 // 3
            path.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        case "another head":
            assert b'"rank":0' in written
            path.write_bytes(written.replace(b'"rank":0', b'"rank":1', 1))
        case "no head":
            path.write_bytes(written[written.index(b"\n") :])
        case "foreign":
            kept = b'{"frames": [[3, "x", 9]]}\n'
            path.write_bytes(kept_tables._check(kept) + b"\n" + kept)
        case _:
            path.unlink()
            path.mkdir()
    assert is_computed(Task(trace, WANTED), monkeypatch)
    assert_same(first, read_trace.read_trace(Task(trace, WANTED)))
    if damage != "a folder":
        assert not is_computed(Task(trace, WANTED), monkeypatch)


def test_a_damaged_answer_that_may_not_be_removed_is_no_error(
    trace: TraceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_trace.read_trace(Task(trace, WANTED))
    (path,) = answers(trace)
    path.write_bytes(b"")

    def refuse_removal(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(type(path), "unlink", refuse_removal)
    assert_same(first, read_trace.read_trace(Task(trace, WANTED)))


def test_a_link_to_nowhere_beside_the_program_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / ".#steps.py").symlink_to("someone@somewhere.1:2")
    monkeypatch.setattr(kept_tables.ccl_bench, "__file__", str(tmp_path / "__init__.py"))
    kept_tables._program.cache_clear()
    assert kept_tables._program()
    kept_tables._program.cache_clear()


def test_a_trace_that_cannot_be_read_has_no_answer(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    trace.path.write_bytes(b"{")
    assert read_trace.read_trace(Task(trace, WANTED)).sha256 == ""
    assert is_computed(Task(trace, WANTED), monkeypatch)


def test_without_the_cache_nothing_is_kept_or_taken(
    trace: TraceFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_trace.read_trace(Task(trace, WANTED, use_cache=False))
    assert [*own_cache.rglob("*.answer")] == []
    read_trace.read_trace(Task(trace, WANTED))
    assert is_computed(Task(trace, WANTED, use_cache=False), monkeypatch)


def test_only_the_latest_answers_stay(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tables, "MOST_ANSWERS", 2)
    tasks = [Task(trace, WANTED[:count]) for count in (1, 2, 3)]
    for number, task in enumerate(tasks):
        read_trace.read_trace(task)
        for path in answers(trace):
            if path.stat().st_mtime > 1_000:
                os.utime(path, (number, number))
    assert len(answers(trace)) == 2
    assert [is_computed(task, monkeypatch) for task in tasks] == [True, False, False]


def test_large_tables_are_not_kept_twice(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_tables, "MOST_BYTES", 10)
    read_trace.read_trace(Task(trace, WANTED))
    assert answers(trace) == []


def test_a_disk_without_space_is_no_error(trace: TraceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_trace.read_trace(Task(trace, WANTED))
    shutil.rmtree(cache.cache_folder(trace))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_tables, "_packed", fail)
    assert_same(first, read_trace.read_trace(Task(trace, WANTED)))
    assert answers(trace) == []
