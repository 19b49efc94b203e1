"""What a person wrote about a run: workload card, run metadata, training configuration and side files."""

from ccl_bench.card.filling import Filling, fill
from ccl_bench.card.issues import Issue, Reading, Severity
from ccl_bench.card.memory import FILE_NAMES as MEMORY_FILE_NAMES
from ccl_bench.card.memory import DeviceMemory, MemoryStats, read_memory_stats
from ccl_bench.card.metadata import RunMetadata, metadata_in_text, read_metadata
from ccl_bench.card.model import Card
from ccl_bench.card.moe import FILE_PATTERN as MOE_FILE_PATTERN
from ccl_bench.card.moe import ExpertTokens, MoeAssignments, read_moe_assignments
from ccl_bench.card.reading import (
    CardReading,
    card_in_mapping,
    card_in_text,
    is_card,
    is_card_file,
    json_schema,
    read_card,
)
from ccl_bench.card.side_files import SideFile, side_file, side_file_named
from ccl_bench.card.step_times import RankStepTimes, StepTimes, read_rank_step_times, read_step_times
from ccl_bench.card.template import card_text, template
from ccl_bench.card.torchtitan import TrainConfig
from ccl_bench.card.torchtitan_reading import (
    is_train_config,
    is_train_config_file,
    read_train_config,
    train_config_in_text,
)
from ccl_bench.card.training_metrics import Point, TrainingMetrics, read_training_metrics
from ccl_bench.card.words import AcceleratorType, BatchScope, Phase, Precision
from ccl_bench.card.writing import write_card

__all__ = [
    "MEMORY_FILE_NAMES",
    "MOE_FILE_PATTERN",
    "AcceleratorType",
    "BatchScope",
    "Card",
    "CardReading",
    "DeviceMemory",
    "ExpertTokens",
    "Filling",
    "Issue",
    "MemoryStats",
    "MoeAssignments",
    "Phase",
    "Point",
    "Precision",
    "RankStepTimes",
    "Reading",
    "RunMetadata",
    "Severity",
    "SideFile",
    "StepTimes",
    "TrainConfig",
    "TrainingMetrics",
    "card_in_mapping",
    "card_in_text",
    "card_text",
    "fill",
    "is_card",
    "is_card_file",
    "is_train_config",
    "is_train_config_file",
    "json_schema",
    "metadata_in_text",
    "read_card",
    "read_memory_stats",
    "read_metadata",
    "read_moe_assignments",
    "read_rank_step_times",
    "read_step_times",
    "read_train_config",
    "read_training_metrics",
    "side_file",
    "side_file_named",
    "template",
    "train_config_in_text",
    "write_card",
]
