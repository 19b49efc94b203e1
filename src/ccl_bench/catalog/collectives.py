"""Collectives: one canonical name behind every spelling, and the bus-bandwidth factor of each.

Names of GPU kernels lead here too: `stem` finds the function's own name in the one that a profiler gives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

from ccl_bench.base.errors import NotApplicable, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.catalog.data_files import NamePattern, load_data

SEARCHED = 8_192
"""Characters of a name that patterns are looked for in. Names from CUTLASS have up to 6,000; one search takes
time linear in their number, and a trace may have many names."""

_UNNAMED = ("(anonymous namespace)::", "<unnamed>::")


def stem(kernel_name: str) -> str:
    """Return the qualified function name without return type, template arguments and parameters.

    `void at::native::<unnamed>::reduce_kernel<(int)512>(T1)` gives `at::native::reduce_kernel`. A mangled
    name stays whole.
    """
    name = kernel_name[:SEARCHED]
    for unnamed in _UNNAMED:
        name = name.replace(unnamed, "")
    name = name.removeprefix("void ")
    ends = [position for position in (name.find("<"), name.find("(")) if position > 0]
    return name[: min(ends)] if ends else name


Operand = Literal["in", "out", "max", "sum", "none"]

OTHER_COMMUNICATION = "other_communication"
"""What `of_kernel` returns for a kernel that communicates in a way its name does not show."""

FUSED = "fused"
"""What `of_launcher` returns for an operator that multiplies matrices and communicates at once."""

_FACTORS: dict[str, tuple[float, float] | None] = {
    # formula -> (factor in the limit of many ranks, the part of it that vanishes as 1/n)
    "2(n-1)/n": (2.0, 2.0),
    "(n-1)/n": (1.0, 1.0),
    "1": (1.0, 0.0),
    "0": (0.0, 0.0),
    "none": None,
}


@dataclass(frozen=True, slots=True)
class Collective:
    """Properties of a collective, the same in every library."""

    name: str
    """Name of the row: canonical, or a variant such as `all_to_allv`."""
    counts_as: str
    """Canonical name; differs from `name` for a variant only."""
    bus_factor: str
    """Bus bandwidth / algorithm bandwidth as a formula in the group size n; `none` where there is none."""
    size: Operand
    """Which recorded element count is the message: In, Out, the larger, the sum, or none."""
    is_rooted: bool
    """One rank is the source or the sink."""
    is_point_to_point: bool
    """Two ranks take part, not the group."""
    is_symmetric: bool
    """No member leaves before all arrived: duration minus the shortest member's duration is waiting."""
    transfers: bool
    """It moves payload; false for a barrier."""


@cache
def collectives() -> dict[str, Collective]:
    """Return name -> collective, canonical ones and variants, in the order of the data file."""
    return {
        row["name"]: Collective(
            name=row["name"],
            counts_as=row.get("counts_as", row["name"]),
            bus_factor=row["bus_factor"],
            size=cast("Operand", row["size"]),
            is_rooted=row.get("rooted", False),
            is_point_to_point=row.get("point_to_point", False),
            is_symmetric=row.get("symmetric", False),
            transfers=row.get("transfers", True),
        )
        for row in load_data("collectives")["collective"]
    }


def names() -> list[str]:
    """Return the canonical names, variants left out."""
    return [name for name, row in collectives().items() if row.counts_as == name]


def collective(name: str) -> Collective:
    """Return the facts of a collective under any spelling; a variant such as `all_to_allv` keeps its own."""
    row = _spellings().get(_letters(name))
    if row is None:
        raise UsageError(f"unknown collective {name!r}", fix=did_you_mean(name, collectives()))
    return collectives()[row]


def canonical(name: str) -> str | None:
    """Return the canonical name behind a `Collective name` of a trace, or None if it is no known one."""
    row = _spellings().get(_letters(name))
    return None if row is None else collectives()[row].counts_as


def is_bookkeeping(name: str) -> bool:
    """Whether torch records `name` beside collectives although nothing moves, such as `wait`."""
    return _letters(name) in _bookkeeping()


@cache
def carried_out_by_gloo() -> dict[str, str]:
    """Return the collectives that gloo carries out as another one, and as which."""
    return {row["collective"]: row["as"] for row in load_data("collectives")["carried_out_by_gloo"]}


@cache
def _spellings() -> dict[str, str]:
    by_spelling: dict[str, str] = {}
    for row in load_data("collectives")["collective"]:
        for spelling in (row["name"], *row["spellings"]):
            if by_spelling.setdefault(_letters(spelling), row["name"]) != row["name"]:
                raise ValueError(f"collective spelling {spelling!r} stands for two collectives")
    return by_spelling


@cache
def _bookkeeping() -> frozenset[str]:
    return frozenset(_letters(name) for name in load_data("collectives")["bookkeeping"])


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def bus_factor(name: str, n: int) -> float:
    """Return bus bandwidth / algorithm bandwidth of a collective over `n` ranks, as nccl-tests defines it.

    A group of one moves nothing and has factor 0. `coalesced` has no factor: its parts are unknown.
    """
    if n < 1:
        raise UsageError(f"a group of {n} ranks does not exist", fix="give the number of ranks in the group")
    formula = collective(name).bus_factor
    factor = _FACTORS[formula]
    if factor is None:
        raise NotApplicable(f"{name} has no bus bandwidth", fix="look at the calls it is made of")
    limit, share = factor
    return limit - share / n if n > 1 else 0.0


