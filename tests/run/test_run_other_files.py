"""What is no trace and is known is reported by its name, with what to give in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.catalog import load_data
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

NCCL_TESTS = """# nccl-tests version 2.18.3
#       size         count      type   redop    root     time   algbw   busbw  #wrong
           8             2     float     sum      -1    22.72    0.00    0.00       0
"""


@pytest.mark.parametrize("folder", [True, False])
def test_the_output_of_nccl_tests_is_recognised_by_name(tmp_path: Path, folder: bool) -> None:
    file = tmp_path / "all_reduce.txt"
    file.write_text(NCCL_TESTS, encoding="utf-8")
    with pytest.raises(InputError, match="is the output of nccl-tests") as refused:
        open_run(tmp_path if folder else file)
    assert refused.value.where == str(file)
    assert "busbw" in refused.value.fix


def test_real_output_of_nccl_tests_is_recognised_by_name(corpus: Path) -> None:
    for place in (corpus / "nccl-tests" / "results", corpus / "nccl-tests" / "results" / "all_reduce.txt"):
        with pytest.raises(InputError, match="is the output of nccl-tests"):
            open_run(place)


def test_a_file_that_nobody_knows_is_recognised_by_what_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match=r"there are only files such as notes\.txt"):
        open_run(tmp_path)


def test_every_known_file_has_a_source() -> None:
    known = load_data("other_files")
    for row in known["file"]:
        assert known["sources"][row["source"]]["document"].startswith("https://")
