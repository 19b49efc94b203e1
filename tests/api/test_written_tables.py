"""`ccl-bench tables`: files that other tools read, with what is in them beside them."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest
from commands import EXAMPLE, invoke
from plain_json import document

import ccl_bench as ccl

if TYPE_CHECKING:
    from pathlib import Path


def tables(*words: str) -> object:
    return invoke(["ccl-bench", "tables", *words])


@pytest.fixture(scope="module")
def run() -> ccl.MeasuredRun:
    return ccl.open(EXAMPLE)


def test_a_run_lists_its_tables(run: ccl.MeasuredRun) -> None:
    listed = tables(str(EXAMPLE))
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == [*run.tables]
    described = json.loads(tables(str(EXAMPLE), "-f", "json").stdout)
    assert [each["name"] for each in described] == [*run.tables]


def test_parquet_holds_the_frame_and_its_schema(run: ccl.MeasuredRun, tmp_path: Path) -> None:
    done = tables(str(EXAMPLE), "-o", str(tmp_path / "out"), "-t", "steps", "-t", "cpu_ops")
    assert done.returncode == 0
    paths = [tmp_path / "out" / name for name in ("cpu_ops.parquet", "steps.parquet", "tables.json")]
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [*map(str, paths)]
    for name in ("steps", "cpu_ops"):
        read = pl.read_parquet(tmp_path / "out" / f"{name}.parquet")
        assert read.equals(run.table(name))
        schema = json.loads(pl.read_parquet_metadata(tmp_path / "out" / f"{name}.parquet")["ccl_bench.table"])
        assert [each["name"] for each in schema["columns"]] == read.columns
    [operators, _] = json.loads((tmp_path / "out" / "tables.json").read_text())
    assert {each["name"]: each["unit"] for each in operators["columns"]}["end_ns"] == "ns"
    assert operators["rows"] == run.table("cpu_ops").height


def test_csv_is_read_by_others(run: ccl.MeasuredRun, tmp_path: Path) -> None:
    done = tables(str(EXAMPLE), "-o", str(tmp_path), "-f", "csv", "--ranks", "1,3", "--steps", "4")
    assert done.returncode == 0
    with (tmp_path / "process_groups.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {row["rank"] for row in rows} == {"1", "3"}
    for rank in (1, 3):
        plain = document(EXAMPLE / f"kineto_trace_{rank}.json.gz")["distributedInfo"]["pg_config"]
        members = sorted(" ".join(map(str, group["ranks"])) for group in plain)
        assert sorted(row["ranks"] for row in rows if row["rank"] == str(rank)) == members
    with (tmp_path / "steps.csv").open(newline="") as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"4"}
    described = {each["name"]: each["rows"] for each in json.loads((tmp_path / "tables.json").read_text())}
    assert described.keys() == run.tables.keys()
    assert not any((tmp_path / f"{name}.csv").exists() for name, count in described.items() if not count)


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "steps.parquet").write_text("mine")
    refused = tables(str(EXAMPLE), "-o", str(tmp_path), "-t", "steps")
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert (tmp_path / "steps.parquet").read_text() == "mine"
    assert tables(str(EXAMPLE), "-o", str(tmp_path), "-t", "steps", "--force").returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-o", "{out}", "-t", "kernel"], 2, "did you mean kernels"),
        (["-o", "{out}", "-t", "requests"], 3, "no trace of the run fills the table 'requests'"),
        (["-o", "{out}", "--ranks", "7"], 2, "no trace of rank 7"),
        (["-o", "{out}", "--ranks", "a"], 2, "'a' is not a list of ranks"),
        (["-o", "{out}", "--ranks", "0-99999999999"], 2, "more ranks than a run has"),
        (["-o", __file__], 2, "is not a directory"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], status: int, said: str, tmp_path: Path) -> None:
    done = tables(str(EXAMPLE), *(word.format(out=tmp_path / "out") for word in words))
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_table_is_explained() -> None:
    assert "exclusive" in tables("--explain", "kernels").stdout
    assert tables().returncode == 2
