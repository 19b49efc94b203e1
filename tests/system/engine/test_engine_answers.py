"""Every engine gives the same answer, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import invoke, ran

from ccl_bench import engine, metrics
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import to_json
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice, step_choice
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusters import Cluster

HERE = ("auto", "processes")
MEASURED = ("coll_call_num", "straggler", "iteration_wall_clock_time", "comm_comp_overlap", "mfu")


def answer(place: Path, name: str, names: Sequence[str] = (), choice: StepChoice = EVERY_STEP) -> bytes:
    """Return what an engine gives, of all metrics by default."""
    with engine.use_engine(name):
        run = open_run(place, choice=choice)
        return to_json(evaluate(run, names or metrics.load().names(), use_cache=False))


def test_the_expected_answer_is_one(expected: bytes) -> None:
    assert expected.count(b'"status": "ok"') > 30


@pytest.mark.parametrize("name", HERE)
def test_engines_of_this_machine_give_the_same_bytes(run: Path, expected: bytes, name: str) -> None:
    assert answer(run, name) == expected


def test_a_cluster_gives_the_same_bytes_twice_also_of_a_run_named_from_another_folder(
    run: Path, expected: bytes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(run, cluster.address) == expected
    monkeypatch.chdir(run.parent)
    assert answer(type(run)("run"), cluster.address) == expected


def test_every_engine_chooses_the_same_steps(run: Path, expected: bytes, cluster: Cluster) -> None:
    choice = step_choice("2-3", marker=r"^ProfilerStep#(\d+)$")
    every = {answer(run, name, MEASURED, choice) for name in ("local", "processes", cluster.address)}
    assert len(every) == 1
    assert b"chosen range, steps 2-3 marked by" in every.pop()
    assert b"chosen range" not in expected


def test_one_connection_serves_several_runs(run: Path, pair: Path, cluster: Cluster) -> None:
    def answers() -> list[bytes]:
        return [to_json(evaluate(open_run(each), MEASURED, use_cache=False)) for each in (run, pair)]

    with engine.use_engine(cluster.address):
        found = answers()
    with engine.use_engine("local"):
        assert found == answers()
    assert found[0] != found[1]


def test_a_command_prints_the_same_with_every_engine_and_number_of_threads(
    pair: Path, cluster: Cluster
) -> None:
    """This process has one thread, as `conftest.py` says.

    The command that reads in processes is a process itself, whose children import it anew.
    """
    command = ["ccl-metrics", "--all", "-f", "json", str(pair), "--no-cache", "--engine"]
    printed = invoke([*command, "local"]).stdout
    assert len(printed) > 1000
    assert ran([*command, "processes"], POLARS_MAX_THREADS="7").stdout == printed
    assert invoke([*command, cluster.address]).stdout == printed


def test_inspect_prints_the_same_with_a_cluster(pair: Path, cluster: Cluster) -> None:
    command = ["ccl-bench", "inspect", "-f", "json", str(pair), "--no-cache", "--engine"]
    printed = invoke([*command, "local"]).stdout
    assert len(printed) > 1000
    assert invoke([*command, cluster.address]).stdout == printed


def test_a_cache_that_workers_filled_gives_the_same_bytes(
    run: Path, expected: bytes, cluster: Cluster
) -> None:
    names = metrics.load().names()
    with engine.use_engine(cluster.address):
        for _ in range(2):
            assert to_json(evaluate(open_run(run), names)) == expected
