"""Phases of recorded runs against an attribution in plain Python."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from local_plain import Event, Interval, Trace, clip, interval, length, ns, trace_of, union
from recorded_runs import tables_of

EVALUATE = "autograd::engine::evaluate_function: "


def _marks(trace: Trace) -> dict[int, list[tuple[Interval, str]]]:
    """Return, by thread, the ranges and operators that say which phase they are."""
    found: dict[int, list[tuple[Interval, str]]] = {}
    for event in trace.of("cpu_op", "user_annotation"):
        name = event["name"]
        if name.startswith(EVALUATE):
            mark = "accumulate" if "AccumulateGrad" in name else "backward"
        elif name.startswith(("torch::distributed::reducer::", "torch.distributed.ddp.reducer::")):
            mark = "reduce"
        elif name.startswith("Optimizer.step#") or name == "## optimizer ##":
            mark = "optimizer"
        elif name == "## backward ##" or name.endswith(("(B)", "(W)")):
            mark = "backward"
        elif name in ("## forward ##", "DistributedDataParallel.forward") or name.endswith("(F)"):
            mark = "forward"
        elif name.startswith(("Optimizer.zero_grad#", "enumerate(DataLoader)#")):
            mark = "aside"
        else:
            continue
        found.setdefault(event["tid"], []).append((interval(event), mark))
    return found


def _plain_phase(
    event: Event, trace: Trace, marks: dict[int, list[tuple[Interval, str]]], program: int
) -> str:
    call = trace.launches.get(event["args"]["correlation"])
    if call is None:
        return "unattributed"
    at, thread = ns(call["ts"]), call["tid"]
    around = sorted((span[0], mark) for span, mark in marks.get(thread, []) if span[0] <= at < span[1])
    inside = {mark for _, mark in around}
    is_call = _communicates(event)
    in_backward = inside & {"backward", "accumulate"} or (thread != program and thread in marks)
    if "reduce" in inside or (is_call and "accumulate" in inside):
        return "gradient_communication"
    if "optimizer" in inside:
        return "optimizer"
    if in_backward:
        return "gradient_accumulation" if "accumulate" in inside else "backward"
    if "aside" in inside and "forward" not in inside:
        return "other"
    if "forward" in inside:
        return "forward"
    for _, (start, end), _ in trace.steps:
        if start <= at < end:
            own = [(span, mark) for spans in marks.values() for span, mark in spans if start <= span[0] < end]
            ends = [span[1] for span, mark in own if mark in ("backward", "accumulate")]
            begins = [span[0] for span, mark in own if mark == "optimizer"]
            return "forward" if at < (max(ends) if ends else min(begins, default=end)) else "other"
    return "other"


@pytest.mark.parametrize("run", ["nccl-args", "deepseek-dualpipe", "dlrm-8rank"])
def test_phases_of_recorded_runs_equal_a_plain_attribution(corpus: Path, run: str) -> None:
    rows = tables_of(corpus / "kineto" / run)["phases"]
    for rank, path in enumerate(sorted((corpus / "kineto" / run).glob("*.gz"))):
        trace = trace_of(path)
        marks = _marks(trace)
        program = next(e["tid"] for e in trace.of("user_annotation") if e["name"].startswith("ProfilerStep"))
        spans: dict[str, list[Interval]] = {}
        for event in trace.work:
            if not _communicates(event):
                spans.setdefault(_plain_phase(event, trace, marks, program), []).append(interval(event))
        expected = Counter(
            {
                (number, phase): length(union(clip(parts, window)))
                for number, _, window in trace.steps
                for phase, parts in spans.items()
            }
        )
        own = rows.filter(pl.col("rank") == rank)
        found = {
            (number, phase): time
            for number, phase, time in own.select("step", "phase", "time_ns").iter_rows()
        }
        assert {key: time for key, time in found.items() if time} == {k: t for k, t in expected.items() if t}


def _communicates(event: Event) -> bool:
    name = event["name"]
    return name.startswith("nccl") or ("::ep::internode::" in name and "layout" not in name)


def test_no_time_of_a_step_is_lost_between_phases(corpus: Path) -> None:
    for run in ("nccl-args", "deepseek-dualpipe", "gloo-fsdp2-tp2-args"):
        counts = tables_of(corpus / "kineto" / run)["phases"]["count"].sum()
        work = tables_of(corpus / "kineto" / run)["origins"]
        assert counts == work.filter(pl.col("kind") != "communication").height


def test_work_launched_before_the_recording_has_no_phase(corpus: Path) -> None:
    """On two ranks 64 kernels were launched before; beside them ran the first copy of the step on one."""
    found = tables_of(corpus / "kineto" / "dlrm-8rank")
    work = found["origins"].filter(pl.col("kind") != "communication")
    assert work["launch_ns"].null_count() == 2 * 64
    assert found["phases"]["count"].sum() == work.height - 2 * 64 - 1
