"""torchtitan's training configuration (TOML), releases 0.1.0 to 0.2.2.

Keys and defaults: `config_manager.py` of 0.1.0 and `config/job_config.py` of 0.2.2 in
https://github.com/pytorch/torchtitan. A key that the file lacks has the release's default, unless the command
line set it; `model_fields_set` holds what was written.
"""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from ccl_bench.base.errors import InputError
from ccl_bench.card.fields import FileSection, Precision, entry
from ccl_bench.card.model import Count
from ccl_bench.card.sections import near_miss_warner, read_section
from ccl_bench.card.yaml_tree import Reading, mapping_of
from ccl_bench.side_files.toml_file import toml_value
from ccl_bench.storage.files import Location, read_text

Texts = tuple[str, ...]


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("is not a degree; write -1 for the rest of the ranks, or at least 1")
    return value


Degree = Annotated[int, Field(ge=-1, le=10**7), AfterValidator(_not_zero)]


class JobConfig(FileSection):
    """The job."""

    other_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "config_file",
            "use_for_integration_test",
            "print_args",
            "print_config",
            "save_config_file",
            "custom_config_module",
        }
    )

    description: str | None = entry("what the job is")
    dump_folder: str | None = entry("folder of its outputs", default="./outputs")


class TitanModel(FileSection):
    """The model."""

    other_keys: ClassVar[frozenset[str]] = frozenset(
        {"hf_assets_path", "tokenizer_path", "print_after_conversion"}
    )

    name: str | None = entry("model", default="llama3")
    flavor: str | None = entry("size of the model", default="debugmodel")
    converters: Texts = entry("conversions of its layers, such as float8", default=())


class TitanParallelism(FileSection):
    """Degrees of parallelism; expert ranks are taken from the others and multiply nothing."""

    other_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "enable_compiled_autograd", "disable_loss_parallel", "pipeline_parallel_split_points",
            "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule_csv",
            "module_fqns_per_model_part",
            "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
            "pipeline_parallel_expert_parallel_overlap", "context_parallel_load_balancer",
            "context_parallel_rotate_method", "expert_parallel_comm_backend",
        }
    )  # fmt: skip

    dp_replicate: Count | None = entry(
        "data-parallel degree that replicates weights", key="data_parallel_replicate_degree", default=1
    )
    dp_shard: Degree | None = entry(
        "data-parallel degree that shards weights; -1 is the rest of the ranks",
        key="data_parallel_shard_degree",
        default=-1,
    )
    tp: Count | None = entry("tensor-parallel degree", key="tensor_parallel_degree", default=1)
    pp: Count | None = entry("pipeline-parallel degree", key="pipeline_parallel_degree", default=1)
    cp: Count | None = entry("context-parallel degree", key="context_parallel_degree", default=1)
    ep: Count | None = entry("expert-parallel degree", key="expert_parallel_degree", default=1)
    etp: Count | None = entry(
        "tensor-parallel degree inside experts", key="expert_tensor_parallel_degree", default=1
    )
    schedule: str | None = entry("pipeline schedule", key="pipeline_parallel_schedule", default="1F1B")
    microbatch_size: Count | None = entry(
        "sequences in one pipeline microbatch", key="pipeline_parallel_microbatch_size", default=1
    )
    microbatches: Count | None = entry(
        "microbatches of one pipeline in one step", key="pipeline_parallel_microbatches"
    )
    reshard_after_forward: str | None = entry(
        "when FSDP frees gathered weights", key="fsdp_reshard_after_forward", default="default"
    )
    is_async_tp: bool | None = entry(
        "whether tensor parallelism overlaps", key="enable_async_tensor_parallel", default=False
    )

    @property
    def fixed_product(self) -> int | None:
        """Ranks of all degrees but dp_shard, or None if one could not be read."""
        if not (self.dp_replicate and self.tp and self.pp and self.cp):
            return None
        return self.dp_replicate * self.tp * self.pp * self.cp


class Training(FileSection):
    """The training loop."""

    other_keys: ClassVar[frozenset[str]] = frozenset(
        {
            "dataset_path",
            "max_norm",
            "gc_freq",
            "gc_debug",
            "seed",
            "deterministic",
            "dataloader",
            "warmup_steps",
            "data_parallel_type",
        }
    )

    dataset: str | None = entry("name of the data", default="c4_test")
    local_batch_size: Count | None = entry(
        "sequences in one step on one data-parallel rank", unit="sequences", also=("batch_size",), default=8
    )
    global_batch_size: Degree | None = entry(
        "sequences in one step over all ranks; -1 is local times data-parallel degree",
        unit="sequences",
        default=-1,
    )
    seq_len: Count | None = entry("tokens in one sequence", unit="tokens", default=2048)
    steps: Count | None = entry("steps of the run", unit="steps", default=10000)
    dtype: Precision | None = entry("number format of the weights", default=Precision.FP32, literal=True)
    mixed_precision_param: Precision | None = entry(
        "number format of the computation", default=Precision.BF16, literal=True
    )
    mixed_precision_reduce: Precision | None = entry(
        "number format of the gradient reduction", default=Precision.FP32, literal=True
    )
    is_compiled: bool | None = entry("whether the model is compiled (0.1.0)", key="compile", default=False)
    is_offloaded: bool | None = entry(
        "whether weights rest in host memory", key="enable_cpu_offload", default=False
    )


