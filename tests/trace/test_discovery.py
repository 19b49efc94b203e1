"""What lies in a run directory: recognised by content, each real file once, ranks from the best source."""

import gzip
import json
import os

import pytest
from writing import bare, compact, event, kernel, pretty

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import open_run
from ccl_bench.trace import discovery, file_names


def trace(rank=None, name="op", size=1):
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return compact([event("cpu_op", f"{name}{n}", n) for n in range(size)], **info)


def put(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def relatives(found):
    return [t.relative for t in found.traces]


def codes(found):
    return [finding.code for finding in found.findings]


@pytest.mark.parametrize(
    "data",
    [trace(), gzip.compress(trace()), pretty([kernel()]), bare([kernel()]), bare([kernel()], closed=False)],
)
@pytest.mark.parametrize("name", ["kineto_trace_0.json", "x.pt.trace.json.gz", "whatever.json"])
def test_a_trace_is_known_by_its_content(tmp_path, data, name):
    found = discovery.discover_traces(put(tmp_path, {name: data}))
    assert relatives(found) == [name]
    assert found.traces[0].form.name == "kineto"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1, 2]",
        b'{"schema": "1.0.1", "nodes": []}',
        b"\x00\xff" * 99,
        b'[{"step": 1}]',
        b"\x1f\x8b",
    ],
)
def test_other_json_is_no_trace_whatever_its_name(tmp_path, data):
    found = discovery.discover_traces(put(tmp_path, {"kineto_trace_0.json": data}))
    assert relatives(found) == []
    assert found.others == [tmp_path / "kineto_trace_0.json"]


def test_a_single_file_is_a_run_of_one(tmp_path):
    put(tmp_path, {"a/rank3_trace.json": trace(size=1), "a/rank4_trace.json": trace(size=2)})
    (one,) = discovery.discover_traces(tmp_path / "a" / "rank3_trace.json").traces
    assert (one.relative, one.rank, one.rank_source) == ("rank3_trace.json", 3, "name")


def test_a_place_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        discovery.discover_traces(tmp_path / "nowhere")


def test_an_empty_directory_holds_nothing(tmp_path):
    found = discovery.discover_traces(tmp_path)
    assert (found.traces, found.others, found.findings) == ([], [], [])


def test_files_and_folders_that_are_hidden_are_passed_over(tmp_path):
    put(
        tmp_path,
        {".a.json": trace(), ".git/b.json": trace(), "__pycache__/c.json": trace(), "d.json": trace()},
    )
    assert relatives(discovery.discover_traces(tmp_path)) == ["d.json"]


def test_a_directory_named_like_a_trace_is_a_directory(tmp_path):
    put(tmp_path, {"x.json/rank1.json": trace()})
    assert relatives(discovery.discover_traces(tmp_path)) == ["x.json/rank1.json"]


def test_a_pipe_named_like_a_trace_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    assert relatives(discovery.discover_traces(put(tmp_path, {"y.json": trace()}))) == ["y.json"]


def test_a_link_to_nothing_is_reported(tmp_path):
    (tmp_path / "rank0.json").symlink_to(tmp_path / "gone.json")
    found = discovery.discover_traces(tmp_path)
    assert [(f.code, f.file) for f in found.findings] == [("file-unreadable", "rank0.json")]


# Links.


def test_a_link_to_a_file_already_found_is_the_same_file(tmp_path):
    put(tmp_path, {"b/rank0.json": trace()})
    (tmp_path / "a.json").symlink_to(tmp_path / "b" / "rank0.json")
    found = discovery.discover_traces(tmp_path)
    assert (relatives(found), found.findings) == (["b/rank0.json"], [])


def test_a_link_to_a_file_elsewhere_is_followed(tmp_path):
    put(tmp_path, {"store/x.json": trace()})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.json").symlink_to(tmp_path / "store" / "x.json")
    assert relatives(discovery.discover_traces(tmp_path / "run")) == ["rank0.json"]


def test_a_linked_folder_is_found_under_its_real_name(tmp_path):
    put(tmp_path, {"iteration_20/rank0.json": trace()})
    (tmp_path / "current").symlink_to(tmp_path / "iteration_20")
    (found,) = discovery.discover_traces(tmp_path).traces
    assert (found.relative, found.iteration) == ("iteration_20/rank0.json", 20)


def test_a_linked_folder_elsewhere_is_followed(tmp_path):
    put(tmp_path, {"store/rank0.json": trace()})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "traces").symlink_to(tmp_path / "store")
    assert relatives(discovery.discover_traces(tmp_path / "run")) == ["traces/rank0.json"]


