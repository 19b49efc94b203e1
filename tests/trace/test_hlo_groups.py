"""Groups of collectives in every form that XLA writes, in programs and in texts that XLA itself made."""

from __future__ import annotations

import pytest

from ccl_bench.trace.hlo.instruction import Axis, mesh_groups, read_instruction
from ccl_bench.trace.hlo.program import read_program

hlo = pytest.importorskip("jaxlib._hlo", reason="jax is not installed: make test")

PROGRAM = """HloModule m, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %all-reduce = f32[8] all-reduce(%p), channel_id=1, OPTIONS
}
"""

OPTIONS = "replica_groups=%s, use_global_device_ids=true, to_apply=%%add"

COLUMNS = ((0, 2), (1, 3), (4, 6), (5, 7))

FORMS = {
    "{{0,3},{1,2},{4,5},{6,7}}": ((0, 3), (1, 2), (4, 5), (6, 7)),
    "[4,2]<=[8]": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "[4,2]<=[2,4]T(1,0)": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=2,'b'=4] {'a'}": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "mesh['a'=2,'b'=4] {'b'}": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "mesh['a'=2,'b'=4] {'b','a'}": ((0, 4, 1, 5, 2, 6, 3, 7),),
    "mesh['a'=2,'b'=4], device_ids=([2,2,2]T(1,0,2)) {'a'}": COLUMNS,
    "mesh['a'=2,'b'=4], device_ids=(3,1,2,0,7,5,6,4) {'a'}": ((3, 7), (1, 5), (2, 6), (0, 4)),
    "mesh['a'=8] {'a':(2)2}": COLUMNS,
    "mesh['a'=8] {'a':(1)2,'a':(4)2}": ((0, 1, 4, 5), (2, 3, 6, 7)),
    "mesh['a'=4,'b'=2] {'b','a':(2)2}": ((0, 2, 1, 3), (4, 6, 5, 7)),
}
"""How XLA writes groups of eight devices → the groups."""


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


@pytest.mark.parametrize("form", FORMS)
def test_a_program_and_its_text_show_the_groups_of_a_collective(form: str) -> None:
    module = hlo.hlo_module_from_text(PROGRAM.replace("OPTIONS", OPTIONS % form))
    binary = module.as_serialized_hlo_module_proto()
    (read,) = [
        each
        for each in read_program(b"\x0a" + varint(len(binary)) + binary).instructions.values()
        if each.collective
    ]
    (line,) = [line for line in module.to_string().splitlines() if " all-reduce(" in line]
    shown = read_instruction(line.strip())
    assert shown is not None
    assert read.groups == shown.groups == FORMS[form]


@pytest.mark.parametrize(
    ("sides", "devices", "axes"),
    [
        ((2, 4), (), (Axis(2),)),
        ((2, 4), (), (Axis(0), Axis(0))),
        ((2, 0), (), (Axis(0),)),
        ((8,), (), (Axis(0, 3, 2),)),
        ((8,), (), (Axis(0, 8, 2),)),
        ((2, 4), (0, 1), (Axis(0),)),
        ((1 << 40,), (), (Axis(0),)),
    ],
)
def test_axes_that_do_not_fit_their_mesh_give_no_groups(
    sides: tuple[int, ...], devices: tuple[int, ...], axes: tuple[Axis, ...]
) -> None:
    assert mesh_groups(sides, devices, axes) is None
