"""The fix of every refusal, walked over recorded runs: the run's own facts must not contradict it."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccl_bench import metrics
from ccl_bench.evaluate.inspect import inspect
from ccl_bench.run import open_run
from ccl_bench.side_files import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.result.inspection import InspectedMetric, Inspection

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "runs"
OF_CORPUS = (
    *("cases/aiperf-nostream", "cases/cuda-graph-streams", "cases/kernels-lost", "cases/vllm-append"),
    *("cases/torchtune-r0", "conclusions/gloo-gc", "conclusions/resnet-loader", "execution_trace/dlrm-8rank"),
    *("flight-recorder/ok", "injected-pp/train-pp4-dp2", "kineto/deepseek-dualpipe", "kineto/dlrm-8rank"),
    *("kineto/nccl-args", "nsys/cuda-graphs", "nsys/two-gpu-sendrecv", "serving/genai-bench"),
    *("serving/vllm-tp8", "xplane/mi300-conv", "xplane/tpu-v6e-4of8"),
)


def _has(*facts: str) -> Callable[[Inspection], bool]:
    """Return whether a run states any of these facts."""
    return lambda run: any(fact in run.facts for fact in facts)


def _reads(kind: kinds.SideFile) -> Callable[[Inspection], bool]:
    return lambda run: any(kind.name in (read, name) for name, read in run.files.items())


def _is_complete(run: Inspection) -> bool:
    return bool(run.world_size) and not run.missing_ranks and all(t.is_readable for t in run.traces)


def _is_marked(run: Inspection) -> bool:
    """Whether torch.profiler recorded the run with its steps."""
    return any(trace.format == "kineto" and trace.steps for trace in run.traces)


def _names_groups(run: Inspection) -> bool:
    used = [group for group in run.groups if group.users]
    return bool(used) and all(group.ranks and group.dimension != "unknown" for group in used)


CONTRADICTED = {
    r"(give|collect|record)[a-z ]* traces of all": _is_complete,
    r"write (total_count|world_size)": _has("world_size"),
    r"pipeline-parallel degree pp": _has("pp"),
    r"state the parallel degrees": _has("tp", "pp", "dp_shard", "dp_replicate", "cp", "ep"),
    r"write phase": _has("phase"),
    r"write the precision": _has("precision"),
    r"write tokens_per_step": _has("tokens_per_step"),
    r"^record the run with torch\.profiler over a few steps": _is_marked,
    r"record Kineto traces": lambda run: any(trace.format == "kineto" for trace in run.traces),
    r"put the result of a serving benchmark": lambda run: any("requests" in k for k in run.files.values()),
    r"write training_metrics": _reads(kinds.TRAINING_METRICS),
    r"memory_stats\.json": _reads(kinds.MEMORY_STATS),
    r"calls? (name|list)s? (their|the members)": _names_groups,
    r"leave out --profile-mode": lambda run: any(m.status == "ok" for m in run.metrics if m.metric == "sm"),
}
"""Pattern of a fix → whether the facts of a run contradict it: nothing that is there is asked for."""


@cache
def _inspected(place: Path, mode: str = "auto") -> Inspection:
    return inspect(open_run(place, profile_mode=mode), jobs=1)


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Inspection]:
    """Return inspections of runs of each format, of the examples, and of examples without some files."""
    bare = tmp_path_factory.mktemp("bare")
    for name in ("llama-tiny-fsdp2-tp2-gloo", "llama-tiny-pp4-gloo"):
        (bare / name).mkdir()
        for file in (EXAMPLES / name).glob("kineto_*"):
            shutil.copy(file, bare / name)
    pipeline = bare / "carded"
    shutil.copytree(bare / "llama-tiny-pp4-gloo", pipeline)
    shutil.copy(EXAMPLES / "llama-tiny-pp4-gloo" / "workload_card.yaml", pipeline)
    recorded = [_inspected(corpus / name) for name in OF_CORPUS if (corpus / name).exists()]
    ours = [_inspected(place) for place in (*sorted(EXAMPLES.iterdir()), *sorted(bare.iterdir()))]
    return [*recorded, *ours, _inspected(EXAMPLES / "llama-tiny-pp4-gloo", "nsys")]


def _refused(run: Inspection) -> list[InspectedMetric]:
    return [metric for metric in run.metrics if metric.status != "ok"]


def test_no_fix_asks_for_what_the_run_has(runs: list[Inspection]) -> None:
    wrong = [
        (run.run, metric.metric, metric.reason, metric.fix)
        for run in runs
        for metric in _refused(run)
        for pattern, is_contradicted in CONTRADICTED.items()
        if re.search(pattern, metric.fix) and is_contradicted(run)
    ]
    assert wrong == []


def test_a_fix_that_leads_to_another_metric_names_one_with_a_value(runs: list[Inspection]) -> None:
    names = "|".join(map(re.escape, metrics.load().names()))
    for run in runs:
        valued = {metric.metric for metric in run.metrics if metric.status == "ok"}
        for metric in _refused(run):
            named = re.findall(rf"^(?:look at .*: )?({names})\b", metric.fix)
            assert {*named} <= valued, (run.run, metric.metric, metric.fix)


def test_every_pattern_of_a_contradiction_meets_a_fix(runs: list[Inspection]) -> None:
    fixes = {metric.fix for run in runs for metric in _refused(run)}
    assert [p for p in CONTRADICTED if not any(re.search(p, fix) for fix in fixes)] == []


def _reasons() -> dict[str, str]:
    """Return every reason in the source of the metrics → a pattern of it."""
    found = {}
    for file in sorted((ROOT / "src" / "ccl_bench" / "metrics").rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
                continue
            message = call.args[0]
            if call.func.id not in {"NotMeasurable", "NotApplicable"}:
                continue
            if isinstance(message, ast.Constant):
                found[str(message.value)] = re.escape(str(message.value))
            elif isinstance(message, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else None for p in message.values]
                text = "".join("…" if part is None else str(part) for part in parts)
                found[text] = "".join(".+" if part is None else re.escape(str(part)) for part in parts)
    return found


def test_reasons_that_no_run_shows_are_listed(runs: list[Inspection]) -> None:
    reasons = {metric.reason for run in runs for metric in _refused(run)}
    unseen = {
        text
        for text, pattern in _reasons().items()
        if not any(re.fullmatch(pattern, reason, re.DOTALL) for reason in reasons)
    }
    listed = (Path(__file__).parent / "reasons_of_no_run.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(unseen) == [line for line in listed if not line.startswith("#")]
