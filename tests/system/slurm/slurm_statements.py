"""The statements of the README about Perlmutter, and what a command must show to keep them."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_site import ROOT, Site, checkout

if TYPE_CHECKING:
    import subprocess

    from slurm_cluster import Cluster

TABLE = Path(__file__).parents[2] / "instructions" / "perlmutter.toml"
WORKLOAD = "llama3.1-8b-torchtitan-tp-perlmutter-16"
"""The workload that the README takes as its example."""


@dataclass(frozen=True)
class Statement:
    """One promise, and the command that shows it; perlmutter.toml explains the fields."""

    states: str
    command: str
    folder: str = "."
    when: str = ""
    expected: dict[str, Any] = field(default_factory=dict)
    differs: str = ""

    def run(
        self, site: Site, workload: str = WORKLOAD, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Type the command as a user of the site."""
        folder = site.root / _of(self.folder, workload)
        return site.ran("bash", "-c", _of(self.command, workload), folder=folder, **environment)

    def broken(
        self, site: Site, done: subprocess.CompletedProcess[str], workload: str = WORKLOAD
    ) -> list[str]:
        """Return what was promised and is not there."""
        shown = done.stdout + done.stderr
        status = self.expected.get("status", 0)
        missing = [] if done.returncode == status else [f"exit status {status}, not {done.returncode}"]
        for pattern in self.expected.get("output", ()):
            if not re.search(pattern.replace("{workload}", re.escape(workload)), shown, flags=re.MULTILINE):
                missing.append(f"output {pattern}")
        missing += [file for file in self.expected.get("files", ()) if not (site.root / file).exists()]
        for number in submitted(done):
            job = site.ran("scontrol", "show", "job", number).stdout
            missing += [fact for fact in self.expected.get("job", ()) if _of(fact, workload) not in job]
        return [f"{self.states}: {what}\n{shown[-3000:]}" for what in missing]


def _of(text: str, workload: str) -> str:
    return text.replace("{workload}", workload).replace("{repository}", str(ROOT))


def submitted(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the numbers of the jobs that a command has submitted."""
    return re.findall(r"Submitted batch job (\d+)", done.stdout)


def statements(when: str | None = None) -> list[Statement]:
    """Return the table in the order of the README; of one time of asking, if it is given."""
    found = [Statement(**row) for row in tomllib.loads(TABLE.read_text())["statement"]]
    return [each for each in found if when in (None, each.when)]


UV = """#!/bin/sh
# Stands for uv, which would download gigabytes: the environment that it makes is the one of the tests.
[ "$1" = venv ] || exit 0
for last in "$@"; do :; done
mkdir -p "$last/bin" && ln -s /bin/true "$last/bin/python"
echo 'PATH={programs}:$PATH' >"$last/bin/activate"
"""


class User(Site):
    """Someone who has exported nothing but what Perlmutter sets."""

    @property
    def environment(self) -> dict[str, str]:
        """What is set at login, with the programs of the tests."""
        own = {**super().environment, "USER": "root"}
        own = {name: value for name, value in own.items() if name not in {"CLUSTER", "EXECUTION_TRACE"}}
        # git clones a repository of someone else only if it is asked to.
        clones = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        return {**own, **clones, "PATH": f"{self.scratch.parent / 'programs'}:{own['PATH']}"}


def user_of(cluster: Cluster, folder: Path) -> User:
    """Return a user whose checkout and scratch are at paths that the README's commands need not quote."""
    for name in ("scratch", "programs"):
        (folder / name).mkdir(parents=True)
    uv = folder / "programs" / "uv"
    uv.write_text(UV.format(programs=Path(sys.executable).parent))
    uv.chmod(0o755)
    user = User(cluster, checkout(folder / "ccl-bench"), folder / "scratch")
    (user.root / "perlmutter" / "activate.sh").unlink(missing_ok=True)
    for statement in statements("first"):
        assert statement.broken(user, statement.run(user)) == []
    return user


ON_PROCESSORS = {"CLUSTER": "cpu", "SCHEDULER": "slurm", "PROFILE_MODE": "both", "EXECUTION_TRACE": "1"}
"""What lets a job train without a GPU; both modes are the default on Perlmutter."""


def broken_by_run(site: Site, workload: str) -> list[str]:
    """Return what the run of a workload does not keep of all that the README says about runs."""
    return [
        what for each in statements("after") for what in each.broken(site, each.run(site, workload), workload)
    ]
