"""A bundle is named by the hash of its files, and nothing else is taken for one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from leaderboard_bundles import Made, added, placed

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import CARD, RESULTS, open_bundle
from ccl_bench.leaderboard.store import State, new_event

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

RUN = Made(values={"mfu": 40.0})


def test_the_name_of_a_bundle_is_what_sha256sum_says_of_its_files(small: Store) -> None:
    folder = small.folder / added(small, RUN)
    said = subprocess.run(
        "sha256sum provenance.json results.json workload_card.yaml | sha256sum",
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split()[0] == folder.name


def test_what_became_of_a_run_does_not_change_its_name(small: Store) -> None:
    run = added(small, RUN)
    small.record(run, new_event(State.WITHDRAWN, "Ada Lovelace", "wrong clock"))
    assert open_bundle(small.folder / run).id == run


def test_the_same_bundle_twice_is_one_run(small: Store) -> None:
    first, second = added(small, RUN), added(small, RUN)
    assert first == second
    assert small.count == 1
    assert [path.name for path in small.data.iterdir() if path.name.startswith(".incoming")] == []


def test_a_file_that_was_changed_afterwards_takes_the_run_out_of_the_index(small: Store) -> None:
    run, other = added(small, RUN), added(small, Made(name="other"))
    results = small.folder / run / RESULTS
    results.write_bytes(results.read_bytes().replace(b"40.0", b"99.0"))
    small.rebuild()
    assert small.count == 1
    assert "hash" in small.refused[run].message
    assert small.bundle(other).provenance.run == "other"


@pytest.mark.parametrize("name", ["extra.txt", "../escape", "link.json"])
def test_nothing_but_the_files_of_a_bundle_is_admitted(small: Store, name: str, tmp_path: Path) -> None:
    folder = small.folder / added(small, RUN)
    stray = folder / name.replace("../", "")
    if name == "link.json":
        stray.symlink_to(tmp_path)
    elif name == "extra.txt":
        stray.write_text("x")
    else:
        stray.mkdir()
    with pytest.raises(InputError, match="does not belong"):
        open_bundle(folder)


def test_a_bundle_without_its_card_is_refused_by_name(small: Store) -> None:
    run = added(small, RUN)
    (small.folder / run / CARD).unlink()
    with pytest.raises(InputError, match="is missing") as refused:
        open_bundle(small.folder / run)
    assert refused.value.where.endswith(CARD)


def test_damaged_results_are_an_error_of_that_run_alone(small: Store) -> None:
    (bad,) = placed(small.data, [Made(name="bad")])
    good = added(small, RUN)
    folder = small.folder / bad
    (folder / RESULTS).write_text("[{]")
    from ccl_bench.leaderboard.bundle.format import bundle_id

    renamed = small.folder / bundle_id(folder)
    folder.rename(renamed)
    small.rebuild()
    assert list(small.refused) == [renamed.name]
    assert small.bundle(good).results[0].value == 40.0


def test_an_identifier_cannot_lead_out_of_the_folder(small: Store) -> None:
    added(small, RUN)
    for name in ("../runs", "..", "", "x" * 64, "/etc"):
        with pytest.raises(InputError, match="there is no run"):
            small.bundle(name)
