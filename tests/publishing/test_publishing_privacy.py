"""What leaves the machine, and what it tells of people and machines: nothing of the one that publishes."""

from __future__ import annotations

import getpass
import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE, invoke, recorded_by
from publishing_archives import files_of

from ccl_bench.base.errors import InputError
from ccl_bench.card import template
from ccl_bench.leaderboard.bundle import redaction
from ccl_bench.leaderboard.bundle.redaction import find_disclosures, refuse_secrets
from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.bundle.upload import Upload

ENVIRONMENT = {
    "host": {"name": "node-17.cluster.example", "processor": "Example 9000", "user": "ada-lovelace"},
    "variables": {"HOME": "/home/ada-lovelace", "SLURM_JOB_USER": "ada-lovelace"},
    "software": {"python": "3.11.7", "prefix": "/home/ada-lovelace/venv"},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run below somebody's home, one of whose traces was cut off while it was written."""
    place = tmp_path / "home" / "ada-lovelace" / "secret-project" / 'the "best" run'
    recorded_by((0, 3), place)
    trace = place / "kineto_trace_3.json.gz"
    trace.write_bytes(trace.read_bytes()[:-20_000])
    (place / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    return place


def _packed(run: Path, folder: Path, **how: object) -> Upload:
    folder.mkdir()
    return prepare_upload(UploadRequest(str(run), use_cache=False, **how), folder)


def test_a_bundle_shows_no_folder_host_or_user_of_the_machine(run: Path, tmp_path: Path) -> None:
    card = tmp_path / "home" / "ada-lovelace" / "cards" / "card.yaml"
    card.parent.mkdir()
    shutil.move(run / "workload_card.yaml", card)
    parcel = _packed(run, tmp_path / "parcel", card=str(card))
    files = files_of(parcel)
    together = b"".join(files.values()).decode()
    assert [
        word for word in ("ada-lovelace", "secret-project", "node-17", str(tmp_path)) if word in together
    ] == []
    assert parcel.bundle.provenance.environment["processor"] == "Example 9000"
    assert parcel.bundle.provenance.run == 'the "best" run'
    report = json.loads(files["report.json"])
    assert any("kineto_trace_3" in json.dumps(issue) for issue in report["inspection"]["issues"])


def test_the_same_run_gives_the_same_bundle_wherever_it_lies(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / run.name
    shutil.copytree(run, elsewhere)
    first, second = _packed(run, tmp_path / "first"), _packed(elsewhere, tmp_path / "second")
    assert first.id == second.id


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("AKIAIOSFODNN7EXAMPLE", "an access key of AWS"),
        ("ghp_" + "a1" * 18, "a token of GitHub"),
        ("hf_" + "aB" * 17, "a token of Hugging Face"),
        ("WANDB_API_KEY=0123456789abcdef", "a variable whose name says that it is secret"),
        ("https://ada:correct-horse@git.example/x", "a password in an address"),
        ("cclb_" + "0" * 12 + "_" + "A" * 43, "a token of a leaderboard"),
    ],
)
def test_a_secret_is_found_and_not_repeated(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(f"description: a run\n# {text}\n", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        refuse_secrets(find_disclosures({"card.yaml": file}))
    assert refused.value.where == "card.yaml"
    assert refused.value.message == f"holds {what} ({text[:8]}...); nothing was published"


def test_a_secret_stops_publishing(run: Path, tmp_path: Path) -> None:
    with (run / "workload_card.yaml").open("a", encoding="utf-8") as card:
        card.write("# export WANDB_API_KEY=0123456789abcdef\n")
    data = tmp_path / "data"
    done = invoke(["ccl-bench", "publish", str(run), "--to", str(data)])
    assert (done.returncode, done.stdout) == (4, "")
    assert "holds a variable whose name says that it is secret (WANDB_AP...)" in done.stderr
    assert not data.exists()


def test_what_is_no_secret_does_not_stop_it(tmp_path: Path) -> None:
    """Counts of tokens, and variables that lead to a file."""
    file = tmp_path / "card.yaml"
    file.write_text(
        "TOTAL_TOKENS=123456789\nHF_TOKEN=$HF_TOKEN\nTOKENIZER: llama-tokenizer\n", encoding="utf-8"
    )
    assert find_disclosures({"card.yaml": file}) == []


@pytest.mark.parametrize(
    ("stated", "disclosed"),
    [
        ("", []),
        ("ada@example.org", []),
        ("ada@Lab.Example.COM", []),
        ("ada@lab.example", []),
        ("ada@example.org.uk", ["ada@example.org.uk"]),
        ("ada@my-example.org", ["ada@my-example.org"]),
        ("Llama-Lovelace@lab.edu", ["Llama-Lovelace@lab.edu"]),
    ],
)
def test_a_card_discloses_what_its_author_wrote_and_not_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: str, disclosed: list[str]
) -> None:
    """The template's own comments hold an address."""
    card = tmp_path / "workload_card.yaml"
    card.write_text(template().replace("contact: ", f"contact: {stated} "), encoding="utf-8")
    assert [each.example for each in find_disclosures({card.name: card})] == disclosed


def test_the_words_of_the_template_are_nobodys_name_and_a_comment_of_its_author_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "sharegpt")
    redaction._patterns.cache_clear()
    card = tmp_path / "workload_card.yaml"
    card.write_text(template(), encoding="utf-8")
    assert "sharegpt" in card.read_text(encoding="utf-8")
    assert find_disclosures({card.name: card}) == []
    with card.open("a", encoding="utf-8") as more:
        more.write("# who ran it: sharegpt, ada@lab.edu\n")
    assert [each.example for each in find_disclosures({card.name: card})] == ["ada@lab.edu", "sharegpt"]
    monkeypatch.undo()
    redaction._patterns.cache_clear()


def test_names_are_found_in_compressed_files_and_across_blocks(tmp_path: Path) -> None:
    """The files are read in blocks of 4 MiB; the name lies across the end of the first."""
    file = tmp_path / "trace.json.gz"
    before = b" " * ((4 << 20) - 8)
    file.write_bytes(
        gzip.compress(before + b"/home/ada-lovelace/run.py by ada@lab.ccl-bench.org on 10.1.2.3", 1)
    )
    assert [
        (reported.what, reported.example, reported.count) for reported in find_disclosures({"trace": file})
    ] == [
        ("a home directory", "/home/ada-lovelace", 1),
        ("an e-mail address", "ada@lab.ccl-bench.org", 1),
        ("an address in a private network", "10.1.2.3", 1),
    ]


def test_links_out_of_the_run_are_not_followed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    shutil.move(run / "step_times_per_rank.json", outside)
    (run / "step_times_per_rank.json").symlink_to(outside)
    with pytest.raises(InputError, match="links outside the run"):
        _packed(run, tmp_path / "parcel", with_traces=True)


def test_an_export_of_nsight_systems_is_published_without_what_it_shows(corpus: Path, tmp_path: Path) -> None:
    """The numbers are those of the whole export."""
    run = tmp_path / "nsys-run"
    run.mkdir()
    shutil.copy(corpus / "nsys" / "tiny" / "rtx3080_tiny.sqlite", run)
    shutil.copy(EXAMPLE / "workload_card.yaml", run)
    with closing(sqlite3.connect(run / "rtx3080_tiny.sqlite")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        assert "TARGET_INFO_SYSTEM_ENV" in tables
        names = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
        (host,) = connection.execute(names).fetchone()
    whole, part = _packed(run, tmp_path / "whole"), _packed(run, tmp_path / "part", with_traces=True)
    assert part.redacted == ["rtx3080_tiny.sqlite"]
    left = part.run_files["rtx3080_tiny.sqlite"].read_bytes()
    assert host.encode() in (run / "rtx3080_tiny.sqlite").read_bytes()
    assert host.encode() not in left
    numbers = [{result.metric: result.value for result in parcel.bundle.results} for parcel in (whole, part)]
    assert numbers[0] == numbers[1]
