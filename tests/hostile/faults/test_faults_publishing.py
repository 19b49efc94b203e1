"""What may not leave the machine does not: files behind links out of the run, and secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import invoke, recorded_by
from faulty import assert_reported_in_words

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a real one\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return recorded_by((0, 1), tmp_path / "run")


def refused(run: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return what publishing a run into a directory says, which must leave nothing there."""
    data = run.parent / "data"
    done = invoke(["ccl-bench", "publish", str(run), "--to", str(data), *words])
    assert_reported_in_words(done, 4)
    assert done.stdout == ""
    assert not data.exists()
    return done


@pytest.mark.parametrize("name", ["kineto_trace_0.json.gz", "training_metrics.json"])
def test_a_file_behind_a_link_out_of_the_run_is_not_sent(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    done = refused(run, "--traces", "include")
    assert f"{name}: links outside the run; nothing was published" in done.stderr


def test_a_card_behind_a_link_out_of_the_run_is_not_sent_even_without_traces(
    run: Path, tmp_path: Path
) -> None:
    card = run / "workload_card.yaml"
    card.rename(tmp_path / "elsewhere.yaml")
    card.symlink_to(tmp_path / "elsewhere.yaml")
    done = refused(run)
    assert "workload_card.yaml: links outside the run" in done.stderr


def test_a_file_with_a_secret_is_not_sent(run: Path) -> None:
    (run / "training_metrics.json").write_text('{"note": "' + KEY.replace("\n", "\\n") + '"}')
    done = refused(run, "--traces", "include")
    assert "a private key" in done.stderr
    assert "not a real one" not in done.stdout + done.stderr
