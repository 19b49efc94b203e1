"""`ccl-bench compare`: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import invoke, ran
from compared_runs import STEP, written

from ccl_bench.cli.bench import main
from ccl_bench.comparison.compare import from_json, json_schema

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"
PIPELINE, SHARDED = (str(EXAMPLES / f"llama-tiny-{name}-gloo") for name in ("pp4", "fsdp2-tp2"))

Captured = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def runs(before: Path, slower: Path) -> tuple[str, str]:
    """Return a run and a slower one."""
    return str(before), str(slower)


@pytest.fixture(scope="module")
def bundles(runs: tuple[str, str]) -> tuple[str, str]:
    """Return both as folders of results and a card, which are measured already."""
    made = tuple(Path(f"{run}-results") for run in runs)
    for run, bundle in zip(runs, made, strict=True):
        bundle.mkdir()
        measured = invoke(["ccl-metrics", "--trace", run, "--all", "--format", "json"])
        assert measured.returncode == 0, measured.stderr
        (bundle / "results.json").write_text(measured.stdout)
        for name in ("workload_card.yaml", "run_metadata.json"):
            (bundle / name).write_bytes(Path(run, name).read_bytes())
    before, after = map(str, made)
    return before, after


def stored(bundle: str, target: Path) -> Path:
    """Write the results of a bundle alone."""
    target.write_bytes(Path(bundle, "results.json").read_bytes())
    return target


def test_a_run_against_itself_says_no_change(capsys: Captured) -> None:
    assert main(["compare", PIPELINE, PIPELINE, "-m", STEP]) == 0
    out = capsys.readouterr().out
    assert "comparable: they did the same work" in out
    assert "worse" not in out
    assert "cannot tell" not in out
    assert "The mean traced step did not change: 468 ms." in out


def test_other_work_is_not_compared_and_the_fields_are_named(capsys: Captured) -> None:
    limit = f"{STEP}:90%"
    assert main(["compare", PIPELINE, SHARDED, "-m", STEP, "--fail-on", limit]) == 3
    out = capsys.readouterr().out
    assert f"limit {limit} " in out
    assert "the runs are not comparable" in out
    assert "not comparable: they did different work" in out
    assert "model.architecture.num_layers  4 " in out
    assert "another shape is another model" in out
    assert "parallelism.pp" in out
    assert "VERDICT" not in out


def test_a_slowdown_is_reported_with_its_place(bundles: tuple[str, str], capsys: Captured) -> None:
    assert main(["compare", *bundles, "-m", STEP]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith(STEP))
    assert line.endswith("worse")
    assert "longer (+" in out
    assert "compute +" in out
    assert "backward +" in out
    assert "mfu" not in out


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        (f"{STEP}>3%", 5),
        (f"{STEP}>9%", 0),
        ("5%", 5),
        ("90%", 0),
        ("peak_memory_allocated:5%", 3),
        ("mfu<-2%", 5),
    ],
)
def test_a_limit_decides_the_exit_status(
    limit: str, status: int, bundles: tuple[str, str], capsys: Captured
) -> None:
    assert main(["compare", *bundles, "--fail-on", limit]) == status
    assert f"limit {limit} " in capsys.readouterr().out


def test_a_crossed_limit_counts_more_than_one_that_cannot_be_judged(bundles: tuple[str, str]) -> None:
    assert main(["compare", *bundles, "--fail-on", "5%", "--fail-on", "peak_memory_allocated:5%"]) == 5


def test_json_holds_everything_and_reads_back(bundles: tuple[str, str], capsys: Captured) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert main(["compare", *bundles, "--format", "json", "--fail-on", f"{STEP}:3%"]) == 5
    text = capsys.readouterr().out
    jsonschema.validate(json.loads(text), json_schema())
    found = from_json(text.encode())
    assert (found.baseline, found.pairs[0].name) == bundles
    change = next(each for each in found.pairs[0].changes if each.metric == STEP)
    assert change.verdict == "worse"
    assert change.interval is not None
    assert found.exit_status == 5


def test_stored_results_compare_as_the_run_does(
    runs: tuple[str, str], bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    before, after = (stored(bundle, tmp_path / f"{n}.json") for n, bundle in enumerate(bundles))
    assert main(["compare", str(before), str(after), "-f", "json"]) == 0
    of_files = from_json(capsys.readouterr().out.encode())
    assert main(["compare", *runs, "-f", "json"]) == 0
    of_runs = from_json(capsys.readouterr().out.encode())
    assert of_files.pairs[0].changes == of_runs.pairs[0].changes
    assert of_files.pairs[0].attribution == of_runs.pairs[0].attribution


def test_results_without_their_card_compare_with_the_run_they_are_of(
    runs: tuple[str, str], bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    alone = stored(bundles[0], tmp_path / "alone.json")
    assert main(["compare", str(alone), runs[0], "-m", STEP]) == 0
    assert "comparable: they did the same work" in capsys.readouterr().out


def test_results_without_a_card_compare_only_if_they_did_the_same_work(
    tmp_path: Path, capsys: Captured
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, seed in ((one, 1), (other, 2)):
        written(folder, seed=seed, steps=3, tp=1)
        (folder / "workload_card.yaml").unlink()
        (folder / "run_metadata.json").unlink()
    assert main(["compare", str(one), str(other), "-m", STEP]) == 0
    out = capsys.readouterr().out
    assert "both cards must state model.phase, model.model_family" in out


def test_a_folder_of_results_and_a_card_is_a_run(
    runs: tuple[str, str], bundles: tuple[str, str], capsys: Captured
) -> None:
    assert main(["compare", runs[0], bundles[1], "-m", STEP]) == 0
    out = capsys.readouterr().out
    assert "comparable: they did the same work" in out
    assert "worse" in out


def test_somebody_elses_card_beside_results_is_not_theirs(
    bundles: tuple[str, str], other_batch: Path, tmp_path: Path, capsys: Captured
) -> None:
    other = stored(bundles[1], tmp_path / "other.json")
    (tmp_path / "workload_card.yaml").write_bytes((other_batch / "workload_card.yaml").read_bytes())
    assert main(["compare", bundles[0], str(other)]) == 0
    assert "not comparable" not in capsys.readouterr().out


def test_the_name_of_a_file_shows_its_form(
    bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    for name, begins in (("c.json", "{"), ("c.html", "<!doctype html>"), ("c.txt", bundles[1])):
        target = tmp_path / name
        assert main(["compare", *bundles, "-o", str(target)]) == 0
        assert target.read_text().lower().startswith(begins.lower())
        title, first, *_, file = capsys.readouterr().out.splitlines()
        assert title == f"{bundles[1]} against {bundles[0]}"
        assert " slower than " in first
        assert file.partition("  ")[0] == str(target)


def test_a_comparison_is_not_written_over_a_file(
    bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    target = tmp_path / "c.json"
    target.write_text("mine")
    assert main(["compare", *bundles, "-o", str(target)]) == 2
    assert (target.read_text(), "--force" in capsys.readouterr().err) == ("mine", True)
    assert main(["compare", *bundles, "-o", str(target), "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([PIPELINE], "a comparison needs at least two runs"),
        ([PIPELINE, PIPELINE, "--fail-on", "slow"], "'slow' is not a valid limit"),
        ([PIPELINE, PIPELINE, "--study", "colour"], "unknown field 'colour'"),
        ([PIPELINE, PIPELINE, "-m", "mfv"], "did you mean mfu"),
        ([PIPELINE, PIPELINE, "-o", "c.pdf"], "does not state the form of the report"),
        ([PIPELINE, PIPELINE, "--tolerance", "200"], "must be from 0 to 100"),
    ],
)
def test_a_wrong_command_line_is_explained(words: list[str], said: str, capsys: Captured) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_is_not_there_is_reported(
    bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    assert main(["compare", bundles[0], str(tmp_path / "nothing")]) == 4
    assert "nothing" in capsys.readouterr().err


def test_results_that_are_none_are_reported(
    bundles: tuple[str, str], tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "r.json").write_text('[{"metric": 3}]')
    assert main(["compare", bundles[0], str(tmp_path / "r.json")]) == 4
    assert "holds no results" in capsys.readouterr().err


def test_help_shows_limits_and_exit_statuses() -> None:
    shown = ran("ccl-bench compare --help")
    assert shown.returncode == 0
    for word in ("METRIC:5%", "5 a limit is crossed", "--study", "--tolerance"):
        assert word in shown.stdout


def test_the_first_line_says_which_run_is_slower_and_why(bundles: tuple[str, str], capsys: Captured) -> None:
    """The second bundle's steps are longer; its first line says by how much, before any table."""
    main(["compare", *bundles])
    lines = capsys.readouterr().out.splitlines()
    assert f"{bundles[1]} is " in lines[1]
    assert "% slower than" in lines[1]
    assert ", mostly " in lines[1]
    where, table = (
        next(n for n, line in enumerate(lines) if text in line) for text in ("Where the", "METRIC")
    )
    assert 1 < where < table
