"""A folder that ASTRA-sim simulates: workload, groups, machine, and the command that runs it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.text import counted, numbers
from ccl_bench.chakra.communication import GROUPS, groups_text
from ccl_bench.chakra.graph import make_communication
from ccl_bench.chakra.protobuf import COMPUTE, VERSION, attribute, framed, message
from ccl_bench.chakra.simulator import (
    MEMORY,
    NETWORK,
    STEP_NS,
    SYSTEM,
    machine,
    memory_text,
    network_text,
    refuse_existing_files,
    system_text,
)
from ccl_bench.chakra.simulator import TABLES as MACHINE_TABLES
from ccl_bench.chakra.workload import TABLES as WORKLOAD_TABLES
from ccl_bench.chakra.workload import bytes_of, workload
from ccl_bench.evaluate.load import load_tables
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from ccl_bench.chakra.simulator import Machine
    from ccl_bench.chakra.workload import Piece, RankWorkload, Workload
    from ccl_bench.run import Run

PREFIX, SCRIPT, README = "workload", "run.sh", "README.md"

TABLES = (*dict.fromkeys((*WORKLOAD_TABLES, *MACHINE_TABLES)),)
"""Tables of a run that a simulation is made of."""

BINARY = "AstraSim_Analytical_Congestion_Unaware"
"""Program of ASTRA-sim whose network has the modelled times; it alone has several dimensions."""

_COMMAND = f"""\
#!/bin/sh
# Simulates this folder: ASTRA_SIM=/path/to/{BINARY} sh {SCRIPT} | tee result.txt
set -eu
program=$(realpath "$(command -v "${{ASTRA_SIM:?give the path of {BINARY}}}")")
cd "$(dirname "$0")"
exec "$program" \\
  --workload-configuration={PREFIX} \\
  --comm-group-configuration={GROUPS} \\
  --system-configuration={SYSTEM} \\
  --remote-memory-configuration={MEMORY} \\
  --network-configuration={NETWORK}
"""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The written files."""

    paths: tuple[Path, ...]
    workload: Workload
    remarks: tuple[str, ...]


def write_simulation(run: Run, directory: str | Path, *, force: bool = False) -> Simulation:
    """Write all that ASTRA-sim needs to simulate the steps of a run.

    Raises InputError if not every rank recorded a step, UsageError if a file exists and `force` is not given.
    """
    folder = Path(directory)
    inputs = load_tables(run, TABLES).inputs
    work = workload(inputs, str(run.path))
    described = machine(inputs, len(work.ranks))
    texts = {
        GROUPS: groups_text(work.members),
        NETWORK: network_text(described.levels),
        SYSTEM: system_text(described.settings),
        MEMORY: memory_text(),
        SCRIPT: _COMMAND,
        README: _readme(run.path.name, work, described),
    }
    places = {rank.rank: folder / f"{PREFIX}.{rank.rank}.et" for rank in work.ranks}
    paths = (*places.values(), *(folder / name for name in texts))
    refuse_existing_files(paths, force=force)
    for rank in work.ranks:
        with storage.write_atomically(places[rank.rank]) as temporary, temporary.open("wb") as stream:
            head = [attribute("rank", "uint64", rank.rank)]
            stream.write(framed(message("GlobalMetadata")(version=VERSION, attr=head)))
            for piece in rank.pieces:
                stream.write(framed(_node(piece, rank, work)))
    for name, text in texts.items():
        replace_text(folder / name, text)
    return Simulation(paths, work, (*work.remarks, *described.remarks))


def _node(piece: Piece, rank: RankWorkload, work: Workload) -> Any:
    """Return a node: ASTRA-sim accepts no node of the CPU, and no metadata, in its statistics."""
    node = message("Node")(id=piece.number, type=COMPUTE, name="work", data_deps=piece.after)
    node.start_time_micros, node.duration_micros = max(0, piece.start_ns // 1000), piece.duration_us
    node.attr.append(attribute("is_cpu_op", "bool", value=False))
    if piece.call is not None:
        node.name = str(piece.call["name"])
        size, group = bytes_of(piece.call), work.numbers.get(piece.call["group"])
        of_group = {"group_name": group and str(group), "group_size": group and len(work.members[group])}
        sizes = {"in_bytes": size, "out_bytes": size}
        make_communication(node, {**piece.call, **of_group, **sizes}, rank.rank)
    return node


def _readme(name: str, work: Workload, described: Machine) -> str:
    """Return the text that says what each file and number of the folder is."""
    levels = [
        f"| `npus_count` {level.count} | {level.reach} | {_number(level.bandwidth)} "
        f"| {_number(level.latency_ns)} | {level.source} |"
        for level in described.levels
    ]
    what = f"{counted(len(work.steps), 'step')} ({numbers(work.steps)}) of {counted(len(work.ranks), 'rank')}"
    settings = [
        f"| `{key}` | `{json.dumps(described.settings[key])}` | {text} |"
        for key, text in described.meanings.items()
    ]
    notes = [f"- {remark}" for remark in (*work.remarks, *described.remarks)]
    return "\n".join(
        [
            f"# {name} for ASTRA-sim",
            "",
            f"Written by `ccl-bench chakra --astra-sim` from {what}. Simulate with",
            "",
            "```sh",
            f"ASTRA_SIM=/path/to/{BINARY} sh {SCRIPT} | tee result.txt",
            "```",
            "",
            "and compare with the run: `ccl-bench chakra RUN --astra-sim-result result.txt`.",
            "",
            f"- `{PREFIX}.<rank>.et`: calls, and work that takes its measured time, also between calls.",
            f"- `{GROUPS}`: number of a group and its ranks.",
            f"- `{MEMORY}`: no memory beyond the devices.",
            "",
            f"## {NETWORK}",
            "",
            "| dimension | joins | bandwidth, GB/s of 2^30 bytes | latency of a link, ns | source |",
            "|---|---|---|---|---|",
            *levels,
            "",
            f"A ring step takes {STEP_NS} ns, the latency of two links, and its bytes over the bandwidth.",
            "",
            f"## {SYSTEM}",
            "",
            "| setting | value | meaning |",
            "|---|---|---|",
            *settings,
            *(["", "## Notes", "", *notes] if notes else []),
            "",
        ]
    )


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"
