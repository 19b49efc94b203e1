"""Tables of several traces are joined to the same texts, whether few or many rows hold them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import polars as pl
import pytest

from ccl_bench.engine.read_trace import MANY_ROWS, ConcatenatedTables

if TYPE_CHECKING:
    from ccl_bench.run.trace_tables import TraceTables


@pytest.mark.parametrize("rows", [MANY_ROWS - 1, MANY_ROWS])
def test_texts_of_tables_stay_what_they_are(rows: int) -> None:
    together = ConcatenatedTables(["named"], 2)
    names = [f"a name of a certain length {number % 7}" for number in range(rows)]
    for rank in range(2):
        tables = {"named": pl.DataFrame({"name": names})}
        trace = SimpleNamespace(tables=tables, further=[], rank=rank, trace=SimpleNamespace(iteration=None))
        together.take(rank, cast("TraceTables", trace))
    joined = together.tables()["named"]
    assert joined["name"].to_list() == 2 * names
    assert joined["rank"].to_list() == [0] * rows + [1] * rows
