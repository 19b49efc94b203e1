"""The tables of the database.

The index (workloads, runs, values, counts, groups) and the publications can be rebuilt from the bundles;
any time; the log, tokens, keys, jobs and uploads live here only.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text

from ccl_bench.leaderboard.store.columns import CARD_COLUMNS, FILTERS

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
"""Every table of the database; publishing adds its own."""

_FIRST = ("phase", "model", "input_len", "output_len")
GROUPED = (*_FIRST, *(column.name for column in FILTERS if column.name not in _FIRST), "workload")
"""Columns by which runs are counted together, those that questions name first."""
COVERED = ("state", "source", "curve", "submitted_at", "id", "interactivity")
"""Further columns of their index."""

# What runs of one workload have in common: `key` is its hash, `fields` it as JSON, `label` it in words.
WORKLOADS = Table(
    "workloads",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("label", Text, nullable=False),
    Column("fields", Text, nullable=False),
    Column("size", Integer, nullable=False),  # listed runs
)

RUNS = Table(
    "runs",
    METADATA,
    Column("id", String(64), primary_key=True),  # of the bundle
    Column("state", String(16), nullable=False),
    Column("is_listed", Integer, nullable=False),  # 1 where the state is one of those in tables
    Column("submitted_at", Text, nullable=False),  # ISO 8601, UTC
    Column("submitter", Text, nullable=False),
    Column("superseded_by", String(64)),
    Column("workload", String(64), ForeignKey("workloads.key"), nullable=False),
    Column("is_rankable", Integer, nullable=False),  # 1 where the card says what was run
    Column("name", Text, nullable=False),  # of the run's directory
    *(Column(column.name, Integer if column.type is int else Text) for column in CARD_COLUMNS),
    Column("tool_version", Text, nullable=False),  # of ccl-bench
    Column("trace_url", Text),
    Column("has_report", Integer, nullable=False),  # 1 where the bundle holds one
    Column("signed_by", String(16)),  # id of the key that signed its origin
    Column("searched", Text, nullable=False),  # lower-case words
    Column("history_stamp", String(64), nullable=False),  # of the history that the row was made from
    Column("source", String(40)),  # of a row that was reported elsewhere; null for a published run
    Column("variant", Text),  # what else its configuration is, in words
    Column(
        "curve", String(32)
    ),  # hash of its configuration without the load: the points of one sweep share it
    Column("interactivity", Double),  # its number of that name, which questions need of every row
    Index(None, "state", "submitted_at"),
    Index(None, "workload", "is_listed", "submitted_at"),
    Index(None, "is_listed", "phase", "submitted_at", "id"),
    Index(None, "source"),
    # All that filters and questions read, in the order of their counts.
    Index("ix_runs_groups", "is_listed", *GROUPED, *COVERED),
    # What the headings of the table sort by.
    *(
        Index(None, "is_listed", name, "id")
        for name in (
            "submitted_at",
            "model",
            "hardware",
            "device_count",
            "framework",
            "communication_library",
        )
    ),
)

VALUES = Table(
    "metric_values",
    METADATA,
    Column("run", String(64), ForeignKey("runs.id"), primary_key=True),
    Column("metric", String(100), primary_key=True),
    Column("value", Double, nullable=False),  # in `unit`
    Column("unit", Text, nullable=False),
    Column("better", String(8), nullable=False),
    Column("revision", Integer, nullable=False),  # of the metric's definition
    Column("measured", Text, nullable=False),  # how; only numbers measured alike are comparable
    Column("errors", Integer, nullable=False),  # findings that are errors
    Column("doubts", Integer, nullable=False),  # findings that are warnings or errors
    Column("low", Double),  # smallest of repeats; null where nobody repeated it
    Column("high", Double),
    Column("repeats", Integer),
    Column("workload", String(64), nullable=False),  # of the run
    Column("is_listed", Integer, nullable=False),  # of the run
    Column("comparable", String(32)),  # hash of what numbers ranked together have in common; null: not ranked
    Column("rank_key", BigInteger, nullable=False),  # rises from the best number to the worst
    Index(None, "comparable", "rank_key"),
    Index(None, "metric", "better", "is_listed", "value", "run"),
    Index(
        "ix_metric_values_of_workload",
        *("workload", "metric", "better", "is_listed", "value", "run", "errors", "unit"),
    ),
)

# Where rows that were reported elsewhere come from, as `reported.observations.Source` describes it.
SOURCES = Table(
    "sources",
    METADATA,
    Column("name", String(40), primary_key=True),
    Column("description", Text, nullable=False),  # JSON
    Column("rows", Integer, nullable=False),
    Column("stamp", String(64), nullable=False),  # of the file that its rows were made from
)

# How many listed runs have a value in a field: one of `COUNTED`, or none of them, "", for all runs.
RUN_COUNTS = Table(
    "run_counts",
    METADATA,
    Column("phase", Text, primary_key=True),  # "" where the card names none
    Column("field", String(32), primary_key=True),
    Column("value", Text, primary_key=True),
    Column("count", Integer, nullable=False),
    sqlite_with_rowid=False,  # sums read neighbouring rows
)

# Runs in any state that agree in all that filters and questions name, so that those read no single run.
RUN_GROUPS = Table(
    "run_groups",
    METADATA,
    Column("key", String(32), primary_key=True),  # hash of all but the count
    Column("is_listed", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("source", String(40)),  # `ELSEWHERE` if they were reported elsewhere
    *(Column(name, RUNS.c[name].type) for name in GROUPED),
    Column("count", Integer, nullable=False),
)
ELSEWHERE = "elsewhere"
"""What stands for all sources of rows in `RUN_GROUPS`."""

# How many ranked numbers lie in a span of rank keys, those that `rank_key >> level` makes equal.
RANK_COUNTS = Table(
    "rank_counts",
    METADATA,
    Column("comparable", String(32), primary_key=True),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("span", BigInteger, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# What `log.Entry` describes; only appended to.
LOG = Table(
    "log",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("run", String(64), nullable=False),
    *(Column(name, Text, nullable=False) for name in ("state", "at", "by", "note")),
    *(Column(name, String(64), nullable=False) for name in ("superseded_by", "key")),
    Column("logged_at", Text, nullable=False),
    *(Column(name, String(64), nullable=False) for name in ("previous", "hash")),
    Index(None, "run"),
)


# Times are ISO 8601 in UTC with microseconds, so that they sort as texts.
TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(12), primary_key=True),
    Column("submitter", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),  # SHA-256 of the token
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("revoked_at", Text),
)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", String(16), primary_key=True),  # as minisign prints it
    Column("submitter", String(64), nullable=False),
    Column("public_key", Text, nullable=False),  # as one line of minisign
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
)

PUBLICATIONS = Table(
    "publications",
    METADATA,
    Column("run", String(64), primary_key=True),
    Column("submitter", String(64), nullable=False),
    Column("recording", String(64), nullable=False),  # hash of what was recorded, however it is described
    Column("received_at", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # that its files take on the disk
    Index(None, "recording"),
    Index(None, "submitter"),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("run", String(64), primary_key=True),  # one for each run, so that nothing is done twice
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),  # that were begun
    Column(
        "due_at", Text, nullable=False
    ),  # waiting: not before; running: free for other workers from then on
    Column("holder", Text),
    Column("queued_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("message", Text, nullable=False),
    Index(None, "state", "due_at"),
)

UPLOADS = Table(
    "uploads",
    METADATA,
    Column("submitter", String(64), primary_key=True),
    Column("hour", String(13), primary_key=True),  # such as 2026-01-31T12
    Column("count", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
