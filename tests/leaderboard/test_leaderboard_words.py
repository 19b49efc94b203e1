"""What the board shows in words, and gives to take along: titles, kinds, Parquet, feed, pictures."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from leaderboard_bundles import Made, added, changed, many, placed
from leaderboard_client import Client

from ccl_bench import metrics
from ccl_bench.leaderboard.pages.render import BADGES
from ccl_bench.leaderboard.pages.titles import metric_title, metric_titles
from ccl_bench.leaderboard.site import write_site
from ccl_bench.leaderboard.store import State, parquet_export
from ccl_bench.leaderboard.web.app import create_app
from ccl_bench.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

ATOM, SVG = "{http://www.w3.org/2005/Atom}", "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script>&\ufffe"
RUN = Made(values={"throughput_tokens_sec": 9000.0, "mfu": 40.0, "iteration_wall_clock_time": 2.0})
COUNTED = {
    "input_len",
    "output_len",
    "concurrency",
    "seq_len",
    "batch_size",
    "device_count",
    "node_count",
    "dp_replicate",
    "dp_shard",
    "tp",
    "pp",
    "cp",
    "ep",
}


@pytest.fixture
def client(small: Store) -> Client:
    return Client(create_app(small))


def test_every_metric_of_the_registry_has_a_title_of_its_own() -> None:
    titles = metric_titles()
    assert set(titles) == {metric.name for metric in metrics.load() if not metric.variant_of}
    assert len(set(titles.values())) == len(titles)
    assert [title for title in titles.values() if "_" in title or len(title) > 30] == []
    assert metric_title("a_metric_of_others") == "A metric of others"
    assert metric_title("elsewhere.a_metric") == "A metric (elsewhere)"


def test_a_page_shows_titles_with_units_and_keeps_names_in_tooltips(client: Client, small: Store) -> None:
    run = added(small, RUN)
    page = client.get("/").text
    heads = re.findall(r'<th scope="col" class="number".*?</th>', page, re.DOTALL)
    step = next(head for head in heads if ">Step time" in head)
    assert 'title="iteration_wall_clock_time: Mean wall-clock time of a step' in step
    assert '<span class="unit">s ' in step
    workload = client.get("/api/v1/workloads").json()[0]["key"]
    for address in ("/", f"/runs/{run}", f"/workloads/{workload}"):
        text = re.sub(r"<[^>]*>", " ", client.get(address).text)
        assert "Step time" in text, address
        assert "iteration_wall_clock_time" not in text, address
    assert "iteration_wall_clock_time" in client.get("/api/v1/runs.csv").text.splitlines()[0]


def test_kinds_of_numbers_differ_in_word_and_sign(client: Client, small: Store) -> None:
    assert {state.value for state in State} <= set(BADGES)
    assert (
        len({badge.word for badge in BADGES.values()})
        == len({b.glyph for b in BADGES.values()})
        == len(BADGES)
    )
    added(small, changed(RUN, state=State.VERIFIED))
    page = client.get("/").text
    assert page.count('<span aria-hidden="true">●</span> measured</span>') == 2  # its row, and the legend
    assert '<option value="verified">measured</option>' in page


def test_parquet_holds_the_csv_with_types(
    client: Client, small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_export, "ROWS_OF_GROUP", 7)  # several groups of rows
    placed(small.data, list(many(30)))
    address = "/api/v1/runs.{}?phase=training&sort=mfu&columns=mfu&columns=gpu_busy"
    table = pl.read_parquet(io.BytesIO(client.get(address.format("parquet")).content))
    rows = list(csv.DictReader(io.StringIO(client.get(address.format("csv")).text)))
    assert table.columns == list(rows[0])
    expected = {
        name: pl.Int64 if name in COUNTED or name.endswith((" rank", " ranked")) else pl.String
        for name in rows[0]
    }
    assert table.schema == expected | {"mfu": pl.Float64, "gpu_busy": pl.Float64}
    assert len(rows) > 7
    for shown, row in zip(table.iter_rows(named=True), rows, strict=True):
        assert {name: "" if value is None else value for name, value in shown.items()} == {
            name: float(text) if table.schema[name].is_numeric() and text else text
            for name, text in row.items()
        }


def test_a_metric_with_the_name_of_a_column_costs_nobody_the_download(
    client: Client, small: Store, tmp_path: Path
) -> None:
    odd = [Result(name, "ok", "s", "lower", value) for name, value in (("state", 1.0), ("mfu rank", 2.0))]
    added(small, changed(RUN, extra=tuple(odd)))
    (row,) = pl.read_parquet(io.BytesIO(client.get("/api/v1/runs.parquet").content)).to_dicts()
    assert (row["state"], row["state_"], row["mfu"], row["mfu rank"], row["mfu rank_"]) == (
        "self_reported",
        1.0,
        40.0,
        1,
        2.0,
    )
    write_site(small, tmp_path / "site")
    assert pl.read_parquet(tmp_path / "site" / "runs.parquet").to_dicts() == [row]
    assert client.get("/api/v1/runs.parquet?q=nothing").status_code == 200


def test_the_feed_names_new_runs_by_their_hash(client: Client, small: Store, tmp_path: Path) -> None:
    empty = ET.fromstring(client.get("/feed.atom").text)
    assert empty.findall(f"{ATOM}entry") == []
    texts = dict.fromkeys(("name", "submitter", "framework", "model"), HOSTILE)
    old, new = added(small, changed(RUN, **texts)), added(small, changed(RUN, name="new", day=3))
    answer = client.get("/feed.atom")
    assert answer.headers["content-type"] == "application/atom+xml"
    write_site(small, tmp_path / "site")
    written = (tmp_path / "site" / "feed.atom").read_text(encoding="utf-8")
    for text, link in ((answer.text, f"/runs/{new[:12]}"), (written, f"runs/{new[:12]}.html")):
        feed = ET.fromstring(text)
        entries = feed.findall(f"{ATOM}entry")
        assert [entry.findtext(f"{ATOM}id") for entry in entries] == [
            f"urn:sha256:{run}" for run in (new, old)
        ]
        assert re.fullmatch("urn:sha256:[0-9a-f]{64}", feed.findtext(f"{ATOM}id") or "")
        assert entries[0].find(f"{ATOM}link").get("href") == link  # type: ignore[union-attr]
        assert (
            feed.findtext(f"{ATOM}updated") == entries[0].findtext(f"{ATOM}updated") == "2026-01-04T00:00:00Z"
        )
        assert "Throughput 9,000 tokens/s" in (entries[0].findtext(f"{ATOM}summary") or "")
        assert entries[1].findtext(f"{ATOM}author/{ATOM}name") == HOSTILE.replace("\ufffe", "?")
    assert '<link rel="alternate" type="application/atom+xml"' in client.get("/").text


def test_a_badge_shows_tokens_per_device_and_the_kind(client: Client, small: Store) -> None:
    run = added(small, changed(RUN, state=State.VERIFIED))
    answer = client.get(f"/runs/{run[:12]}/badge.svg")
    texts = [each.text for each in ET.fromstring(answer.text).iter(f"{SVG}text")]
    assert texts == ["tokens/s per GPU 1,125", "● measured"]  # 9,000 tokens/s on 8 devices
    server = added(small, Made(phase="inference", devices=8, values={"output_throughput": 800.0}))
    assert "tokens/s per GPU 100<" in client.get(f"/runs/{server}/badge.svg").text  # divided once
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    tpu = added(small, changed(RUN, hardware="TPU v6e", name="tpu"))
    assert "tokens/s per TPU 1,125" in client.get(f"/runs/{tpu}/badge.svg").text
    odd = added(small, changed(RUN, values={}, extra=(Result("mfu", "ok", HOSTILE, "higher", 4.0),)))
    assert "alert" in (ET.fromstring(client.get(f"/runs/{odd}/badge.svg").text).findtext(f"{SVG}text") or "")
    none = added(small, changed(RUN, values={}, name="none"))
    assert ">ccl-bench</text>" in client.get(f"/runs/{none}/badge.svg").text
    assert client.get("/runs/00000000/badge.svg").status_code == 404


def test_a_picture_of_a_workload_stands_alone(client: Client, small: Store) -> None:
    for version, value in ((HOSTILE, 30.0), ("0.10.0", 33.0)):
        added(small, changed(RUN, framework_version=version, name=version, values={"mfu": value}))
    key = client.get("/api/v1/workloads").json()[0]["key"]
    answer = client.get(f"/workloads/{key}/picture.svg?metric=mfu&by=framework_version")
    picture = ET.fromstring(answer.text)
    circles = list(picture.iter(f"{SVG}circle"))
    assert len(circles) == 3  # two runs, and the key
    assert all((each.get("fill") or "").startswith("#") for each in circles)
    assert (picture.findall(f"{SVG}text")[0].text or "").startswith("MFU, %, by framework version")
    assert "<style" not in answer.text
    assert "href" not in answer.text
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    empty = added(small, changed(RUN, values={}, batch=7))
    other = client.get(f"/api/v1/runs/{empty}").json()["run"]["workload"]
    assert client.get(f"/workloads/{other}/picture.svg").status_code == 404


def test_compare_opens_with_the_two_best_runs_of_the_largest_workload(client: Client, small: Store) -> None:
    assert "Select runs in the table" in client.get("/compare").text
    speeds = {
        name: added(small, changed(RUN, name=name, values={"throughput_tokens_sec": value}))
        for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0))
    }
    other = added(small, changed(RUN, name="d", batch=7, values={"throughput_tokens_sec": 9.0}))
    page = client.get("/compare").text
    assert "The two best comparable runs of the largest workload" in page
    chosen = page.partition("Chosen runs")[2].partition("</ol>")[0]
    assert re.findall(r'<li><a href="/runs/([0-9a-f]+)"', chosen) == [speeds["b"][:12], speeds["c"][:12]]
    assert other[:12] not in chosen
    # A larger workload whose runs were each measured in another way has no pair.
    for window in "wxyz":
        added(small, changed(RUN, name=window, window=window, batch=9))
    assert client.get("/compare").text.partition("Chosen runs")[2].partition("</ol>")[0] == chosen


def test_what_is_not_comparable_is_one_line(client: Client, small: Store) -> None:
    one, other = added(small, RUN), added(small, changed(RUN, batch=64))
    page = client.get(f"/compare?run={one}&run={other}").text
    assert "<summary>3 of 3 numbers are not comparable: the runs did different work</summary>" in page
    fewer = added(small, changed(RUN, name="fewer", values={"mfu": 41.0, "throughput_tokens_sec": 9100.0}))
    page = client.get(f"/compare?run={one}&run={fewer}").text
    assert "<summary>1 of 3 numbers is not comparable: the other run has no value</summary>" in page
    in_sight = page.partition("What changed")[2].partition('<details class="uncompared"')[0]
    assert "mfu" in in_sight
    assert "iteration_wall_clock_time" not in in_sight
