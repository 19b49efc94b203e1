"""A run in a bucket gives the numbers of the same run on the disk."""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE, invoke, ran

from ccl_bench import metrics, storage
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.engine import engines, pools
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import to_json
from ccl_bench.run import open_run
from ccl_bench.trace import cache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccl_bench.run import Run

FEW = ("coll_call_num", "iteration_wall_clock_time")


def _results(run: Run, names: Sequence[str] = FEW, **options: int) -> str:
    return to_json(evaluate(run, names, **options)).decode()


@pytest.fixture(scope="module")
def expected(on_disk: Path) -> str:
    """Return the results of the run on the disk."""
    return _results(open_run(on_disk))


def test_a_bucket_gives_the_same_results_as_the_disk(s3: str, on_disk: Path) -> None:
    every = metrics.load().names()
    assert _results(open_run(s3), every) == _results(open_run(on_disk), every)


def test_a_slash_at_the_end_changes_nothing(s3: str, expected: str) -> None:
    assert _results(open_run(s3 + "/")) == expected


def test_the_command_prints_the_same_for_a_bucket_as_for_the_disk(s3: str, on_disk: Path) -> None:
    asked = [*(f"--metric={name}" for name in FEW), "--format", "json"]
    there = ran(["ccl-metrics", "--trace", s3, *asked])
    here = invoke(["ccl-metrics", "--trace", str(on_disk), *asked])
    assert (there.returncode, there.stdout) == (0, here.stdout)


def test_a_single_object_is_measured_as_a_single_file(s3: str, on_disk: Path) -> None:
    name = "kineto_trace_2.json.gz"
    there, here = open_run(f"{s3}/{name}"), open_run(on_disk / name)
    assert there.ranks == here.ranks == [2]
    assert _results(there) == _results(here)


def test_a_card_may_lie_in_the_bucket_alone(s3: str) -> None:
    run = open_run(EXAMPLE / "kineto_trace_0.json.gz", card=f"{s3}/workload_card.yaml")
    assert run.facts.world_size is not None
    assert run.facts.world_size.value == 4


def test_hidden_folders_of_a_bucket_are_passed_over(s3: str) -> None:
    run = open_run(s3)
    assert [trace.relative for trace in run.traces] == [f"kineto_trace_{rank}.json.gz" for rank in (0, 2)]
    assert run.others == []


def test_workers_read_a_bucket_without_inheriting_its_connection(
    s3: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(s3)
    assert not pools.can_fork()
    monkeypatch.setattr(engines, "POOL_WORTH_BYTES", 0)
    assert _results(run, jobs=2) == expected


def test_a_second_reading_fetches_no_trace(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _results(open_run(s3))

    def refused(_path: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr(cache, "local_copy", refused)
    assert _results(open_run(s3)) == first


def test_an_object_that_was_replaced_is_read_again(s3: str) -> None:
    """The replacement has the size of the original and is written within the same second."""
    import s3fs

    system = s3fs.S3FileSystem()
    trace = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "%s", "pid": 0,'
    trace += ' "tid": 7, "ts": 0, "dur": %d}]}'
    busy = []
    for duration in (10, 90):
        system.pipe("runs/replaced/trace.json", (trace % ("k", duration)).encode())
        system.invalidate_cache()
        (result,) = evaluate(open_run("s3://runs/replaced"), ["iteration_wall_clock_time"])
        busy.append(result.value)
    assert busy == [10e-6, 90e-6]


def test_nothing_is_left_on_the_disk_but_tables(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _results(open_run(s3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address", ["s3://no-such-bucket/run", "s3://runs/no/such/run", "s3://runs/teams/one/kineto_trace_9.json"]
)
def test_a_missing_bucket_or_object_is_an_input_error_with_a_way_out(s3: str, address: str) -> None:
    with pytest.raises(InputError) as error:
        open_run(address)
    assert error.value.where == address
    assert error.value.fix


def test_the_command_answers_a_missing_bucket_with_status_4(s3: str) -> None:
    found = invoke("ccl-metrics --trace s3://no-such-bucket/run --metric coll_call_num")
    assert (found.returncode, found.stdout) == (4, "")
    assert "s3://no-such-bucket/run" in found.stderr
    assert "fix:" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", ["ccl-bench inspect", "ccl-bench validate"])
def test_the_other_commands_look_at_a_bucket_too(s3: str, on_disk: Path, command: str) -> None:
    there, here = (invoke([*command.split(), place, "--format", "json"]) for place in (s3, str(on_disk)))
    assert there.returncode == 0, there.stderr
    assert there.stdout.replace(s3, str(on_disk)) == here.stdout


@pytest.mark.parametrize("command", ["ccl-bench inspect", "ccl-bench validate"])
def test_the_other_commands_answer_a_server_that_is_not_there(
    s3: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = invoke([*command.split(), s3])
    assert (found.returncode, found.stderr.count("Traceback")) == (4, 0)


def test_a_prefix_without_traces_is_an_input_error_of_the_command(s3: str) -> None:
    found = invoke("ccl-metrics --trace s3://runs/empty --metric coll_call_num")
    assert found.returncode == 4
    assert "Traceback" not in found.stderr


def test_missing_credentials_are_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "no-such-file")
    with pytest.raises(InputError, match="credentials") as error:
        open_run(s3)
    assert "AWS_ACCESS_KEY_ID" in error.value.fix


def test_a_server_that_does_not_answer_is_an_input_error(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError, match="cannot be reached"):
        open_run(s3)


def test_without_the_extra_the_error_says_how_to_install_it() -> None:
    arguments = ["--trace", "s3://runs/teams/one", "--metric", "mfu"]
    script = (
        f"import sys; sys.modules['s3fs'] = None; from ccl_bench.cli.metrics import main; main({arguments})"
    )
    found = ran([sys.executable, "-c", script])
    assert 'fix: run: pip install "ccl-bench[remote]"' in found.stderr
    assert "Traceback" not in found.stderr


def test_an_address_of_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="pigeon://"):
        storage.to_path("pigeon://coop/run")
