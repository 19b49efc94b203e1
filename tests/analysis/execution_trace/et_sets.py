"""The Execution Traces among the real traces, and what plain JSON says of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.trace.content import TraceContent

PAIRS = {
    "megatron-tp8": [(f"megatron_et_{r}.json.gz", f"megatron_kineto_{r}.json.gz") for r in range(8)],
    "dlrm-8rank": [(f"dlrm_eg_{r}.json.gz", f"worker{r}_step_12.pt.trace.json.gz") for r in range(8)],
    "gloo-fsdp2-tp2-args": [(f"rank{r}_et.json.gz", f"rank{r}_trace.json.gz") for r in range(4)],
}
"""Set → (Execution Trace, Kineto trace) of each rank."""

FILES = [(name, rank) for name, pairs in PAIRS.items() for rank in (0, len(pairs) - 2)]
"""Two ranks of each set; those of `gloo-fsdp2-tp2-args` have different numbers of operators."""


def et_path(corpus: Path, name: str, rank: int) -> Path:
    return corpus / "execution_trace" / name / PAIRS[name][rank][0]


def kineto_path(corpus: Path, name: str, rank: int) -> Path:
    return corpus / "kineto" / name / PAIRS[name][rank][1]


@cache
def content(path: Path) -> TraceContent:
    found = formats.recognised(storage.read_head(path, 256 << 10))
    assert found is not None
    with storage.open_file(path) as stream:
        return found.read(stream, path.name)


def argument(node: dict[str, Any], name: str) -> Any:
    """Return a field of a node whichever way its schema keeps it."""
    if "attrs" not in node:
        return node.get(name)
    return next((entry["value"] for entry in node["attrs"] if entry["name"] == name), None)


def calls(nodes: list[dict[str, Any]]) -> list[tuple[int, str, int, int | None]]:
    """Return (node, collective, bytes sent, group size) of every call that moves something."""
    found = []
    for node in nodes:
        if node["name"] != "record_param_comms":
            continue
        inputs = node["inputs"] if isinstance(node["inputs"], list) else node["inputs"]["values"]
        name = next((value for value in inputs if isinstance(value, str)), None)
        if name in (None, "wait", "init"):
            continue
        tensors = inputs[0] if isinstance(inputs[0][0], list) else [inputs[0]]
        sent = sum(elements * width for _, _, _, elements, width, _ in tensors)
        rest = [value for value in inputs[inputs.index(name) + 3 :] if not isinstance(value, bool)]
        found.append((node["id"], name, sent, rest[-1] if rest else None))
    return sorted(found)


def run_directory(folder: Path, corpus: Path, name: str, ranks: int, *, with_kineto: bool = True) -> Path:
    """Return a run of the first ranks of a set, made of links."""
    for rank in range(ranks):
        for path in [
            et_path(corpus, name, rank),
            *([kineto_path(corpus, name, rank)] if with_kineto else []),
        ]:
            (folder / path.name).symlink_to(path)
    return folder
