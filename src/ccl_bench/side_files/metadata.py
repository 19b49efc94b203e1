"""`run_metadata.json`: the few numbers about a run that no trace holds."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ccl_bench.base.errors import InputError
from ccl_bench.card.fields import FileSection, entry
from ccl_bench.card.model import Count
from ccl_bench.card.sections import near_miss_warner, read_section
from ccl_bench.card.yaml_tree import MappingNode, Reading, node_of
from ccl_bench.side_files.json_file import json_value, key_lines
from ccl_bench.storage.files import read_text

if TYPE_CHECKING:
    from ccl_bench.storage.files import Location

FILE_NAME = "run_metadata.json"

Objective = Annotated[float, Field(gt=0, le=86_400)]


class RunMetadata(FileSection):
    """What a run's launcher wrote about it; None means not written, or not to be understood."""

    world_size: Count | None = entry("number of ranks", unit="ranks")
    global_batch_size: Count | None = entry("sequences in one step over all ranks", unit="sequences")
    seq_len: Count | None = entry("tokens in one sequence", unit="tokens")
    tokens_per_step: Annotated[int, Field(ge=1, le=10**15)] | None = entry(
        "tokens in one step over all ranks", unit="tokens"
    )
    model_flops_per_token: Annotated[float, Field(gt=0, le=1e18)] | None = entry(
        "operations the model needs for one token", unit="FLOP"
    )
    gpu_peak_tflops: Annotated[float, Field(gt=0, le=1e5)] | None = entry(
        "peak rate of one device without sparsity, in 10^12 FLOP/s",
        unit="TFLOP/s",
        units=("TFLOPS", "TFLOP/s"),
    )
    gpu_hbm_bytes: Annotated[int, Field(ge=10**9, le=10**14)] | None = entry(
        "memory of one device", unit="bytes", units=("B",)
    )
    slo_ttft_s: Objective | None = entry("longest time to first token that users accept", unit="s")
    slo_tpot_s: Objective | None = entry("longest time per output token that users accept", unit="s")
    slo_latency_s: Objective | None = entry("longest end-to-end latency that users accept", unit="s")

    @property
    def objectives(self) -> dict[str, float | None]:
        """What users of a server accept, by the name of the key."""
        return {name: getattr(self, name) for name in ("slo_ttft_s", "slo_tpot_s", "slo_latency_s")}


def read_metadata(path: "Location") -> Reading[RunMetadata]:
    """Return the numbers in a run_metadata.json; InputError only where it holds no mapping at all."""
    return metadata_in_text(read_text(path), file=str(path))


def metadata_in_text(text: str, *, file: str = "") -> Reading[RunMetadata]:
    """Return the numbers in JSON text; `file` names it in messages."""
    data, log = json_value(text, file)
    root = node_of(data)
    if not isinstance(root, MappingNode):
        raise InputError("holds no mapping at its top level", where=file, fix='write {"world_size": 8, ...}')
    log.lines.update(key_lines(text))
    metadata = read_section(root, RunMetadata, log, unknown=near_miss_warner(RunMetadata, log))
    batch, length, tokens = metadata.global_batch_size, metadata.seq_len, metadata.tokens_per_step
    if batch and length and tokens and batch * length != tokens:
        log.warning(
            "tokens_per_step",
            f"{tokens} is used, and is not global_batch_size x seq_len = {batch * length}",
            "correct one of them, or leave tokens_per_step out",
        )
    return Reading(metadata, log.in_order(), file)
