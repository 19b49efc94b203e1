"""The workload card as a person fills it in: who, what, on which hardware, with which software.

Layout: https://github.com/cornell-sysphotonics/ccl-bench, `workload_card_template.yaml`. Attributes use the
field's words (`steps`, `devices_per_node`); the key in the file is the alias where the two differ.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from ccl_bench.card.fields import (
    AcceleratorType,
    Address,
    AddressOrPath,
    BatchScope,
    FileSection,
    Phase,
    Precision,
    entry,
)
from ccl_bench.catalog.collectives import experts_are_an_axis, is_serving_engine

Count = Annotated[int, Field(ge=1, le=10**9)]
Parameters = Annotated[int, Field(ge=1, le=10**16)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Rate = Annotated[float, Field(gt=0)]
"""A number for each second; infinite where there is no limit."""


class ModelArchitecture(FileSection):
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


class ModelDescription(FileSection):
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
    architecture: ModelArchitecture = entry(
        "sizes of the model", key="model_arch", default_factory=ModelArchitecture
    )


class Serving(FileSection):
    """The load of a server."""

    scalar_field: ClassVar[str] = "mode"

    mode: str | None = entry(
        "how requests come: online (over time) or offline (all at once)", examples=("online",)
    )
    num_prompts: Count | None = entry(
        "requests sent", unit="requests", also=("num_requests",), examples=(1000,)
    )
    request_rate: Rate | None = entry(
        "requests sent in one second; inf sends all at once",
        unit="requests/s",
        units=("req/s", "rps"),
        unlimited=True,
        examples=(4, "inf"),
    )
    max_concurrency: Count | None = entry(
        "most requests under way at once", unit="requests", also=("concurrency",), examples=(64,)
    )
    max_tokens: Count | None = entry(
        "most tokens generated for one request",
        unit="tokens",
        also=("max_new_tokens", "max_output_tokens"),
        examples=(128,),
    )


class Data(FileSection):
    """What it was run on."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("serving",)

    batch_size: Count | None = entry(
        "sequences in one step over all ranks",
        unit="sequences",
        units=("samples", "requests"),
        also=("global_batch_size",),
        sweep="batch_sizes",
        examples=(32,),
    )
    batch_sizes: tuple[Count, ...] = entry(
        "batch sizes that were run one after the other, where there is not one",
        unit="sequences",
        default=(),
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
    serving: Serving = entry("the load of a server", default_factory=Serving)


class Bandwidth(FileSection):
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


class Network(FileSection):
    """How the devices are connected."""

    topology: str | None = entry("network between nodes", examples=("slingshot", "fat-tree"))
    bandwidth: Bandwidth = entry(
        "first the network between nodes, then the link inside a node",
        key="bandwidth_gbps",
        default_factory=Bandwidth,
    )


class Accelerators(FileSection):
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
    topology: str | None = entry("how the devices of a node or slice are connected")


class Hardware(FileSection):
    """What it ran on."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("network",)

    network: Network = entry("how the devices are connected", key="network_topo", default_factory=Network)
    device: Accelerators = entry("the processing units", key="xpu_spec", default_factory=Accelerators)
    driver_version: str | None = entry("driver or CUDA/ROCm version", examples=("cuda_12.4", "rocm_6.2"))
    price_per_device_hour: Positive | None = entry(
        "price of one device for one hour", unit="USD", examples=(2.0,)
    )


class Workload(FileSection):
    """Model, data and hardware."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("model", "data")

    model: ModelDescription = entry("what was run", default_factory=ModelDescription)
    data: Data = entry("what it was run on", default_factory=Data)
    hardware: Hardware = entry("what it ran on", default_factory=Hardware)


Texts = tuple[str, ...]


class FrameworkChoice(FileSection):
    """The program that ran the model."""

    scalar_field: ClassVar[str] = "name"

    name: str | None = entry(
        "training framework or inference engine", examples=("torchtitan", "megatron-lm", "vllm", "sglang")
    )
    version: str | None = entry("version of the framework", examples=("0.2.2",))
    compiler: str | None = entry(
        "compiler in use",
        key="compiler_tool_selection",
        examples=("plain_pytorch", "torch.compile", "triton"),
    )
    run_script: str | None = entry("script that launches the run")
    trace_dir: str | None = entry("directory the launch script leaves its traces in")
    env: dict[str, str] = entry("environment variables", default_factory=dict)


class Parallelism(FileSection):
    """Degrees of parallelism; data, tensor, pipeline and context degrees multiply to the number of ranks."""

    dp_replicate: Count | None = entry(
        "data-parallel degree that replicates weights (DDP, HSDP)", examples=(1,)
    )
    dp_shard: Count | None = entry("data-parallel degree that shards weights (FSDP, ZeRO)", examples=(2,))
    dp: Count | None = entry("data-parallel degree in total, where its two parts are not written")
    tp: Count | None = entry("tensor-parallel degree", also=("tensor_parallel",), examples=(4,))
    pp: Count | None = entry("pipeline-parallel degree", also=("pipeline_parallel",), examples=(2,))
    cp: Count | None = entry("context-parallel degree", also=("context_parallel",), examples=(1,))
    ep: Count | None = entry(
        "expert-parallel degree, for a mixture of experts", also=("expert_parallel",), examples=(1,)
    )
    microbatch_size: Count | None = entry(
        "sequences in one pipeline microbatch",
        key="pp_mb",
        unit="sequences",
        also=("micro_batch", "micro_batch_size", "microbatch_size"),
        examples=(1,),
    )
    microbatches: Count | None = entry(
        "microbatches of one pipeline in one step",
        also=("num_microbatches", "pp_microbatches"),
        examples=(8,),
    )
    schedule: str | None = entry(
        "pipeline schedule", key="pp_schedule", examples=("1F1B", "Interleaved1F1B", "GPipe")
    )
    virtual_stages: Count | None = entry(
        "model chunks on one pipeline rank", key="pp_virtual_stages", examples=(1,)
    )
    world_size: Count | None = entry("number of ranks", unit="ranks", units=("GPUs",))

    @property
    def data_parallel(self) -> int | None:
        """Data-parallel degree in total, or None if it is not written."""
        if self.dp_replicate is None and self.dp_shard is None:
            return self.dp
        return (self.dp_replicate or 1) * (self.dp_shard or 1)

    @property
    def product(self) -> int:
        """Ranks that the written degrees account for."""
        return (self.data_parallel or 1) * (self.tp or 1) * (self.pp or 1) * (self.cp or 1)

    @property
    def complete_product(self) -> int | None:
        """Ranks from the degrees, where data, tensor and pipeline degrees are all written."""
        is_complete = self.data_parallel and self.tp and self.pp
        return self.product if is_complete else None


class CommunicationLibrary(FileSection):
    """The library that ran the collectives."""

    scalar_field: ClassVar[str] = "name"

    name: str | None = entry("communication library", examples=("NCCL", "RCCL", "Gloo", "MSCCL++"))
    version: str | None = entry("version of the library", examples=("2.27.5",))
    env: dict[str, str] = entry(
        "environment variables that tune it", default_factory=dict, examples=("NCCL_DEBUG: INFO",)
    )


class Executor(FileSection):
    """The software: framework, parallelism and communication."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("framework",)
    other_keys: ClassVar[frozenset[str]] = frozenset({"expert_parallel"})

    framework: FrameworkChoice = entry("the program that ran the model", default_factory=FrameworkChoice)
    parallelism: Parallelism = entry(
        "degrees of parallelism", key="model_plan_parallelization", default_factory=Parallelism
    )
    communication_library: CommunicationLibrary = entry(
        "the library that ran the collectives", default_factory=CommunicationLibrary
    )
    protocols: Texts = entry(
        "protocols in use, between nodes and inside a node",
        key="protocol_selection",
        also=("protocol",),
        default=(),
        examples=("rocev2", "p2p"),
    )

    @property
    def experts_own_ranks(self) -> int:
        """Factor by which expert parallelism multiplies the ranks, where it is an axis of its own."""
        return (self.parallelism.ep or 1) if experts_are_an_axis(self.framework.name or "") else 1


class MetricSource(FileSection):
    """The files the numbers come from."""

    traces: Texts = entry("kinds of trace", default=(), examples=("nsys", "json", "torch_et"))
    metrics_specific_trace: Texts = entry(
        "traces recorded for one metric only", default=(), examples=("memory_snapshot",)
    )


class Card(FileSection):
    """What a person wrote about a run; None means not written, or not to be understood."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("workload",)
    other_keys: ClassVar[frozenset[str]] = frozenset({"model_card", "runs"})

    version: Count | None = entry("version of this layout", examples=(1,))
    description: str | None = entry(
        "what the workload is and what is special about it", examples=("Pre-training on two nodes",)
    )
    hf_url: Address | None = entry(
        "address of the model", examples=("https://huggingface.co/meta-llama/Llama-3.1-8B",)
    )
    trace_url: AddressOrPath | None = entry(
        "address or path of the traces", examples=("https://example.org/traces",)
    )
    contributor: str | None = entry("who ran it", examples=("Ada Lovelace",))
    contact: str | None = entry("how to reach them", examples=("name@example.org",))
    workload: Workload = entry("model, data and hardware", default_factory=Workload)
    executor: Executor = entry(
        "framework, parallelism and communication",
        key="Model-executor",
        also=("executor",),
        default_factory=Executor,
    )
    metric_source: MetricSource = entry("the files the numbers come from", default_factory=MetricSource)

    @property
    def model(self) -> ModelDescription:
        """What was run."""
        return self.workload.model

    @property
    def data(self) -> Data:
        """What it was run on."""
        return self.workload.data

    @property
    def hardware(self) -> Hardware:
        """What it ran on."""
        return self.workload.hardware

    @property
    def parallelism(self) -> Parallelism:
        """Degrees of parallelism."""
        return self.executor.parallelism

    @property
    def framework(self) -> FrameworkChoice:
        """The program that ran the model."""
        return self.executor.framework

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, or None if the card does not say or contradicts itself."""
        plan, device_count = self.parallelism, self.hardware.device.device_count
        product = plan.complete_product and plan.complete_product * self.executor.experts_own_ranks
        if self.has_spanning_experts:
            product = None
        stated_sizes = {device_count, plan.world_size, product} - {None}
        return stated_sizes.pop() if len(stated_sizes) == 1 else None

    @property
    def has_spanning_experts(self) -> bool:
        """Whether the experts of a server lie on all ranks of a stage, of which dp and tp state fewer."""
        plan = self.parallelism
        ranks = self.hardware.device.device_count or plan.world_size
        serves = self.model.phase is Phase.INFERENCE or is_serving_engine(self.framework.name or "")
        if not serves or not plan.ep or not ranks or self.executor.experts_own_ranks > 1:
            return False
        return plan.ep * (plan.pp or 1) == ranks and plan.product < ranks and ranks % plan.product == 0

    @property
    def global_batch_size(self) -> int | None:
        """Sequences in one step over all ranks; a batch size without a scope is the global one."""
        size, degree = self.data.batch_size, self.parallelism.data_parallel
        if size is None or self.data.batch_size_scope is not BatchScope.LOCAL:
            return size
        return size * degree if degree else None

    @property
    def microbatches(self) -> int | None:
        """Microbatches of one pipeline in one step: as written, else from batch and microbatch size."""
        plan, batch = self.parallelism, self.global_batch_size
        if plan.microbatches or not (batch and plan.microbatch_size and plan.data_parallel):
            return plan.microbatches
        count, remainder = divmod(batch, plan.microbatch_size * plan.data_parallel)
        return count if remainder == 0 else None
