"""What the tests under Slurm ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shared import shared_cache_folder
from slurm_cluster import Cluster, cluster
from slurm_site import Site, checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a Slurm of two nodes."""
    with cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose cache is that of other tests: jobs need not make the script of pages again."""
    folder, cache = tmp_path_factory.mktemp("home"), shared_cache_folder(tmp_path_factory)
    cache.mkdir(exist_ok=True)
    (folder / "cache").symlink_to(cache)
    return folder


@pytest.fixture(scope="module")
def site(slurm: Cluster, home: Path) -> Site:
    """Return a checkout with its scratch directory on the cluster."""
    scratch = home / "scratch of m+1"
    scratch.mkdir()
    return Site(slurm, checkout(home / "check out+1"), scratch)


@pytest.fixture
def held(slurm: Cluster) -> Iterator[None]:
    """Let no job start, and cancel those that were submitted."""
    slurm.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        yield
    finally:
        slurm.run("scancel", "--user=root")
        slurm.run("scontrol", "update", "PartitionName=gpu", "State=UP")
