"""What both recordings share: timed steps without the profiler, profiled steps, and the files of a run."""

import gzip
import json
import math
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch.distributed as dist
from llama import Config, Llama
from torch.profiler import ProfilerActivity, profile, schedule

WARM_UP, TIMED = 3, 10


class Plan(NamedTuple):
    """How a run is spread over its ranks and fed."""

    title: str
    framework: str
    global_batch: int
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    microbatches: int = 1
    schedule: str | None = None
    profiled: int = 3


def record(step: Callable[[int], float], config: Config, plan: Plan, out: Path) -> None:
    """Run `step(i) -> loss` to warm up, to time and to profile; leave a complete run directory in `out`."""
    rank, losses, seconds = dist.get_rank(), [], []
    for i in range(WARM_UP + TIMED):
        start = time.perf_counter()
        losses.append(step(i))
        seconds.append(round(time.perf_counter() - start, 9))

    out.mkdir(parents=True, exist_ok=True)
    trace = Path(f"kineto_trace_{rank}.json")

    def export(profiler: profile) -> None:
        # Kineto writes the path it is given into the trace, so the path stays free of directories, and the
        # name of the machine, which is nobody's business.
        profiler.export_chrome_trace(trace.name)
        content = re.sub(rb'"host_name": "[^"]*"', b'"host_name": "localhost"', trace.read_bytes())
        trace.unlink()
        with (out / f"{trace}.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            packed.write(content)

    phases = schedule(wait=1, warmup=1, active=plan.profiled, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=phases, on_trace_ready=export, record_shapes=True
    ) as profiler:
        for i in range(1 + 1 + plan.profiled):
            losses.append(step(WARM_UP + TIMED + i))
            profiler.step()

    everyone: list[tuple[list[float], list[float]]] = [([], [])] * dist.get_world_size()
    # Only steps after warm-up and without the profiler: those are the ones that tell the run's speed.
    dist.all_gather_object(everyone, (seconds[WARM_UP:], losses))
    if rank == 0:
        write_json(out / "step_times_per_rank.json", {str(r): times for r, (times, _) in enumerate(everyone)})
        # Only the ranks that computed a loss have one: the pipeline stages before the last have NaN.
        computed = [column for _, column in everyone if not math.isnan(column[0])]
        mean = [fmean(column) for column in zip(*computed, strict=True)]
        write_json(out / "training_metrics.json", {"step": list(range(len(mean))), "loss": mean})
        describe(config, plan, out, len(mean))


def describe(config: Config, plan: Plan, out: Path, steps: int) -> None:
    """Write `run_metadata.json` and the workload card."""
    parameters = sum(p.numel() for p in Llama(config, range(config.layers)).parameters())
    embedding = config.vocab * config.dim
    attention = 12 * config.layers * config.head_dim * config.heads * config.seq_len
    metadata = {
        "world_size": dist.get_world_size(),
        "global_batch_size": plan.global_batch,
        "seq_len": config.seq_len,
        "tokens_per_step": plan.global_batch * config.seq_len,
        "model_flops_per_token": 6 * (parameters - embedding) + attention,  # PaLM, appendix B
    }
    write_json(out / "run_metadata.json", metadata)
    facts = {
        **vars(config),
        **plan._asdict(),
        **metadata,
        "parameters": parameters,
        "embedding": embedding,
        "hidden": config.dim,
        "steps": steps,
        "micro_batch": plan.global_batch // plan.dp_shard // plan.microbatches,
        "schedule": plan.schedule or "null",
        "torch": version("torch"),
    }
    template = Path(__file__).with_name("workload_card.template.yaml").read_text()
    (out / "workload_card.yaml").write_text(template.format_map(facts))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` with a line per key."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
