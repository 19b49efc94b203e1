"""Cards and configurations that the tests of this folder read."""

FULL_CARD = """\
version: 1
description: > # Description of the workload.
  Pre-training on four nodes.
hf_url: https://huggingface.co/meta-llama/Llama-3.1-8B
trace_url: # not published
contributor: Ada Lovelace
contact: ada@example.org

workload:
  model:
    phase: training
    moe: false
    granularity: model_fwd_bwd_pass
    model_family: llama-3.1-8b
    precision: bf16
    epochs: 1
    iteration: 5
    model_arch:
      num_params: 8030261248
      num_params_embedding: 525336576
      num_layers: 32
      num_heads: 32
      head_dim: 128
  data:
    batch_size: 32
    batch_size_scope: global
    seq_len: 8192
    dataset: c4
  hardware:
    network_topo:
      topology: slingshot
      bandwidth_gbps:
        - 200  # between nodes
        - 2400  # NVLink
    xpu_spec:
      type: GPU
      model: nvidia_a100
      total_count: 16
      count_per_node: 4
    driver_version: cuda_12.4

Model-executor:
  framework:
    name: torchtitan
    compiler_tool_selection: plain_pytorch
  model_plan_parallelization:
    dp_replicate: 1
    dp_shard: 2
    tp: 4
    pp: 2
    cp: 1
    ep: 1
    pp_mb: 2
  communication_library:
    name: NCCL
    version: 2.20
    env:
      NCCL_IB_QPS_PER_CONNECTION: 8
  protocol_selection:
    - rocev2
    - p2p

metric_source:
  traces:
    - nsys
    - json
  metrics_specific_trace:
    -  # none
"""

TITAN_010 = """\
[job]
description = "Llama 3 8B training"
print_args = false

[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 5

[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]

[training]
local_batch_size = 8
seq_len = 4096
steps = 20
compile = true

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2

[activation_checkpoint]
mode = "none"

[float8]
enable_fsdp_float8_all_gather = false
"""

TITAN_022 = """\
[model]
name = "deepseek_v3"
flavor = "16B"
converters = ["quantize.linear.float8"]

[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 1024
mixed_precision_param = "bfloat16"

[parallelism]
data_parallel_shard_degree = 8
expert_parallel_degree = 4
expert_tensor_parallel_degree = 1

[compile]
enable = true
components = ["model", "loss"]
"""


def changed(old: str, new: str) -> str:
    """Return the full card with one piece of text exchanged."""
    assert FULL_CARD.count(old) == 1, f"{old!r} is not exactly once in the card"
    return FULL_CARD.replace(old, new)
