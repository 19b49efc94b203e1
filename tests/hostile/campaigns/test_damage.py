"""The campaign of `make damage`: each damage does what its name says, and the judge sees what is silent."""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import damage
import judging
import meaning_database
import meaning_judging
import meaning_runs
import meaning_samples
import pytest
from meaning_events import end, number
from meaning_judging import BY_INSPECT, REFUSED, REPORTED, SILENT, TRACEBACK, WITHOUT_EFFECT, Verdict
from meaning_runs import RUNS, InapplicableError, Traces
from watching import Answer

from ccl_bench.testing import Plan, Style, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from meaning_kinds import Kind
    from meaning_samples import Difference

ALL = "cpu_op cuda_runtime gpu_memcpy kernel user_annotation"
HOST = "cpu_op cuda_runtime user_annotation"
DEVICE = "gpu_memcpy kernel"
GROUP = "Process Group Name, Process Group Ranks, Group size"
CALL = f"Collective name, In msg nelems, Input Dims, Out msg nelems, dtype, {GROUP}"

STRUCK = {
    "lost: kernels": "lost kernel",
    "lost: one kernel in fifty": "lost kernel",
    "lost: kernels and their launches": "lost cuda_runtime kernel",
    "lost: copies": "lost gpu_memcpy",
    "lost: launches": "lost cuda_runtime",
    "lost: all launches": "lost cuda_runtime",
    "lost: work of the device": f"lost {DEVICE}",
    "lost: times of collectives": "lost kernel",
    "lost: the time of one collective": "lost kernel",
    "lost: one whole call": f"lost {HOST} kernel",
    "lost: arguments of collectives": f"changed {CALL}",
    "lost: operators of collectives": "lost cpu_op",
    "lost: operators": "lost cpu_op",
    "lost: an inner step": f"lost {ALL}",
    "lost: the last step": f"lost {ALL}",
    "lost: one mark of a step": "lost user_annotation",
    "lost: marks of steps": "lost user_annotation",
    "truncated: front": f"lost {ALL}",
    "truncated: tail": f"lost {ALL}",
    "truncated: front of the device": f"lost {DEVICE}",
    "truncated: tail of the device": f"lost {DEVICE}",
    "truncated: last work of the device": f"lost {DEVICE}",
    "truncated: front of the host": f"lost {HOST}",
    "truncated: tail of the host": f"lost {HOST}",
    "truncated: rest of the file": f"lost {ALL}",
    "doubled: kernels": "twice kernel",
    "doubled: all events": f"twice {ALL}",
    "doubled: all events under another pid": f"twice {ALL}",
    "doubled: a step": f"twice {ALL}",
    "doubled: a step at the end": f"twice {ALL}",
    "doubled: rewritten with another pid": "changed pid",
    "doubled: a rank as another one": f"lost {ALL}; foreign {ALL}",
    "swapped: headers of two ranks": "header",
    "swapped: lengths of two kernels that fit": "changed dur",
    "swapped: lengths of two kernels that overlap": "changed dur",
    "swapped: two whole streams": "changed stream, tid",
    "swapped: correlations of kernels": "changed correlation",
    "swapped: name of one collective": "changed Collective name, name",
    "swapped: names of collectives": "changed Collective name, name",
    "swapped: name of an operator": "changed name",
    "swapped: groups of collectives": "changed Process Group Name, Process Group Description",
    "mixed: a rank of another window": "changed name, ts",
    "mixed: half of a rank from another": f"lost {ALL}; foreign {ALL}",
    "wrong field: sizes of collectives x 1000": "changed In msg nelems, Out msg nelems",
    "wrong field: sizes in bytes": "changed In msg nelems, Out msg nelems",
    "wrong field: sizes negative": "changed In msg nelems, Out msg nelems",
    "wrong field: dtype": "changed dtype",
    "wrong field: group of other ranks": "changed Process Group Ranks",
    "wrong field: group size": "changed Group size",
    "wrong field: rank of the trace": "header",
    "wrong field: number of ranks": "header",
    "wrong field: streams negative": "changed stream, tid",
    "wrong field: bytes of copies x 1000": "changed bytes",
    "shifted: marks of steps by half a step": "changed ts",
    "scaled: a kernel of a graph x 1000": "lost cuda_runtime; changed correlation, dur",
}
"""Kind -> what it does to a trace: categories of events lost, twice or foreign, and keys that changed."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undamaged run of two ranks."""
    return meaning_samples.write_traces(tmp_path_factory.mktemp("undamaged") / "own")


