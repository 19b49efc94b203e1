"""A share above 100 % is not a number, whatever metric it is of."""

import json
from pathlib import Path

import pytest

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run


def written(folder: Path, copied_bytes: int) -> Path:
    """Write a step with one copy within the memory of an A100 that takes 100 us."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 9, "tid": 9}
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 7}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}
    place = {"device": 0, "stream": 7}
    events = [
        step | {"ts": 0, "dur": 1_000},
        launch | {"ts": 10, "dur": 5, "args": {"correlation": 1}},
        copy | {"ts": 20, "dur": 100, "args": place | {"correlation": 1, "bytes": copied_bytes}},
        launch | {"name": "cudaLaunchKernel", "ts": 200, "dur": 5, "args": {"correlation": 2}},
        kernel | {"ts": 300, "dur": 100, "args": place | {"correlation": 2}},
    ]
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84_987_740_160}
    content = {"deviceProperties": [device], "distributedInfo": {"rank": 0, "world_size": 1}}
    (folder / "rank0_trace.json").write_text(json.dumps(content | {"traceEvents": events}))
    return folder


@pytest.mark.parametrize(("copied_bytes", "status"), [(50_000_000, "ok"), (300_000_000, "not_measurable")])
def test_more_than_the_memory_can_do_is_refused(copied_bytes: int, status: str, tmp_path: Path) -> None:
    # 2,039 GB/s at most: 50 MB read and written in 100 us are 1,000 GB/s, 300 MB 6,000
    run = open_run(written(tmp_path, copied_bytes))
    (found,) = evaluate(run, ["memory_bandwidth_utilization"], jobs=1, use_cache=False)
    assert found.status == status, found.reason
    if status == "ok":
        assert found.value == pytest.approx(100 * 1_000 / 2_039, rel=0.001)
    else:
        assert found.reason == "the value is 294.3 %, which is impossible for a share"
        assert "check" in found.fix
