"""The sets of real Kineto traces that numbers are compared on, and what ccl_bench says of them."""

import os
from functools import cache
from pathlib import Path

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import Result
from ccl_bench.run import open_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"

ON_DEVICE = ("megatron-tp8", "nccl-args", "dlrm-8rank", "deepseek-dualpipe")
ON_CPU = ("llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo")
ALL = (*ON_DEVICE, *ON_CPU)

METRICS = (
    "coll_call_num",
    "coll_call_num_16",
    "iteration_wall_clock_time",
    "iter_time_16",
    "throughput_tokens_sec",
    "throughput_tokens_16",
    "comm_comp_overlap",
    "comm_comp_overlap_16",
    "gpu_busy",
    "gpu_idle",
    "sm",
    "mfu",
    "training_quality",
    "training_quality_16",
)


def folder_of(name: str) -> Path:
    """Return the folder of a set, or skip the test where the corpus is not at hand."""
    if (EXAMPLES / name).is_dir():
        return EXAMPLES / name
    corpus = os.environ.get("CCL_BENCH_CORPUS")
    if not corpus:
        pytest.skip("set CCL_BENCH_CORPUS to the folder of real traces")
    return Path(corpus) / "kineto" / name


@cache
def results(folder: Path) -> dict[str, Result]:
    """Return what ccl_bench says of a folder, by metric."""
    found = evaluate(open_run(folder), METRICS, use_cache=False, jobs=1)
    return {result.metric: result for result in found}


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)
