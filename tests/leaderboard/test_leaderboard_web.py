"""What the server answers: pages that a browser may trust, JSON that keeps its word, refusals in words."""

from __future__ import annotations

import csv
import html as markup
import io
import json
import logging
import socket
from typing import TYPE_CHECKING

import pytest
from leaderboard_bundles import Made, added, changed, many, placed
from leaderboard_client import Client
from sqlalchemy import update

from ccl_bench.leaderboard.pages import compare
from ccl_bench.leaderboard.store import State, new_event
from ccl_bench.leaderboard.store.tables import RUNS
from ccl_bench.leaderboard.web.app import create_app
from ccl_bench.leaderboard.web.server import listening
from ccl_bench.report.render import html
from ccl_bench.result import Result, ResultFinding

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"
RUN = Made(values={"mfu": 40.0, "throughput_tokens_sec": 9000.0, "iteration_wall_clock_time": 2.0})


@pytest.fixture
def client(small: Store) -> Client:
    return Client(create_app(small))


def _every_address(run: str, workload: str) -> list[str]:
    pages = ["/", "/?phase=any", "/workloads", "/compare", "/metrics", "/api", "/nothing", "/?page=0"]
    pages += [f"/runs/{run}", f"/workloads/{workload}", f"/compare?run={run}", "/runs/00000000", "/static/x"]
    pages += [
        f"/runs/{run}/files/{name}" for name in ("workload_card.yaml", "results.json", "provenance.json")
    ]
    pages += [f"/runs/{run}/report", "/static/leaderboard.css", "/static/leaderboard.js", "/openapi.json"]
    pages += ["/feed.atom", f"/runs/{run}/badge.svg", f"/workloads/{workload}/picture.svg"]
    calls = ["runs", "runs.csv", "runs.json", "runs.parquet", f"runs/{run}", "workloads", "health", "nothing"]
    return pages + [f"/api/v1/{call}" for call in calls]


def _workload(client: Client) -> str:
    found: str = client.get("/api/v1/workloads").json()[0]["key"]
    return found


def test_every_answer_keeps_strangers_from_running_anything(client: Client, small: Store) -> None:
    run = added(small, RUN)
    for address in _every_address(run, _workload(client)):
        answer = client.get(address)
        policy = answer.headers["content-security-policy"]
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert scripts == "script-src 'self'", address
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.status_code < 500, address


def test_no_page_holds_a_script_or_style_of_its_own(client: Client, small: Store) -> None:
    run = added(small, RUN)
    for address in ("/", f"/runs/{run}", "/workloads", f"/workloads/{_workload(client)}", "/metrics", "/api"):
        page = client.get(address).text
        assert page.count("<script") == page.count("<script defer src=")
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick" not in page


def test_text_of_a_stranger_is_shown_and_never_run(client: Client, small: Store) -> None:
    said = dict.fromkeys(
        ("name", "submitter", "description", "hardware", "framework", "library", "model"), SCRIPT
    )
    finding = ResultFinding(SCRIPT, "warning", SCRIPT, file=SCRIPT)
    odd = Result(SCRIPT, "ok", SCRIPT, "higher", 1.0, window=SCRIPT, findings=[finding])
    missing = Result("mfu", "not_measurable", "%", "higher", reason=SCRIPT, fix=SCRIPT)
    run = added(small, changed(RUN, **said, values={}, extra=(odd, missing)))
    small.record(run, new_event(State.SELF_REPORTED, SCRIPT, SCRIPT))
    other = added(small, changed(RUN, **said, values={"mfu": 1.0}))
    addresses = [f"/runs/{run}", "/?phase=any", f"/?columns={SCRIPT}&q=alert&phase=any", "/workloads"]
    addresses += [
        f"/workloads/{_workload(client)}?metric={SCRIPT}",
        f"/compare?run={run}&run={other}",
        f"/{SCRIPT}",
    ]
    for address in addresses:
        page = client.get(address).text
        assert "<script>alert" not in page, address
        assert "<img" not in page, address
    assert "&lt;script&gt;alert" in client.get(f"/runs/{run}").text


def test_files_of_a_bundle_are_saved_and_never_shown(client: Client, small: Store) -> None:
    run = added(small, changed(RUN, description=SCRIPT))
    answer = client.get(f"/runs/{run[:12]}/files/workload_card.yaml")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run[:12]}-workload_card.yaml"'
    assert answer.content == (small.folder / run / "workload_card.yaml").read_bytes()
    for name in ("history.json", "..%2Fhistory.json", "..%2F..%2Findex.sqlite", "report.json"):
        assert client.get(f"/runs/{run}/files/{name}").status_code == 404


