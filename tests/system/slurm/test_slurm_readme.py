"""What the READMEs tell a user to type is taken by a real Slurm."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from slurm_site import ROOT

if TYPE_CHECKING:
    from slurm_site import Site

TAKEN = re.compile(r"perlmutter/(?:submit_all|status)\.sh|\./run\.sh|\bsbatch\b|^cd |^cp |^export ")


def _commands(page: str) -> str:
    """Return the lines of a page's shell blocks that submit or ask, as a script."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    # Each block begins at the top of the checkout.
    return "\n".join(f"(\n{block}\n)" for block in map(_lines_taken, blocks) if block)


def _lines_taken(block: str) -> str:
    return "\n".join(line for line in block.splitlines() if TAKEN.search(line))


# Jobs that the commands of a page submit.
PAGES = {"perlmutter/README.md": 6, "trace_collection/README.md": 1, "clusters/README.md": 0}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_taken(site: Site, held: None, page: str) -> None:
    given = {"CLUSTER": "perlmutter", "ACCOUNT": "m1234", "SCRATCH": str(site.scratch)}
    script = _commands(page).replace("/path/to/large/storage", shlex.quote(str(site.scratch)))
    done = site.ran("bash", "-euo", "pipefail", "-c", script, **given)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"Submitted batch job \d+", done.stdout)) == PAGES[page]
    # submit_all.sh --test-only asks for all seven, on the pages that show it.
    assert len(re.findall(r"sbatch: Job \d+ to start", done.stdout + done.stderr)) == 7


def test_the_interactive_allocation_is_given(site: Site) -> None:
    command = re.search(r"^salloc .*$", (ROOT / "perlmutter/README.md").read_text(), flags=re.MULTILINE)[0]
    done = site.ran("bash", "-c", f"{command} bash -c 'echo $SLURM_JOB_NUM_NODES $SLURM_GPUS_PER_NODE'")
    assert (done.returncode, done.stdout) == (0, "1 4\n"), done.stderr
