"""Completeness of the device's work in a trace: lost kernels, hidden graphs, a missing device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.starting_calls import STARTS_COPY, STARTS_GRAPH, STARTS_KERNEL
from ccl_bench.analysis.device.work import COMMUNICATION, FUSED
from ccl_bench.analysis.names import matching
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.devices import accelerator_backend, operator_pattern
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STRAY = 0.01
"""Share of the busiest device's kernel time below which a device was only touched, as by a stray context.

A process that works on several devices gives each of them more.
"""


def devices_at_work(kernels: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Return the devices that a process worked on, and those that it only touched, each sorted."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    times = kernels.drop_nulls("device").group_by("device").agg(length.alias("ns")).sort("device")
    is_touched = times.select(pl.col("ns") < STRAY * pl.col("ns").max()).to_series()
    return times["device"].filter(~is_touched).to_list(), times["device"].filter(is_touched).to_list()


def on_device(
    tables: Mapping[str, pl.DataFrame], device: int, others: Sequence[int], *, is_first: bool
) -> dict[str, pl.DataFrame]:
    """Return the rows of `kernels`, `memcpy`, `launches` and `counters` of one device, not of the `others`.

    Work on a device that runs no kernel, or on an unknown one, goes with the first one. A call goes with
    the device of its work; one without work goes with every device, for it took the host's time.
    """
    is_other = pl.col("device").is_in(list(others)).fill_null(value=False)
    is_on_device = pl.col("device") == device
    mask = ~is_other if is_first else is_on_device.fill_null(value=False)
    work = [tables[name].filter(~mask)["correlation"].drop_nulls() for name in ("kernels", "memcpy")]
    elsewhere = pl.col("correlation").is_in(pl.concat(work).unique().implode()).fill_null(value=False)
    return {name: table.filter(~elsewhere if name == "launches" else mask) for name, table in tables.items()}


@derived(
    reads={"kernels": ("device",)},
    device=("Int64", "device number; null if kernels do not say"),
)
def device_used(kernels: pl.DataFrame) -> pl.DataFrame:
    """One trace with kernels: the device that its numbers are of; each device of a process has its own."""
    if kernels.is_empty():
        return DERIVED.get("device_used").table.empty()
    return kernels.select(pl.col("device").drop_nulls().mode().min())


FEW = 0.01
"""Share of launches that may lack their work without a warning: calls that fail start none."""

MANY = 0.1
"""Share of kernel launches without a kernel from which numbers of the device are refused, as too wrong."""


@derived(
    reads={
        **dict.fromkeys(("kernels", "memcpy", "launches"), ("start_ns",)),
        "cpu_ops": ("name",),
    },
    calls=("Int64", "pieces of work that are recognised as communication"),
    groups=("Int64", "process groups that the process knew, and calls that its CPU began, MPI's left out"),
    launching_operators=("Int64", "operators and ranges of communication that launched kernels"),
    silent_operators=("Int64", "of them, those without a kernel that counts as communication"),
    silent_kernel=("String", "the first kernel that one of those launched; null if there is none"),
    kernels=("Int64", "kernels"),
    copies=("Int64", "copies and memory sets"),
    runtime_calls=("Int64", "calls of the device's runtime or driver"),
    devices_seen=("Int64", "devices that the recording process saw"),
    backend=("String", "collective backend of accelerators that its groups use; null without one"),
    device_operators=("Int64", "operators that only run on an accelerator"),
    kernel_launches=("Int64", "calls in steps that launch a kernel, while no graph is captured"),
    lost_kernels=("Int64", "of them, without any work in the trace"),
    graph_launches=("Int64", "calls in steps that launch a graph"),
    hidden_graphs=("Int64", "of them, without any work in the trace"),
    copy_calls=("Int64", "calls in steps that copy"),
    lost_copies=("Int64", "of them, without any work in the trace"),
    queued=("Int64", "calls whose work was still queued when the recording ended, and is in no step"),
)
def completeness(
    steps: pl.DataFrame,
    starting_calls: pl.DataFrame,
    work: pl.DataFrame,
    device_work: pl.DataFrame,
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    devices: pl.DataFrame,
    collectives: pl.DataFrame,
    process_groups: pl.DataFrame,
) -> pl.DataFrame:
    """One trace: what shows that it is of a device, and which launches in its steps have no work."""
    in_steps = pl.lit(value=True)
    if steps.height:
        # What is launched after the last step is part of no number.
        in_steps = pl.col("start_ns").is_between(
            steps["start_ns"].min(), steps["end_ns"].max(), closed="left"
        )
    # A whole trace is the step of all that it queued, which its numbers lack.
    are_marked = steps.height > 0 and steps["source"][0] != WHOLE_TRACE
    is_queued = pl.col("is_behind") & (pl.lit(not are_marked) | ~in_steps)
    calls = starting_calls.filter(in_steps, ~is_queued)
    counts: dict[str, list[int]] = {}
    for kind, (total, lost) in _COUNTED.items():
        is_of_kind = calls["kind"] == kind
        counts |= {total: [int(is_of_kind.sum())], lost: [int((is_of_kind & ~calls["has_work"]).sum())]}
    silent: pl.Series = pl.Series(dtype=pl.String)
    operators = 0
    if device_work.height:
        each = (
            device_work.filter("is_kernel", pl.col("operator").is_not_null())
            .group_by("thread", "operator_ns", maintain_order=True)
            .agg(pl.col("kind").is_in([COMMUNICATION, FUSED]).any(), pl.col("name").first().cast(pl.String))
        )
        operators, silent = each.height, each.filter(~pl.col("kind"))["name"]
    backends = filter(None, map(accelerator_backend, process_groups["backend"].drop_nulls()))
    return DERIVED.get("completeness").table.frame(
        {
            "calls": [int(((work["kind"] == COMMUNICATION) | (work["kind"] == FUSED)).sum())],
            "groups": [process_groups.height + int((collectives["source"] != "mpi").sum())],
            "launching_operators": [operators],
            "silent_operators": [silent.len()],
            "silent_kernel": [silent[0] if silent.len() else None],
            "kernels": [kernels.height],
            "copies": [memcpy.height],
            "runtime_calls": [launches.height],
            "devices_seen": [devices.height],
            "backend": [next(backends, None)],
            "device_operators": [int(matching(cpu_ops["name"], operator_pattern()).sum())],
            **counts,
            "queued": [starting_calls.filter(is_queued).height],
        }
    )


_COUNTED = {
    STARTS_KERNEL: ("kernel_launches", "lost_kernels"),
    STARTS_GRAPH: ("graph_launches", "hidden_graphs"),
    STARTS_COPY: ("copy_calls", "lost_copies"),
}
"""Kind of call → the columns with their number, and with that of those whose work is lost."""


class Subject(NamedTuple):
    """The trace that a finding is about."""

    file: str
    rank: int | None


def lost_work(row: Mapping[str, Any], of: Subject) -> Iterator[Finding]:
    """Yield findings about lost device work of a trace, from its row of `completeness`."""
    if not row["kernels"]:
        return
    if queued := row["queued"]:
        message = (
            f"the recording ended before the work of {queued:,} launches and copies had run: numbers are of "
            "the time before"
        )
        yield _finding("window-ended", "note", message, queued, of, ("kernels", "memcpy"))
    hidden, graphs = row["hidden_graphs"], row["graph_launches"]
    if hidden > FEW * graphs:
        message = (
            f"{hidden} of {graphs} launches of CUDA graphs have no kernel in the trace: busy, idle, overlap "
            "and every count and time of kernels are wrong"
        )
        yield _finding("cuda-graphs-hide-kernels", "error", message, hidden, of, ("kernels", "memcpy"))
    lost, launched = row["lost_kernels"], row["kernel_launches"]
    if lost:
        share = f"{lost:,} of {launched:,} kernel launches in steps ({100 * lost / launched:.1f} %)"
        if lost > MANY * launched:
            message = f"{share} have no kernel in the trace: every number of the device is too low"
            yield _finding("kernels-lost", "error", message, lost, of, ("kernels", "memcpy"))
        else:
            message = f"{share} have no kernel in the trace: numbers of the device are too low by this share"
            severity = "warning" if lost > FEW * launched else "note"
            yield _finding("kernels-missing", severity, message, lost, of, ("kernels",))
    silent, operators = row["silent_operators"], row["launching_operators"]
    if silent > FEW * operators:
        message = (
            f"{silent} of {operators} communication operators launched kernels that are not recognised as "
            f"communication, such as {row['silent_kernel']}: their time counts as compute"
        )
        yield _finding("kernels-unclassified", "warning", message, silent, of, ("device_work",))
    lost, called = row["lost_copies"], row["copy_calls"]
    if lost:
        share = f"{lost:,} of {called:,} copy calls in steps ({100 * lost / called:.1f} %)"
        message = f"{share} have no copy in the trace: numbers of copies are too low by this share"
        severity = "warning" if lost > FEW * called else "note"
        yield _finding("copies-missing", severity, message, lost, of, ("memcpy",))


def _finding(
    code: str, severity: str, message: str, count: int, of: Subject, touches: tuple[str, ...]
) -> Finding:
    return Finding(code, severity, message, of.file, of.rank, count, touches)


def sign_of_device(row: Mapping[str, int | str | None], backend: str) -> str:
    """Return the evidence that a trace without kernels is of a device; empty if there is none.

    `row` is its row of `completeness`, `backend` what the file says of the job's collective backend.
    """
    used_backend = row["backend"] or accelerator_backend(backend)
    signs = (
        (row["copies"], f"{row['copies']} copies or memory sets of a device"),
        (row["kernel_launches"], f"{row['kernel_launches']} launches of kernels"),
        (row["runtime_calls"], f"{row['runtime_calls']} calls of a device's runtime"),
        (used_backend, f"the collective backend {used_backend}"),
        (row["device_operators"], f"{row['device_operators']} operators that only run on an accelerator"),
        (row["devices_seen"], f"{row['devices_seen']} devices that the process saw"),
    )
    return next((text for sign, text in signs if sign), "")
