"""Communication calls: each once, in its step, with the name and the arguments that were recorded."""

import math
from collections import Counter

import pytest
from frames import derive, derive_from, table
from plain_json import document
from recorded_runs import content_of


def content(corpus, file):
    return content_of(corpus / "kineto" / file)


def plain(corpus, file):
    return document(corpus / "kineto" / file)["traceEvents"]


def kernel(start, end, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", **more):
    return {"name": name, "start_ns": start, "end_ns": end, "device": 0, "stream": 20, **more}


def mark(number, start, end):
    return {"name": f"ProfilerStep#{number}", "start_ns": start, "end_ns": end, "on_device": False}


def calls(**raw):
    return derive("calls", **{name: table(name, rows) for name, rows in raw.items()})


def test_a_call_belongs_to_the_step_it_starts_in():
    found = calls(
        annotations=[mark(1, 0, 10), mark(2, 10, 20)], kernels=[kernel(9, 15), kernel(15, 16), kernel(30, 31)]
    )
    assert found.select("start_ns", "step").rows() == [(9, 1), (15, 2), (30, None)]


def test_compute_kernels_are_no_calls():
    found = calls(kernels=[kernel(0, 5, "gemm"), kernel(5, 9)])
    assert found.select("start_ns", "collective").rows() == [(5, "all_reduce")]


def test_a_run_that_does_not_communicate_has_no_calls():
    assert calls(kernels=[kernel(0, 5, "gemm")]).height == 0
    assert calls(cpu_ops=[{"name": "relu", "start_ns": 0, "end_ns": 1}]).height == 0
    assert calls().height == 0


@pytest.mark.parametrize("rank", (0, 7))
def test_megatron_made_84_all_reduces_in_its_one_step(corpus, rank):
    found = derive_from(content(corpus, f"megatron-tp8/megatron_kineto_{rank}.json.gz"), "calls")
    assert Counter(found.select("step", "collective").rows()) == {(3, "all_reduce"): 84}


@pytest.mark.parametrize("rank", (0, 7))
def test_dlrm_made_five_exchanges_and_three_all_reduces(corpus, rank):
    file = f"dlrm-8rank/worker{rank}_step_12.pt.trace.json.gz"
    names = Counter(
        "SendRecv" in e["name"]
        for e in plain(corpus, file)
        if e.get("cat") == "kernel" and "nccl" in e["name"]
    )
    assert names == {True: 5, False: 3}
    found = derive_from(content(corpus, file), "calls")
    kinds = Counter("all_reduce" if kind == "all_reduce" else "exchange" for kind in found["collective"])
    assert kinds == {"exchange": 5, "all_reduce": 3}


def test_a_ddp_run_made_seven_all_reduces_in_each_of_three_steps(corpus):
    file = "nccl-args/rank0.nccl_data.json.gz"
    kernels = [e for e in plain(corpus, file) if e.get("cat") == "kernel" and "nccl" in e["name"].lower()]
    assert len(kernels) == 21
    found = derive_from(content(corpus, file), "calls")
    assert found.height == 21
    assert sorted(Counter(found["step"]).values()) == [7, 7, 7]
    expected = sorted(e["args"]["In msg nelems"] for e in kernels)
    described = derive_from(content(corpus, file), "described_calls")
    assert sorted(described["in_elements"]) == expected


@pytest.mark.parametrize("rank", (0, 3))
def test_a_gloo_run_made_the_calls_that_its_operators_record(corpus, rank):
    file = f"gloo-fsdp2-tp2-args/rank{rank}_trace.json.gz"
    events = plain(corpus, file)
    bounds = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")
    ]
    assert len(bounds) == 2
    canonical = {
        "allreduce": "all_reduce",
        "_allgather_base": "all_gather",
        "_reduce_scatter_base": "reduce_scatter",
    }
    operators = [e for e in events if e.get("name") == "record_param_comms"]
    expected = Counter(
        (
            canonical[e["args"]["Collective name"]],
            e["args"]["Process Group Description"],
            e["args"]["Out msg nelems"],
            e["args"]["Seq"],
        )
        for e in operators
    )
    described = derive_from(content(corpus, file), "described_calls")
    found = Counter(described.select("collective", "group_description", "out_elements", "sequence").rows())
    assert found == expected
    in_a_step = sum(any(a <= e["ts"] < b for a, b in bounds) for e in operators)
    placed = derive_from(content(corpus, file), "calls")
    assert placed.height == len(operators) == 76
    assert placed["step"].drop_nulls().len() == in_a_step
    assert Counter(placed["collective"]) == Counter(name for name, *_ in expected.elements())