class Profiling(FileSection):
    """Which traces the run left."""

    is_profiled: bool | None = entry(
        "whether Kineto traces were taken", key="enable_profiling", default=False
    )
    traces_folder: str | None = entry(
        "folder of the traces", key="save_traces_folder", default="profile_traces"
    )
    frequency: Count | None = entry(
        "steps from one trace to the next", key="profile_freq", unit="steps", default=10
    )
    active: Count | None = entry("steps in one trace", key="profiler_active", unit="steps", default=1)
    warmup: Annotated[int, Field(ge=0)] | None = entry(
        "steps before a trace in which the profiler warms up", key="profiler_warmup", unit="steps", default=3
    )
    has_memory_snapshots: bool | None = entry(
        "whether memory snapshots were taken", key="enable_memory_snapshot", default=False
    )
    snapshot_folder: str | None = entry(
        "folder of the snapshots", key="save_memory_snapshot_folder", default="memory_snapshot"
    )


class ActivationCheckpoint(FileSection):
    """Which activations are computed again in the backward pass."""

    other_keys: ClassVar[frozenset[str]] = frozenset(
        {"memory_budget", "early_stop", "debug", "preserve_rng_state"}
    )

    mode: str | None = entry("none, selective, full or memory_budget", default="selective", literal=True)
    selective_ac_option: str | None = entry("every how many layers, or op", default="2")


class Compile(FileSection):
    """torch.compile (0.2.x)."""

    is_enabled: bool | None = entry("whether parts are compiled", key="enable", default=False)
    components: Texts = entry("parts that are compiled", default=("model", "loss"))
    backend: str | None = entry("compiler", default="inductor")


class TrainConfig(FileSection):
    """The settings of a torchtitan run; None means written, but not understood."""

    job: JobConfig = entry("the job", default_factory=JobConfig)
    model: TitanModel = entry("the model", default_factory=TitanModel)
    parallelism: TitanParallelism = entry("degrees of parallelism", default_factory=TitanParallelism)
    training: Training = entry("the training loop", default_factory=Training)
    profiling: Profiling = entry("which traces the run left", default_factory=Profiling)
    activation_checkpoint: ActivationCheckpoint = entry("recomputation", default_factory=ActivationCheckpoint)
    compile: Compile = entry("torch.compile", default_factory=Compile)

    @property
    def is_compiled(self) -> bool:
        """Whether the model is compiled, in the words of either release."""
        return bool(
            self.training.is_compiled or (self.compile.is_enabled and "model" in self.compile.components)
        )

    @property
    def is_in_float8(self) -> bool:
        """Whether linear layers compute in FP8: by `float8` in 0.1.0, `quantize.linear.float8` in 0.2.x."""
        return any("float8" in name.split(".") for name in self.model.converters)

    @property
    def microbatches(self) -> int | None:
        """Microbatches of one pipeline in one step, or None if the sizes do not divide."""
        plan, local = self.parallelism, self.training.local_batch_size
        if plan.microbatches or not (local and plan.microbatch_size):
            return plan.microbatches
        count, remainder = divmod(local, plan.microbatch_size)
        return count if remainder == 0 else None

    def dp_shard(self, world_size: int) -> int | None:
        """Return the degree that shards weights, where -1 takes the ranks that `world_size` leaves."""
        plan = self.parallelism
        if plan.dp_shard != -1 or not plan.fixed_product:
            return plan.dp_shard if plan.dp_shard != -1 else None
        degree, remainder = divmod(world_size, plan.fixed_product)
        return degree if remainder == 0 and degree else None

    def global_batch_size(self, world_size: int) -> int | None:
        """Return the sequences in one step over all ranks."""
        if self.training.global_batch_size != -1:
            return self.training.global_batch_size
        factors = (self.training.local_batch_size, self.parallelism.dp_replicate, self.dp_shard(world_size))
        return math.prod(factor for factor in factors if factor) if all(factors) else None


_SECTIONS = frozenset({"job", "model", "parallelism", "training", "profiling"})


def read_train_config(path: Location) -> Reading[TrainConfig]:
    """Return the settings in a TOML file; InputError only where it is not TOML."""
    return train_config_in_text(read_text(path), file=str(path))


def train_config_in_text(text: str, *, file: str = "") -> Reading[TrainConfig]:
    """Return the settings in TOML text; `file` names it in messages."""
    data, log = toml_value(text, file)
    config = read_section(mapping_of(data), TrainConfig, log, unknown=near_miss_warner(TrainConfig, log))
    training, plan = config.training, config.parallelism
    has_parts = plan.pp and plan.pp > 1 and plan.microbatch_size and training.local_batch_size
    if has_parts and config.microbatches is None:
        log.warning(
            "parallelism.pipeline_parallel_microbatch_size",
            f"{plan.microbatch_size} does not divide local_batch_size = {training.local_batch_size}",
            "correct one of them",
        )
    degrees = (training.local_batch_size or 1) * (plan.dp_replicate or 1) * max(plan.dp_shard or 1, 1)
    if training.global_batch_size not in (None, -1) and (training.global_batch_size or 0) % degrees:
        log.warning(
            "training.global_batch_size",
            f"{training.global_batch_size} is not a multiple of local batch and degrees = {degrees}",
            "correct one of them",
        )
    return Reading(config, log.in_order(), file)


def is_train_config(mapping: Mapping[str, object]) -> bool:
    """Whether data read from a TOML file has the sections of a torchtitan configuration."""
    return len(_SECTIONS & mapping.keys()) >= 2 and "training" in mapping


def is_train_config_file(path: Location) -> bool:
    """Whether a file is TOML with a torchtitan configuration; never raises for what the file holds."""
    try:
        return is_train_config(toml_value(read_text(path))[0])
    except InputError:
        return False