def test_links_that_go_round_end(tmp_path):
    put(tmp_path, {"run/a/rank0.json": trace(), "other/rank9.json": trace()})
    (tmp_path / "run" / "a" / "up").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "a" / "here").symlink_to(tmp_path / "run" / "a")
    (tmp_path / "run" / "above").symlink_to(tmp_path)
    (tmp_path / "run" / "itself").symlink_to(tmp_path / "run" / "itself")
    assert relatives(discovery.discover_traces(tmp_path / "run")) == ["a/rank0.json"]


# Copies, windows and ranks.


def test_a_copy_is_left_out_and_the_one_in_a_window_is_kept(tmp_path):
    put(tmp_path, {"copy.json": trace(0), "iteration_10/rank0.json": trace(0), "zz.json": trace(0)})
    found = discovery.discover_traces(tmp_path)
    assert (relatives(found), found.findings) == (["iteration_10/rank0.json"], [])


def test_each_window_has_its_own_ranks(tmp_path):
    files = {f"iteration_{n}/rank{r}_trace.json": trace(r, f"i{n}r{r}x") for n in (10, 20) for r in (0, 1)}
    found = discovery.discover_traces(put(tmp_path, files))
    assert [(t.iteration, t.rank) for t in found.traces] == [(10, 0), (10, 1), (20, 0), (20, 1)]
    assert found.findings == []


def test_a_rank_claimed_twice_is_reported_and_counted_once(tmp_path):
    found = discovery.discover_traces(put(tmp_path, {"a.json": trace(3, "a"), "b.json": trace(3, "bb")}))
    assert relatives(found) == ["a.json"]
    assert [(f.code, f.rank, f.file) for f in found.findings] == [("rank-duplicate", 3, "b.json")]


def test_traces_of_unknown_rank_are_all_kept(tmp_path):
    found = discovery.discover_traces(
        put(tmp_path, {"a.json": trace(None, "a"), "b.json": trace(None, "bb")})
    )
    assert [(t.rank, t.rank_source) for t in found.traces] == [(None, "unknown"), (None, "unknown")]


@pytest.mark.parametrize(
    ("in_file", "in_map", "name", "expected"),
    [
        (5, 6, "rank7.json", (5, "file")),
        (None, 6, "rank7.json", (6, "map")),
        (None, None, "rank7.json", (7, "name")),
        (None, None, "host.json", (None, "unknown")),
        (0, None, "rank7.json", (0, "file")),
        (None, 0, "rank7.json", (0, "map")),
    ],
)
def test_a_rank_comes_from_file_then_map_then_name(tmp_path, in_file, in_map, name, expected):
    put(tmp_path, {name: trace(in_file)})
    (one,) = discovery.discover_traces(tmp_path, {} if in_map is None else {name: in_map}).traces
    assert (one.rank, one.rank_source) == expected


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("kineto_trace_3.json", 3),
        ("rank3_trace.json", 3),
        ("rank-12.json.gz", 12),
        ("megatron_kineto_4.json.gz", 4),
        ("worker3_step_12.pt.trace.json.gz", 3),
        ("rank0.nccl_data.json.gz", 0),
        ("profile_trace/rank15_trace.json", 15),
        ("torch_et_3.json", 3),
        ("trace_linked.3.json", 3),
        ("llama3_8b.1.json.gz", 1),
        ("trace_8.1.json", 1),
        ("allreduce_16.12.et", 12),
        ("1712345678.1234567.trace.json", None),
        ("host1-TP-3.trace.json.gz", 3),
        ("node1_rank3.json", 3),
        ("iteration_10.json", None),
        ("trace_step_100.json", None),
        ("dataset12.json", None),
        ("train.json", None),
        ("rank99999999999999999999.json", None),
        ("host_4711.1694128201545.pt.trace.json", None),
        ("host_4711.1795326608887470988.pt.trace.json.gz", None),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1795326608887470988.pt.trace.json.gz", 1),
        ("vllm-world-rank-5-rank-1.1795326608887470988.pt.trace.json.gz", 5),
    ],
)
def test_a_rank_is_read_from_a_name_that_carries_one(name, rank):
    assert file_names.rank_in_name(name) == rank


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("iteration_10/rank0.json", 10),
        ("a/iter-7/b/rank0.json", 7),
        ("worker3_step_12.pt.trace.json.gz", 12),
        ("iteration_99999999999999999999/rank0.json", None),
        ("rank0.json", None),
        ("host_4711.1795326608887470988.pt.trace.json", None),
    ],
)
def test_a_window_is_read_from_a_path_that_carries_one(name, window):
    assert file_names.window_in_path(name) == window