@cache
def of_kernel(kernel_name: str) -> str | None:
    """Return the canonical collective a GPU kernel carries out.

    `other_communication` means communication whose kind the name does not show; None means no communication,
    or communication and a matrix product in one: see `is_fused`.
    """
    if is_fused(kernel_name):
        return None
    short = stem(kernel_name)
    for pattern, looks_at_stem, result in _kernel_rules():
        if pattern.is_in(short if looks_at_stem else kernel_name[:SEARCHED]):
            return None if result == "none" else result
    return None


@cache
def is_fused(kernel_name: str) -> bool:
    """Whether a GPU kernel both multiplies matrices and carries data between ranks."""
    short = stem(kernel_name)
    return any(
        pattern.is_in(short if looks_at_stem else kernel_name[:SEARCHED])
        for pattern, looks_at_stem in _fused_rules()
    )


@cache
def _fused_rules() -> list[tuple[NamePattern, bool]]:
    return [(NamePattern(row["match"]), row.get("in") == "stem") for row in load_data("collectives")["fused"]]


@cache
def is_local(kernel_name: str) -> bool:
    """Whether a kernel computes on one device alone, although an operator of communication launched it."""
    return re.search(load_data("collectives")["local"]["match"], stem(kernel_name)) is not None


@cache
def of_launcher(operator: str) -> str | None:
    """Return the canonical collective whose work an operator or range launches, `FUSED`, or None."""
    launchers = load_data("collectives")["launcher"]
    launched: str | None = next(
        (row["collective"] for row in launchers if re.search(row["match"], operator[:SEARCHED])), None
    )
    return launched if launched == FUSED else of_annotation(operator) or launched


@cache
def _kernel_rules() -> list[tuple[NamePattern, bool, str]]:
    rows = load_data("collectives")["kernel"]
    return [(NamePattern(row["match"]), row.get("in") == "stem", row["collective"]) for row in rows]


@cache
def of_annotation(name: str) -> str | None:
    """Return the canonical collective named by a range or an operator, such as `nccl:all_to_all, op_id = 7`.

    The name must carry a library's prefix: a range that a person called `reduce` is no collective.
    """
    prefixes = load_data("collectives")["annotations"]["prefixes"]
    prefix = re.match("|".join(f"(?:{prefix})" for prefix in prefixes), name)
    if prefix is None:
        return None
    word = re.split(r"[\s,.(]", name[prefix.end() :], maxsplit=1)[0]
    return canonical(word)


@dataclass(frozen=True, slots=True)
class OperandPositions:
    """Positions of an operator's inputs; None if it has no such input."""

    sent: int | None = None
    received: int | None = None
    peer: int | None = None
    sent_split: int | None = None
    received_split: int | None = None
    in_parts: bool = False
    """Both sides are lists of tensors, one for each member."""


@cache
def custom_operators() -> tuple[str, ...]:
    """Return the prefixes of operators whose inputs state sizes, without those of process groups."""
    return tuple(load_data("collectives")["operators"]["custom"])


@cache
def operands(operator: str) -> OperandPositions | None:
    """Return the inputs of an operator, such as `c10d::NAME`; None if unknown."""
    name = operator.removeprefix("c10d::")
    rows = load_data("collectives")["operators"]["inputs"]
    row = next((row for row in rows if name in row["names"]), None)
    return (
        OperandPositions(**{name: value for name, value in row.items() if name != "names"}) if row else None
    )


def mesh_order(framework: str = "", phase: str = "") -> list[str]:
    """Return the axes of a mesh from the outermost to the innermost, as a framework lays ranks out.

    Without a framework that is known, those of inference lie as serving engines put them.
    """
    layouts = load_data("parallelism")
    serves = is_serving_engine(framework) or (not framework.strip() and phase == "inference")
    return list(layouts["serving_mesh" if serves else "mesh"]["order"])


def is_serving_engine(framework: str) -> bool:
    """Whether a framework is an inference engine."""
    name = re.sub(r"[\s_-]+", "-", framework.strip().lower())
    return name.startswith(tuple(load_data("parallelism")["serving_mesh"]["frameworks"]))


def experts_are_an_axis(framework: str) -> bool:
    """Whether the expert-parallel ranks of a framework are not those of its data or tensor parallelism."""
    return framework.strip().lower().startswith(tuple(load_data("parallelism")["expert_axis"]["frameworks"]))


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(row["match"]), row["dimension"]) for row in load_data("parallelism")["description"]]


@cache
def described_dimension(description: str) -> str | None:
    """Return the dimension that a group's description names, or None if it names none."""
    text = description.strip().lower()
    return next((dimension for pattern, dimension in _patterns() if pattern.search(text)), None)
