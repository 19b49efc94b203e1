"""Answers from rows reported elsewhere are those of a second program, which shares no code with the first."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from leaderboard_bundles import Made, added, changed
from leaderboard_client import Client
from sqlalchemy import select

from ccl_bench.leaderboard.pages.answer import _sentence
from ccl_bench.leaderboard.pages.links import Links
from ccl_bench.leaderboard.reported.observations import Reported, packaged
from ccl_bench.leaderboard.reported.reading import About, read_files
from ccl_bench.leaderboard.store import Store, answers, open_store
from ccl_bench.leaderboard.store.answers import _SAME, Candidate, PairedLibraries, _hollow, _pairs, answer
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import find_runs, list_sources
from ccl_bench.leaderboard.store.tables import RUNS, VALUES
from ccl_bench.leaderboard.web.app import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SYSTEMS = {
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200 SXM",
}
"""System of AIConfigurator → its name on a board."""
OUTPUT = "output_throughput_per_device"
Point = tuple[str, int, float, float]
"""System, devices, tokens/s of a user, output tokens/s of a device."""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a board with the rows of the package, for tests that only read."""
    made = open_store(tmp_path_factory.mktemp("reported") / "data", create=True)
    for reported in packaged():
        made.add_reported(reported)
    yield made
    made.engine.dispose()


def _answer(store: Store, **asked: Any) -> Any:
    with store.engine.connect() as connection:
        return answer(connection, RunQuery(**asked))


def _configurations() -> dict[tuple[Any, ...], set[tuple[float, float]]]:
    """Return the times of each configuration of the packaged rows, in seconds."""
    found: dict[tuple[Any, ...], set[tuple[float, float]]] = defaultdict(set)
    for row in packaged()[0].rows.to_dicts():
        times = row.pop("number.silicon_ttft_ms"), row.pop("number.silicon_tpot_ms")
        key = {name: value for name, value in row.items() if name not in {"row", "measured_at"}}
        found[tuple(key.items())].add(times)
    return found


def _points() -> dict[tuple[str, int, int], list[Point]]:
    """Return model and lengths → points, by Little's law: so many requests, each so long."""
    points: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for key, times in _configurations().items():
        row = dict(key)
        devices, load = row["hardware.device.device_count"], row["data.serving.max_concurrency"]
        if not devices or not load:
            continue
        first, each = median(time for time, _ in times), median(time for _, time in times)
        out = row["data.output_len"]
        tokens = load * out / (first + (out - 1) * each) / devices
        points[row["model.model_family"], row["data.input_len"], out].append(
            (SYSTEMS[row["hardware.device.model"]], devices, 1 / each, tokens)
        )
    return points


def _best(points: list[Point], floor: float = 0.0) -> dict[str, Point]:
    best: dict[str, Point] = {}
    for point in points:
        if point[2] >= floor and point[3] > best.get(point[0], ("", 0, 0.0, 0.0))[3]:
            best[point[0]] = point
    return best


def _shown(found: Any) -> dict[str, Point]:
    return {
        each.run["hardware"]: (each.run["hardware"], each.run["device_count"], each.interactivity, each.value)
        for each in found.best
    }


def _close(found: dict[str, Point], expected: dict[str, Point]) -> None:
    assert found.keys() == expected.keys()
    for name, point in expected.items():
        assert found[name][1] == point[1]
        assert found[name][2:] == pytest.approx(point[2:], rel=1e-12)


LLAMA = ("meta-llama/Llama-3.1-70B", 1024, 1024)
DEEPSEEK = ("deepseek-ai/DeepSeek-R1", 1024, 1024)