# Default names of profilers.


def ranks_of(folder, names, world_size=None):
    """Return {name: rank} of files that say nothing of their rank."""
    info = {} if world_size is None else {"distributedInfo": {"world_size": world_size}}
    files = {name: compact([event("cpu_op", f"op {name}")], **info) for name in names}
    found = discovery.discover_traces(put(folder, files))
    return {t.relative: t.rank for t in found.traces}, codes(found)


def test_numbers_of_processes_in_names_are_no_ranks(tmp_path):
    names = ["node1_12345.pt.trace.json", "node2_7.pt.trace.json"]
    assert ranks_of(tmp_path, names) == (dict.fromkeys(names), ["rank-implausible"])


def test_numbers_below_the_number_of_traces_are_ranks(tmp_path):
    names = ["node0_0.pt.trace.json", "node0_1.pt.trace.json"]
    assert ranks_of(tmp_path, names) == (dict(zip(names, (0, 1), strict=True)), [])


def test_a_number_below_the_stated_number_of_ranks_is_a_rank_also_where_others_have_no_trace(tmp_path):
    assert ranks_of(tmp_path / "a", ["part_6.json"], world_size=8) == ({"part_6.json": 6}, [])
    assert ranks_of(tmp_path / "b", ["part_9.json"], world_size=8) == (
        {"part_9.json": None},
        ["rank-implausible"],
    )


@pytest.mark.parametrize(
    "name",
    [
        "trace_20240311.json",
        "trace-20240311-101500.json",
        "model-7b.pt.trace.json",
        "model-7.pt.trace.json",
        "gpu8.json",
        "1712345678.1234567-TP-8-DECODE.trace.json",
    ],
)
@pytest.mark.parametrize("world_size", [None, 1])
def test_the_number_in_the_name_of_the_only_trace_is_no_rank_and_no_finding(tmp_path, name, world_size):
    assert ranks_of(tmp_path, [name], world_size) == ({name: None}, [])


def test_a_number_in_one_of_two_names_is_a_finding(tmp_path):
    names = ["model-7.pt.trace.json", "other.pt.trace.json"]
    assert ranks_of(tmp_path, names) == (dict.fromkeys(names), ["rank-implausible"])


def test_a_name_that_says_rank_is_believed(tmp_path):
    names = ["node1_rank12.json", "node2_worker-31.json"]
    assert ranks_of(tmp_path, names) == (dict(zip(names, (12, 31), strict=True)), [])


def test_the_rank_in_the_name_of_a_numbered_trace_is_one_in_other_names_too(tmp_path):
    names = ["host.6.json", "host.7.json"]
    assert ranks_of(tmp_path, names) == (dict.fromkeys(names), ["rank-implausible"])
    put(tmp_path, {f"iteration_1/kineto_trace_{rank}.json": trace(None, f"{rank}x") for rank in (6, 7)})
    found = discovery.discover_traces(tmp_path)
    assert ([t.rank for t in found.traces], codes(found)) == ([6, 7, 6, 7], [])


def execution_trace(rank, first=1):
    """Return a file of `ExecutionTraceObserver`, which does not say of which rank it is."""
    node = {"id": 2 + rank, "name": "aten::mm", "ctrl_deps": 1, "attrs": [{"name": "rf_id", "value": first}]}
    header = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "start_ts": 1}
    return json.dumps(header | {"nodes": [node]}).encode()


@pytest.mark.parametrize("of_linker", ["trace_linked.{}.json", "et_plus_{}.json", "a/host_device_8.{}.json"])
@pytest.mark.parametrize("of_torch", ["trace_pytorch.{}.json", "pytorch_et_{}.json"])
def test_linked_execution_traces_beside_those_of_torch_are_not_used(tmp_path, of_torch, of_linker):
    files = {of_torch.format(rank): execution_trace(rank) for rank in (0, 1)}
    files |= {of_linker.format(rank): execution_trace(rank, first=100) for rank in (0, 1)}
    files |= {f"trace_kineto.{rank}.json": trace(None, f"{rank}x") for rank in (0, 1)}
    run = open_run(put(tmp_path, files))
    found = {t.relative: t.rank for t in run.traces}
    assert found == {name.format(r): r for name in (of_torch, "trace_kineto.{}.json") for r in (0, 1)}
    assert [f.code for f in run.findings if f.severity != "note"] == []
    assert [f.count for f in run.findings if f.code == "chakra-set-aside"] == [2]


