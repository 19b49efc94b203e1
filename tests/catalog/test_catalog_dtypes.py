"""Element types: every spelling of a dtype gives one name and one width."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.catalog.dtypes import canonical, dtypes, width_bytes


@pytest.mark.parametrize(
    ("spelling", "name", "width"),
    [
        # c10 names, as `dtype` of a collective in a Kineto trace
        ("Float", "fp32", 4),
        ("Half", "fp16", 2),
        ("BFloat16", "bf16", 2),
        ("Double", "fp64", 8),
        ("Long", "int64", 8),
        ("Int", "int32", 4),
        ("Short", "int16", 2),
        ("Byte", "uint8", 1),
        ("Char", "int8", 1),
        ("Bool", "bool", 1),
        ("ComplexHalf", "complex32", 4),
        ("ComplexFloat", "complex64", 8),
        ("ComplexDouble", "complex128", 16),
        ("Float8_e4m3fn", "fp8_e4m3", 1),
        ("Float8_e5m2", "fp8_e5m2", 1),
        ("Float8_e4m3fnuz", "fp8_e4m3fnuz", 1),
        ("Float8_e5m2fnuz", "fp8_e5m2fnuz", 1),
        ("Float8_e8m0fnu", "fp8_e8m0", 1),
        ("Float4_e2m1fn_x2", "fp4x2", 1),
        ("QInt8", "qint8", 1),
        ("QInt32", "qint32", 4),
        ("UInt16", "uint16", 2),
        ("UInt32", "uint32", 4),
        ("UInt64", "uint64", 8),
        # C++ names, as "Input type" in Kineto and Execution Traces
        ("float", "fp32", 4),
        ("double", "fp64", 8),
        ("long int", "int64", 8),
        ("unsigned char", "uint8", 1),
        ("signed char", "int8", 1),
        ("c10::BFloat16", "bf16", 2),
        ("Tensor(c10::Half)", "fp16", 2),
        # torch and numpy
        ("torch.bfloat16", "bf16", 2),
        ("float32", "fp32", 4),
        ("np.int64", "int64", 8),
        ("bf16", "bf16", 2),
        ("fp8", "fp8", 1),
        ("fp4", "fp4", 0.5),
        # NCCL, in its interface and inside kernel names
        ("ncclFloat32", "fp32", 4),
        ("ncclBfloat16", "bf16", 2),
        ("f16", "fp16", 2),
        ("f8e4m3", "fp8_e4m3", 1),
        ("u8", "uint8", 1),
        ("__nv_bfloat16", "bf16", 2),
    ],
)
def test_a_spelling_has_one_name_and_one_width(spelling: str, name: str, width: float) -> None:
    assert canonical(spelling) == name
    assert width_bytes(spelling) == width


@pytest.mark.parametrize(
    "word", ["", "Scalar", "ScalarList", "TensorList", "bfloat61", "nullptr (uninitialized)"]
)
def test_what_is_no_dtype_is_refused(word: str) -> None:
    with pytest.raises(NotMeasurable, match="unknown element type"):
        canonical(word)


def test_a_near_miss_is_pointed_out() -> None:
    with pytest.raises(NotMeasurable, match=r"did you mean.*bfloat16"):
        width_bytes("bfloat61")


def test_every_canonical_name_is_its_own_spelling() -> None:
    assert [canonical(name) for name in dtypes()] == list(dtypes())


def test_a_2_mib_bf16_buffer_has_a_million_elements() -> None:
    assert 1_048_576 * width_bytes("BFloat16") == 2 * 2**20
