"""The workload half of a card: model, data and hardware.

Layout: https://github.com/cornell-sysphotonics/ccl-bench, `workload_card_template.yaml`. Attributes use the
field's words (`steps`, `devices_per_node`); the key in the file is the alias where the two differ.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from ccl_bench.card.fields import Part, entry
from ccl_bench.card.words import AcceleratorType, BatchScope, Phase, Precision

Count = Annotated[int, Field(ge=1, le=10**9)]
Parameters = Annotated[int, Field(ge=1, le=10**16)]
Positive = Annotated[float, Field(gt=0, le=1e9)]


class Architecture(Part):
    """Sizes of the model, from which FLOPs per token follow."""

    num_params: Parameters | None = entry("parameters in total", examples=(8030261248,))
    num_params_embedding: Parameters | None = entry(
        "parameters of the embedding: vocabulary times hidden size", examples=(525336576,)
    )
    num_params_active: Parameters | None = entry(
        "parameters used for one token, for a mixture of experts",
        also=("num_active_params",),
        examples=(2828650496,),
    )
    num_layers: Count | None = entry("transformer layers (L)", unit="layers", examples=(32,))
    num_heads: Count | None = entry("attention heads (Q)", unit="heads", examples=(32,))
    num_kv_heads: Count | None = entry(
        "key and value heads, where fewer than attention heads", unit="heads", examples=(8,)
    )
    head_dim: Count | None = entry("size of one attention head (H)", examples=(128,))
    hidden_size: Count | None = entry("width of the residual stream", examples=(4096,))
    intermediate_size: Count | None = entry("width inside the feed-forward layer", examples=(14336,))
    vocab_size: Count | None = entry("entries of the vocabulary", examples=(128256,))
    num_experts: Count | None = entry("routed experts in a layer", unit="experts", examples=(64,))
    num_shared_experts: Annotated[int, Field(ge=0, le=10**6)] | None = entry(
        "experts that see every token", unit="experts", examples=(2,)
    )
    num_experts_per_token: Count | None = entry(
        "routed experts used for one token", key="num_experts_per_tok", unit="experts", examples=(6,)
    )


class Model(Part):
    """What was run."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("architecture",)

    phase: Phase | None = entry("what the run did: training or inference", examples=("training",))
    is_moe: bool | None = entry("whether the model is a mixture of experts", key="moe", examples=(False,))
    granularity: str | None = entry(
        "what the trace covers", examples=("model_fwd_bwd_pass", "model_fwd", "layer", "kernel")
    )
    model_family: str | None = entry("name and size of the model", examples=("llama-3.1-8b",))
    precision: Precision | None = entry(
        "number format of the matrix multiplications", examples=("bf16", "fp8")
    )
    epochs: Count | None = entry(
        "passes over the data; leave empty for inference", unit="epochs", examples=(1,)
    )
    steps: Count | None = entry(
        "steps of the run, or measurement runs for inference",
        key="iteration",
        unit="steps",
        units=("iterations",),
        also=("iterations",),
        examples=(20,),
    )
    architecture: Architecture = entry("sizes of the model", key="model_arch", default_factory=Architecture)


class Data(Part):
    """What it was run on."""

    batch_size: Count | None = entry(
        "sequences in one step over all ranks",
        unit="sequences",
        units=("samples", "requests"),
        also=("global_batch_size",),
        examples=(32,),
    )
    batch_size_scope: BatchScope | None = entry(
        "whose sequences batch_size counts: global (all ranks) or local (one data-parallel rank)",
        examples=("global", "local"),
    )
    seq_len: Count | None = entry(
        "tokens in one sequence", unit="tokens", also=("sequence_length",), examples=(4096,)
    )
    input_len: Count | None = entry(
        "prompt tokens in one request, for inference", unit="tokens", examples=(1024,)
    )
    output_len: Count | None = entry(
        "generated tokens in one request, for inference", unit="tokens", examples=(128,)
    )
    max_model_len: Count | None = entry("longest sequence the server admits", unit="tokens")
    max_num_seqs: Count | None = entry("most sequences the server runs at once", unit="sequences")
    max_num_batched_tokens: Count | None = entry("most tokens the server runs in one step", unit="tokens")
    dataset: str | None = entry("name of the data", examples=("c4", "sharegpt"))


class Bandwidth(Part):
    """Bandwidth of one device's links in one direction, as sold."""

    ordered_fields: ClassVar[tuple[str, ...]] = ("scale_out", "scale_up")
    order_rises: ClassVar[bool] = True

    scale_out: Positive | None = entry(
        "network between nodes, per device", unit="Gbit/s", units=("Gbps", "Gb/s"), examples=(200,)
    )
    scale_up: Positive | None = entry(
        "link inside a node, such as NVLink, per device",
        unit="Gbit/s",
        units=("Gbps", "Gb/s"),
        examples=(2400,),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, value: Any) -> Any:
        """Take the two numbers of a card's list in their order."""
        return (
            dict(zip(cls.ordered_fields, value, strict=False)) if isinstance(value, list | tuple) else value
        )


class Network(Part):
    """How the devices are connected."""

    topology: str | None = entry("network between nodes", examples=("slingshot", "fat-tree"))
    bandwidth: Bandwidth = entry(
        "first the network between nodes, then the link inside a node",
        key="bandwidth_gbps",
        default_factory=Bandwidth,
    )


class Device(Part):
    """The processing units."""

    type: AcceleratorType | None = entry("kind of processing unit", examples=("GPU", "TPU"))
    model: str | None = entry("model of the processing unit", examples=("nvidia_a100", "tpu_v6e"))
    device_count: Count | None = entry(
        "processing units of the run",
        key="total_count",
        unit="devices",
        units=("GPUs", "TPUs", "chips"),
        examples=(16,),
    )
    devices_per_node: Count | None = entry(
        "processing units in one node",
        key="count_per_node",
        unit="devices",
        units=("GPUs", "TPUs", "chips"),
        examples=(4,),
    )
    node_count: Count | None = entry("nodes of the run", key="num_nodes", unit="nodes")
    memory_gb: Positive | None = entry("memory of one device; 1 GB is 10^9 bytes", unit="GB", examples=(40,))


class Hardware(Part):
    """What it ran on."""

    network: Network = entry("how the devices are connected", key="network_topo", default_factory=Network)
    device: Device = entry("the processing units", key="xpu_spec", default_factory=Device)
    driver_version: str | None = entry("driver or CUDA/ROCm version", examples=("cuda_12.4", "rocm_6.2"))


class Workload(Part):
    """Model, data and hardware."""

    model: Model = entry("what was run", default_factory=Model)
    data: Data = entry("what it was run on", default_factory=Data)
    hardware: Hardware = entry("what it ran on", default_factory=Hardware)