def test_two_execution_traces_of_each_rank_are_not_two_runs(tmp_path):
    files = {
        f"{name}_et_{r}.json": execution_trace(r, first) for first, name in enumerate("ab") for r in (0, 1)
    }
    run = open_run(put(tmp_path, files | {f"kineto_trace_{r}.json": trace(r, f"{r}x") for r in (0, 1)}))
    assert {f.code for f in run.findings if f.severity == "error"} == {"rank-duplicate"}


def sglang(tp, *more, stage=""):
    """Return the name that SGLang gives a trace; degrees of 1 are not in it."""
    return "-".join(["1712345678.1234567", f"TP-{tp}", *more]) + stage + ".trace.json.gz"


def test_in_sglang_the_tensor_parallel_rank_is_the_rank_where_attention_is_split_over_data(tmp_path):
    names = [sglang(tp, f"DP-{tp // 2}", f"EP-{tp}") for tp in range(4)]
    assert ranks_of(tmp_path, names) == (dict(zip(names, range(4), strict=True)), [])


def test_in_sglang_stages_lie_outside_of_tensor_parallel_ranks(tmp_path):
    names = [sglang(tp, f"PP-{pp}") for pp in range(2) for tp in range(4)]
    assert ranks_of(tmp_path, names)[0] == dict(zip(names, range(8), strict=True))
    # of a mesh that lacks a place nobody knows how large it is
    (tmp_path / names[-1]).unlink()
    found = discovery.discover_traces(tmp_path)
    assert {t.rank for t in found.traces} == {None}


def test_replicas_of_sglang_that_are_jobs_of_their_own_have_no_common_ranks(tmp_path):
    names = [sglang(tp, f"DP-{dp}") for dp in range(2) for tp in range(2)]
    assert ranks_of(tmp_path, names)[0] == dict.fromkeys(names)


def test_what_sglang_records_apart_are_windows(tmp_path):
    files = {sglang(tp, stage=f"-{s}"): trace(tp, f"{s}{tp}") for tp in (0, 1) for s in ("EXTEND", "DECODE")}
    found = discovery.discover_traces(put(tmp_path, files))
    assert sorted((t.iteration, t.rank) for t in found.traces) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert codes(found) == []


def vllm(dp, pp, tp, rank):
    """Return the name that vLLM gives a trace; `rank` counts within the data-parallel replica."""
    return f"dp{dp}_pp{pp}_tp{tp}_dcp0_ep{tp}_rank{rank}.{1795326608887470988 + rank}.pt.trace.json.gz"


def test_in_vllm_replicas_lie_outside_of_stages_and_those_outside_of_tensor_parallel_ranks(tmp_path):
    places = [(dp, pp, tp) for dp in range(2) for pp in range(2) for tp in range(2)]
    names = [vllm(dp, pp, tp, rank=pp * 2 + tp) for dp, pp, tp in places]
    assert ranks_of(tmp_path, names)[0] == dict(zip(names, range(8), strict=True))


def test_in_vllm_a_rank_of_an_incomplete_mesh_is_known_in_the_first_replica_alone(tmp_path):
    names = [vllm(0, 1, 0, rank=2), vllm(1, 1, 1, rank=3)]
    assert ranks_of(tmp_path, names)[0] == {names[0]: 2, names[1]: None}


def stamped(process, seconds):
    """Return the name that torch gives the trace of a process written at a time."""
    return f"vm_{process}.{1795326608 * 10**9 + int(seconds * 1e9)}.pt.trace.json"


def windows(folder, written):
    """Return {(process, time): window} of files that processes of these ranks wrote at these times."""
    files = {stamped(1000 + r, at): trace(r, f"{r} {at}") for r, times in written.items() for at in times}
    found = {t.relative: t.iteration for t in discovery.discover_traces(put(folder, files)).traces}
    return {(r, at): found[stamped(1000 + r, at)] for r, times in written.items() for at in times}


def test_ranks_that_wrote_once_are_of_one_window_however_long_they_took(tmp_path):
    assert set(windows(tmp_path, {0: [0], 1: [0.01], 2: [40]}).values()) == {None}


def test_files_that_ranks_wrote_in_turn_are_windows(tmp_path):
    found = windows(tmp_path, {0: [1, 11, 21], 1: [1.2, 11.3, 20.9], 2: [0.9, 11.1, 21.1]})
    assert found == {key: 1 + round(key[1] / 10 - 0.1) for key in found}


