"""Instructions of XLA: groups against the definition of each mode, text against protocol buffer."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_profiles import instruction, message, packed, program, shape

from ccl_bench.trace.hlo.instruction import Shape, convolution, dot, iota_groups, read_instruction
from ccl_bench.trace.hlo.program import read_program

F32 = 11


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
def test_iota_groups_are_those_of_a_transposed_array(dimensions, random):
    order = [*range(len(dimensions))]
    random.shuffle(order)
    count = math.prod(dimensions)
    per_group = random.choice([size for size in range(1, count + 1) if count % size == 0])
    expected = np.arange(count).reshape(dimensions).transpose(order).reshape(-1, per_group).tolist()
    found = iota_groups((count // per_group, per_group), dimensions, order)
    assert [list(group) for group in found] == expected


def test_the_iota_of_the_manual_is_four_pairs():
    text = "%a = f32[8]{0} all-reduce(f32[8]{0} %x), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0)"
    assert read_instruction(text).groups == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("size", "dimensions", "order"),
    [((2, 2), (3,), ()), ((2, 2), (2, 2), (0, 0)), ((1 << 20, 2), (1 << 21,), ())],
)
def test_an_iota_that_does_not_fit_has_no_groups(size, dimensions, order):
    assert iota_groups(size, dimensions, order) is None


MODES = {
    "cross replica": (),
    "cross partition": ((26, 1),),
    "cross replica and partition": ((26, 1),),
    "flattened": ((26, 1), (71, 1)),
}
"""How a collective states which devices its numbers count: by a channel, and whether they are global ids."""


def members_by_definition(mode, groups, devices, own):
    """Return who communicates with a device, by walking over all devices: `devices[partition][replica]`."""
    places = {
        device: (replica, partition)
        for partition, replicas in enumerate(devices)
        for replica, device in enumerate(replicas)
    }
    replicas = len(devices[0])

    def number(device):
        replica, partition = places[device]
        if mode == "flattened":
            return replica * len(devices) + partition
        return partition if mode == "cross partition" else replica

    def together(device):
        if mode == "cross replica":
            return places[device][1] == places[own][1]
        return places[device][0] == places[own][0] if mode == "cross partition" else True

    every = {"flattened": replicas * len(devices), "cross partition": len(devices)}.get(mode, replicas)
    for group in groups or [range(every)]:
        if number(own) in group:
            return {device for device in places if together(device) and number(device) in group}
    return set()


@st.composite
def collectives(draw):
    replicas, partitions = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    ids = draw(st.permutations(range(replicas * partitions)))
    devices = [ids[place * replicas : (place + 1) * replicas] for place in range(partitions)]
    mode = draw(st.sampled_from(sorted(MODES)))
    count = {"flattened": replicas * partitions, "cross partition": partitions}.get(mode, replicas)
    numbers = draw(st.permutations(range(count)))
    per_group = draw(st.sampled_from([size for size in range(1, count + 1) if count % size == 0]))
    listed = [numbers[at : at + per_group] for at in range(0, count, per_group)]
    return mode, draw(st.sampled_from([listed, []])), devices


@given(collectives())
def test_members_are_those_of_the_mode(given_collective):
    """Of a program with one replica, or one partition, all modes count devices alike."""
    mode, groups, devices = given_collective
    kind = "all-to-all" if mode == "cross partition" else "all-reduce"
    if 1 in (len(devices), len(devices[0])) and mode != "flattened":
        return
    listed = [(49, message((1, packed(*group)))) for group in groups]
    made = instruction("c", kind, shape(F32, 4), 1, *MODES[mode], *listed)
    found = read_program(program("m", [made], devices))
    for own in itertools.chain(*devices):
        members = found.members(found.instructions["c"], own)
        assert {*members} == members_by_definition(mode, groups, devices, own)


def test_text_and_protocol_buffer_say_the_same():
    """JAX compiles a program here; its text is read line by line, and its protocol buffer."""
    import jax

    def step(weights, data):
        return jax.numpy.sum(jax.numpy.tanh(data @ weights) ** 2)

    compiled = jax.jit(jax.grad(step)).lower(np.ones((64, 32), "f4"), np.ones((16, 64), "f4")).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    found = read_program(message((1, module.as_serialized_hlo_module_proto())))
    lines = [read_instruction(line) for line in module.to_string().splitlines()]
    texts = [each for each in lines if each is not None]
    assert len(texts) == len(found.instructions) > 5
    for text in texts:
        own = found.instructions[text.name]
        assert (text.opcode, text.results) == (own.opcode, own.results)
        assert (text.groups, text.starts) == (own.groups, own.starts)
    products = [p for each in found.instructions.values() for p in each.products]
    sizes = {2 * p.batch * p.rows * p.inner * p.columns for p in products}
    assert sizes == {2 * 16 * 64 * 32}


@given(st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_a_product_costs_what_einsum_multiplies(sizes):
    rows, inner, columns = sizes
    for batch in (1, 3):
        left, right = Shape("f32", (batch, rows, inner)), Shape("f32", (batch, columns, inner))
        found = dot(left, right, ([2], [2]), [0])
        expected = np.einsum("bri,bci->", np.ones(left.dimensions), np.ones(right.dimensions))
        assert found.batch * found.rows * found.inner * found.columns == expected


def test_a_convolution_costs_a_product_for_each_place_of_its_output():
    image, kernel, output = Shape("f32", (8, 10, 3)), Shape("f32", (5, 3, 7)), Shape("f32", (8, 6, 7))
    found = convolution(image, kernel, output, features=2)
    assert (found.rows, found.inner, found.columns) == (8 * 6, 5 * 3, 7)


def test_a_convolution_does_not_multiply_the_places_between_elements():
    """The gradient of one with stride 2 in four groups: window={size=3x3 pad=2_3x2_3 lhs_dilate=2x2}."""
    side = message((1, 3), (2, 1), (3, 2), (4, 3), (5, 1), (6, 2))
    about = (15, message((1, side), (1, side))), (16, message((4, 3)))
    operands = (36, packed(1, 2))
    parts = [
        instruction("x", "parameter", shape(11, 2, 7, 7, 16), 1),
        instruction("w", "parameter", shape(11, 3, 3, 4, 8), 2),
        instruction("c", "convolution", shape(11, 2, 16, 16, 8), 3, operands, *about),
    ]
    (found,) = read_program(program("jit_f", parts, [[0]])).instructions["c"].products
    over_elements = sum((place + tap - 2) % 2 == 0 for place in range(16) for tap in range(3))
    assert found.rows * found.inner * found.columns == 2 * over_elements**2 * 4 * 8


def test_a_fusion_that_mentions_a_collective_is_none():
    text = "%f = f32[8]{0} fusion(f32[8]{0} %all-reduce.1), kind=kLoop, calls=%all-reduce_computation"
    assert read_instruction(text).collective is None
