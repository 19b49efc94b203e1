"""Standard workloads, and which of them have rows on a board: on which systems, with which libraries."""

from __future__ import annotations

import pkgutil
import shlex
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, or_, select

from ccl_bench.leaderboard.store.rows import is_listed
from ccl_bench.leaderboard.store.tables import RUNS

if TYPE_CHECKING:
    from sqlalchemy import Connection

SETS = {"reference": "Reference workloads", "suite": "Suite of seven models"}


@dataclass(frozen=True, slots=True)
class StandardWorkload:
    """A workload that many runs share."""

    set: str
    phase: str
    model: str
    tokens: int
    batch: int | None = None
    """Sequences of a step; None for any."""
    precision: str = ""
    start: str = ""
    """Definition that a recording may start from."""

    @property
    def name(self) -> str:
        """The workload in words."""
        batch = f"batch {self.batch}, " if self.batch else ""
        return f"{self.model.rpartition('/')[2]}, {self.phase}, {batch}{self.tokens:,} tokens"

    @property
    def query(self) -> dict[str, Any]:
        """The query for its rows."""
        # Rows of inference state their prompt or their whole sequence, so that no one length finds all.
        length = {"seq_len": self.tokens} if self.phase == "training" else {}
        batch = {"batch_size": self.batch} if self.batch else {}
        precision = {"precision": [self.precision]} if self.precision else {}
        return {"phase": self.phase, "model": [self.model]} | length | batch | precision

    @property
    def command(self) -> str:
        """The command that begins a row of it."""
        slug = f"{self.model.rpartition('/')[2]}-{self.phase}-{self.tokens}".lower()
        if self.phase == "inference":
            batch = f" --batch-size {self.batch}" if self.batch else ""
            served = f"vllm bench latency --model {shlex.quote(self.model)}{batch} --input-len {self.tokens}"
            return f"ccl-bench collect -o {slug} -- {served}"
        if not self.start:
            return f"ccl-bench new {slug}"
        settings = {"training.global_batch_size": self.batch, "training.seq_len": self.tokens}
        values = " ".join(f"--set {name}={value}" for name, value in settings.items() if value)
        return f"ccl-bench new {slug} --from {self.start} {values}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """A standard workload with its rows on a board."""

    workload: StandardWorkload
    rows: dict[tuple[str, str], int]
    """System and communication library → number of rows."""
    missing: list[str]
    """Systems with rows of this phase, but none of this workload."""


@cache
def standard_workloads() -> tuple[StandardWorkload, ...]:
    """Return the standard workloads, in the order of their data file."""
    data = tomllib.loads((pkgutil.get_data(__package__, "standard_workloads.toml") or b"").decode())
    reference = [
        StandardWorkload(
            "reference", each["phase"], each["model"], tokens, batch, start=each.get("start", "")
        )
        for each in data["reference"]
        for batch, tokens in each["shapes"]
    ]
    suite = data["suite"]
    return (
        *reference,
        *(
            StandardWorkload("suite", phase, model, suite["tokens"], precision=suite["precision"])
            for model in suite["models"]
            for phase in ("training", "inference")
        ),
    )


def coverage(connection: Connection) -> list[Coverage]:
    """Return the rows of each standard workload on a board."""
    systems: dict[str, list[str]] = {}
    of_phase = (
        select(RUNS.c.phase, RUNS.c.hardware).where(is_listed(), RUNS.c.hardware.is_not(None)).distinct()
    )
    for phase, hardware in connection.execute(of_phase.order_by(RUNS.c.hardware)):
        systems.setdefault(phase, []).append(hardware)
    coverages = []
    for workload in standard_workloads():
        columns = (RUNS.c.hardware, RUNS.c.communication_library)
        where = [is_listed(), RUNS.c.phase == workload.phase, RUNS.c.model == workload.model]
        where.append(or_(RUNS.c.seq_len == workload.tokens, RUNS.c.input_len == workload.tokens))
        if workload.batch:
            where.append(RUNS.c.batch_size == workload.batch)
        if workload.precision:
            where.append(RUNS.c.precision == workload.precision)
        counted = select(*columns, func.count()).where(*where).group_by(*columns).order_by(*columns)
        rows = {(row[0] or "unknown", row[1] or "unknown"): row[2] for row in connection.execute(counted)}
        having = {hardware for hardware, _ in rows}
        missing = [name for name in systems.get(workload.phase, []) if name not in having]
        coverages.append(Coverage(workload, rows, missing))
    return coverages