def kind(name: str, run: str = "dlrm") -> Kind:
    return next(known for known in damage.KINDS[run] if f"{known.family}: {known.name}" == name)


def struck(name: str, origin: Path, place: Path, seed: int = 1) -> list[Difference]:
    """Return what a kind does to each rank that it changes."""
    run = Traces(origin, place / "own")
    kind(name).apply(run, random.Random(seed))
    return meaning_samples.differences(run)


@pytest.mark.parametrize("name", STRUCK)
def test_a_damage_strikes_what_its_name_says_and_nothing_else(
    name: str, origin: Path, tmp_path: Path
) -> None:
    found = struck(name, origin, tmp_path)
    parts = [
        f"changed {', '.join(sorted(part.removeprefix('changed ').split(', ')))}"
        if part.startswith("changed ")
        else f"{part.split()[0]} {' '.join(sorted(part.split()[1:]))}".strip()
        for part in STRUCK[name].split("; ")
    ]
    assert {str(difference) for difference in found} == {"; ".join(parts)}
    assert len(found) == (2 if name == "swapped: headers of two ranks" else 1)


def test_a_damage_of_all_ranks_is_the_same_on_each(origin: Path, tmp_path: Path) -> None:
    one, other = struck("lost: kernels, all ranks", origin, tmp_path)
    numbers = [[event["number"] for event in difference.lost] for difference in (one, other)]
    assert numbers[0] == [number - 100_000 for number in numbers[1]]
    assert numbers[0]


@pytest.mark.parametrize(("name", "factor"), [
    ("a kernel x 1000", 1000), ("the last kernel x 1000", 1000), ("a collective x 1000", 1000),
    ("a copy x 1000", 1000), ("a copy / 1000", 1e-3), ("a kernel x 1.1", 1.1),
    ("lengths on the device x 1000", 1000), ("lengths on the device / 1000", 1e-3),
    ("lengths on the host / 1000", 1e-3), ("all lengths / 1000", 1e-3), ("all kernels of zero length", 0),
    ("zero lengths of kernels", 0),
])  # fmt: skip
def test_lengths_are_scaled_by_the_factor_of_the_name(
    name: str, factor: float, origin: Path, tmp_path: Path
) -> None:
    [found] = struck(f"scaled: {name}", origin, tmp_path)
    assert [new["dur"] for _, new in found.changed] == pytest.approx(
        [old["dur"] * factor for old, _ in found.changed]
    )
    assert found.keys == {"dur"}


@pytest.mark.parametrize(("name", "factor", "first"), [
    ("times in ms", 1e-3, 0.0), ("times in ns", 1e3, 0.0),
    ("clock of the device x 1000", 1e3, 1e6), ("clock of the device / 1000", 1e-3, 1e6),
])  # fmt: skip
def test_times_are_scaled_from_zero_or_from_the_beginning(
    name: str, factor: float, first: float, origin: Path, tmp_path: Path
) -> None:
    [found] = struck(f"scaled: {name}", origin, tmp_path)
    for old, new in found.changed:
        assert new["ts"] == pytest.approx(first + (old["ts"] - first) * factor)
        assert new["dur"] == pytest.approx(old["dur"] * factor)


