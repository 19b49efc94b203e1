"""The mean time between decode passes and its pieces, in traces of known pieces counted tick by tick."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from serving_files import vllm

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.serving.pass_windows import pass_windows
from ccl_bench.catalog.collective_reference import reference_curve
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result

TICK_US = 100
EPOCH_US = 1_790_000_000_000_000
"""Start of the traces since 1970, us."""
BYTES = 1 << 20

RAMP_UP = ["prefill 4", "decode 4", "prefill 4"]
LEVEL = ["decode 8", "decode 8", "prefill 1", "decode 8", "mixed 8", "decode 8", "decode 8"]
RAMP_DOWN = ["decode 3", "decode 3"]
KERNELS = {"decode": 50, "prefill": 120, "mixed": 80}
TRANSFER, LATE, HOST_IN, HOST_BETWEEN = 6, 22, 4, 32
"""Ticks of a pass: the all-reduce, how much longer rank 1 computes before it, idle in and after a pass."""


@dataclass
class Timeline:
    """One rank, in ticks: work as (start, end, is communication), passes as (name, start, end)."""

    work: list[tuple[int, int, bool]] = field(default_factory=list)
    passes: list[tuple[str, int, int]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def _range_of(name: str) -> str:
    phase, count = name.split()
    return {
        "decode": f"execute_context_0(0)_generation_{count}({count})",
        "prefill": f"execute_context_{count}({count}00)_generation_0(0)",
        "mixed": f"execute_context_1(100)_generation_{int(count) - 1}({int(count) - 1})",
    }[phase]


def _served(plan: list[str], rank: int, *, graphs: bool = False) -> Timeline:
    """Return what one rank of two does: compute, all-reduce, a pause of the host, compute, a pause."""
    line = Timeline()
    at, number = 0, 1
    late = LATE * rank

    def launch(launched: int, start: int, end: int, *, call: int | None = None, shared: int = 0) -> None:
        nonlocal number
        number += not shared
        ids = {"correlation": shared or number, "device": 0, "stream": 7}
        if not shared:
            name = "cudaGraphLaunch" if graphs else "cudaLaunchKernel"
            _event(line, "cuda_runtime", name, launched, launched + 1, ids)
        _event(
            line,
            "kernel",
            "gemm" if call is None else "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
            start,
            end,
            ids | ({} if call is None else _call(call)),
        )
        line.work.append((start, end, call is not None))

    for seq, name in enumerate(plan):
        length = KERNELS[name.split()[0]]
        meet = at + length - 10 + LATE
        begin, arrive = at + 2, at + length - 10 + late
        if graphs:
            launch(at, begin, arrive)
            launch(at, arrive, meet + TRANSFER, call=seq, shared=number)
            launch(at, meet + TRANSFER + HOST_IN, meet + TRANSFER + HOST_IN + 8, shared=number)
        else:
            launch(at, begin, arrive)
            launch(at + 1, arrive, meet + TRANSFER, call=seq)
            launch(meet + TRANSFER + 1, meet + TRANSFER + HOST_IN, meet + TRANSFER + HOST_IN + 8)
        end = meet + TRANSFER + HOST_IN + 8
        _event(line, "user_annotation", _range_of(name), at, meet + TRANSFER + 3)
        line.passes.append((name, begin, end))
        at = end + HOST_BETWEEN - 2
    return line


def _event(line: Timeline, cat: str, name: str, start: int, end: int, args: dict | None = None) -> None:
    place = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": 1, "tid": 1}
    line.events.append(
        {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": EPOCH_US + start * TICK_US,
            "dur": (end - start) * TICK_US,
        }
        | place
        | ({"args": args} if args else {})
    )


def _call(number: int) -> dict[str, Any]:
    return {
        "Collective name": "allreduce",
        "In msg nelems": BYTES // 2,
        "Out msg nelems": BYTES // 2,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Description": "tp",
        "Process Group Ranks": "[0, 1]",
        "Seq": number,
    }


def _write(folder: Path, plan: list[str], **options: bool) -> list[Timeline]:
    lines = [_served(plan, rank, **options) for rank in range(2)]
    group = {"pg_name": "1", "pg_desc": "tp", "pg_size": 2, "ranks": [0, 1]}
    for rank, line in enumerate(lines):
        content = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": [group]},
            "traceEvents": line.events,
        }
        (folder / f"kineto_trace_{rank}.json").write_text(json.dumps(content))
    return lines


def _counted(lines: list[Timeline], first: int, last: int) -> dict[str, float]:
    """Return the pieces of the passes `first` to `last`, tick by tick, s; `period` is the whole."""
    means: dict[str, float] = {}
    for line in lines:
        ticks = dict.fromkeys(("kernels", "transfer", "waiting", "host_in_passes", "host_between_passes"), 0)
        whole = giving = decodes = decode_ticks = 0
        for index in range(first, last + 1):
            name, start, end = line.passes[index]
            until = line.passes[index + 1][1]
            whole += until - start
            giving += not name.startswith("prefill")
            if not name.startswith("decode"):
                continue
            decodes, decode_ticks = decodes + 1, decode_ticks + until - start
            for tick in range(start, until):
                running = [talks for begin, stop, talks in line.work if begin <= tick < stop]
                if False in running:
                    ticks["kernels"] += 1
                elif running:
                    arrived = [
                        next(begin for begin, stop, talks in other.work if talks and stop > tick)
                        for other in lines
                    ]
                    ticks["waiting" if tick < max(arrived) else "transfer"] += 1
                else:
                    ticks["host_in_passes" if tick < end else "host_between_passes"] += 1
        seconds = TICK_US / 1e6 / len(lines)
        for piece, count in ticks.items():
            means[piece] = means.get(piece, 0.0) + count / decodes * seconds
        means["period"] = means.get("period", 0.0) + whole / giving * seconds
        others = whole / giving - decode_ticks / decodes
        means["prefill_of_others"] = means.get("prefill_of_others", 0.0) + others * seconds
    return means


def _measured(folder: Path, name: str = "decode_period") -> Result:
    return evaluate(open_run(folder), [name])[0]


def test_pieces_of_steady_passes_are_those_counted_tick_by_tick(tmp_path: Path) -> None:
    lines = _write(tmp_path, RAMP_UP + LEVEL + RAMP_DOWN)
    result = _measured(tmp_path)
    expected = _counted(lines, len(RAMP_UP), len(RAMP_UP + LEVEL) - 1)
    assert result.value == pytest.approx(expected.pop("period"))
    pieces = result.details["pieces_s"]
    assert {name: time for name, time in pieces.items() if time} == pytest.approx(expected)
    assert sum(pieces.values()) == pytest.approx(result.value)
    # By construction: rank 0 waits 2.2 ms and rank 1 not at all, and each host pauses 0.4 and 3.2 ms.
    assert pieces["waiting"] == pytest.approx(LATE / 2 * 1e-4)
    assert pieces["host_in_passes"] + pieces["host_between_passes"] == pytest.approx(3.6e-3)
    assert result.details["passes"] == {"decode": 10, "mixed": 2, "prefill": 2}
    assert result.details["passes_left_out"] == {"ramp": 8, "between answers": 0}
    assert result.details["requests_in_a_pass"]["min"] == 8
    assert result.details["tokens_in_a_pass"]["max"] == 8
    assert result.details["passes_with_graphs"] == 0
    curve = reference_curve(
        "NVIDIA H100 80GB HBM3", "all_reduce", 2, library="nccl", version="", spans_nodes=None, per_node=None
    )
    speed = result.details["efficiency_pct"]["all_reduce"]
    assert speed == pytest.approx(100 * curve.time_s(BYTES) / (TRANSFER * 1e-4), rel=1e-6)


def test_without_the_other_ranks_communication_is_either(tmp_path: Path) -> None:
    lines = _write(tmp_path, ["decode 8"] * 4)
    (tmp_path / "kineto_trace_1.json").unlink()
    result = _measured(tmp_path)
    pieces = result.details["pieces_s"]
    assert pieces["communication"] == pytest.approx((LATE + TRANSFER) * 1e-4)
    assert pieces["waiting"] == pieces["transfer"] == 0
    assert sum(pieces.values()) == pytest.approx((lines[0].passes[1][1] - lines[0].passes[0][1]) * 1e-4)
    assert "2.8 ms all-reduce, waiting included" in result.details["sentence"]
    assert "all members" in result.details["without_reference"]


def test_a_window_lasts_until_the_next_pass_that_is_no_draft() -> None:
    phases = ["decode", "draft", "decode", "prefill", "decode"]
    starts = [0, 12, 20, 40, 70]
    passes = DERIVED.get("forward_passes").table.frame(
        {
            "start_ns": starts,
            "end_ns": [10, 15, 45, 60, 80],
            "phase": phases,
            "requests": [4, 4, 4, 1, 4],
            "timed_by": ["launches"] * 5,
        }
    )
    windows = pass_windows(passes)
    assert windows.select("start_ns", "end_ns", "device_end_ns", "phase", "state").rows() == [
        (0, 10, 20, "decode", "steady"),
        (20, 40, 40, "decode", "steady"),
        (40, 60, 70, "prefill", "steady"),
    ]


def test_the_verifying_passes_of_a_real_layout_have_the_pieces_of_its_events(corpus: Path) -> None:
    result = _measured(corpus / "cases" / "sglang-specdec" / "run")
    # Passes are 10 ms apart: 2 ms of compute, an all-reduce of 1 ms after 4.4 ms that was launched before,
    # and 2.6 ms without a launch. Two passes of eight are followed by one that prefills, for 10 ms more.
    assert result.value == pytest.approx(12.5e-3)
    pieces = {name: time for name, time in result.details["pieces_s"].items() if time}
    assert pieces == pytest.approx(
        {
            "kernels": 2e-3,
            "transfer": 1e-3,
            "host_between_passes": 2.6e-3,
            "other_idle": 4.4e-3,
            "prefill_of_others": 2.5e-3,
        }
    )


def test_gaps_within_a_replay_of_a_graph_are_not_the_hosts(tmp_path: Path) -> None:
    _write(tmp_path, ["decode 8"] * 5, graphs=True)
    result = _measured(tmp_path)
    pieces = result.details["pieces_s"]
    assert pieces["host_in_passes"] == 0
    assert pieces["gaps_between_kernels"] + pieces["other_idle"] == pytest.approx(HOST_IN * 1e-4)
    assert pieces["host_between_passes"] == pytest.approx(HOST_BETWEEN * 1e-4)
    assert result.details["passes_with_graphs"] == 8


def test_graphs_without_their_kernels_give_no_pieces(tmp_path: Path) -> None:
    line = _served(["decode 8"] * 4, 0, graphs=True)
    kept = [e for e in line.events if e["cat"] != "kernel" or e["args"]["correlation"] < 3]
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": kept}))
    result = _measured(tmp_path)
    assert result.value is None
    assert "launches of CUDA graphs have no kernel" in result.reason
    assert "--cuda-graph-trace=node" in result.fix


def test_a_pause_after_which_all_requests_may_be_new_is_left_out(tmp_path: Path) -> None:
    one_by_one = ["prefill 1", "decode 1", "decode 1", "prefill 1", "decode 1", "decode 1", "decode 1"]
    lines = _write(tmp_path, one_by_one)
    result = _measured(tmp_path)
    assert result.details["passes_left_out"] == {"ramp": 2, "between answers": 4}
    assert result.details["passes"] == {"decode": 6}
    assert result.value == pytest.approx((lines[0].passes[2][1] - lines[0].passes[1][1]) * 1e-4)


@pytest.mark.parametrize(("requests", "left_out"), [(18, 0), (17, 2)])
def test_steady_state_begins_at_nine_tenths_of_the_usual_batch(
    tmp_path: Path, requests: int, left_out: int
) -> None:
    _write(tmp_path, [f"decode {requests}", *["decode 20"] * 4])
    assert _measured(tmp_path).details["passes_left_out"]["ramp"] == left_out


def _client(tpot_s: float, **more: Any) -> dict[str, Any]:
    gaps = [[tpot_s] * 2, [tpot_s], []]
    return vllm(itls=gaps, mean_tpot_ms=1000 * tpot_s, **more)


def test_the_clients_time_per_token_is_divided(tmp_path: Path) -> None:
    lines = _write(tmp_path, LEVEL)
    period = _counted(lines, 0, len(LEVEL) - 2)["period"]
    (tmp_path / "bench.json").write_text(json.dumps(_client(period + 5e-4)))
    result = _measured(tmp_path)
    client = result.details["client"]
    assert client["tpot_s"] == pytest.approx(period + 5e-4)
    assert client["outside_of_passes_s"] == pytest.approx(5e-4)
    assert "unknown" in client["clocks"]
    sentence = result.details["sentence"]
    assert sentence.startswith(f"TPOT {1000 * period + 0.5:.3g} ms: ")
    assert "1.1 ms waiting in all-reduce" in sentence
    assert "3.6 ms host" in sentence
    assert "0.5 ms outside of the passes" in sentence


def test_a_client_that_was_faster_than_the_trace_is_not_divided(tmp_path: Path) -> None:
    lines = _write(tmp_path, ["decode 8"] * 4)
    period = _counted(lines, 0, 2)["period"]
    (tmp_path / "bench.json").write_text(json.dumps(_client(period / 1.03)))
    result = _measured(tmp_path)
    assert "the profiler slowed the server" in result.details["client"]["not_compared"]
    assert [f.code for f in result.findings] == ["traced-passes-slower"]
    (tmp_path / "bench.json").write_text(json.dumps(_client(period / 1.01)))
    assert "divided_s" in _measured(tmp_path).details["client"]


def test_clocks_show_which_part_of_the_benchmark_was_traced(tmp_path: Path) -> None:
    lines = _write(tmp_path, ["decode 8"] * 4)
    period = _counted(lines, 0, 2)["period"]
    since = EPOCH_US / 1e6
    slow = _client(2 * period, start_times=[since - 1, since - 30, since - 20])
    (tmp_path / "bench.json").write_text(json.dumps(slow))
    apart = _measured(tmp_path)
    assert [f.code for f in apart.findings] == ["benchmark-apart"]
    assert "divided_s" not in apart.details["client"]
    # The first request runs while the trace is recorded, and ends 0.1 s and two gaps after it was sent.
    during = _client(2 * period, start_times=[since - 0.05, since - 30, since - 20])
    during["itls"][0] = [1.5 * period, 1.5 * period]
    (tmp_path / "bench.json").write_text(json.dumps(during))
    client = _measured(tmp_path).details["client"]
    assert client["requests_meanwhile"] == 1
    assert client["tpot_meanwhile_s"] == pytest.approx(1.5 * period)
    assert client["trace_from_s"] == pytest.approx(30 + 2e-4, abs=1e-3)
    assert client["outside_of_passes_s"] == pytest.approx(0.5 * period)


def test_what_gives_several_tokens_or_batches_at_a_time_is_not_compared(tmp_path: Path) -> None:
    lines = _write(tmp_path, ["decode 8"] * 4)
    period = _counted(lines, 0, 2)["period"]
    (tmp_path / "bench.json").write_text(json.dumps(_client(2 * period)))
    card = tmp_path / "workload_card.yaml"
    card.write_text("version: 1\nModel-executor:\n  model_plan_parallelization:\n    pp: 2\n")
    assert "2 pipeline stages" in _measured(tmp_path).details["client"]["not_compared"]
    card.unlink()
    for path in tmp_path.glob("kineto_trace_*.json"):
        path.write_text(path.read_text().replace("generation_8(8)", "generation_8(32)"))
    assert "speculative" in _measured(tmp_path).details["client"]["not_compared"]


def test_traces_without_passes_or_with_one_are_refused_with_a_reason(tmp_path: Path) -> None:
    _write(tmp_path, ["decode 8"])
    alone = _measured(tmp_path)
    assert alone.value is None
    assert "followed by another one" in alone.reason
    for path in tmp_path.glob("kineto_trace_*.json"):
        path.write_text(path.read_text().replace("execute_context_", "forward "))
    without = _measured(tmp_path)
    assert "no range in the traces is marked as a prefill or decode pass" in without.reason
    assert without.fix


def test_prefill_alone_has_no_period(tmp_path: Path) -> None:
    _write(tmp_path, ["prefill 1"] * 3)
    assert "there are 6 prefill passes" in _measured(tmp_path).reason
