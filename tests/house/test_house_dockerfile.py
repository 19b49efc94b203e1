"""The Dockerfile keeps the rules that a linter would check; no container can be built where the tests run."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING

import pytest
from checkout import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "RUN", "USER", "WORKDIR"}
PINNED_IMAGE = r"[\w./-]+:\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}"
SECRET = re.compile(r"\b\w*(?:PASSWORD|SECRET|TOKEN|API_?KEY|CREDENTIAL)\w*\s*=", re.IGNORECASE)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction and what follows it, lines joined and comments left out."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in plain.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, " ".join(rest.split())


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with a Dockerfile."""
    user, stages, last = "root", set(), ""
    for last, rest in instructions(text):
        words = rest.split()
        match last:
            case "FROM":
                user = "root"
                if words[0] not in stages and not re.fullmatch(PINNED_IMAGE, words[0]):
                    yield f"the image {words[0]} is not pinned"
                stages |= {words[2]} if words[1:2] == ["AS"] else set()
            case "USER":
                user = words[0]
            case "COPY":
                yield from _copy_faults(words, stages)
            case "RUN":
                yield from _run_faults(rest)
            case "ENTRYPOINT" | "CMD" if not rest.startswith("["):
                yield f"{last} is run by a shell, which passes no signals on"
        if last not in INSTRUCTIONS:
            yield f"{last} is no instruction of this file"
        if SECRET.search(rest):
            yield f"{last} holds a secret"
    if user.partition(":")[0] in {"root", "0"}:
        yield "it runs as root"


def _copy_faults(words: list[str], stages: set[str]) -> Iterator[str]:
    if words[0].startswith("--from="):
        if words[0].removeprefix("--from=") not in stages:
            yield f"there is no stage {words[0]}"
        return
    for source in words[:-1]:
        if source == "." or not (ROOT / source).exists():
            yield f"there is no file {source} to copy"


def _run_faults(command: str) -> Iterator[str]:
    if "apt-get install" in command and not (
        "--yes" in command and "--no-install-recommends" in command and "rm -rf /var/lib/apt/lists" in command
    ):
        yield "packages of Debian are not installed as they should"
    if re.search(r"\bpip3? (?:install|wheel|download)\b", command):
        yield "packages of Python are installed without scripts/install_hashed.sh"
    if re.search(r"\b(?:curl|wget|sudo)\b", command):
        yield "it fetches or does what it should not"


[DIGEST] = re.findall(r"@sha256:[0-9a-f]{64}", TEXT)


def test_the_dockerfile_has_no_fault() -> None:
    assert [*faults(TEXT)] == []


def test_it_says_that_nothing_has_built_it() -> None:
    comments = " ".join(line.lstrip("# ") for line in TEXT.splitlines() if line.startswith("#"))
    assert "is linted (tests/house/test_house_dockerfile.py) and not built" in comments


def test_each_file_that_the_package_is_built_of_is_copied() -> None:
    copied = {word for name, rest in instructions(TEXT) if name == "COPY" for word in rest.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    names = {name.removeprefix("/") for name in needed} - {"tools"}
    assert {name for name in names if not {name, name.partition("/")[0]} & copied} == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (DIGEST, "", "the image python:3.11.16-slim-bookworm is not pinned"),
        (f":3.11.16-slim-bookworm{DIGEST}", DIGEST, f"the image python{DIGEST} is not pinned"),
        ("FROM base AS build", "FROM python AS build", "the image python is not pinned"),
        ("USER bench", "USER root", "it runs as root"),
        ("USER bench\n", "", "it runs as root"),
        ("COPY src src", "COPY source src", "there is no file source to copy"),
        ("COPY src src", "COPY . .", "there is no file . to copy"),
        ("COPY src src", "ADD src src", "ADD is no instruction of this file"),
        ("--from=build", "--from=other", "there is no stage --from=other"),
        ('ARG EXTRAS=""', 'ARG ACCESS_TOKEN=""', "ARG holds a secret"),
        (" --no-install-recommends", "", "packages of Debian are not installed as they should"),
        (
            'bash scripts/install_hashed.sh "$EXTRAS"', "/opt/ccl-bench/bin/pip install .",
            "packages of Python are installed without scripts/install_hashed.sh",
        ),
        ('["ccl-bench"]', "ccl-bench", "ENTRYPOINT is run by a shell, which passes no signals on"),
    ],
)  # fmt: skip
def test_a_fault_is_found(old: str, new: str, fault: str) -> None:
    assert old in TEXT
    assert fault in [*faults(TEXT.replace(old, new, 1))]
