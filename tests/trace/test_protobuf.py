"""The reader of protobuf's wire format against protobuf's own library, and one message against many."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.internal import encoder
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.trace.protobuf import DamagedMessageError, Message, field_table, fields, read_varint

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


def unsigned(number: int) -> int:
    return number % (1 << 64)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int | bytes]]]:
    """Return a message as protobuf's library encodes its fields, and the fields."""
    found: list[tuple[int, int | bytes]] = []
    data = bytearray()
    for _ in range(draw(st.integers(0, 6))):
        number = draw(st.integers(1, 400))
        if draw(st.booleans()):
            value: int | bytes = draw(NUMBERS)
            encoder.UInt64Encoder(number, is_repeated=False, is_packed=False)(
                data.extend, unsigned(value), None
            )
        else:
            value = draw(st.binary(max_size=200))
            encoder.BytesEncoder(number, is_repeated=False, is_packed=False)(data.extend, value, None)
        found.append((number, value))
    return bytes(data), found


@given(messages())
def test_fields_are_those_that_were_encoded(given_message):
    data, expected = given_message
    found = [(f.number, data[f.value : f.end] if f.end else f.value) for f in fields(data)]
    assert found == expected


@given(st.lists(messages(), max_size=8))
def test_many_messages_at_once_are_each_read_as_one(given_messages):
    data, starts, ends = b"", [], []
    for encoded, _ in given_messages:
        starts.append(len(data) + 1)
        data += b"\xff" + encoded
        ends.append(len(data))
    table = field_table(data, starts, ends)
    found = sorted(zip(*(column.tolist() for column in table), strict=True))
    expected = [
        (place, field.number, field.value, field.end)
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
        for field in fields(data, start, end)
    ]
    assert found == sorted(expected)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_damaged(data):
    """One message and the same among many are damaged alike."""
    try:
        expected = [(f.number, f.value, f.end) for f in fields(data)]
    except DamagedMessageError:
        with pytest.raises(DamagedMessageError):
            field_table(data, [0], [len(data)])
    else:
        table = field_table(data, [0], [len(data)])
        assert [tuple(map(int, row[1:])) for row in zip(*table, strict=True)] == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a\x05ab", id="a text ends outside"),
        pytest.param(b"\x08", id="a number is missing"),
        pytest.param(b"\x08" + b"\xff" * 10, id="a number does not end"),
        pytest.param(b"\x0b", id="a group, which has no length"),
        pytest.param(b"\x09\x00\x00", id="a double is cut off"),
    ],
)
def test_what_is_no_message_is_damaged(data):
    with pytest.raises(DamagedMessageError):
        list(fields(data))


def test_a_message_gives_its_fields_by_kind():
    proto = FileDescriptorProto(name="a", package="ü")
    proto.public_dependency.extend([3, 300, -1])
    proto.message_type.add().field.add(name="x", type=FieldDescriptorProto.TYPE_INT64)
    found = Message(proto.SerializeToString())
    assert (found.text(1), found.text(2), found.text(99)) == ("a", "ü", "")
    assert found.numbers(10) == [3, 300, -1]
    assert found.message(4).message(2).text(1) == "x"
    assert found.message(4).message(2).number(5) == FieldDescriptorProto.TYPE_INT64
    assert len(found.messages(4)) == 1
    assert 4 in found
    assert 5 not in found
    assert found.holds_others(1, 2, 4)
    assert not found.holds_others(1, 2, 4, 10)


def test_packed_numbers_are_read_as_single_ones():
    packed = b"\x52\x04\x03\xac\x02\x05"
    assert Message(packed).numbers(10) == [3, 300, 5]
    assert read_varint(b"\xac\x02", 0, 2) == (300, 2)
