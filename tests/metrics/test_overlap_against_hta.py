"""Overlap beside HolisticTraceAnalysis 0.5.0: its definition counted in plain Python, and its figures.

The figures are those that `TraceAnalysis.get_comm_comp_overlap` of HolisticTraceAnalysis 0.5.0 (pandas 2.2.3)
printed for these files; docs/hta-overlap.md says how to repeat that.
"""

import math
import re

import pytest
from kineto_sets import folder_of, mean, results
from plain_json import document
from plain_timeline import Interval, profiler_steps, time_by_state, together

HTA_PCT = {
    "megatron-tp8": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "dlrm-8rank": [4.50, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51],
    "nccl-args": [14.31],
}
HTA_WITH_LAST_STEP_PCT = 15.14
"""`nccl-args` again, loaded with include_last_profiler_step=True."""

COMMUNICATION = re.compile(r"^nccl.*Kernel")
NO_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
"""hta/utils/utils.py: is_comm_kernel and is_compute_kernel."""


def whole_microseconds(event: dict) -> Interval:
    """Return the span of an event as HTA cuts it: start rounded up, end rounded down, to microseconds."""
    return math.ceil(event["ts"]), math.floor(event["ts"] + event["dur"])


def exactly(event: dict) -> Interval:
    """Return the span of an event as recorded, ns."""
    return int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)


def overlap_as_hta_defines_it(path, span=whole_microseconds, *, drop_last_step: bool = True) -> float:
    """Return the share of communication under compute over the whole trace, %.

    With two steps or more, only kernels count whose launch starts before the last step (or,
    with it, before the trace's steps end).
    """
    events = [e for e in document(path)["traceEvents"] if e.get("ph") == "X"]
    kernels = [e for e in events if e["cat"] == "kernel"]
    steps = profiler_steps(events)
    if len(steps) > 1:
        until = steps[-1][1] if drop_last_step else steps[-1][2] + 1
        launched = {
            e["args"]["correlation"]
            for e in events
            if e["cat"] in ("cuda_runtime", "cuda_driver") and int(e["ts"] * 1000) < until
        }
        kernels = [e for e in kernels if e["args"]["correlation"] in launched]
    communication = [span(e) for e in kernels if COMMUNICATION.match(e["name"])]
    compute = [span(e) for e in kernels if not NO_COMPUTE.match(e["name"])]
    everything = [*communication, *compute]
    window = (min(start for start, _ in everything), max(end for _, end in everything))
    lengths = time_by_state(window, communication=communication, compute=compute)
    return 100 * together(lengths, "communication", "compute") / together(lengths, "communication")


@pytest.mark.parametrize("name", HTA_PCT)
def test_its_definition_counted_in_plain_python_gives_the_figures_it_printed(name: str):
    by_rank = sorted(
        (document(path)["distributedInfo"]["rank"], overlap_as_hta_defines_it(path))
        for path in folder_of(name).glob("*.json.gz")
    )

    assert [round(share, 2) for _, share in by_rank] == HTA_PCT[name]


def test_with_the_last_step_its_definition_gives_the_figure_it_printed():
    (path,) = folder_of("nccl-args").glob("*.json.gz")

    assert round(overlap_as_hta_defines_it(path, drop_last_step=False), 2) == HTA_WITH_LAST_STEP_PCT


@pytest.mark.parametrize("name", ["megatron-tp8", "dlrm-8rank"])
def test_one_step_in_whole_microseconds_gives_the_same_in_both(name: str):
    ours = results(folder_of(name))["comm_comp_overlap"]

    assert [round(share, 2) for share in ours.details["per_rank_pct"].values()] == HTA_PCT[name]
    assert ours.value == pytest.approx(mean(HTA_PCT[name]), abs=0.005)


def test_several_steps_differ_by_the_dropped_step_and_the_rounding_and_nothing_else():
    (path,) = folder_of("nccl-args").glob("*.json.gz")
    ours = results(folder_of("nccl-args"))["comm_comp_overlap"].value

    assert round(overlap_as_hta_defines_it(path), 2) == 14.31
    assert round(overlap_as_hta_defines_it(path, drop_last_step=False), 2) == 15.14
    assert overlap_as_hta_defines_it(path, exactly, drop_last_step=False) == pytest.approx(ours, rel=1e-12)
    assert round(ours, 2) == 15.61
