"""Small tables for tests, and the timeline they are checked against, nanosecond by nanosecond."""

import polars as pl

from ccl_bench.analysis.derived import DERIVED, computation_order, raw_needs
from ccl_bench.schema import TABLES


def spans(pairs, **columns):
    """Return intervals as a table."""
    pairs = list(pairs)
    starts, ends = [a for a, _ in pairs], [b for _, b in pairs]
    return pl.DataFrame(
        {"start_ns": starts, "end_ns": ends, **columns},
        schema_overrides=dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
    )


def table(name, rows=()):
    """Return a raw table of rows given as dictionaries; what a row lacks is null."""
    rows = list(rows)
    known = TABLES[name]
    if not rows:
        return known.empty()
    return known.frame({column: [row.get(column) for row in rows] for column in known.columns})


def derive(wanted, **raw):
    """Return a derived table computed from raw tables; those that are not given are empty."""
    DERIVED.load()
    tables = {name: raw.get(name, TABLES[name].empty()) for name in raw_needs([wanted])}
    for name in computation_order([wanted]):
        found = DERIVED.get(name)
        tables[name] = found.compute(*(tables[need] for need in found.needs))
    return tables[wanted]


def derive_from(content, wanted):
    """Return a derived table of the content of one trace."""
    identity = TABLES["identity"].frame({"rank": [content.rank], "world_size": [content.world_size]})
    return derive(wanted, **{**content.tables, "identity": identity})


def instants(pairs):
    """Return every nanosecond that lies in one of the half-open `pairs`."""
    return {instant for start, end in pairs for instant in range(start, end)}
