"""The sandboxed process that recomputes a published run: it imports little, and is confined.

`recompute` starts it with two files: the request, and the path of the answer.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import msgspec

from ccl_bench.base.errors import CclBenchError
from ccl_bench.base.findings import Issue  # noqa: TC001  msgspec reads the types of fields
from ccl_bench.base.text import json_decoder
from ccl_bench.leaderboard.publishing.confinement import confine, installation
from ccl_bench.result import Result  # noqa: TC001
from ccl_bench.result.report_data import Series
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice


class SandboxRequest(msgspec.Struct, frozen=True):
    """The request: what to measure."""

    run: str
    card: str
    memory_bytes: int
    cpu_seconds: int
    file_bytes: int
    worker: int
    """Number of the process that waits for the answer."""
    choice: StepChoice = EVERY_STEP


class SandboxAnswer(msgspec.Struct, frozen=True):
    """The answer."""

    results: list[Result] = []
    series: Series = Series()
    issues: list[Issue] = []
    fields: dict[str, str | int | float | bool | list[str]] = {}
    error: str = ""
    """Why measuring failed."""


REQUEST, ANSWER = json_decoder(SandboxRequest), json_decoder(SandboxAnswer)


def main(request: Path, answer: Path) -> None:
    """Measure the requested run and write the answer; only its folder is writable."""
    sandbox_request = REQUEST.decode(request.read_bytes())
    limits = {
        resource.RLIMIT_AS: sandbox_request.memory_bytes,
        resource.RLIMIT_CPU: sandbox_request.cpu_seconds,
        resource.RLIMIT_FSIZE: sandbox_request.file_bytes,
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CORE: 0,
    }
    readable = [*installation(), Path(sandbox_request.run), Path(sandbox_request.card)]
    os.umask(0o077)  # in the sandbox no permissions can be changed
    confine(limits, readable, writable=[answer.parent])
    if os.getppid() != sandbox_request.worker:  # it died before this process was bound to its life
        return
    try:
        outcome = _measure(sandbox_request)
    except CclBenchError as error:
        outcome = SandboxAnswer(error=f"{error.where}: {error.message}" if error.where else error.message)
    except MemoryError:
        outcome = SandboxAnswer(
            error=f"recomputing takes more than {sandbox_request.memory_bytes:,} bytes of memory"
        )
    answer.write_bytes(msgspec.json.encode(outcome))


def _measure(request: SandboxRequest) -> SandboxAnswer:
    from ccl_bench.card.comparison_fields import fields_of
    from ccl_bench.evaluate.report_data import collect_report_data
    from ccl_bench.result.step_choice import step_choice
    from ccl_bench.run import open_run

    wanted = request.choice
    choice = step_choice(wanted.numbers or None, wanted.skip, wanted.marker or None, wanted.program or None)
    run = open_run(request.run, card=request.card, choice=choice)
    seen = collect_report_data(run, jobs=1, use_cache=False)
    return SandboxAnswer(
        seen.results, seen.series, seen.inspection.issues, fields_of(run.documents.card, run.facts)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
