"""What lies in a run directory: told by content, each real file once, ranks from the best source."""

import gzip
import json
import os

import pytest
from writing import bare, compact, event, kernel, pretty

from ccl_bench.errors import InputError
from ccl_bench.trace import discovery, identity


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
    found = discovery.found_in(put(tmp_path, {name: data}))
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
    found = discovery.found_in(put(tmp_path, {"kineto_trace_0.json": data}))
    assert relatives(found) == []
    assert found.others == [tmp_path / "kineto_trace_0.json"]


def test_a_single_file_is_a_run_of_one(tmp_path):
    put(tmp_path, {"a/rank3_trace.json": trace(size=1), "a/rank4_trace.json": trace(size=2)})
    (one,) = discovery.found_in(tmp_path / "a" / "rank3_trace.json").traces
    assert (one.relative, one.rank, one.rank_source) == ("rank3_trace.json", 3, "name")


def test_a_place_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        discovery.found_in(tmp_path / "nowhere")


def test_an_empty_directory_holds_nothing(tmp_path):
    found = discovery.found_in(tmp_path)
    assert (found.traces, found.others, found.findings) == ([], [], [])


def test_files_and_folders_that_are_hidden_are_passed_over(tmp_path):
    put(
        tmp_path,
        {".a.json": trace(), ".git/b.json": trace(), "__pycache__/c.json": trace(), "d.json": trace()},
    )
    assert relatives(discovery.found_in(tmp_path)) == ["d.json"]


def test_a_directory_named_like_a_trace_is_a_directory(tmp_path):
    put(tmp_path, {"x.json/rank1.json": trace()})
    assert relatives(discovery.found_in(tmp_path)) == ["x.json/rank1.json"]


def test_a_pipe_named_like_a_trace_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    assert relatives(discovery.found_in(put(tmp_path, {"y.json": trace()}))) == ["y.json"]


def test_a_link_to_nothing_is_told(tmp_path):
    (tmp_path / "rank0.json").symlink_to(tmp_path / "gone.json")
    found = discovery.found_in(tmp_path)
    assert [(f.code, f.file) for f in found.findings] == [("file-unreadable", "rank0.json")]


# Links.


def test_a_link_to_a_file_already_found_is_the_same_file(tmp_path):
    put(tmp_path, {"b/rank0.json": trace()})
    (tmp_path / "a.json").symlink_to(tmp_path / "b" / "rank0.json")
    found = discovery.found_in(tmp_path)
    assert (relatives(found), found.findings) == (["b/rank0.json"], [])


def test_a_link_to_a_file_elsewhere_is_followed(tmp_path):
    put(tmp_path, {"store/x.json": trace()})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.json").symlink_to(tmp_path / "store" / "x.json")
    assert relatives(discovery.found_in(tmp_path / "run")) == ["rank0.json"]


def test_a_linked_folder_is_found_under_its_real_name(tmp_path):
    put(tmp_path, {"iteration_20/rank0.json": trace()})
    (tmp_path / "current").symlink_to(tmp_path / "iteration_20")
    (found,) = discovery.found_in(tmp_path).traces
    assert (found.relative, found.iteration) == ("iteration_20/rank0.json", 20)


def test_a_linked_folder_elsewhere_is_followed(tmp_path):
    put(tmp_path, {"store/rank0.json": trace()})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "traces").symlink_to(tmp_path / "store")
    assert relatives(discovery.found_in(tmp_path / "run")) == ["traces/rank0.json"]


def test_links_that_go_round_end(tmp_path):
    put(tmp_path, {"run/a/rank0.json": trace(), "other/rank9.json": trace()})
    (tmp_path / "run" / "a" / "up").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "a" / "here").symlink_to(tmp_path / "run" / "a")
    (tmp_path / "run" / "above").symlink_to(tmp_path)
    (tmp_path / "run" / "itself").symlink_to(tmp_path / "run" / "itself")
    assert relatives(discovery.found_in(tmp_path / "run")) == ["a/rank0.json"]