@pytest.mark.parametrize(("work", "floor"), [(LLAMA, 50.0), (DEEPSEEK, None)], ids=["Llama", "DeepSeek"])
def test_the_best_row_of_each_system_is_that_of_a_plain_count(
    board: Store, work: tuple[str, int, int], floor: float | None
) -> None:
    model, prompt, out = work
    found = _answer(
        board, phase="inference", model=[model], input_len=prompt, output_len=out, interactivity=floor
    )
    assert found.goal.metric == OUTPUT
    _close(_shown(found), _best(_points()[work], floor or 0.0))
    assert [each.value for each in found.best] == sorted((each.value for each in found.best), reverse=True)


def test_the_interface_gives_the_answer(board: Store) -> None:
    client = Client(create_app(board))
    asked = f"model={LLAMA[0]}&input_len=1024&output_len=1024&interactivity=50&phase=inference"
    found = client.get(f"/api/v1/answer?{asked}").json()
    best = _best(_points()[LLAMA], 50.0)
    assert found["rows"] == len(_points()[LLAMA])
    _close(
        {
            each["hardware"]: (each["hardware"], each["device_count"], each["interactivity"], each["value"])
            for each in found["best"]
        },
        best,
    )
    sources = {each["name"]: each["rows"] for each in client.get("/api/v1/sources").json()}
    assert sources["aiconfigurator"] == len(_configurations())
    assert client.get("/api/v1/answer?model=nobody").status_code == 404


def _raw_points(path: Path) -> dict[tuple[str, int, int], list[Point]]:
    """Return the points of the table of AIConfigurator itself, by its own columns."""
    configurations: dict[tuple[Any, ...], set[tuple[float, float]]] = defaultdict(set)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            times = float(row.pop("silicon_ttft_ms")) / 1e3, float(row.pop("silicon_tpot_ms")) / 1e3
            origin = row.pop("silicon_data_source")
            load = re.search(r"silicon_concurrency=(\d+)", origin)
            kept = {
                name: value or ("1" if name.endswith("_size") else "")
                for name, value in row.items()
                if name != "id" and not name.endswith("batch_size")
            }
            image = re.search(r":(v[\d.]+\S*)", origin.rpartition(";")[2])
            if load:
                version = "" if row["backend_version"] or not image else image[1]
                configurations[(("load", load[1]), ("image", version), *kept.items())].add(times)
    points: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for key, repeats in configurations.items():
        config = dict(key)
        sides = [("", 1)]
        if config["mode"] == "disagg":
            sides = [(side, int(config[f"{side}num_workers"] or 0)) for side in ("prefill_", "decode_")]
        devices = 0
        for side, workers in sides:
            tp, pp, dp, etp, ep = (
                max(int(config[f"{side}{name}_size"]), 1)
                for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
            )
            if not workers or etp * ep not in {1, tp * dp}:
                break
            devices += workers * tp * dp * pp
        else:
            first, each = median(time for time, _ in repeats), median(time for _, time in repeats)
            out = int(config["osl"])
            tokens = int(config["load"]) * out / (first + (out - 1) * each) / devices
            work = (config["model_path"], int(config["isl"]), out)
            points[work].append((SYSTEMS[config["system"]], devices, 1 / each, tokens))
    return points


def test_the_raw_table_gives_the_same_answers(board: Store, corpus: Path) -> None:
    points = _raw_points(corpus / "serving-ground-truth" / "silicon.csv")
    llama = _answer(
        board, phase="inference", model=[LLAMA[0]], input_len=1024, output_len=1024, interactivity=50
    )
    _close(_shown(llama), _best(points[LLAMA], 50.0))
    deepseek = _answer(board, phase="inference", model=[DEEPSEEK[0]], input_len=1024, output_len=1024)
    # The table has two names of this model: that of the weights in fp4 is another one.
    both = points[DEEPSEEK] + points["nvidia/DeepSeek-R1-NVFP4", 1024, 1024]
    _close(_shown(deepseek), _best(both))


def _undominated(points: list[tuple[float, float]]) -> set[tuple[float, float]]:
    return {
        one
        for one in points
        if not any(other != one and other[0] >= one[0] and other[1] >= one[1] for other in points)
    }