def test_only_addresses_of_the_web_become_links(client: Client, small: Store) -> None:
    card = changed(RUN).card.replace("contributor:", "trace_url: javascript:alert(1)\ncontributor:")

    class Odd(Made):
        @property
        def card(self) -> str:
            return card

    run = added(small, Odd(values={"mfu": 1.0}))
    assert 'href="javascript:' not in client.get(f"/runs/{run}").text.lower()


@pytest.mark.parametrize(
    ("address", "is_link"),
    [
        ("javascript:alert(1)", False),
        ("JavaScript:https://x.org", False),
        ("data:text/html,<b>", False),
        ("s3://bucket/run", False),
        ("https://x.org/a?b", True),
    ],
)
def test_the_page_of_a_run_links_addresses_of_the_web_alone(
    client: Client, small: Store, address: str, is_link: bool
) -> None:
    run = added(small, RUN)
    with small.engine.begin() as connection:  # as if reading the card and the bundle had let it pass
        connection.execute(update(RUNS).values(trace_url=address))
    page = client.get(f"/runs/{run}").text
    assert markup.escape(address) in page
    assert (f'href="{address}"' in page) == is_link


def test_a_table_as_csv_holds_the_same_runs_and_numbers_as_json(client: Client, small: Store) -> None:
    made = list(many(30))
    placed(small.data, made)
    asked = "phase=training&sort=mfu&columns=mfu&columns=gpu_busy"
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/v1/runs.csv?{asked}").text)))
    plain = client.get(f"/api/v1/runs.json?{asked}").json()
    expected = sorted((m.values["mfu"] for m in made if m.phase == "training"), reverse=True)
    assert [float(row["mfu"]) for row in rows] == expected
    assert [run["numbers"]["mfu"]["value"] for run in plain] == expected
    assert [row["id"] for row in rows] == [run["id"] for run in plain]
    paged = client.get(f"/api/v1/runs?{asked}&size=5&page=2").json()
    assert [run["id"] for run in paged["runs"]] == [run["id"] for run in plain[5:10]]
    assert paged["total"] == len(expected)


def test_a_spreadsheet_takes_no_text_for_a_formula(client: Client, small: Store) -> None:
    added(small, changed(RUN, submitter='=HYPERLINK("http://x")', name="+1", model="@x"))
    (row,) = csv.DictReader(io.StringIO(client.get("/api/v1/runs.csv").text))
    assert [row["submitter"][:2], row["name"], row["model"]] == ["'=", "'+1", "'@x"]


def test_the_description_for_tools_fits_the_answers(client: Client, small: Store) -> None:
    run = added(small, RUN)
    described = client.get("/openapi.json").json()
    assert {"/api/v1/runs", "/api/v1/runs/{run}", "/api/v1/workloads", "/api/v1/health"} <= set(
        described["paths"]
    )
    assert all(path.startswith("/api/") for path in described["paths"])
    found = client.get(f"/api/v1/runs/{run}").json()
    assert found["run"]["numbers"]["mfu"]["value"] == 40.0
    assert found["card"]["model.precision"] == "bf16"
    assert found["results"][0]["metric"] == "mfu"
    assert [each["state"] for each in found["history"]] == ["self_reported"]
    assert client.get("/api/v1/health").json() == {"status": "ok", "version": "0.1.0", "runs": 1}


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/runs/ffffffff", 404),
        ("/runs/x", 404),
        ("/workloads/ffffffff", 404),
        ("/?tp=abc", 422),
        ("/?page=99999999999999999999", 422),
        ("/static/../app.py", 404),
        ("/api/v1/runs/ffffffff", 404),
        ("/api/v1/runs?size=100000", 422),
    ],
)
def test_a_refusal_says_in_words_what_was_wrong(client: Client, address: str, status: int) -> None:
    answer = client.get(address)
    assert answer.status_code == status
    if address.startswith("/api/"):
        assert answer.json()["detail"]
    else:
        assert "<h1>" in answer.text
        assert "All published runs" in answer.text


def test_a_beginning_that_two_runs_share_leads_to_neither(client: Client, small: Store) -> None:
    run = added(small, RUN)
    assert client.get(f"/runs/{run[:8]}").status_code == 200
    assert client.get(f"/runs/{run[:7]}").status_code == 404


def test_a_withdrawn_run_says_so_and_leads_to_its_replacement(client: Client, small: Store) -> None:
    run, other = added(small, RUN), added(small, changed(RUN, name="better"))
    small.record(run, new_event(State.SUPERSEDED, "Ada Lovelace", "a longer recording", superseded_by=other))
    page = client.get(f"/runs/{run}").text
    assert "a longer recording" in page
    assert f'href="/runs/{other[:12]}"' in page
    assert run[:12] not in client.get("/?phase=any").text