def test_a_rank_without_a_window_takes_part_in_the_others(tmp_path):
    found = windows(tmp_path, {0: [1, 11, 21], 1: [1, 21], 2: [11, 21], 3: [1, 11]})
    assert found == {key: {1: 1, 11: 2, 21: 3}[key[1]] for key in found}


def test_folders_of_windows_come_before_times_in_names(tmp_path):
    files = {
        f"iteration_{n}/{stamped(1000 + r, n + r)}": trace(r, f"{n} {r}") for n in (10, 20) for r in (0, 1)
    }
    found = discovery.discover_traces(put(tmp_path, files))
    assert [(t.iteration, t.rank) for t in found.traces] == [(10, 0), (10, 1), (20, 0), (20, 1)]


def test_the_rank_of_an_argument_is_not_the_rank_of_the_file(tmp_path):
    data = compact([event("cpu_op", rank=5)], distributedInfo={"backend": "nccl"})
    (one,) = discovery.discover_traces(put(tmp_path, {"x.json": data})).traces
    assert (one.rank, one.rank_source) == (None, "unknown")


def test_group_settings_before_the_rank_do_not_hide_it(tmp_path):
    info = {
        "pg_config": [{"pg_name": str(n), "ranks": list(range(64))} for n in range(40)],
        "rank": 3,
        "world_size": 64,
    }
    (one,) = discovery.discover_traces(
        put(tmp_path, {"x.json": compact([kernel()], distributedInfo=info)})
    ).traces
    assert (one.rank, one.world_size) == (3, 64)


def test_every_real_trace_is_recognised(corpus):
    found = discovery.discover_traces(corpus / "kineto" / "megatron-tp8")
    assert [(t.rank, t.rank_source, t.world_size) for t in found.traces] == [(r, "file", 8) for r in range(8)]
    assert found.findings == []


def test_execution_traces_are_not_taken_for_kineto(corpus):
    found = discovery.discover_traces(corpus / "execution_trace" / "megatron-tp8")
    assert [t for t in found.traces if t.form.name == "kineto"] == []


def test_a_run_lists_its_cards_and_side_files_as_others(tmp_path):
    files = {"card.yaml": b"a: 1", "step_times.json": json.dumps([1.0]).encode(), "rank0.json": trace()}
    found = discovery.discover_traces(put(tmp_path, files))
    assert [path.name for path in found.others] == ["card.yaml", "step_times.json"]


def test_a_trace_that_is_removed_while_a_run_is_searched_is_a_finding(tmp_path, monkeypatch):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [], "rank": rank}))
    listed = discovery.files_under

    def listed_then_removed(root):
        found = listed(root)
        (tmp_path / "rank1.json").unlink()
        return found

    monkeypatch.setattr(discovery, "files_under", listed_then_removed)
    found = discovery.discover_traces(tmp_path)
    assert [trace.rank for trace in found.traces] == [0]
    assert [(f.code, f.file) for f in found.findings] == [("file-unreadable", "rank1.json")]


def test_a_trace_that_is_removed_before_its_size_is_known_is_a_finding(tmp_path, monkeypatch):
    place = tmp_path / "rank0.json"
    place.write_text(json.dumps({"traceEvents": []}))
    named = discovery.file_names.window_in_path
    monkeypatch.setattr(
        discovery.file_names, "window_in_path", lambda name: place.unlink(missing_ok=True) or named(name)
    )
    found = discovery.discover_traces(tmp_path)
    assert (found.traces, [(f.code, f.file) for f in found.findings]) == (
        [],
        [("file-unreadable", "rank0.json")],
    )


def test_a_trace_that_is_removed_before_copies_are_compared_is_reported_by_who_reads_it(
    tmp_path, monkeypatch
):
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [], "rank": rank}))
    assigned = discovery.file_names.assign_ranks_and_windows

    def assigned_then_removed(traces):
        (tmp_path / "rank1.json").unlink()
        return assigned(traces)

    monkeypatch.setattr(discovery.file_names, "assign_ranks_and_windows", assigned_then_removed)
    run = open_run(str(tmp_path))
    assert [trace.rank for trace in run.traces] == [0, 1]
    findings = load_tables(run, ["kernels"], jobs=1, use_cache=False).findings
    assert ("trace-unreadable", "rank1.json") in [(f.code, f.file) for f in findings]


def test_a_link_to_nothing_is_a_finding(tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": []}))
    (tmp_path / "rank1.json").symlink_to(tmp_path / "gone.json")
    found = discovery.discover_traces(tmp_path)
    assert [trace.rank for trace in found.traces] == [0]
    assert [(f.code, f.file) for f in found.findings] == [("file-unreadable", "rank1.json")]