def test_every_front_is_that_of_a_brute_force_comparison(board: Store) -> None:
    questions = _points()
    assert len(questions) > 50
    for (model, prompt, out), points in questions.items():
        found = _answer(
            board, phase="inference", model=[model], input_len=prompt, output_len=out, matters=OUTPUT
        )
        assert len(found.points) == len(points)
        by_system: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for system, _, users, tokens in points:
            by_system[system].append((float(f"{users:.10g}"), float(f"{tokens:.10g}")))
        fronts = {
            system: [(float(f"{p.interactivity:.10g}"), float(f"{p.value:.10g}")) for p in front]
            for system, front in found.fronts.items()
        }
        assert fronts == {system: sorted(_undominated(its)) for system, its in by_system.items()}


def _libraries_in_pairs(rows: list[dict[str, Any]]) -> list[float]:
    """Return MSCCL++ by NCCL of every pair of trainings of Llama-3.1-8B on A100 that agree in the rest."""
    alike: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        alike[row["key"]][row["library"]] = min(row["step"], alike[row["key"]].get(row["library"], math.inf))
    return sorted(each["MSCCL++"] / each["NCCL"] for each in alike.values() if {"NCCL", "MSCCL++"} <= {*each})


def test_libraries_of_a_training_pair_up_as_by_hand(board: Store) -> None:
    found = _answer(board, phase="training", model=["meta-llama/Llama-3.1-8B"], hardware=["A100"])
    pair = next(each for each in found.pairs if (each.first, each.second) == ("NCCL", "MSCCL++"))
    # Steps as the source publishes them: 4 devices as fsdp 2 × tp 2, fsdp 4, tp 2 × pp 2, and tp 4.
    by_hand = [1.21633 / 1.34017, 1.31797 / 1.43918, 2.08135 / 2.26417, 2.0427 / 2.21098]
    assert sorted(pair.ratios) == pytest.approx(by_hand)
    assert pair.middle == pytest.approx((by_hand[1] + by_hand[2]) / 2)
    assert len({run for runs in pair.runs for run in runs}) == 8


def test_the_raw_rows_of_a_training_pair_up_alike(board: Store, corpus: Path) -> None:
    document = json.loads((corpus / "upstream-rows" / "benchmark_data.json").read_text())
    same = ("batch_size", "seq_len", "dataset", "precision", "total_count", "count_per_node", "framework")
    same += ("compiler", "tp", "pp", "dp_replicate", "dp_shard", "cp", "ep")
    names = {"nccl": "NCCL", "NCCL": "NCCL", "mscclpp": "MSCCL++"}
    rows = [
        {
            "key": tuple(facts[name] for name in same),
            "library": names.get(facts["comm_library"], facts["comm_library"]),
            "step": row["metrics"]["avg_step_time"],
        }
        for row in document["rows"]
        if (facts := row["metadata"])["phase"] == "training"
        and facts["model_family"].lower() == "llama-3.1-8b"
        and facts["hardware_model"] == "nvidia_a100"
        and row["metrics"]["avg_step_time"]
    ]
    found = _answer(board, phase="training", model=["meta-llama/Llama-3.1-8B"], hardware=["A100"])
    pair = next(each for each in found.pairs if (each.first, each.second) == ("NCCL", "MSCCL++"))
    assert sorted(pair.ratios) == pytest.approx(_libraries_in_pairs(rows))


