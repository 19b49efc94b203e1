"""Write a whole run: one trace for each rank, the card, the metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ccl_bench.testing.expected import Expected
from ccl_bench.testing.kineto_file import write_rank
from ccl_bench.testing.kineto_templates import Style
from ccl_bench.testing.plan import at_stage
from ccl_bench.testing.simulation import timeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.testing.plan import Plan
    from ccl_bench.testing.simulation import Timeline

_CARD = """\
version: 1
description: >
  A synthetic run: every time in it follows from a plan.
hf_url: null
trace_url: null
contributor: ccl_bench.testing
contact: null
workload:
  model:
    phase: training
    moe: {moe}
    granularity: model_fwd_bwd_pass
    model_family: synthetic
    precision: bf16
    epochs: 1
    iteration: {steps}
    model_arch:
      num_layers: {layers}
  data:
    batch_size: {batch_size}
    batch_size_scope: global
    seq_len: {seq_len}
    dataset: synthetic
  hardware:
    network_topo:
      topology: fat-tree
      bandwidth_gbps: [200, 2400]
    xpu_spec:
      type: GPU
      model: {device}
      total_count: {world_size}
      count_per_node: {per_node}
    driver_version: null
Model-executor:
  framework:
    name: ccl_bench.testing
    version: null
    compiler_tool_selection: plain_pytorch
  model_plan_parallelization:
    dp_replicate: {dp_replicate}
    dp_shard: {dp_shard}
    tp: {tp}
    pp: {pp}
    cp: {cp}
    ep: {ep}
    pp_mb: {microbatch_size}
    microbatches: {microbatches}
    pp_schedule: {schedule}
  communication_library:
    name: NCCL
    version: 2.21.5
    env: {{}}
  protocol_selection:
    - rocev2
    - p2p
metric_source:
  traces:
    - json
  metrics_specific_trace: []
"""


def workload_card(plan: Plan) -> str:
    """Return the workload card of a plan as YAML."""
    return _CARD.format(
        moe=str(plan.experts is not None).lower(),
        steps=plan.steps,
        layers=sum(at_stage(plan.layers, stage) for stage in range(plan.pp)),
        batch_size=plan.global_batch_size,
        seq_len=plan.seq_len,
        device=plan.device.card_name,
        world_size=plan.world_size,
        per_node=min(plan.devices_per_node, plan.world_size),
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        microbatch_size=plan.microbatch_size,
        microbatches=plan.microbatches,
        schedule="1F1B" if plan.pp > 1 else "null",
    )


def run_metadata(plan: Plan) -> str:
    """Return `run_metadata.json`."""
    values = {
        "world_size": plan.world_size,
        "global_batch_size": plan.global_batch_size,
        "seq_len": plan.seq_len,
        "tokens_per_step": plan.tokens_per_step,
        "model_flops_per_token": plan.model_flops_per_token,
        "gpu_peak_tflops": plan.device.peak_tflops,
        "gpu_hbm_bytes": plan.device.memory_bytes,
    }
    return json.dumps(values, indent=2) + "\n"


def moe_assignments(plan: Plan) -> str:
    """Return `moe_assignments.json`: tokens to each expert-parallel device, by layer, for one microbatch."""
    rows = () if plan.experts is None else plan.experts.tokens
    tokens = [sum(column) for column in zip(*rows, strict=True)]
    layers = sum(at_stage(plan.layers, stage) for stage in range(plan.pp))
    values = {"expert_parallel_size": plan.ep, "layers": {str(layer): tokens for layer in range(layers)}}
    return json.dumps(values, indent=2) + "\n"


def write_run(
    plan: Plan,
    directory: Path,
    *,
    style: Style | None = None,
    filler_bytes: int = 0,
    iteration: int | None = None,
    with_moe_assignments: bool = False,
) -> Expected:
    """Write the run that `plan` describes into `directory`, and return the expected numbers.

    Ranks are written one by one and only as the files grow. `filler_bytes` makes each rank's file so
    much larger, `iteration` puts the traces under `profile_trace/iteration_<n>/` as torchtitan does.
    """
    times = timeline(plan)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "workload_card.yaml").write_text(workload_card(plan), encoding="utf-8")
    (directory / "run_metadata.json").write_text(run_metadata(plan), encoding="utf-8")
    if with_moe_assignments:
        (directory / "moe_assignments.json").write_text(moe_assignments(plan), encoding="utf-8")
    for _ in written_ranks(times, directory, style=style, filler_bytes=filler_bytes, iteration=iteration):
        pass
    return Expected(times)


def written_ranks(
    times: Timeline,
    directory: Path,
    *,
    style: Style | None = None,
    filler_bytes: int = 0,
    iteration: int | None = None,
) -> Iterator[Path]:
    """Write the trace of one rank after the other and yield the path of each."""
    style = style or Style()
    for rank in times.plan.present_ranks:
        if rank % style.devices_in_process:
            continue
        path = trace_path(directory, rank, style=style, iteration=iteration)
        write_rank(times, rank, path, style=style, filler_bytes=filler_bytes)
        yield path


def trace_path(
    directory: Path, rank: int, *, style: Style | None = None, iteration: int | None = None
) -> Path:
    """Return the path of a rank's trace in a run that `write_run` writes."""
    folder = directory if iteration is None else directory / "profile_trace" / f"iteration_{iteration}"
    return folder / (style or Style()).name(rank)
