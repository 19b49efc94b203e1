"""Metadata and card of a collected run, from configuration, command line and environment."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from ccl_bench.card import Card, read_card
from ccl_bench.card.sections import leaf_paths
from ccl_bench.collect.collect_run import CollectRequest
from ccl_bench.collect.collect_run import collect_run as collected
from ccl_bench.collect.describe import torchtitan
from ccl_bench.collect.describe.fill_card import observed_card_values
from ccl_bench.collect.describe.observations import Observations
from ccl_bench.collect.describe.torchtitan import effective_config, toml_text
from ccl_bench.collect.profiling.options import METADATA_NUMBERS
from ccl_bench.side_files.metadata import RunMetadata
from ccl_bench.testing import Plan, write_run

TOML = """\
[job]
description = "a test"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
steps = 30
[parallelism]
tensor_parallel_degree = 4
pipeline_parallel_degree = 1
"""

A100 = {
    "devices": [{"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960}] * 4,
    "device_links": {"0": [25.0] * 12, "1": [25.0] * 12},
    "variables": {"SLURM_NNODES": "2", "NCCL_SOCKET_IFNAME": "hsn"},
    "software": {
        "libraries": {"torch": "2.9.0", "torchtitan": "0.2.2"},
        "torch": {"version": "2.9.0+cu129", "cuda": "12.9", "nccl": "2.27.5", "devices": []},
    },
}


def _command(*more):
    return ["torchrun", "-m", "torchtitan.train", "--job.config_file", "train config.toml", *more]


@pytest.fixture
def configured(tmp_path):
    (tmp_path / "train config.toml").write_text(TOML)
    return tmp_path


def test_the_configuration_is_the_file_that_the_command_names(configured):
    found = effective_config(_command(), configured, [])
    assert found.settings.parallelism.tp == 4
    assert not found.is_overridden


@pytest.mark.parametrize(
    "override",
    [
        ["--parallelism.tensor_parallel_degree=2"],
        ["--parallelism.tensor_parallel_degree", "2"],
        ["--parallelism.tensor-parallel-degree=2"],
    ],
)
def test_the_command_line_counts_more_than_the_file(configured, override):
    found = effective_config(_command(*override), configured, [])
    assert found.settings.parallelism.tp == 2
    assert found.settings.training.seq_len == 4096
    assert found.is_overridden


def test_a_run_keeps_the_configuration_as_it_counted(configured, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    torchtitan.save_config(effective_config(_command(), configured, []), run)
    assert (run / "train config.toml").read_text() == TOML
    torchtitan.save_config(
        effective_config(_command("--parallelism.tensor_parallel_degree=2"), configured, []), run
    )
    kept = tomllib.loads((run / "train config.toml").read_text())
    expected = tomllib.loads(TOML)
    expected["parallelism"]["tensor_parallel_degree"] = 2
    assert kept == expected


def test_tables_inside_tables_are_written_as_such():
    tables = {"a": 1, "quantize": {"linear": {"float8": {"filter_fqns": ["x", "y"]}}, "dense": True}, "e": {}}
    assert tomllib.loads(toml_text(tables)) == tables
    assert tomllib.loads(toml_text({"a b": {"c.d": {"e": 0.5}}})) == {"a b": {"c.d": {"e": 0.5}}}


def test_without_a_configuration_there_is_none(tmp_path):
    assert effective_config(["python", "train.py", "--lr.x"], tmp_path, []) is None


def test_devices_links_and_versions_fill_the_card(configured):
    configuration = effective_config(_command(), configured, [])
    seen = Observations(8, frozenset({"kineto", "nsys"}), "nccl", configuration, A100, tuple(_command()))
    values = observed_card_values(seen)
    unit = "workload.hardware.xpu_spec"
    assert values[f"{unit}.model"] == "NVIDIA A100-SXM4-40GB"
    # 8 ranks on 2 nodes; 40,960 MiB are 42.9 GB; 12 links of 25 GB/s are 2,400 Gbit/s.
    assert (values[f"{unit}.total_count"], values[f"{unit}.count_per_node"]) == (8, 4)
    assert values[f"{unit}.memory_gb"] == pytest.approx(42.9)
    assert values["workload.hardware.network_topo.bandwidth_gbps.scale_up"] == 2400
    assert values["workload.hardware.driver_version"] == "cuda_12.9"
    assert values["Model-executor.framework.version"] == "0.2.2"
    library = "Model-executor.communication_library"
    assert (values[f"{library}.name"], values[f"{library}.version"]) == ("NCCL", "2.27.5")
    assert values[f"{library}.env"] == {"NCCL_SOCKET_IFNAME": "hsn"}
    degrees = "Model-executor.model_plan_parallelization"
    # 8 ranks / TP 4 leaves 2 shards, each with 2 sequences a step.
    assert (values[f"{degrees}.tp"], values[f"{degrees}.dp_shard"]) == (4, 2)
    assert values["workload.data.batch_size"] == 4
    assert values["workload.model.model_family"] == "llama3-8B"


def test_a_run_without_a_device_ran_on_its_processor_and_one_rank_is_all_degrees():
    environment = {"host": {"processor": "AMD EPYC 7763"}, "software": {"torch": {"version": "2.9"}}}
    values = observed_card_values(Observations(1, environment=environment))
    assert values["workload.hardware.xpu_spec.type"] == "CPU"
    assert values["workload.hardware.xpu_spec.model"] == "AMD EPYC 7763"
    degrees = "Model-executor.model_plan_parallelization"
    assert [values[f"{degrees}.{axis}"] for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")] == [1] * 5
    assert f"{degrees}.tp" not in observed_card_values(Observations(2, environment=environment))


def test_every_field_that_is_filled_is_one_of_the_card(configured):
    configuration = effective_config(_command(), configured, [])
    seen = Observations(
        8, frozenset({"kineto"}), "nccl", configuration, A100, (), {"recording": {"steps": 3}}
    )
    assert set(observed_card_values(seen)) <= set(leaf_paths(Card))


def test_nothing_is_filled_where_nothing_was_seen():
    assert observed_card_values(Observations()) == {"version": 1}


def test_what_a_person_wrote_stays_and_contradictions_are_said(configured):
    write_run(Plan(dp_shard=2, tp=2), configured / "run")
    card = configured / "run/workload_card.yaml"
    text = card.read_text()
    card.write_text(text.replace("name: ccl_bench.testing", "name: my-own-trainer"))
    (configured / "run/environment.json").write_text(json.dumps({**A100, "command": _command()}))
    done = collected(CollectRequest(configured / "run", folder=configured))
    assert "my-own-trainer" in card.read_text()
    said = "states Model-executor.framework.name = my-own-trainer, but torchtitan was observed"
    assert any(said in remark for remark in done.remarks)
    # The version that was seen is torchtitan's, and says nothing of the other.
    assert "version: 0.2.2" not in card.read_text()


def test_sizes_that_the_command_line_changed_stand_in_the_metadata(configured):
    write_run(Plan(dp_shard=2, tp=2), configured / "run")
    (configured / "run/run_metadata.json").unlink()
    command = _command("--training.seq_len=128")
    (configured / "run/environment.json").write_text(json.dumps({**A100, "command": command}))
    collected(CollectRequest(configured / "run", folder=configured))
    said = json.loads((configured / "run/run_metadata.json").read_text())
    assert (said["seq_len"], said["world_size"]) == (128, 4)
    kept = tomllib.loads((configured / "run/train config.toml").read_text())
    assert kept["training"]["seq_len"] == 128


def test_a_filled_card_is_valid(configured):
    write_run(Plan(dp_shard=2, tp=2), configured / "outputs", iteration=10)
    (configured / "outputs/workload_card.yaml").unlink()
    (configured / "run").mkdir()
    (configured / "run/environment.json").write_text(json.dumps({**A100, "command": _command()}))
    collected(CollectRequest(configured / "run", folder=configured))
    reading = read_card(configured / "run/workload_card.yaml")
    assert [str(issue) for issue in reading.issues if issue.severity == "error"] == []
    assert reading.value.parallelism.product == 4


def test_the_library_knows_the_keys_of_the_metadata():
    assert set(METADATA_NUMBERS) < set(RunMetadata.model_fields)
    assert {name for name in RunMetadata.model_fields if not name.startswith("slo")} - set(
        METADATA_NUMBERS
    ) == {"world_size"}


def test_the_librarys_files_are_those_that_are_read():
    from ccl_bench.collect.profiling import rank_summary
    from ccl_bench.side_files.kinds import kind_named
    from ccl_bench.side_files.metadata import FILE_NAME

    assert rank_summary.METADATA == FILE_NAME
    assert all(
        kind_named(name) for name in (rank_summary.STEP_TIMES, rank_summary.METRICS, rank_summary.MEMORY)
    )
    assert Path(rank_summary.FOLDER).name == "ranks"