def test_no_point_of_a_sweep_is_ranked_and_no_reported_number_with_a_measured_one(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "data", create=True)
    upstream = packaged()[1]
    store.add_reported(upstream)
    store.add_reported(Reported(packaged()[0].source, packaged()[0].rows.head(200)))
    with store.engine.connect() as connection:
        before = find_runs(connection, RunQuery(size=500)).runs
    example = next(
        each.run
        for each in before
        if each.run["phase"] == "training"
        and each.run["batch_size"]
        and each.numbers["iteration_wall_clock_time"].place
    )
    made = Made(
        model=example["model"],
        precision=example["precision"],
        batch=example["batch_size"],
        seq_len=example["seq_len"],
        hardware=example["hardware"],
        values={"iteration_wall_clock_time": 1e-6, "throughput_tokens_sec": 1e9},
    )
    run = added(store, made)
    second = added(store, changed(made, name="slower", values={"iteration_wall_clock_time": 1.0}))
    with store.engine.connect() as connection:
        after = {each.run["id"]: each for each in find_runs(connection, RunQuery(size=500)).runs}
    numbers = [after[each].numbers["iteration_wall_clock_time"] for each in (run, second)]
    assert [(number.place, number.ranked) for number in numbers] == [(1, 2), (2, 2)]
    for each in before:
        now = after[each.run["id"]]
        for name, number in each.numbers.items():
            assert (now.numbers[name].place, now.numbers[name].ranked) == (number.place, number.ranked)
            assert not each.run["concurrency"] or number.place is None
    store.engine.dispose()


TABLE = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,"
    "gemm_quant_mode,moe_quant_mode,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size,"
    "silicon_ttft_ms,silicon_tpot_ms"
)


def point(
    name: str, ttft_ms: object, tpot_ms: object, *, load: int = 8, tp: int = 2, isl: str = "100"
) -> str:
    """Return a line of the table of AIConfigurator."""
    origin = f"db; silicon_concurrency={load}; measured=2026-01-02T00:00:00.000Z"
    return (
        f"{name},{origin},vllm,0.9,org/M,h100_sxm,fp8,agg,{isl},11,fp8,fp8,8,{tp},1,1,1,1,{ttft_ms},{tpot_ms}"
    )


def table(path: Path, *lines: str) -> Path:
    """Write such a table."""
    path.write_text("\n".join([TABLE, *lines, ""]), encoding="utf-8")
    return path


def imported(store: Store, *places: Path, **about: str) -> tuple[list[int], list[str]]:
    """Import files, and return the rows that each source added, and the mistakes."""
    reported, mistakes = read_files(places, About(**about))
    return [store.add_reported(each) for each in reported], mistakes


def _numbers(store: Store, metric: str) -> list[tuple[float, float, float, int]]:
    statement = select(VALUES.c.value, VALUES.c.low, VALUES.c.high, VALUES.c.repeats)
    with store.engine.connect() as connection:
        rows = connection.execute(statement.where(VALUES.c.metric == metric).order_by(VALUES.c.value)).all()
    return [tuple(row) for row in rows]  # type: ignore[misc]


def test_repeats_are_one_row_with_their_spread(small: Store, tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv",
        point("a", 100, 10),
        point("b", 300, 20),
        point("c", 200, 60),
        point("the same measurement in another dump", 200, 60),
        point("two of them", 400, 30, load=16),
        point("two of them", 600, 40, load=16),
        point("alone", 700, 50, tp=4),
    )
    assert imported(small, path) == ([7], [])
    assert _numbers(small, "TTFT") == [(0.2, 0.1, 0.3, 3), (0.5, 0.4, 0.6, 2), (0.7, 0.7, 0.7, 1)]
    assert [each[:2] for each in _numbers(small, "TPOT")] == [(0.02, 0.01), (0.035, 0.03), (0.05, 0.05)]
    # 8 requests, each 0.2 s + 10 × 0.02 s, with 11 tokens, on 2 devices; and so on.
    by_hand = [8 / (0.7 + 10 * 0.05) * 11 / 4, 16 / (0.5 + 10 * 0.035) * 11 / 2, 8 / 0.4 * 11 / 2]
    assert [each[0] for each in _numbers(small, OUTPUT)] == pytest.approx(by_hand)
    total = [each[0] for each in _numbers(small, "total_throughput_per_device")]
    assert total == pytest.approx([each * 111 / 11 for each in by_hand])
    with small.engine.connect() as connection:
        curves = connection.execute(select(RUNS.c.curve, RUNS.c.concurrency, RUNS.c.tp)).all()
    by_load = {(load, tp): curve for curve, load, tp in curves}
    assert by_load[8, 2] == by_load[16, 2] != by_load[8, 4]


