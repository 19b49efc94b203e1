"""Declaration of fields in files that people write: key, meaning, unit, and permitted words."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class FileSection(BaseModel):
    """One mapping of a file; unknown keys are reported by the reader and dropped here."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
    )

    scalar_field: ClassVar[str] = ""
    """Field, when the file has a single value in place of the mapping, as in `framework: vllm`."""
    ordered_fields: ClassVar[tuple[str, ...]] = ()
    """Fields, in order, when the file has a list in place of the mapping."""
    order_rises: ClassVar[bool] = False
    """Whether the values of such a list rise; where they fall, it is unclear which is which."""
    adopted_parts: ClassVar[tuple[str, ...]] = ()
    """Nested parts whose keys are also read one level too high, where public cards write them."""
    other_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of the format that ccl-bench does not use."""


def entry(
    description: str,
    *,
    key: str | None = None,
    unit: str = "",
    units: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    examples: tuple[object, ...] = (),
    literal: bool = False,
    sweep: str = "",
    unlimited: bool = False,
    **pydantic_options: Any,
) -> Any:
    """Return a documented field that may be absent.

    `key` is its name in the file where that is not the attribute's, `unit` the unit of the number, `units`
    spellings of it that may follow the number, `also` other keys in use for the same thing. `literal` is for
    a word taken as a program wrote it: "none" is a value, and its own spelling needs no note. `sweep` is the
    attribute that a list of values in place of one becomes. An `unlimited` number may be infinite. A field
    with `examples` is in the template. `pydantic_options` goes to pydantic: limits, and a default other than
    None.
    """
    pydantic_options.setdefault("default", None)
    if "default_factory" in pydantic_options:
        del pydantic_options["default"]
    hints: dict[str, Any] = {
        "unit": unit,
        "units": [unit, *units] if unit else list(units),
        "also": list(also),
        "literal": literal,
        "sweep": [sweep] if sweep else [],
        "unlimited": unlimited,
    }
    return Field(
        alias=key,
        description=description,
        examples=list(examples) or None,
        json_schema_extra={f"x-{name}": value for name, value in hints.items() if value},
        **pydantic_options,
    )


def hint(info: FieldInfo, name: str) -> list[str]:
    """Return the list stored with a field under `units`, `also` or `sweep`."""
    extra = info.json_schema_extra
    hints = extra.get(f"x-{name}", []) if isinstance(extra, dict) else []
    return [str(item) for item in hints] if isinstance(hints, list) else []


def is_literal(info: FieldInfo) -> bool:
    """Whether "none" and the like are values of this field."""
    extra = info.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("x-literal"))


def is_unlimited(info: FieldInfo) -> bool:
    """Whether the number in this field may be infinite."""
    extra = info.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("x-unlimited"))


def unit_of(info: FieldInfo) -> str:
    """Return the unit of a field, or an empty text."""
    extra = info.json_schema_extra
    return str(extra.get("x-unit", "")) if isinstance(extra, dict) else ""


def key_of(name: str, info: FieldInfo) -> str:
    """Return the key of a field in the file."""
    return info.alias or name


class Phase(StrEnum):
    """What the run did."""

    TRAINING = "training"
    INFERENCE = "inference"


class Precision(StrEnum):
    """Number format of the matrix multiplications, which decides the peak rate that applies."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    FP4 = "fp4"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"
    INT8 = "int8"
    INT4 = "int4"


class BatchScope(StrEnum):
    """Whose samples a batch size counts."""

    GLOBAL = "global"
    """All ranks together, in one step."""
    LOCAL = "local"
    """One data-parallel rank."""


class AcceleratorType(StrEnum):
    """Kind of processing unit."""

    GPU = "GPU"
    TPU = "TPU"
    CPU = "CPU"
    NPU = "NPU"
    TRAINIUM = "Trainium"


SYNONYMS: dict[type[StrEnum], dict[str, str]] = {
    Phase: {
        **dict.fromkeys(("train", "pretraining", "pre_training", "pretrain", "post_training"), "training"),
        **dict.fromkeys(("finetuning", "fine_tuning", "finetune", "fine_tune", "sft"), "training"),
        **dict.fromkeys(("serving", "serve", "infer", "online_serving", "offline_serving"), "inference"),
        **dict.fromkeys(("online_inference", "offline_inference", "generation"), "inference"),
    },
    Precision: {
        "float64": "fp64", "double": "fp64",
        "float32": "fp32", "float": "fp32", "f32": "fp32", "torch.float32": "fp32",
        "tensorfloat32": "tf32", "tensorfloat_32": "tf32",
        "bfloat16": "bf16", "bf_16": "bf16", "torch.bfloat16": "bf16",
        "float16": "fp16", "half": "fp16", "f16": "fp16", "torch.float16": "fp16",
        "float8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
        "float4": "fp4",
    },
    BatchScope: {"per_rank": "local", "per_gpu": "local", "per_device": "local", "micro": "local"},
    AcceleratorType: {
        word.lower(): word.value for word in AcceleratorType
    },
}  # fmt: skip
"""Other spellings, in lower case, that mean exactly one word of the set."""

GRANULARITIES = (
    "model_fwd_bwd_pass", "model_fwd", "model_fwd_pass", "request", "layer", "kernel",
    "attention_kernel", "single_op",
)  # fmt: skip
"""What a trace covers, as cards name it."""

TRACE_TYPES = (
    "json", "json_tpu", "kineto", "kineto_trace", "kineto_cpu_trace", "torch_profiler",
    "torch_et", "pytorch_et", "nsys", "nsys_sqlite", "memory_snapshot",
    "vllm", "sglang", "genai_bench", "aiperf", "llmperf", "inference_perf", "guidellm",
    "tpu_profiler", "xla_trace", "xplane",
)  # fmt: skip
"""Kinds of trace that cards name; `json` is a Kineto trace, `json_tpu` one of JAX's profiler."""


SCHEMES = frozenset({"http", "https", "s3", "gs", "file", "sftp", "globus"})


def is_address(text: str) -> bool:
    """Whether `text` is a complete URL of a kind that may be shown as a link."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    if parts.scheme not in SCHEMES or re.search(r"[\s<>\"\x00-\x1f]", text):
        return False
    return bool(parts.netloc) or parts.scheme == "file"


def _address(text: str) -> str:
    if not is_address(text):
        raise ValueError("is not an address; write it in full, from https:// on")
    return text


def _address_or_path(text: str) -> str:
    has_scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text)
    return _address(text) if has_scheme else text


Address = Annotated[str, AfterValidator(_address)]
AddressOrPath = Annotated[str, AfterValidator(_address_or_path)]
