"""torchtitan 0.2.2 on processors over gloo, with a tiny flavour of each model: workloads tried without a GPU.

torchtitan has no setting for the device: it takes the accelerator that torch finds, and asks it for what
processors do not have. Here that is answered.
"""

import gc
from dataclasses import replace
from types import SimpleNamespace

gc.disable()  # As torchtitan does, to collect garbage at steps of its choice; here before it is imported.

import torch  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

MEMORY_BYTES = 1 << 34


class Profile(torch.profiler.profile):
    """The profiler without the activity of a GPU, which torchtitan gives as None."""

    def __init__(self, *, activities, **options):
        super().__init__(activities=[activity for activity in activities if activity is not None], **options)


def summed_and_divided(module, factor, divide=FSDPModule.set_gradient_divide_factor):
    """Set the factor for gradients so that they are summed and then divided: gloo cannot do both in one."""
    module.set_force_sum_reduction_for_comms(True)
    divide(module, factor)


def histogram(numbers, histogram_of_floats=torch.histc, **limits):
    """Count whole numbers in bins, which processors do of fractions only."""
    return histogram_of_floats(numbers.float(), **limits).to(numbers.dtype)


torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda *_: None
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=MEMORY_BYTES)
torch.cpu.memory_stats = lambda *_: {}
torch.histc = histogram
torch.profiler.profile = Profile
FSDPModule.set_gradient_divide_factor = summed_and_divided

# Imported here because torchtitan chooses its device while it is imported.
import without_triton  # noqa: E402, F401
from torchtitan.models.attention import ScaledDotProductAttentionWrapper as Attention  # noqa: E402
from torchtitan.models.deepseek_v3 import deepseekv3_args  # noqa: E402
from torchtitan.models.llama3 import llama3_args  # noqa: E402
from torchtitan.models.qwen3 import qwen3_args  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402


def attention_of_own_heads(module, query, key, value, attention=Attention.forward, **options):
    """Attend with this rank's heads: DTensor has no sharding of the attention operator of processors."""
    if not isinstance(query, DTensor):
        return attention(module, query, key, value, **options)
    own = attention(module, query.to_local(), key.to_local(), value.to_local(), **options)
    return DTensor.from_local(own, query.device_mesh, query.placements)


Attention.forward = attention_of_own_heads

SMALL = {"dim": 128, "n_heads": 4, "n_layers": 4}
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
DENSE = {"n_kv_heads": 4, "head_dim": 32, "hidden_dim": 256, "enable_weight_tying": False}
llama3_args["tiny"] = replace(llama3_args["debugmodel"], **SMALL)
qwen3_args["tiny"] = replace(qwen3_args["debugmodel"], **SMALL, **DENSE)
deepseekv3_args["tiny"] = replace(
    deepseekv3_args["debugmodel"], inter_dim=256, moe_inter_dim=64, **SMALL, **LATENT
)

if __name__ == "__main__":
    main(Trainer)
