"""The closed sets of words a workload card uses, and other spellings of them."""

from __future__ import annotations

from enum import StrEnum


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
    Phase: {"train": "training", "serving": "inference", "serve": "inference", "infer": "inference"},
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

GRANULARITIES = ("model_fwd_bwd_pass", "model_fwd", "layer", "kernel", "attention_kernel", "single_op")
"""What a trace covers, as cards name it."""

TRACE_TYPES = (
    "json", "kineto", "kineto_trace", "kineto_cpu_trace", "torch_profiler", "torch_et", "pytorch_et",
    "nsys", "nsys_sqlite", "memory_snapshot", "vllm", "sglang", "genai_bench", "aiperf", "llmperf",
    "tpu_profiler", "xla_trace",
)  # fmt: skip
"""Kinds of trace that cards name; `json` is a Kineto trace."""