def test_times_in_whole_microseconds_move_by_half_of_one_at_most(origin: Path, tmp_path: Path) -> None:
    run = Traces(origin, tmp_path / "own")
    for name in run.names:
        for event in run.document(name)["traceEvents"]:
            event["ts"] += 0.3
    kind("scaled: times in whole us, all ranks").apply(run, random.Random(1))
    found = [event for name in run.names for event in run.document(name)["traceEvents"]]
    assert {event["ts"] % 1 for event in found} | {event["dur"] % 1 for event in found} == {0}


@pytest.mark.parametrize(("name", "categories"), [
    ("one kernel", "kernel"), ("one collective", "kernel"), ("one stream", "gpu_memcpy kernel"),
    ("clock of the device", DEVICE), ("clock of the device by 1 ms", DEVICE), ("whole clock", ALL),
    ("whole clock by 1 ms", ALL),
])  # fmt: skip
def test_all_that_is_shifted_moves_by_the_same_time(
    name: str, categories: str, origin: Path, tmp_path: Path
) -> None:
    [found] = struck(f"shifted: {name}", origin, tmp_path, seed=2)
    assert {old["cat"] for old, _ in found.changed} <= set(categories.split())
    moved = {new["ts"] - old["ts"] for old, new in found.changed}
    assert len(moved) == 1
    assert abs(moved.pop()) in ((1e3,) if "1 ms" in name else (1e3, 1e5, 1e6, 6e7, 3.6e9))
    assert found.keys == {"ts"}


