"""`ccl-bench board import` as somebody runs it, with files that are damaged or meant to harm."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from commands import invoke
from leaderboard_client import Client
from msgspec import structs
from test_reported_rows import POINT, TABLE, point, table

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.cli.publish.leaderboard import fill_demo
from ccl_bench.leaderboard.publishing.backup import write_backup
from ccl_bench.leaderboard.reported import observations
from ccl_bench.leaderboard.reported.observations import (
    Reported,
    known_source,
    packaged,
    read_reported,
    write_reported,
)
from ccl_bench.leaderboard.reported.reading import About, read_files
from ccl_bench.leaderboard.store import open_store
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import find_runs, list_sources
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

GOOD = point("good", 100, 10)


def _imported(*words: object) -> tuple[int, str, list[list[str]]]:
    """Import, and return exit status, messages and the rows of the table that is printed."""
    done = invoke(["ccl-bench", "board", "import", *map(str, words)])
    return (
        done.returncode,
        done.stderr,
        [re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()],
    )


def test_what_is_new_and_what_is_there_is_printed(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", GOOD, point("more", 200, 10, load=16))
    title = "AIConfigurator, measured serving points"
    for expected in (["aiconfigurator", "2", "0", title], ["aiconfigurator", "0", "2", title]):
        status, messages, rows = _imported(path, "--to", tmp_path / "data")
        assert (status, messages, rows[1:]) == (0, "", [expected])


def test_a_description_is_corrected_by_the_next_import(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", GOOD)
    for licence in ("wrong", "CC-BY-4.0"):
        assert _imported(path, "--to", tmp_path / "data", "--licence", licence)[0] == 0
    store = open_store(tmp_path / "data")
    with store.engine.connect() as connection:
        ((source, rows),) = list_sources(connection)
    assert (source.licence, rows) == ("CC-BY-4.0", 1)


def test_mistakes_end_with_status_4_and_the_rest_is_there(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", GOOD, *[point("bad", "fast", 10, load=n) for n in range(1, 26)])
    status, messages, rows = _imported(path, "--to", tmp_path / "data")
    assert (status, rows[1][1:3]) == (4, ["1", "0"])
    lines = messages.splitlines()
    assert lines[0] == "ccl-bench: left out: t.csv, row 3: could not convert string to float: 'fast'"
    assert (len(lines), lines[-1]) == (21, "ccl-bench: left out: 5 rows more with mistakes")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["missing.csv"], 2, "missing.csv does not exist\n  fix: give files or folders of results"),
        (["t.csv", "--to", "https://board"], 2, "give the data directory"),
        (["t.csv", "--source", "../x"], 2, "fix: give a name of small letters, digits and hyphens"),
        (["t.csv", "--source", "a/b"], 2, "'a/b' is not a name"),
        (["t.csv", "--date", "2026-02-30"], 2, "fix: give a date such as 2026-04-27"),
        (["t.csv", "--address", "javascript:alert(1)"], 2, "an address that starts with http:// or https://"),
        (["agg.json"], 2, "fix: give --date, such as 2026-04-27"),
        (["notes.txt"], 2, "fix: give --source NAME, --title, --licence and --date"),
        (["notes.txt", "--source", "lab", "--date", "2026-01-01"], 2, "--source needs --licence and --date"),
        (["latin.csv"], 4, "latin.csv: is not UTF-8"),
        (["cut.json", "--date", "2026-01-01"], 4, "cut.json: is not JSON"),
        (["pipe"], 2, "pipe is no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_imported_says_why_and_what_to_do(
    tmp_path: Path, words: list[str], status: int, said: str
) -> None:
    table(tmp_path / "t.csv", GOOD)
    (tmp_path / "agg.json").write_text(json.dumps(POINT))
    (tmp_path / "cut.json").write_text(json.dumps(POINT)[:-9])
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "latin.csv").write_bytes(f"{TABLE}\n".encode() + b"\xff\n")
    os.mkfifo(tmp_path / "pipe")
    to = [] if "--to" in words else ["--to", tmp_path / "data"]
    done = _imported(tmp_path / words[0], *words[1:], *to)
    assert done[0] == status, done
    assert said in done[1]
    assert not (tmp_path / "data" / "reported").exists()


def test_a_damaged_file_of_a_source_names_the_way_out_that_works(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", GOOD)
    assert _imported(path, "--to", tmp_path / "data")[0] == 0
    kept = tmp_path / "data" / "reported" / "aiconfigurator.parquet"
    kept.write_bytes(kept.read_bytes()[:-20])
    status, messages, _ = _imported(path, "--to", tmp_path / "data")
    assert status == 4
    assert "fix: restore it from a backup, or remove it and import the source's files again" in messages
    status = invoke(["ccl-bench", "board", "index", str(tmp_path / "data")]).returncode
    assert status == 4
    kept.unlink()
    assert _imported(path, "--to", tmp_path / "data")[2][1][1:3] == ["1", "0"]


def _read(path: Path) -> tuple[int, list[str]]:
    reported, mistakes = read_files([path], About(date="2026-01-01"))
    return sum(each.rows.height for each in reported), mistakes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{TABLE}\n{point('a', 1, 1).replace('org/M', 'x' * 200_000)}", "field larger than field limit"),
        (
            f"{TABLE},{','.join(map(str, range(1_000_000)))}\n{'a' * 9}\n" + "a\n" * 9999,
            "more than 1,000 columns",
        ),
        (TABLE + "\n" + "a\n" * 200_001, "more than 200,000 rows"),
        ('{"tput_per_gpu":' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON"),
        (json.dumps(POINT).replace("org/M", "\\ud800"), "is not JSON"),
        (json.dumps(POINT).replace("900.0", "1e400"), "is not JSON"),
        ('{"metric_info": {}}', "has no list of rows"),
    ],
    ids=["long cell", "columns", "rows", "depth", "surrogate", "overflow", "no rows"],
)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(InputError, match=said) as refused:
        _read(tmp_path / "file")
    assert refused.value.fix


WRONG: list[dict[str, Any]] = [
    {"model": ["x"]}, {"model": ""}, {"hw": {"a": 1}}, {"isl": 1e300}, {"isl": "9" * 5000}, {"tp": 10**18},
    {"conc": -4}, {"conc": None}, {"mean_ttft": "1e999"}, {"mean_ttft": "nan"}, {"tput_per_gpu": [1]},
    {"tput_per_gpu": -1}, {"disagg": [1]}, {"precision": {"a": 1}}, {"model": "x" * 5000},
]  # fmt: skip


def test_values_of_another_kind_are_mistakes_of_their_point(tmp_path: Path) -> None:
    points = [POINT | wrong for wrong in WRONG] + [POINT | {"framework": None}]
    (tmp_path / "agg.json").write_text(json.dumps(points))
    rows, mistakes = _read(tmp_path / "agg.json")
    assert rows == 1
    assert [each.partition(":")[0] for each in mistakes] == [
        f"agg.json, point {n + 1}" for n in range(len(WRONG))
    ]
    document = {
        "metric_info": {},
        "rows": [1, None, {}, {"metadata": []}, {"metadata": {"workload_name": 1}}],
    }
    (tmp_path / "rows.json").write_text(json.dumps(document))
    rows, mistakes = _read(tmp_path / "rows.json")
    assert (rows, len(mistakes)) == (0, 5)


def _column(**columns: list[Any]) -> pl.DataFrame:
    needed = {"row": ["a"], "variant": [""], "model.phase": ["inference"], "model.model_family": ["m"]}
    needed |= {"hardware.device.model": ["h"], "number.silicon_ttft_ms": [0.1]}
    return pl.DataFrame(needed | columns)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (_column(unheard=["x"]), r"has columns that no source has: \['unheard'\]"),
        (_column(row=[[0] * 5_000_000]), r"has columns that no source has: \['row'\]"),
        (_column(**{"data.input_len": ["a"]}), "columns that no source has"),
        (_column(**{"data.input_len": [-1]}), "a value in data.input_len that cannot be used"),
        (_column(**{"number.silicon_ttft_ms": [float("nan")]}), "a value in number.silicon_ttft_ms"),
        (_column(**{"number.silicon_ttft_ms": [-1.0]}), "a value in number.silicon_ttft_ms"),
        (_column(**{"number.silicon_ttft_ms": [float("inf")]}), "a value in number.silicon_ttft_ms"),
        (_column(variant=["x" * 1001]), "a value in variant"),
        (_column().drop("model.phase"), "a value in model.phase"),
        (_column(measured_at=["2026-13-01"]), "a value in measured_at that is no date"),
        (pl.concat([_column()] * 200_001), "has more than 200,000 rows"),
    ],
    ids=["column", "list", "text", "below 0", "nan", "negative", "inf", "long", "no phase", "date", "rows"],
)
def test_a_parquet_file_that_no_source_has_is_refused(tmp_path: Path, rows: pl.DataFrame, said: str) -> None:
    path = tmp_path / "aiconfigurator.parquet"
    write_reported(path, Reported(packaged()[0].source, rows))
    with pytest.raises(InputError, match=said):
        read_reported(path)


def test_a_file_with_any_byte_changed_or_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "aiconfigurator.parquet"
    write_reported(path, Reported(packaged()[0].source, packaged()[0].rows.head(5)))
    whole = path.read_bytes()
    assert read_reported(path).rows.height == 5
    for place in range(0, len(whole), 97):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match="is damaged"):
                read_reported(path)


def test_a_source_never_grows_beyond_what_is_read_again(
    small: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl_bench.leaderboard.store.store.MOST_ROWS", 3)
    monkeypatch.setattr(observations, "MOST_ROWS", 3)

    def add(*loads: int) -> int:
        path = table(tmp_path / "t.csv", *(point("a", 100, 10, load=load) for load in loads))
        return small.add_reported(read_files([path], About())[0][0])

    assert add(1, 2, 3) == 3
    with pytest.raises(InputError, match="would have more than 3 rows"):
        add(4)
    assert (add(3), small.count) == (0, 3)
    with pytest.raises(InputError, match="has more than 3 rows"):
        add(1, 2, 3, 4)


def test_a_source_of_another_unit_takes_another_name(small: Store) -> None:
    upstream = packaged()[1]
    small.add_reported(upstream)
    number = upstream.source.numbers["mfu"]
    changed = structs.replace(
        upstream.source, numbers=upstream.source.numbers | {"mfu": structs.replace(number, unit="ratio")}
    )
    with pytest.raises(InputError, match="reported mfu in % before, not in ratio") as refused:
        small.add_reported(Reported(changed, upstream.rows))
    assert "--source" in refused.value.fix


def test_a_metric_of_two_kinds_of_files_has_one_number(small: Store) -> None:
    first = packaged()[0].source
    later = known_source("inference-x", name=first.name, date="2026-01-01")
    both = structs.replace(first, numbers=first.numbers | later.numbers)
    small.add_reported(Reported(both, _column(**{"number.mean_ttft": [0.3], "measured_at": [None]})))
    with small.engine.connect() as connection:
        ((_, rows),) = list_sources(connection)
        (listed,) = find_runs(connection, RunQuery()).runs
    assert (rows, listed.numbers["TTFT"].value) == (1, 0.1)


def test_a_source_that_leads_out_of_its_folder_is_refused(small: Store) -> None:
    for name in ("../x", "/etc/x", "", "a.b", "x\n", "-x"):
        with pytest.raises(InputError, match="is not a name"):
            small.add_reported(Reported(structs.replace(packaged()[1].source, name=name), packaged()[1].rows))
    assert not (small.data / "reported").exists()


def test_special_files_of_a_folder_are_left_out_and_odd_names_are_shown(small: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    os.mkfifo(folder / "agg_pipe.json")
    (folder / "agg_dangling.json").symlink_to("nowhere")
    (folder / "agg_endless.json").symlink_to(folder)
    with open(os.fsencode(folder) + b"/agg_\xff\x1b[31m.json", "w") as stream:  # noqa: PTH123
        stream.write(json.dumps(POINT))
    reported, mistakes = read_files([folder], About(date="2026-01-01"))
    assert mistakes == []
    assert small.add_reported(reported[0]) == 1


HOSTILE = "=cmd|'/c calc'!A0 <script>alert(1)</script>\x00\u202e\"'&"


def test_texts_of_a_source_act_nowhere(small: Store, tmp_path: Path) -> None:
    about = About("lab", f"<b>{HOSTILE}".replace("\x00", ""), "https://x.org/&", "<i>CC", "2026-01-01")
    texts = {
        "model": HOSTILE,
        "hw": HOSTILE,
        "framework": HOSTILE,
        "image": f"x:{HOSTILE}",
    }
    one = POINT | texts | {"spec_decoding": HOSTILE}
    (tmp_path / "agg.json").write_text(json.dumps([one, one | {"conc": 32}]))
    (reported,), mistakes = read_files([tmp_path / "agg.json"], about)
    assert (small.add_reported(reported), mistakes) == (2, [])
    client = Client(create_app(small))
    row, other = client.get("/api/v1/runs").json()["runs"]
    addresses = [
        "/",
        "/?phase=any",
        f"/runs/{row['id']}",
        "/gaps",
        "/sources/lab",
        "/workloads",
        "/feed.atom",
    ]
    addresses += [f"/workloads/{row['workload']}", f"/compare?run={row['id']}&run={other['id']}"]
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert not re.search(r"<(script>alert|b>=|i>CC)|\u202e|\x00", answer.text), address
    assert "&lt;script&gt;" in client.get(f"/runs/{row['id']}").text
    cells = [cell for line in csv.reader(io.StringIO(client.get("/api/v1/runs.csv").text)) for cell in line]
    assert any("cmd|" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t"))]
    assert client.get("/api/v1/sources").json()[0]["licence"] == "<i>CC"


def test_a_source_without_a_description_is_a_wrong_call(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    for about in (
        About(),
        About(name="lab"),
        About(name="lab", licence="x"),
        About(name="L", licence="x", date="x"),
    ):
        with pytest.raises(UsageError):
            read_files([tmp_path], about)


def test_a_demo_is_filled_once(tmp_path: Path) -> None:
    fill_demo(str(tmp_path / "demo"), None)
    store = open_store(tmp_path / "demo")
    runs, files = store.count, {path: path.stat().st_mtime_ns for path in store.data.glob("r*/*")}
    assert runs > 1000
    assert len(store.folders()) == 3
    fill_demo(str(tmp_path / "demo"), None)
    assert store.count == runs
    assert {path: path.stat().st_mtime_ns for path in store.data.glob("r*/*")} == files


def test_a_backup_holds_what_others_reported(small: Store, tmp_path: Path) -> None:
    small.add_reported(packaged()[1])
    write_backup(small, tmp_path / "copy")
    (tmp_path / "copy" / "index.sqlite").unlink()
    copy = open_store(tmp_path / "copy")
    copy.rebuild()
    assert copy.count == small.count > 50
    copy.engine.dispose()
