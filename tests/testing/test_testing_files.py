"""The files as any JSON reader sees them, against the plan they were made from."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from ccl_bench.testing import (
    TORCH_NAME,
    Expected,
    Experts,
    Host,
    Message,
    Plan,
    Style,
    plans,
    timeline,
    trace_path,
    write_run,
)
from ccl_bench.testing.kineto_templates import BASE_NS, ORIGIN_NS

if TYPE_CHECKING:
    from pathlib import Path

STYLES = {
    "compact": Style(),
    "pretty": Style(is_pretty=True),
    "compressed": Style(is_pretty=True, compresses=True),
    "absolute": Style(has_absolute_times=True),
    "by position": Style(has_collective_arguments=False),
    "arrows": Style(has_launch_arrows=True),
    "as torch saves it": Style(file_name=TORCH_NAME),
}
PLAN = Plan(
    dp_shard=2,
    tp=2,
    pp=2,
    ep=2,
    microbatches=2,
    steps=2,
    shard_copy_ns=2_000,
    experts=Experts(((30, 10), (50, 20))),
    gradient_norm=Message(1, 9_000, "Float"),
    clock_offsets_ns={3: -1_234_567},
    node_clock_offsets_ns={1: 5_000_000_001},
    devices_per_node=4,
)


def read(path: Path) -> dict:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text, parse_float=Decimal)


def spans(content: dict, category: str) -> list[dict]:
    return [event for event in content["traceEvents"] if event.get("cat") == category and event["ph"] == "X"]


def start_ns(event: dict) -> int:
    return int(Decimal(event["ts"]) * 1000)


def end_ns(event: dict) -> int:
    return start_ns(event) + int(Decimal(event["dur"]) * 1000)


@pytest.fixture(scope="module", params=STYLES, ids=str)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Expected, list[dict], Style]:
    style, folder = STYLES[request.param], tmp_path_factory.mktemp("run")
    expected = write_run(PLAN, folder, style=style)
    contents = [read(trace_path(folder, rank, style=style)) for rank in range(PLAN.world_size)]
    return expected, contents, style


def test_work_stands_where_the_simulation_put_it(written):
    expected, contents, style = written
    base = ORIGIN_NS + (BASE_NS if style.has_absolute_times else 0)
    for rank, content in enumerate(contents):
        assert content.get("baseTimeNanoseconds", 0) == (0 if style.has_absolute_times else BASE_NS)
        offset = base + PLAN.clock_offset_ns(rank)
        found = Counter(
            (start_ns(event) - offset, end_ns(event) - offset)
            for category in ("kernel", "gpu_memcpy")
            for event in spans(content, category)
        )
        records = [step[rank] for step in expected.timeline.steps]
        assert found == Counter(
            pair for record in records for pair in zip(record.starts, record.ends, strict=True)
        )


def test_steps_stand_where_the_simulation_put_them(written):
    expected, contents, style = written
    base = ORIGIN_NS + (BASE_NS if style.has_absolute_times else 0)
    for rank, content in enumerate(contents):
        steps = {
            e["name"]: e for e in spans(content, "user_annotation") if e["name"].startswith("ProfilerStep")
        }
        assert list(steps) == ["ProfilerStep#1", "ProfilerStep#2"]
        for number in PLAN.step_numbers:
            parts, event = expected.parts(rank, number), steps[f"ProfilerStep#{number}"]
            offset = base + PLAN.clock_offset_ns(rank)
            assert (start_ns(event) - offset, end_ns(event) - offset) == (parts.start_ns, parts.end_ns)


def test_each_piece_of_work_has_its_launch_before_it(written):
    _, contents, _ = written
    for content in contents:
        launches = {event["args"]["correlation"]: event for event in spans(content, "cuda_runtime")}
        work = [*spans(content, "kernel"), *spans(content, "gpu_memcpy")]
        assert len({event["args"]["correlation"] for event in work}) == len(work)
        for event in work:
            assert start_ns(launches[event["args"]["correlation"]]) < start_ns(event)


def test_kernels_on_one_stream_do_not_overlap(written):
    _, contents, _ = written
    for content in contents:
        streams = defaultdict(list)
        for event in spans(content, "kernel"):
            streams[event["tid"]].append((start_ns(event), end_ns(event)))
        for members in streams.values():
            members.sort()
            assert all(one[1] <= other[0] for one, other in itertools.pairwise(members))


def test_ranges_on_one_thread_are_nested(written):
    _, contents, _ = written
    for content in contents:
        threads = defaultdict(list)
        for category in ("cpu_op", "user_annotation", "cuda_runtime"):
            for event in spans(content, category):
                threads[event["tid"]].append((start_ns(event), -end_ns(event)))
        for members in threads.values():
            open_ends: list[int] = []
            for start, minus_end in sorted(members):
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or -minus_end <= open_ends[-1]
                open_ends.append(-minus_end)


def test_backward_operators_are_tied_to_forward_operators(written):
    _, contents, _ = written
    for content in contents:
        arrows = [event for event in content["traceEvents"] if event.get("cat") == "fwdbwd"]
        tails = {event["id"]: event for event in arrows if event["ph"] == "s"}
        heads = {event["id"]: event for event in arrows if event["ph"] == "f"}
        assert tails.keys() == heads.keys()
        assert len(arrows) == 2 * len(tails)
        assert all(start_ns(tails[number]) < start_ns(heads[number]) for number in tails)
        assert {event["tid"] for event in tails.values()}.isdisjoint(event["tid"] for event in heads.values())


def test_calls_carry_the_arguments_of_the_plan(written):
    expected, contents, style = written
    for rank, content in enumerate(contents):
        calls = sorted((e for e in spans(content, "kernel") if "nccl" in e["name"]), key=start_ns)
        known = [call for step in PLAN.step_numbers for call in expected.calls(rank, step)]
        assert len(calls) == len(known)
        assert all(("Collective name" in call["args"]) == style.has_collective_arguments for call in calls)
        if not style.has_collective_arguments:
            continue
        keys = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Name")
        moved = [call.operation.members[rank].moved for call in known]
        assert Counter(tuple(call["args"][key] for key in keys) for call in calls) == Counter(
            (one.recorded, one.in_elements, one.out_elements, one.dtype, call.operation.group)
            for one, call in zip(moved, known, strict=True)
        )


def test_operators_number_the_calls_of_each_group(written):
    _, contents, style = written
    if not style.has_collective_arguments:
        return
    for content in contents:
        recorded = [
            event["args"] for event in spans(content, "cpu_op") if event["name"] == "record_param_comms"
        ]
        groups = defaultdict(list)
        for args in recorded:
            is_message = args["Collective name"] in {"send", "recv"}
            groups[args["Process Group Name"], is_message].append(args["Seq"])
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in groups.values())
        ids = {args["External id"] for args in recorded}
        of_kernels = [e["args"]["External id"] for e in spans(content, "kernel") if "nccl" in e["name"]]
        assert sorted(ids) == sorted(of_kernels)


def test_the_head_says_whose_file_it_is(written):
    expected, contents, _ = written
    for rank, content in enumerate(contents):
        info = content["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (rank, 8, "nccl")
        groups = expected.timeline.mesh.groups_of(rank)
        assert [(g["pg_name"], g["pg_desc"], tuple(g["ranks"])) for g in info["pg_config"]] == [
            (group.name, group.description, group.ranks) for group in groups
        ]
        assert content["deviceProperties"][0]["numSms"] == 108


def test_the_pretty_layout_has_blanks_and_the_compact_one_none(tmp_path: Path):
    for name, style in (("compact", STYLES["compact"]), ("pretty", STYLES["pretty"])):
        write_run(plans.two_ranks(), tmp_path / name, style=style)
    compact = (tmp_path / "compact" / "rank0_trace.json").read_text()
    pretty = (tmp_path / "pretty" / "rank0_trace.json").read_text()
    assert '"rank":0' in compact
    assert "\n" not in compact
    assert '"rank": 0' in pretty
    assert '\n  {\n    "ph": "X", "cat": "kernel", "name": "' in pretty


def test_long_lists_are_cut_as_torch_cuts_them(tmp_path: Path):
    plan = Plan(dp_shard=33, steps=1, layers=1, missing_ranks=frozenset(range(1, 33)))
    write_run(plan, tmp_path)
    kernel = next(e for e in spans(read(trace_path(tmp_path, 0)), "kernel") if "nccl" in e["name"])
    listed = ", ".join(map(str, range(30)))
    assert kernel["args"]["Process Group Ranks"] == f"[{listed}, ...]"


def test_filler_changes_the_size_and_nothing_else(tmp_path: Path):
    plan, style = plans.two_ranks(), Style()
    write_run(plan, tmp_path / "plain", style=style)
    write_run(plan, tmp_path / "large", style=style, filler_bytes=3_000_000)
    plain, large = (trace_path(tmp_path / name, 0) for name in ("plain", "large"))
    grown = large.stat().st_size - plain.stat().st_size
    assert grown == pytest.approx(3_000_000, rel=0.01)
    first, second = read(plain), read(large)
    assert second["traceEvents"][: len(first["traceEvents"])] == first["traceEvents"]
    window = next(event for event in first["traceEvents"] if event.get("cat") == "Trace")
    added = second["traceEvents"][len(first["traceEvents"]) :]
    assert {event["cat"] for event in added} == {"cpu_op"}
    assert start_ns(window) <= min(map(start_ns, added)) <= max(map(end_ns, added)) <= end_ns(window)


def test_missing_ranks_leave_no_file(tmp_path: Path):
    write_run(Plan(dp_shard=4, missing_ranks=frozenset({1, 2})), tmp_path, iteration=40)
    folder = tmp_path / "profile_trace" / "iteration_40"
    assert sorted(path.name for path in folder.iterdir()) == ["rank0_trace.json", "rank3_trace.json"]


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path):
    style = Style(compresses=True)
    for name in ("one", "other"):
        write_run(Plan(dp_shard=2, jitter_ns=900, seed=4), tmp_path / name, style=style)
    one, other = (trace_path(tmp_path / name, 1, style=style).read_bytes() for name in ("one", "other"))
    assert one == other


def test_another_seed_gives_other_times():
    one, other = (timeline(Plan(jitter_ns=900, seed=seed)).steps[0][0].ends for seed in (1, 2))
    assert one != other


def test_a_host_that_costs_nothing_still_launches_first(tmp_path: Path):
    write_run(Plan(tp=2, host=Host(launch_ns=0, latency_ns=0, gap_ns=0)), tmp_path)
    content = read(trace_path(tmp_path, 0))
    launches = {event["args"]["correlation"]: event for event in spans(content, "cuda_runtime")}
    assert all(start_ns(launches[k["args"]["correlation"]]) <= start_ns(k) for k in spans(content, "kernel"))


@pytest.mark.parametrize(
    ("peers", "named"), [("rank", [0, 1, 2, 3]), ("place", [0, 0, 1, 1]), ("operator", [])]
)
def test_the_other_end_of_a_message_is_a_rank_or_a_place(peers: str, named: list[int], tmp_path: Path):
    style = Style(peers=peers)
    write_run(Plan(pp=2, dp_shard=2, steps=1), tmp_path, style=style)
    found, places = set(), set()
    for rank in range(4):
        content = read(trace_path(tmp_path, rank, style=style))
        for event in (*spans(content, "kernel"), *spans(content, "cpu_op")):
            ends = [event["args"][key] for key in ("Src Rank", "Dst Rank") if key in event["args"]]
            found |= {(rank, end) for end in ends}
            if event["args"].get("Collective name") in {"send", "recv"} and "Rank" in event["args"]:
                places.add((rank, event["args"]["Rank"]))
    assert sorted(end for _, end in found) == named
    assert places == {(0, 1), (1, 1), (2, 0), (3, 0)}


def test_ranks_that_number_their_own_groups_use_a_name_for_several(tmp_path: Path):
    style = Style(numbers_own_groups=True)
    write_run(Plan(dp_shard=2, tp=2, steps=1), tmp_path, style=style)
    members = defaultdict(set)
    for rank in range(4):
        for event in spans(read(trace_path(tmp_path, rank, style=style)), "kernel"):
            if "Process Group Name" in event["args"]:
                members[event["args"]["Process Group Name"]].add(event["args"]["Process Group Ranks"])
    assert members == {"1": {"[0, 2]", "[1, 3]"}, "2": {"[0, 1]", "[2, 3]"}}


def test_a_recording_that_begins_late_holds_work_without_its_launch(tmp_path: Path):
    plan = Plan(tp=2, unrecorded_steps=1, host=Host(waits_for_device=False))
    expected = write_run(plan, tmp_path)
    content = read(trace_path(tmp_path, 0))
    launched = {event["args"]["correlation"] for event in spans(content, "cuda_runtime")}
    work = [*spans(content, "kernel"), *spans(content, "gpu_memcpy")]
    backlog = [event for event in work if event["args"]["correlation"] not in launched]
    assert len(backlog) == len(expected.timeline.backlog(0)) > 0
    assert all(event["args"]["correlation"] < min(launched) for event in backlog)
    assert not any("Collective name" in event["args"] for event in backlog)
    assert expected.windows(0)[0][0] > expected.timeline.steps[0][0].host_start_ns


def test_one_process_holds_the_work_of_its_devices_and_steps_once(tmp_path: Path):
    style = Style(devices_in_process=2)
    plan = Plan(dp_shard=4, host=Host(steps_start_together=True))
    write_run(plan, tmp_path, style=style)
    assert sorted(path.name for path in tmp_path.glob("rank*")) == ["rank0_trace.json", "rank2_trace.json"]
    content = read(trace_path(tmp_path, 2, style=style))
    names = [event["name"] for event in spans(content, "user_annotation")]
    assert sum(name.startswith("ProfilerStep") for name in names) == plan.steps
    kernels = spans(content, "kernel")
    assert {event["args"]["device"] for event in kernels} == {2, 3}
    assert len({event["args"]["correlation"] for event in kernels}) == len(kernels)