def test_a_kernel_before_its_launch_starts_ten_microseconds_early(origin: Path, tmp_path: Path) -> None:
    [found] = struck("shifted: kernels before their launch", origin, tmp_path)
    before = meaning_samples.trace(found.changed[0][0]["number"] // 100_000)["traceEvents"]
    asked = {number(event): event["ts"] for event in before if event["cat"] == "cuda_runtime"}
    assert {new["ts"] - asked[number(new)] for _, new in found.changed} == {-10.0}


def test_a_truncation_keeps_one_side_of_a_time(origin: Path, tmp_path: Path) -> None:
    for name, is_front in (("front", True), ("tail", False), ("tail of the device", False)):
        [found] = struck(f"truncated: {name}", origin, tmp_path)
        trace = meaning_samples.trace(found.lost[0]["number"] // 100_000)["traceEvents"]
        categories = {event["cat"] for event in found.lost}
        kept = [event for event in trace if event not in found.lost and event["cat"] in categories]
        if is_front:
            assert max(event["ts"] for event in found.lost) < min(event["ts"] for event in kept)
        else:
            assert min(map(end, found.lost)) > max(map(end, kept))


def test_swapped_lengths_overlap_the_next_kernel_or_fit_before_it(origin: Path, tmp_path: Path) -> None:
    for name, overlaps in (("fit", False), ("overlap", True)):
        [found] = struck(f"swapped: lengths of two kernels that {name}", origin, tmp_path)
        trace = meaning_samples.trace(found.changed[0][0]["number"] // 100_000)["traceEvents"]
        changed = {new["number"]: new for _, new in found.changed}
        stream = next(iter(changed.values()))["args"]["stream"]
        line = [changed.get(event["number"], event) for event in trace
                if event["cat"] == "kernel" and event["args"]["stream"] == stream]  # fmt: skip
        crossings = [end(one) > other["ts"] for one, other in pairwise(line)]
        assert any(crossings) is overlaps


def test_sizes_are_numbers_of_elements_or_the_first_dimensions_without_these(
    origin: Path, tmp_path: Path
) -> None:
    run = Traces(origin, tmp_path / "own")
    document = run.document(run.names[0])
    run.remove(run.names[1])
    kind("wrong field: sizes of collectives x 1000").apply(run, random.Random(1))
    held = [event["args"] for event in document["traceEvents"] if event["name"] == "record_param_comms"]
    assert {(a["In msg nelems"], str(a["Input Dims"])) for a in held} == {(1_000_000, "[[[10, 100]], []]")}
    for event in document["traceEvents"]:
        for key in ("In msg nelems", "Out msg nelems"):
            event["args"].pop(key, None)
    kind("wrong field: sizes in bytes").apply(run, random.Random(1))
    assert {str(arguments["Input Dims"]) for arguments in held} == {"[[[40, 100]], []]"}


def test_files_of_ranks_are_lost_copied_and_exchanged(origin: Path, tmp_path: Path) -> None:
    def after(name: str) -> dict[str, int]:
        run = Traces(origin, tmp_path / "own")
        kind(name).apply(run, random.Random(1))
        run.write()
        again = Traces(run.folder, tmp_path / "again")
        return {file: again.document(file)["distributedInfo"]["rank"] for file in again.names}

    own = {"rank0.json.gz": 0, "rank1.json.gz": 1}
    assert len(after("lost: the trace of a rank")) == 1
    assert len(after("doubled: a rank under another file name")) == 3
    assert sorted(after("doubled: a rank in the file of another").values()) in ([0, 0], [1, 1])
    assert after("doubled: a rank as another one") == own
    assert after("swapped: files of two ranks") == {"rank0.json.gz": 1, "rank1.json.gz": 0}


def test_a_rank_of_another_run_takes_the_place_of_one(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCL_BENCH_CORPUS", str(tmp_path))
    foreign = {"distributedInfo": {"rank": 7, "world_size": 9}, "traceEvents": []}
    for name in RUNS:
        folder = meaning_runs.origin(name)
        folder.mkdir(parents=True)
        (folder / "rank7.json.gz").write_bytes(gzip.compress(json.dumps(foreign).encode()))
    run = Traces(origin, tmp_path / "own")
    kind("mixed: a rank of another run").apply(run, random.Random(1))
    assert sorted(run.document(name)["distributedInfo"]["rank"] for name in run.names)[1] == 7


def test_what_a_run_lacks_cannot_be_damaged(origin: Path, tmp_path: Path) -> None:
    run = Traces(origin, tmp_path / "own")
    for name in run.names:
        run.document(name)["traceEvents"] = []
    for known in damage.KINDS["dlrm"]:
        if known.family == "shifted" and "whole" not in known.name:
            with pytest.raises(InapplicableError):
                known.apply(run, random.Random(1))


@pytest.mark.parametrize("known", meaning_database.KINDS, ids=lambda known: f"{known.family}: {known.name}")
def test_a_damage_of_an_export_changes_rows_of_the_tables_that_it_names(
    known: Kind, export: Path, tmp_path: Path
) -> None:
    run = Traces(export, tmp_path / "own")
    known.apply(run, random.Random(3))
    before, after = (meaning_samples.tables(at / "report.sqlite") for at in (export, run.folder))
    changed = {name for name in before if before[name] != after[name]}
    of_device = {meaning_database.KERNEL, meaning_database.COPY, meaning_database.SET}
    if "host" in known.name or (known.name.split()[-1] == "launches" and "kernels" not in known.name):
        assert changed <= {*meaning_database.HOST}
    elif "device" in known.name or ("kernel" in known.name and "launches" not in known.name):
        assert changed <= of_device
    assert changed
    for name in changed:
        more = len(after[name]) - len(before[name])
        assert (
            more < 0
            if known.family in ("lost", "truncated")
            else more > 0
            if known.family == "doubled"
            else more == 0
        )


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undamaged export of two processes."""
    return meaning_samples.write_export(tmp_path_factory.mktemp("undamaged") / "nsys")


def result(value: float | None, *codes: str) -> dict[str, Any]:
    findings = [{"code": code, "file": "", "message": "", "severity": "warning"} for code in codes]
    status = "ok" if value is not None else "not measurable"
    return {"mfu": {"metric": "mfu", "status": status, "value": value, "reason": "", "findings": findings}}


def verdict(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], after: dict[str, Any], *inspected: str,
    is_neutral: bool = False,
) -> Verdict:  # fmt: skip
    """Return the verdict on a run whose metrics and findings of `inspect` are these."""
    found = {"damaged": {*inspected, "known"}, "undamaged": {"known"}}
    monkeypatch.setattr(meaning_judging, "metrics", lambda *_: Answer(0, "", "", 0.1, 1))
    monkeypatch.setattr(judging, "results", lambda _: after)
    monkeypatch.setattr(meaning_judging, "_inspected", lambda folder, _: found[folder])
    return meaning_judging.judged("damaged", "undamaged", before, None, is_neutral=is_neutral)  # type: ignore[arg-type]


def test_a_changed_number_needs_a_finding_of_another_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(monkeypatch, result(40.0), result(39.0)).name == SILENT
    assert verdict(monkeypatch, result(40.0, "a"), result(39.0, "a")).name == SILENT
    assert verdict(monkeypatch, result(None), result(39.0)).name == SILENT
    assert verdict(monkeypatch, result(40.0), result(39.0), "of-inspect").name == BY_INSPECT
    assert verdict(monkeypatch, result(40.0), result(39.0, "a")).name == REPORTED
    assert verdict(monkeypatch, result(40.0), result(None)).name == REPORTED
    assert verdict(monkeypatch, result(40.0), result(40.00001)).name == WITHOUT_EFFECT


def test_a_run_that_means_the_same_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(monkeypatch, result(40.0), result(None), is_neutral=True).name == REFUSED
    assert verdict(monkeypatch, result(40.0), result(40.0), is_neutral=True).name == WITHOUT_EFFECT


def test_a_number_that_is_not_finite_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(monkeypatch, result(40.0), result(float("nan"), "a")).name == TRACEBACK


def test_what_is_stated_as_undetectable_names_kinds_and_runs_that_exist() -> None:
    names = {f"{known.family}: {known.name}" for kinds in damage.KINDS.values() for known in kinds}
    for entry in damage.stated():
        assert {*entry["kinds"]} <= names
        assert {*entry.get("runs", ())} <= {*RUNS}
        assert entry["reason"]


def test_the_tables_count_silent_runs_and_those_that_nobody_can_detect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated = [{"kinds": ["scaled: a kernel x 1.1"], "reason": "as good as the first"}]
    monkeypatch.setattr(damage, "stated", lambda: stated)
    answers = {
        damage.Case("dlrm", "scaled", "a kernel x 1.1", 1): Verdict(SILENT),
        damage.Case("dlrm", "scaled", "a kernel x 1000", 1): Verdict(SILENT),
        damage.Case("dlrm", "lost", "kernels", 1): Verdict(REPORTED),
    }
    assert damage._counted(answers)[2:] == [
        "| scaled | 2 | 2 | 0 | 0 | 0 | 1 | 0 | 0 | 1 |",
        "| lost | 1 | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 |",
        "| all | 3 | 3 | 1 | 0 | 0 | 1 | 0 | 0 | 1 |",
    ]
    assert damage._reasons(answers)[2:] == ["| scaled: a kernel x 1.1 | all runs | as good as the first |"]
    assert [damage._is_bad(case, found) for case, found in answers.items()] == [False, True, False]


def test_a_short_campaign_reports_lost_kernels_and_not_another_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCL_BENCH_CORPUS", str(tmp_path / "corpus"))
    write_run(Plan(dp_shard=2, steps=2), meaning_runs.origin("dlrm"), style=Style(compresses=True))
    damage._before.cache_clear()
    try:
        wanted = [("lost", "work of the device"), ("doubled", "rewritten with another pid")]
        cases = [damage.Case("dlrm", family, name, 1) for family, name in wanted]
        found = [damage.tried((case, tmp_path / "kept")) for case in cases]
    finally:
        damage._watched().close()
        damage._before.cache_clear()
    assert [answer and answer.name for _, answer in found] == [REPORTED, WITHOUT_EFFECT]
    assert (tmp_path / "kept" / "lost-work-of-the-device-1" / "dlrm").is_dir()