def test_a_quarantined_run_has_no_page(client: Client, small: Store) -> None:
    run = added(small, changed(RUN, state=State.QUARANTINED))
    for address in (
        f"/runs/{run}",
        f"/runs/{run}/files/results.json",
        f"/api/v1/runs/{run}",
        f"/compare?run={run}",
    ):
        assert client.get(address).status_code == 404
    assert client.get("/api/v1/runs").json()["total"] == 0


def test_every_page_begins_with_the_logo(client: Client, small: Store) -> None:
    run = added(small, RUN)
    for address in ("/", "/workloads", f"/runs/{run}"):
        assert html.logo() in client.get(address).text.partition("<main")[0]
    assert html.logo() in client.get(f"/runs/{run}/report").text.partition("<h1")[0]


def test_what_is_put_into_the_folder_appears_without_a_restart(client: Client, small: Store) -> None:
    assert "0 runs" in client.get("/").text
    placed(small.data, [RUN])
    assert "1 run " in client.get("/").text


def test_behind_a_proxy_every_link_begins_with_its_path(small: Store) -> None:
    run = added(small, RUN)
    client = Client(create_app(small), "/bench")
    page = client.get("/bench/").text + client.get(f"/bench/runs/{run}").text
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    assert [each for each in links if not each.startswith(("/bench/", "#", "data:"))] == []


def test_a_page_beyond_the_last_shows_the_last(client: Client, small: Store) -> None:
    placed(small.data, [changed(RUN, name=str(place)) for place in range(60)])
    page = client.get("/?phase=training&page=40").text
    assert "51–60 of 60 runs" in page


def test_numbers_of_another_revision_say_so(client: Client, small: Store) -> None:
    added(small, changed(RUN, revision=99))
    assert "revision 99" in client.get("/").text


def test_a_database_that_is_gone_is_said_in_words(client: Client, small: Store) -> None:
    with small.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE metric_values")
    assert client.get("/").status_code == 503
    assert client.get("/api/v1/runs").json()["detail"] == "the database does not answer"


def test_a_report_that_is_no_report_is_refused_in_words(client: Client, small: Store) -> None:
    for content in (b"[]", b"{", json.dumps({"inspection": {}, "results": []}).encode()):
        run = added(small, changed(RUN, report=content))
        answer = client.get(f"/runs/{run}/report")
        assert answer.status_code == 404
        assert "report" in answer.text


def test_the_report_of_a_run_is_drawn_anew(client: Client, small: Store, example: Path) -> None:
    run = added(small, changed(RUN, report=example.read_bytes()))
    answer = client.get(f"/runs/{run}/report")
    assert answer.status_code == 200
    assert "llama-tiny" in answer.text
    assert '<script defer src="/static/vega.js">' in answer.text
    assert "style-src 'self' 'unsafe-inline'" in answer.headers["content-security-policy"]


def test_comparing_says_whether_runs_compare(client: Client, small: Store) -> None:
    one, two = added(small, RUN), added(small, changed(RUN, name="two", hardware="B200"))
    other = added(small, changed(RUN, batch=64))
    assert "comparable: they did the same work" in client.get(f"/compare?run={one}&run={two}").text
    page = client.get(f"/compare?run={one}&run={other}").text
    assert "not comparable" in page
    assert "data.global_batch_size" in page


@pytest.mark.parametrize(
    ("error", "status"), [(KeyError("step_s"), 404), (TypeError("a list"), 404), (OSError("a disk"), 500)]
)
def test_a_comparison_that_fails_on_what_strangers_wrote_is_refused_and_logged_nothing_else_is(
    client: Client,
    small: Store,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
) -> None:
    one, two = added(small, RUN), added(small, changed(RUN, name="two"))

    def fail(*_: object) -> None:
        raise error

    lines: list[str] = []
    monkeypatch.setattr(compare, "compare_runs", fail)
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: lines.append(record.getMessage()))
    answer = client.get(f"/compare?run={one}&run={two}")
    assert (answer.status_code, "These runs cannot be compared" in answer.text) == (status, status == 404)
    said = f"{one}, {two} cannot be compared: {type(error).__name__}"
    assert any(said in line for line in lines) == (status == 404)


def test_the_trend_of_a_workload_goes_from_version_to_version(client: Client, small: Store) -> None:
    for version, value in (("0.9.0", 30.0), ("0.10.0", 33.0), ("0.2.2", 20.0)):
        added(small, changed(RUN, framework_version=version, values={"throughput_tokens_sec": value}))
    page = client.get(f"/workloads/{_workload(client)}").text
    assert "From framework version 0.2.2 to 0.10.0 the best went from 20 to 33 tokens/s (+65.0 %)" in page
    assert page.count('class="dot c1"') == 4  # three runs, and the key


def test_no_part_of_an_answer_waits_until_the_reader_has_acknowledged_another() -> None:
    with listening("127.0.0.1", 0) as (listener, _), socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
