"""The READMEs beside the scripts say what the scripts do."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from commands import invoke, recorded_by

ROOT = Path(__file__).parents[3]
PERLMUTTER = ROOT / "perlmutter"
README = (PERLMUTTER / "README.md").read_text()
PAGES = [
    ROOT / folder / "README.md" for folder in ("clusters", "perlmutter", "trace_collection", "workloads")
]
CODE = re.compile(r"`([^`\n]+)`")

# What others say, and is quoted: Slurm, torchrun and NCCL.
OF_OTHERS = {
    "DUE TO NODE FAILURE",
    "Invalid feature specification",
    "NET/Socket",
    "Requested node configuration is not available",
}

each = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)


def _section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _said() -> str:
    """Return everything that the scripts and the launcher say."""
    launch = ROOT / "src" / "ccl_bench" / "collect" / "launch"
    files = [*PERLMUTTER.glob("*.sh"), launch / "failures.toml", launch / "failures.py"]
    return "".join(path.read_text() for path in files)


def test_every_variable_of_the_scripts_is_explained() -> None:
    heads = [re.match(r"(?:#.*\n)+", path.read_text())[0] for path in PERLMUTTER.glob("*.sh")]
    named = {
        name for head in heads for name in re.findall(r"^# {3}([A-Z_]+)(?:=1)? {2}", head, flags=re.MULTILINE)
    }
    assert len(named) >= 14
    explained = {code.partition("=")[0] for code in CODE.findall(_section("Configuration"))}
    assert named - explained == set()


def test_every_message_in_the_troubleshooting_is_one_that_is_said() -> None:
    said, rows = _said(), re.findall(r"^\| (`.*?) \|", _section("Troubleshooting"), flags=re.MULTILINE)
    messages = [CODE.findall(row)[0] for row in rows]
    assert len(messages) >= 12
    for message in messages:
        for part in re.split(r"\.\.\.|\d+|: ", message):
            assert part.strip() in said or part.strip() in OF_OTHERS, message


@each
def test_a_link_leads_to_a_file(page: Path) -> None:
    links = [
        link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link
    ]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


@each
def test_the_commands_are_shell(page: Path) -> None:
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_commands_for_results_give_them(tmp_path: Path, shared_cache: Path) -> None:
    block = re.search(r"^```sh\n(.*?)^```", _section("Results"), flags=re.MULTILINE | re.DOTALL)[1]
    run = recorded_by((0, 1), tmp_path / "a run+1")
    shown = ""
    for line in block.splitlines():
        words = [str(run) if word == "RUN" else word for word in shlex.split(line, comments=True)]
        done = invoke(words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        shown += done.stdout
    for metric in ("coll_call_num_16", "throughput_tokens_16", "iter_time_16"):
        assert re.search(rf"^ *{metric} +\d", shown, flags=re.MULTILINE), shown
    assert (tmp_path / "report.html").stat().st_size


@each
def test_a_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w/])((?:perlmutter|clusters|workloads)/[\w/]+\.(?:sh|py|md))\b", text))
    assert {name for name in named if not (ROOT / name).exists()} <= {
        "clusters/mine.sh",
        "perlmutter/activate.sh",
    }
