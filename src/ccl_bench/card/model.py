"""The workload card as a person fills it in: who, what, on which hardware, with which software.

Layout: https://github.com/cornell-sysphotonics/ccl-bench, `workload_card_template.yaml`.
"""

from typing import ClassVar

from ccl_bench.card.addresses import Address, AddressOrPath
from ccl_bench.card.fields import Part, entry
from ccl_bench.card.words import BatchScope
from ccl_bench.card.workload import Count, Data, Hardware, Model, Workload

Texts = tuple[str, ...]


class Framework(Part):
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


class Parallelism(Part):
    """Degrees of parallelism; data, tensor, pipeline and context degrees multiply to the number of ranks."""

    dp_replicate: Count | None = entry(
        "data-parallel degree that replicates weights (DDP, HSDP)", examples=(1,)
    )
    dp_shard: Count | None = entry("data-parallel degree that shards weights (FSDP, ZeRO)", examples=(2,))
    dp: Count | None = entry("data-parallel degree in total, where replicated and sharded are not told apart")
    tp: Count | None = entry("tensor-parallel degree", examples=(4,))
    pp: Count | None = entry("pipeline-parallel degree", examples=(2,))
    cp: Count | None = entry("context-parallel degree", examples=(1,))
    ep: Count | None = entry("expert-parallel degree, for a mixture of experts", examples=(1,))
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
        """Data-parallel degree in total, or None where it is not written."""
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
        written = self.data_parallel and self.tp and self.pp
        return self.product if written else None


class CommunicationLibrary(Part):
    """The library that ran the collectives."""

    scalar_field: ClassVar[str] = "name"

    name: str | None = entry("communication library", examples=("NCCL", "RCCL", "Gloo", "MSCCL++"))
    version: str | None = entry("version of the library", examples=("2.27.5",))
    env: dict[str, str] = entry(
        "environment variables that tune it", default_factory=dict, examples=("NCCL_DEBUG: INFO",)
    )


class Executor(Part):
    """The software: framework, parallelism and communication."""

    adopted_parts: ClassVar[tuple[str, ...]] = ("framework",)

    framework: Framework = entry("the program that ran the model", default_factory=Framework)
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


class MetricSource(Part):
    """The files the numbers come from."""

    traces: Texts = entry("kinds of trace", default=(), examples=("nsys", "json", "torch_et"))
    metrics_specific_trace: Texts = entry(
        "traces recorded for one metric only", default=(), examples=("memory_snapshot",)
    )


class Card(Part):
    """What a person wrote about a run; None means not written, or not to be understood."""

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
    def model(self) -> Model:
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
    def framework(self) -> Framework:
        """The program that ran the model."""
        return self.executor.framework

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, or None where the card does not say or contradicts itself."""
        device_count = self.hardware.device.device_count
        stated = {device_count, self.parallelism.world_size, self.parallelism.complete_product} - {None}
        return stated.pop() if len(stated) == 1 else None

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
        count, rest = divmod(batch, plan.microbatch_size * plan.data_parallel)
        return count if rest == 0 else None