@pytest.mark.parametrize("rank", (0, 3))
def test_each_gloo_range_got_the_size_of_its_own_operator(corpus, rank):
    """The range records the shape of its input too, which tells whether the right operator was found."""
    file = f"gloo-fsdp2-tp2-args/rank{rank}_trace.json.gz"
    ranges = sorted(
        (e["ts"], e["dur"], math.prod(e["args"]["Input Dims"][0]))
        for e in plain(corpus, file)
        if e.get("name", "").startswith("gloo:")
    )
    described = derive_from(content(corpus, file), "described_calls").sort("start_ns")
    assert described["in_elements"].to_list() == [size for _, _, size in ranges]


def test_communication_without_nccl_in_its_names_is_found(corpus):
    file = "deepseek-dualpipe/train.json.gz"
    moving = [
        e
        for e in plain(corpus, file)
        if e.get("cat") == "kernel" and ("::dispatch<" in e["name"] or "::combine<" in e["name"])
    ]
    found = derive_from(content(corpus, file), "calls")
    assert moving
    assert found.filter(found["collective"] == "all_to_all").height == len(moving)


def messages(rank, *rows):
    """Return sends of one rank of the group (4, 6, 1), given as recorded peer and recorded place."""
    kernels = [kernel(10 * n, 10 * n + 5, "ncclDevKernel_SendRecv", correlation=n) for n in range(len(rows))]
    described = [
        {"source": "kernel", "name": name, "start_ns": 10 * n, "correlation": n, "peer": peer}
        | {"peer_position": place, "group_name": "g", "group_size": 3, "group_ranks": [4, 6, 1]}
        for n, (name, peer, place) in enumerate(rows)
    ]
    found = derive(
        "calls",
        kernels=table("kernels", kernels),
        collectives=table("collectives", described),
        identity=table("identity", [{"rank": rank, "world_size": 8}] if rank is not None else []),
    )
    return found.sort("start_ns").select("peer", "peer_at_place", "peer_position").rows()


def test_a_recorded_peer_is_a_rank_unless_it_is_the_rank_itself_or_no_member():
    rows = [("send", 6, None), ("recv", 4, None), ("send", 1, None), ("send", 2, None), ("send", 0, None)]
    # place 1 has rank 6, place 2 rank 1, place 0 rank 4; the others lie behind the end
    assert messages(1, *rows) == [
        (6, None, None),
        (4, None, None),
        (None, 6, None),
        (None, 1, None),
        (None, 4, None),
    ]


def test_a_recorded_place_is_that_of_a_message_s_other_rank():
    rows = [("send", None, 0), ("recv", None, 2), ("send", 6, -1), ("send", None, -1), ("allreduce", None, 1)]
    assert messages(6, *rows) == [
        (4, 4, None),
        (1, 1, None),
        (None, None, None),
        (None, None, None),
        (None, None, None),
    ]


def test_without_an_own_rank_every_recorded_peer_in_the_group_is_a_rank():
    assert messages(None, ("send", 6, None)) == [(6, None, None)]


def test_what_a_rank_sends_itself_is_at_its_place_among_the_members():
    call = {"name": "all_to_allv", "source": "kernel", "start_ns": 0, "correlation": 1, "dtype": "Float"}
    call |= {"in_elements": 12, "in_split": [1, 2, 3], "out_elements": 14, "out_split": [1, 1, 5]}
    found = derive(
        "calls",
        kernels=table("kernels", [kernel(0, 5, "ncclDevKernel_SendRecv", correlation=1)]),
        collectives=table("collectives", [call | {"group_name": "g", "group_ranks": [9, 4, 6]}]),
        identity=table("identity", [{"rank": 6, "world_size": 12}]),
    )
    # two floats a row: of 6 rows 3 stay here, of 7 rows 5 do; 6 floats go to others and 4 come
    assert found.select("sent_bytes", "received_bytes", "size_bytes").rows() == [(48, 56, 6 * 4)]


