"""What a result says of where it comes from."""

import hashlib
from functools import cache
from pathlib import Path

from small_runs import FSDP, measured, write, write_ranks

from ccl_bench import __version__
from ccl_bench.metrics import METRICS
from ccl_bench.result import Result
from ccl_bench.trace.formats import FORMATS, load


def sha256(path: Path) -> str:
    """Return the hash of a file as it lies on disk."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def of_example() -> dict[str, Result]:
    """Return metrics of the example, by name."""
    names = ("gpu_busy", "throughput_tokens_sec", "traffic_distribution", "training_quality")
    return dict(zip(names, measured(FSDP, *names), strict=True))


def test_every_trace_is_named_with_its_hash_size_and_rank():
    found = of_example()["gpu_busy"]

    files = sorted(FSDP.glob("kineto_trace_*.json.gz"))
    assert [(t.file, t.sha256, t.size, t.rank) for t in found.provenance.traces] == [
        (path.name, sha256(path), path.stat().st_size, rank) for rank, path in enumerate(files)
    ]


def test_the_revisions_of_reader_metric_and_program_are_kept():
    found = of_example()["gpu_busy"]

    load()
    assert {t.reader_revision for t in found.provenance.traces} == {FORMATS.get("kineto").revision}
    assert found.provenance.tool_version == __version__
    assert found.provenance.metric_revision == METRICS.get("gpu_busy").revision


def test_facts_that_were_used_are_given_with_their_sources_and_others_are_not():
    found = of_example()["throughput_tokens_sec"]

    assert found.provenance.facts["tokens_per_step"] == "run_metadata.json"
    assert "tp" not in found.provenance.facts


def test_facts_behind_a_table_across_ranks_are_those_of_the_number():
    found = of_example()["traffic_distribution"]

    # the dimension of a process group follows from the mesh that the card states
    assert found.provenance.facts["tp"] == "workload card"
    assert "workload_card.yaml" in found.provenance.files


def test_side_files_are_named_with_their_hash_and_traces_that_were_not_needed_are_not():
    found = of_example()["throughput_tokens_sec"]

    named = ("step_times_per_rank.json", "workload_card.yaml", "run_metadata.json")
    assert found.provenance.files == {name: sha256(FSDP / name) for name in named}
    assert found.provenance.traces == []


def test_quality_rests_on_one_file():
    found = of_example()["training_quality"]

    assert found.provenance.files == {"training_metrics.json": sha256(FSDP / "training_metrics.json")}
    assert (found.provenance.traces, found.provenance.facts) == ([], {})


def test_a_number_that_needs_no_facts_names_none(tmp_path: Path):
    write(write_ranks(tmp_path) / "run_metadata.json", {"world_size": 2})

    (found,) = measured(tmp_path, "gpu_busy")

    assert (found.provenance.facts, found.provenance.files) == ({}, {})


def test_an_unreadable_trace_has_no_hash_to_name(tmp_path: Path):
    (write_ranks(tmp_path) / "kineto_trace_1.json").write_text(
        '{"schemaVersion": 1, "distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": 5}'
    )

    (found,) = measured(tmp_path, "gpu_busy")

    assert [t.file for t in found.provenance.traces] == ["kineto_trace_0.json"]


def test_a_card_from_elsewhere_is_named_by_its_own_path(tmp_path: Path):
    from ccl_bench.evaluate.compute import evaluate
    from ccl_bench.run import open_run

    run = write_ranks(tmp_path / "run")
    card = tmp_path / "cards" / "mine.yaml"
    card.parent.mkdir()
    card.write_text("workload: {data: {batch_size: 2, batch_size_scope: global, seq_len: 8}}")

    (found,) = evaluate(open_run(run, card=card), ["throughput_tokens_sec"], use_cache=False)

    assert found.value == 16 / 100e-6
    assert found.provenance.files == {str(card): sha256(card)}
