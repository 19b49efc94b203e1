"""The runs of `benchmark/`: their cards, the sources of their traces, and two of them measured."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import ROOT

from ccl_bench.card import card_in_text
from ccl_bench.leaderboard.bundle.format import Bundle

sys.path.insert(0, str(ROOT / "scripts"))
import benchmark

if TYPE_CHECKING:
    from ccl_bench.result import Result

RESNET, DEEPSEEK = "resnet50-ddp-a100", "deepseek-v3-dualpipe-h800"
FOLDERS = sorted(path.parent for path in benchmark.CARDS.glob("*/traces.toml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_is_valid_and_its_traces_have_a_source(folder: Path) -> None:
    card = folder / "workload_card.yaml"
    assert not card_in_text(card.read_text(encoding="utf-8"), file=card.name).errors
    sources = benchmark.read_sources(folder)
    assert sources.repository.startswith("https://github.com/")
    assert all(each.address.startswith(f"{sources.repository}/") for each in sources.file if each.address)
    assert all(len(each.sha256) == 64 for each in sources.file)


def _results(data: Path) -> dict[str, dict[str, Result]]:
    bundles = [Bundle(folder) for folder in (data / "runs").iterdir()]
    return {each.provenance.run: {one.metric: one for one in each.results} for each in bundles}


@pytest.mark.skipif("CCL_BENCH_CORPUS" not in os.environ, reason="CCL_BENCH_CORPUS is not set")
def test_the_smallest_are_measured_and_published_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, real = tmp_path / "corpus", Path(os.environ["CCL_BENCH_CORPUS"])
    (trace,) = (each.corpus for each in benchmark.read_sources(benchmark.CARDS / RESNET).file)
    for part in (trace, "kineto/deepseek-dualpipe/train.json.gz"):
        (corpus / part).parent.mkdir(parents=True)
        shutil.copyfile(real / part, corpus / part)
    monkeypatch.setenv("CCL_BENCH_CORPUS", str(corpus))
    data = tmp_path / "board"
    for said in ("new", "as before"):
        assert benchmark.main(["--to", str(data)]) == 0
        out, err = capsys.readouterr()
        assert out.count(said) == 2
        assert "megatron-tp8-a100: left out, kineto/megatron-tp8/megatron_kineto_0.json.gz is missing" in err
        assert "https://github.com/astra-sim/astra-sim" in err
    results = _results(data)
    assert results.keys() == {RESNET, DEEPSEEK}
    events = json.loads(gzip.decompress((real / trace).read_bytes()))["traceEvents"]
    calls = sum(each.get("cat") == "kernel" and "nccl" in each["name"] for each in events)
    marks = {each["name"] for each in events if str(each.get("name")).startswith("ProfilerStep#")}
    assert results[RESNET]["coll_call_num"].value == calls / len(marks) == 7


def test_a_trace_with_another_hash_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (trace,) = (each.corpus for each in benchmark.read_sources(benchmark.CARDS / RESNET).file)
    (tmp_path / trace).parent.mkdir(parents=True)
    (tmp_path / trace).write_bytes(b"{}")
    monkeypatch.setenv("CCL_BENCH_CORPUS", str(tmp_path))
    assert benchmark.main([RESNET, "--to", str(tmp_path / "board")]) == 4
    assert f"{tmp_path / trace}: is not the published file" in capsys.readouterr().err
    assert not (tmp_path / "board").exists()
    assert benchmark.main([DEEPSEEK, "--to", str(tmp_path / "board")]) == 3