def test_an_exchange_without_splits_gives_every_member_the_same_unless_it_is_known_not_to():
    usual = {"source": "kernel", "dtype": "Float", "in_elements": 12, "out_elements": 24}
    group = {"group_name": "g", "group_ranks": [4, 6, 1]}
    splits = {"in_split": [1, 2, 3], "out_split": [3, 3, 6]}
    rows = [
        {"name": "all_to_all"} | group,
        {"name": "all_to_allv", "in_elements": 3} | group,
        {"name": "all_to_all"} | group | splits,
        {"name": "all_to_all", "in_elements": 15} | group | splits | {"out_split": None},
        {"name": "all_to_all", "in_elements": 18} | group | splits | {"in_split": None},
        {"name": "all_to_all", "in_elements": 21} | group | splits | {"in_split": [1, 2]},
        {"name": "all_to_all", "group_name": "?"},  # of unknown members
        {"name": "all_to_all", "group_name": "1", "group_ranks": [4], "in_split": [5], "out_split": [3]},
    ]
    found = derive(
        "exchanges",
        kernels=table(
            "kernels",
            [kernel(9 * n, 9 * n + 5, "ncclDevKernel_SendRecv", correlation=n) for n in range(len(rows))],
        ),
        collectives=table(
            "collectives",
            [usual | row | {"start_ns": 9 * n, "correlation": n} for n, row in enumerate(rows)],
        ),
    )
    # evenly 4 floats go to each and 8 come; by splits 2 floats a row: 2, 4, 6 go and 6, 6, 12 come
    columns = ("position", "calls", "sent_bytes", "received_bytes")
    assert found.select(columns).sort("calls", "position").rows() == [
        (0, 1, 4 * 12, 4 * 24),
        (0, 2, 4 * (4 + 2), 4 * (8 + 6)),
        (1, 2, 4 * (4 + 4), 4 * (8 + 6)),
        (2, 2, 4 * (4 + 6), 4 * (8 + 12)),
    ]


def test_groups_of_one_kind_have_the_same_distances_between_their_ranks():
    def kinds(rank):
        listed = [
            {"name": str(n), "ranks": ranks, "description": "d"}
            for n, ranks in enumerate(([0, 4], [1, 5], [0, 1]))
        ]
        found = derive(
            "listed_groups",
            process_groups=table("process_groups", listed),
            identity=table("identity", [{"rank": rank, "world_size": 8}]),
        )
        return {tuple(ranks): kind for kind, ranks in found.iter_rows()}

    first, second = kinds(0), kinds(1)
    assert [*first] == [(0, 4), (0, 1)]
    assert [*second] == [(1, 5), (0, 1)]
    assert first[0, 4] == second[1, 5] != first[0, 1]


def test_a_range_of_gloo_is_paired_where_operators_of_every_recorded_kind_are_known():
    ranges = [("gloo:all_reduce", 50), ("gloo:broadcast", 60)]
    operators = [("host", "allreduce", 10), ("host", "broadcast", 12), ("op", "c10d::allreduce_", 9)]
    collectives = [
        {"source": s, "name": n, "start_ns": at, "end_ns": at + 20, "thread": 1} for s, n, at in operators
    ]

    def paired(*rows):
        found = derive(
            "described_calls",
            annotations=table(
                "annotations",
                [
                    {"name": n, "start_ns": s, "end_ns": s + 5, "thread": 5, "on_device": False}
                    for n, s in ranges
                ],
            ),
            collectives=table("collectives", rows),
        )
        return found["is_paired"].to_list()

    assert paired(*collectives) == [True, False]
    assert paired(*collectives[:2]) == [True, True]
    assert paired() == [False, False]
