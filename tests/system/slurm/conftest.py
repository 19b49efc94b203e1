"""What the tests under Slurm ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from slurm_cluster import Cluster, cluster
from slurm_site import Site, checkout

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a Slurm of two nodes."""
    with cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture(scope="module")
def site(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a checkout with its scratch directory on the cluster."""
    folder = tmp_path_factory.mktemp("site")
    scratch = folder / "scratch of m+1"
    scratch.mkdir()
    return Site(slurm, checkout(folder / "check out+1"), scratch)


@pytest.fixture
def held(slurm: Cluster) -> Iterator[None]:
    """Let no job start, and cancel those that were submitted."""
    slurm.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        yield
    finally:
        slurm.run("scancel", "--user=root")
        slurm.run("scontrol", "update", "PartitionName=gpu", "State=UP")