def test_importing_again_adds_nothing_and_a_changed_row_adds_one(store: Store, tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", point("a", 100, 10), point("b", 300, 20, load=16))
    assert imported(store, path)[0] == [2]
    assert imported(store, path)[0] == [0]
    table(tmp_path / "t.csv", point("a", 100, 10), point("b", 301, 20, load=16))
    assert imported(store, path)[0] == [1]
    assert _numbers(store, "TTFT") == [(0.1, 0.1, 0.1, 1), (0.3005, 0.3, 0.301, 2)]
    before = _numbers(store, "TTFT")
    store.rebuild()
    assert _numbers(store, "TTFT") == before


def test_mistakes_are_named_by_row_and_cost_no_other_row(small: Store, tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv",
        point("good", 100, 10),
        point("no time", "", 10),
        point("no number", "fast", 10),
        point("negative", 100, -10),
        point("endless", 100, "inf"),
        point("no length", 100, 10, isl=""),
        point("huge length", 100, 10, isl="9" * 30),
        point("good too", 100, 10, load=9),
        "cut off,db; silicon_concurrency=1",
        point("no such day", 100, 10).replace("2026-01-02", "2026-13-45"),
    )
    added_rows, mistakes = imported(small, path)
    assert added_rows == [2]
    assert [int(re.match(r"t\.csv, row (\d+): \S", each)[1]) for each in mistakes] == [*range(3, 9), 10, 11]  # type: ignore[index]


def test_a_source_leaves_the_board_with_its_file_and_a_damaged_file_costs_no_other_rows(
    small: Store, tmp_path: Path
) -> None:
    imported(small, table(tmp_path / "t.csv", point("a", 100, 10)))
    small.add_reported(packaged()[1])
    folder = small.data / "reported"
    whole = (folder / "ccl-bench-2026.parquet").read_bytes()
    rows = small.count - 1
    for damaged in (whole[:-9], whole[:700] + b"\0" + whole[701:], b"", b"PAR1" * 30):
        (folder / "ccl-bench-2026.parquet").write_bytes(damaged)
        other = Store(small.data, small.engine)  # another process, after this one
        for process in (small, other):
            process.catch_up()
            assert "ccl-bench-2026.parquet" in str(process.refused["ccl-bench-2026"])
            assert process.count == 1
    (folder / "ccl-bench-2026.parquet").write_bytes(whole)
    small.catch_up()
    assert (small.refused, small.count) == ({}, rows + 1)
    (folder / "aiconfigurator.parquet").unlink()
    small.catch_up()
    with small.engine.connect() as connection:
        assert [source.name for source, _ in list_sources(connection)] == ["ccl-bench-2026"]
    assert small.count == rows
    (folder / "ccl-bench-2026.parquet").rename(folder / "another.parquet")
    small.catch_up()
    assert (small.count, list(small.refused)) == (0, ["another"])


def test_a_source_that_reports_further_numbers_keeps_those_it_had(small: Store, tmp_path: Path) -> None:
    imported(small, table(tmp_path / "t.csv", point("a", 100, 10, load=16)), name="lab")
    (tmp_path / "agg_1.json").write_text(json.dumps([POINT, POINT | {"conc": 32}]))
    assert imported(small, tmp_path / "agg_1.json", name="lab", date="2026-01-01") == ([2], [])
    assert small.refused == {}
    with small.engine.connect() as connection:
        ((source, rows),) = list_sources(connection)
    assert rows == small.count
    assert {"silicon_ttft_ms", "tput_per_gpu"} <= source.numbers.keys()
    assert [each[0] for each in _numbers(small, "TTFT")] == [0.1, 0.2, 0.2]


POINT: dict[str, Any] = {
    "hw": "h200", "conc": 16, "image": "vllm/vllm-openai:v0.9.1", "model": "org/M", "framework": "vllm",
    "precision": "fp8", "spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 128,
    "is_multinode": False, "tp": 4, "ep": 1, "dp_attention": False, "tput_per_gpu": 900.0,
    "output_tput_per_gpu": 100.0, "mean_ttft": 0.2, "mean_tpot": 0.02, "mean_itl": 0.021, "mean_e2el": 2.8,
}  # fmt: skip
"""A result of InferenceX."""


def _values(store: Store) -> list[dict[str, Any]]:
    """Return the rows with their numbers by metric, by falling load."""
    with store.engine.connect() as connection:
        found = find_runs(connection, RunQuery(size=100)).runs
    rows = [
        each.run | {name: number.value for name, number in each.numbers.items()} | {"of": each.numbers}
        for each in found
    ]
    return sorted(rows, key=lambda row: -(row["concurrency"] or 0))


def test_result_files_of_inference_x_are_curves(small: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    (folder / "deep").mkdir(parents=True)
    others = [POINT | {"conc": conc, "mean_tpot": 0.02 + conc / 1e4} for conc in (32, 64)]
    (folder / "agg_16.json").write_text(json.dumps(POINT))
    (folder / "deep" / "agg_list.json").write_text(json.dumps(others))
    (folder / "agg_spec.json").write_text(
        json.dumps(POINT | {"spec_decoding": "mtp", "dp_attention": "true"})
    )
    (folder / "card.yaml").write_text("version: 1")
    incomplete = {name: value for name, value in POINT.items() if name not in {"isl"}}
    (folder / "agg_bad.json").write_text(json.dumps([POINT | {"conc": 99}, incomplete, 7]))
    (folder / "agg_cut.json").write_text('{"tput_per_gpu": 1')
    added_rows, mistakes = imported(small, folder, date="2026-11-01")
    assert added_rows == [5]
    named = [re.sub(r"^.*(agg_\w+\.json)", r"\1", each.partition("\n")[0]) for each in mistakes]
    assert named[:2] == [
        "agg_bad.json, point 2: isl is missing",
        "agg_bad.json, point 3: is no point of a sweep",
    ]
    assert named[2].startswith("agg_cut.json: is not JSON")
    rows = _values(small)
    assert [row["concurrency"] for row in rows] == [99, 64, 32, 16, 16]
    plain = [row for row in rows if not row["variant"]]
    assert len(plain) == 4
    assert len({row["curve"] for row in plain}) == 1
    (spec,) = (row for row in rows if row["variant"])
    assert spec["variant"] == "attention dp, speculative mtp"
    assert (spec["tp"], spec["device_count"], spec["framework_version"]) == (4, 4, "v0.9.1")
    assert (spec[OUTPUT], spec["total_throughput_per_device"], spec["TTFT"]) == (100.0, 900.0, 0.2)
    (tmp_path / "agg_pipeline.json").write_text(json.dumps(POINT | {"conc": 7, "pp": 2}))
    imported(small, tmp_path / "agg_pipeline.json", date="2026-11-01")
    assert _values(small)[-1]["device_count"] == 8
    assert spec["interactivity"] == pytest.approx(50)


def test_the_output_of_disaggregated_servers_counts_all_their_devices(small: Store, tmp_path: Path) -> None:
    split = POINT | {
        "disagg": True, "num_prefill_gpu": 8, "num_decode_gpu": 24, "prefill_tp": 4, "prefill_num_workers": 2,
        "decode_tp": 8, "decode_ep": 8, "decode_num_workers": 3, "is_multinode": True,
    }  # fmt: skip
    unknown = split | {"conc": 8, "num_prefill_gpu": None, "prefill_num_workers": None}
    by_workers = split | {"conc": 12, "num_prefill_gpu": None, "num_decode_gpu": None}
    (tmp_path / "agg.json").write_text(json.dumps([split, unknown, by_workers]))
    assert imported(small, tmp_path / "agg.json", date="2026-11-01") == ([3], [])
    whole, workers, part = _values(small)
    # Two workers of 4 devices prefill, three of 8 decode.
    assert (workers[OUTPUT], workers["device_count"]) == (2400 / 32, 2 * 4 + 3 * 8)
    # 100 tokens/s of each of 24 decoding devices are 2,400 of 32.
    assert (whole[OUTPUT], whole["device_count"], whole["tp"]) == (2400 / 32, 32, None)
    assert whole["variant"] == "disaggregated, prefill 2 × tp 4, decode 3 × tp 8 ep 8, several nodes"
    assert (OUTPUT in part, part["device_count"]) == (False, None)
    assert part["total_throughput_per_device"] == 900.0


def test_serving_results_are_measured_and_described_by_their_card(
    small: Store, tmp_path: Path, corpus: Path
) -> None:
    (original,) = (corpus / "serving" / "vllm-tp8").glob("*.json")
    stored = json.loads(original.read_text())
    folder = tmp_path / "results"
    folder.mkdir()
    for number in range(3):
        slower = stored | {"duration": stored["duration"] * (1 + number / 10)}
        (folder / f"run-{number}.json").write_text(json.dumps(slower))
    (folder / "workload_card.yaml").write_text(Made(phase="inference", tp=8).card)
    about = About("lab-2026", "", "", "CC-BY-4.0", "2026-11-01")
    reported, mistakes = read_files([folder], about, folder / "workload_card.yaml")
    assert mistakes == []
    assert [small.add_reported(each) for each in reported] == [3]
    assert [small.add_reported(each) for each in reported] == [0]
    (row,) = _values(small)
    number = row["of"]["output_throughput"]
    rate = stored["total_output_tokens"] / stored["duration"]
    assert (number.value, number.low, number.high, number.repeats) == pytest.approx(
        (rate / 1.1, rate / 1.2, rate, 3), rel=1e-6
    )
    assert row[OUTPUT] == pytest.approx(rate / 1.1 / 8, rel=1e-6)
    assert row["TTFT"] == pytest.approx(stored["mean_ttft_ms"] / 1e3, rel=1e-6)
    assert (row["source"], row["state"], row["framework"]) == ("lab-2026", "reported", "torchtitan")


def _candidate(number: int, value: float, users: float | None = None, **facts: Any) -> Candidate:
    run: dict[str, Any] = dict.fromkeys((*_SAME, "communication_library", "curve"))
    better = "higher" if users else "lower"
    return Candidate(run | {"id": f"{number:04}", "hardware": "H"} | facts, value, "s", better, users)


@pytest.fixture
def undescribed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what stands for a connection to points that have all of their columns."""
    monkeypatch.setattr("ccl_bench.leaderboard.store.answers.describe", lambda *_: None)
    return object()


def test_pairs_are_those_of_a_comparison_of_every_row_with_every_other(undescribed: Any) -> None:
    draw = itertools.cycle([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7])
    points = [
        _candidate(
            n,
            1.0 + next(draw),
            communication_library=("NCCL", "RCCL", "Gloo", None)[next(draw) % 4],
            tp=next(draw) % 3,
        )
        for n in range(40)
    ]
    expected: dict[tuple[str, str], list[float]] = defaultdict(list)
    for first, second in (("NCCL", "Gloo"), ("NCCL", "RCCL"), ("Gloo", "RCCL")):
        for tp in range(3):
            steps = [
                [p.value for p in points if (p.run["communication_library"], p.run["tp"]) == (name, tp)]
                for name in (first, second)
            ]
            if all(steps):
                expected[first, second].append(min(steps[1]) / min(steps[0]))
    found = {(pair.first, pair.second): sorted(pair.ratios) for pair in _pairs(undescribed, points)}
    assert len(found) > 1
    assert found == {key: sorted(ratios) for key, ratios in expected.items()}


def test_a_pair_of_zeros_has_no_ratio(undescribed: Any) -> None:
    zero = [_candidate(n, 0.0, communication_library=name) for n, name in enumerate(("NCCL", "RCCL"))]
    assert _pairs(undescribed, zero) == []
    assert PairedLibraries("NCCL", "RCCL", [3.0, 1.0, 2.0], [], "lower").middle == 2.0


def test_a_point_between_measured_ones_lies_on_a_line_of_logarithms() -> None:
    curve = [_candidate(0, 1000.0, 20.0, curve="a"), _candidate(1, 250.0, 80.0, curve="a")]
    (found,) = _hollow(curve, 40.0)
    # Half of the way in the logarithm of tokens/s of a user: the geometric mean of both.
    assert found.value == pytest.approx(math.sqrt(1000 * 250))
    assert (found.interactivity, found.run["id"]) == (40.0, "0000")
    assert _hollow(curve, 80.0) == []  # measured there
    assert _hollow(curve, 81.0) == []  # nothing is extrapolated
    assert _hollow([curve[0], _candidate(1, 250.0, 80.0, curve="b")], 40.0) == []  # of two curves
    assert _hollow([*curve, _candidate(2, 501.0, 41.0, curve="c")], 40.0) == []  # a measured one is better
    assert len(_hollow([*curve, _candidate(2, 499.0, 41.0, curve="c")], 40.0)) == 1


def test_the_rows_of_the_package_are_those_of_the_files(corpus: Path) -> None:
    files = [
        corpus / "serving-ground-truth" / "silicon.csv",
        corpus / "upstream-rows" / "benchmark_data.json",
    ]
    reported, mistakes = read_files(files, About())
    assert mistakes == []
    for read, kept in zip(reported, packaged(), strict=True):
        assert read.source == kept.source
        assert read.rows.equals(kept.rows, null_equal=True)


def test_the_answer_says_what_kind_of_number_each_is() -> None:
    """Three kinds in one sentence; one kind; and a measured row that a better one of its system hides."""
    blank = dict.fromkeys((*answers._COLUMNS, *answers._DESCRIBED), None) | {"name": "row"}
    states = {"A": "reported", "B": "self_reported", "C": "verified"}
    rows = [
        Candidate(blank | {"id": f"{n}" * 64, "hardware": name, "state": state}, 9.0 - n, "s", "higher", None)
        for n, (name, state) in enumerate(states.items())
    ]
    goal = answers.goals()[0]

    def sentence(best: list[Candidate], measured: Candidate | None, *, is_derived: bool = False) -> str:
        found = answers.BoardAnswer(
            RunQuery(), goal, None, "hardware", best, measured, is_derived, best, best, {}, [], [], [goal], []
        )
        return "".join(text for text, _ in _sentence(found, Links()))

    assert sentence(rows, rows[2]).endswith(
        "A, 9 s (reported elsewhere); without A: B, 8 s (self-reported); without B: C, 7 s (measured)."
    )
    assert sentence(rows[:1], None).endswith("A, 9 s. This number is reported elsewhere, not measured here.")
    assert sentence(rows[1:2], None).endswith("B, 8 s. This number is self-reported, not measured here.")
    assert sentence(rows[2:], rows[2]).endswith("C, 7 s. This number is measured.")
    assert sentence(rows[:1], rows[2]).endswith("The best that was measured here: C, 7 s.")
    assert "derived" not in sentence(rows, rows[2])
    derived = sentence(rows[:1], None, is_derived=True)
    assert derived.endswith(" Throughput is derived from TTFT, TPOT and concurrency.")


def test_an_answer_says_that_a_throughput_is_derived_where_it_is(small: Store, tmp_path: Path) -> None:
    imported(small, table(tmp_path / "t.csv", point("a", 100, 10, load=16)))
    assert _answer(small, phase="inference", matters=OUTPUT).is_derived
    assert not _answer(small, phase="inference", matters="TTFT").is_derived
