"""Print versions and devices of the interpreter that runs this file, as one line of JSON.

It runs in the environment of the recorded command, which need not contain ccl-bench: it needs only the
standard library, and uses torch if installed.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import json
import platform
import sys
from typing import Any

LIBRARIES = (
    "torch",
    "torchtitan",
    "torchao",
    "triton",
    "megatron-core",
    "transformer-engine",
    "apex",
    "deepspeed",
    "vllm",
    "sglang",
    "transformers",
    "accelerate",
    "flash-attn",
    "jax",
    "jaxlib",
    "libtpu",
    "flax",
    "maxtext",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "numpy",
)
"""Distributions whose versions explain numbers."""


def _torch_properties() -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    properties: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "git": torch.version.git_version,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "devices": [],
    }
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        properties["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if torch.backends.cudnn.is_available():
        properties["cudnn"] = torch.backends.cudnn.version()
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            properties["devices"].append(
                {
                    "name": device.name,
                    "memory_bytes": device.total_memory,
                    "multiprocessors": device.multi_processor_count,
                    "compute_capability": f"{device.major}.{device.minor}",
                }
            )
    return properties


def main() -> None:
    """Print versions and devices."""
    gc.disable()  # which takes a fifth of the time of importing torch
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "libraries": versions,
    }
    try:
        report["torch"] = _torch_properties()
    except ImportError:
        report["torch"] = {"absent": "torch is not installed"}
    except Exception as error:  # a broken driver or build may raise anything
        report["torch"] = {"absent": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
