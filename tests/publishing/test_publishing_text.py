"""Text that acts rather than shows, published by a stranger: no page, answer, site or log lets it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import polars as pl
import pytest
from acting_text import ACTING, NAME, write_hostile_run
from commands import invoke
from publishing_archives import CARD, archive, edited, files_of, with_results

from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload
from ccl_bench.leaderboard.publishing.tokens import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publishing_archives import Files
    from publishing_server import Leaderboard


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the files of a bundle that states such a text wherever it may."""
    run = write_hostile_run(tmp_path_factory.mktemp("hostile") / "run", 0)
    files = files_of(
        prepare_upload(UploadRequest(str(run), use_cache=False), tmp_path_factory.mktemp("sent"))
    )

    def change(results: list[dict[str, Any]]) -> None:
        for result in results:
            result["reason"] = result["reason"] and f"{result['reason']} {NAME}"
            result["details"] |= {NAME: NAME}
            for finding in result["findings"]:
                finding["message"] += NAME

    return edited(
        with_results(files, change), "provenance.json", lambda it: it.update(environment={NAME: NAME})
    )


def test_no_page_answer_site_or_log_holds_text_that_acts(
    opened: Callable[..., Leaderboard], hostile: Files, bundle: Files, tmp_path: Path
) -> None:
    board = opened()
    ada, mae = board.token("ada"), board.token("mae", Role.MAINTAINER)
    runs = [board.sent(archive(files), ada).json()["id"] for files in (hostile, bundle)]
    for change in ("withdraw", "approve"):
        answer = board.asked("POST", f"bundles/{runs[0]}/{change}", mae, json={"note": NAME})
        assert answer.status_code < 300, answer.text
    (workload,) = {run["workload"] for run in board.runs() if run["id"] == runs[0]}
    pages = [
        "",
        f"?q={quote(NAME)}",
        "workloads",
        f"workloads/{workload}",
        "metrics",
        "api",
        f"nothing/{quote(NAME)}",
    ]
    pages += [f"runs/{runs[0]}", f"runs/{runs[0]}/report", f"compare?run={runs[0]}&run={runs[1]}"]
    pages += ["feed.atom", f"runs/{runs[0]}/badge.svg", f"workloads/{workload}/picture.svg"]
    pages += [f"api/v1/{path}" for path in ("runs", "runs.csv", "runs.json", f"runs/{runs[0]}", "workloads")]
    shown = {path: board.page(path) for path in pages}
    shown |= {path: board.asked("GET", path, mae) for path in (f"bundles/{runs[0]}", "bundles")}
    for path, answer in shown.items():
        assert answer.status_code in {200, 404}, path
        assert ACTING.findall(answer.text) == [], path
        assert ACTING.findall("".join(map(str, answer.headers.items()))) == [], path
    assert "\u202e" in json.dumps(shown[f"api/v1/runs/{runs[0]}"].json(), ensure_ascii=False)
    assert "n?]0;x?" in shown[f"runs/{runs[0]}"].text
    invoke(["ccl-bench", "board", "site", str(board.data), "--output", str(tmp_path / "site")])
    written = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    written += [board.data / "publishing.log", *board.data.rglob("history.json")]
    assert len(written) > 10
    for path in written:
        if path.suffix == ".parquet":
            assert ACTING.findall(str(pl.read_parquet(path).rows())) == [], path
        elif path.name != CARD:  # the very file that was signed
            assert ACTING.findall(path.read_text(encoding="utf-8")) == [], path
    audited = invoke(["ccl-bench", "board", "audit", str(board.data), "--format", "json"])
    assert ACTING.findall(audited.stdout + audited.stderr) == []
