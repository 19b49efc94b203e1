"""How fast slow collectives are relative to a clean measurement: the words that two diagnoses add."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from injected import CASES

from ccl_bench.diagnosis.communication import pace
from ccl_bench.diagnosis.diagnose import diagnose
from ccl_bench.metrics.shared.reference import References, ReferenceSystem
from ccl_bench.run import open_run
from ccl_bench.side_files.nccl_tests import Measured, NcclTests
from ccl_bench.testing import write_run

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
A100 = ReferenceSystem("NVIDIA A100-SXM4-80GB", "nccl", "", None)
GROUPS = pl.DataFrame({"group": ["inside", "across"], "spans_nodes": [False, True]})
OWN = NcclTests((Measured("all_reduce", 8, 1, 64 * MIB, 500e-6),))


def all_reduces(*took_us: float, size: int = 8, group: str = "inside") -> pl.DataFrame:
    """Return all-reduces of 64 MiB."""
    rows = [
        {"collective": "all_reduce", "size": size, "size_bytes": 64 * MIB, "group": group, "took": us * 1e3}
        for us in took_us
    ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("calls", "references", "words"),
    [
        # 64 MiB over 8 A100 take 595.3 µs: twice that in 1452 + 1452 µs
        (
            all_reduces(1452, 1452),
            References(None, A100),
            ", at 41 % of what NCCL 2.27.3 reaches on 8 A100 SXM",
        ),
        # the calls over 4 take less time than those over 8, and count as little as a call of no length
        (
            pl.concat([all_reduces(1452, 0), all_reduces(900, size=4)]),
            References(None, A100),
            ", at 41 % of what NCCL 2.27.3 reaches on 8 A100 SXM",
        ),
        (all_reduces(1000), References(OWN, A100), ", at 50 % of what nccl-tests reaches over 8 ranks"),
        (all_reduces(1452, group="across"), References(None, A100), ""),
        (all_reduces(1452, size=6), References(None, A100), ""),
        (all_reduces(1452), References(None, ReferenceSystem("", "nccl", "", None)), ""),
    ],
)
def test_the_pace_is_reference_time_over_recorded_time(
    calls: pl.DataFrame, references: References, words: str
) -> None:
    assert pace(calls, GROUPS, references) == words


def test_a_slow_link_of_a_run_is_compared_with_the_measurement_of_its_device(tmp_path: Path) -> None:
    write_run(CASES["slow link"].plan, tmp_path)
    titles = {each.name: each.title for each in diagnose(open_run(tmp_path), use_cache=False).diagnoses}
    assert titles["slow_group"].endswith("% of what NCCL 2.27.3 reaches on 2 A100 SXM")