# Copies, windows and ranks.


def test_a_copy_is_left_out_and_the_one_in_a_window_is_kept(tmp_path):
    put(tmp_path, {"copy.json": trace(0), "iteration_10/rank0.json": trace(0), "zz.json": trace(0)})
    found = discovery.found_in(tmp_path)
    assert (relatives(found), found.findings) == (["iteration_10/rank0.json"], [])


def test_each_window_has_its_own_ranks(tmp_path):
    files = {f"iteration_{n}/rank{r}_trace.json": trace(r, f"i{n}r{r}x") for n in (10, 20) for r in (0, 1)}
    found = discovery.found_in(put(tmp_path, files))
    assert [(t.iteration, t.rank) for t in found.traces] == [(10, 0), (10, 1), (20, 0), (20, 1)]
    assert found.findings == []


def test_a_rank_claimed_twice_is_told_and_counted_once(tmp_path):
    found = discovery.found_in(put(tmp_path, {"a.json": trace(3, "a"), "b.json": trace(3, "bb")}))
    assert relatives(found) == ["a.json"]
    assert [(f.code, f.rank, f.file) for f in found.findings] == [("rank-duplicate", 3, "b.json")]


def test_traces_of_unknown_rank_are_all_kept(tmp_path):
    found = discovery.found_in(put(tmp_path, {"a.json": trace(None, "a"), "b.json": trace(None, "bb")}))
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
    (one,) = discovery.found_in(tmp_path, {} if in_map is None else {name: in_map}).traces
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
        ("host1-TP-3.trace.json.gz", 3),
        ("node1_rank3.json", 3),
        ("iteration_10.json", None),
        ("trace_step_100.json", None),
        ("dataset12.json", None),
        ("train.json", None),
        ("rank99999999999999999999.json", None),
        ("host_4711.1694128201545.pt.trace.json", None),
    ],
)
def test_a_rank_is_read_from_a_name_that_carries_one(name, rank):
    assert identity.rank_in_name(name) == rank


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("iteration_10/rank0.json", 10),
        ("a/iter-7/b/rank0.json", 7),
        ("worker3_step_12.pt.trace.json.gz", 12),
        ("iteration_99999999999999999999/rank0.json", None),
        ("rank0.json", None),
    ],
)
def test_a_window_is_read_from_a_path_that_carries_one(name, window):
    assert identity.window_in_path(name) == window


def test_the_rank_of_an_argument_is_not_the_rank_of_the_file(tmp_path):
    data = compact([event("cpu_op", rank=5)], distributedInfo={"backend": "nccl"})
    (one,) = discovery.found_in(put(tmp_path, {"x.json": data})).traces
    assert (one.rank, one.rank_source) == (None, "unknown")


def test_group_settings_before_the_rank_do_not_hide_it(tmp_path):
    info = {
        "pg_config": [{"pg_name": str(n), "ranks": list(range(64))} for n in range(40)],
        "rank": 3,
        "world_size": 64,
    }
    (one,) = discovery.found_in(put(tmp_path, {"x.json": compact([kernel()], distributedInfo=info)})).traces
    assert (one.rank, one.world_size) == (3, 64)


def test_every_real_trace_is_recognised(corpus):
    found = discovery.found_in(corpus / "kineto" / "megatron-tp8")
    assert [(t.rank, t.rank_source, t.world_size) for t in found.traces] == [(r, "file", 8) for r in range(8)]
    assert found.findings == []


def test_execution_traces_are_not_taken_for_kineto(corpus):
    found = discovery.found_in(corpus / "execution_trace" / "megatron-tp8")
    assert [t for t in found.traces if t.form.name == "kineto"] == []


def test_a_run_lists_its_cards_and_side_files_as_others(tmp_path):
    files = {"card.yaml": b"a: 1", "step_times.json": json.dumps([1.0]).encode(), "rank0.json": trace()}
    found = discovery.found_in(put(tmp_path, files))
    assert [path.name for path in found.others] == ["card.yaml", "step_times.json"]
