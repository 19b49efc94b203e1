"""Side files of a run: step times, memory counters, losses, experts, prices, metadata, configuration.

Each module reads one kind of file and reports every mistake in it at once; `kinds` declares what it gives.
"""

from ccl_bench.side_files.device_samples import (
    DeviceSamples,
    device_samples_in_text,
    is_device_samples_file,
    read_device_samples,
)
from ccl_bench.side_files.experts import MOE_FILE_PATTERN, ExpertTokens, MoeAssignments, read_moe_assignments
from ccl_bench.side_files.kinds import SideFile, kind_named, kind_of, side_file
from ccl_bench.side_files.memory_stats import MEMORY_FILE_NAMES, DeviceMemory, MemoryStats, read_memory_stats
from ccl_bench.side_files.metadata import RunMetadata, metadata_in_text, read_metadata
from ccl_bench.side_files.nccl_tests import (
    NcclTests,
    is_nccl_tests_file,
    nccl_tests_in_text,
    read_nccl_tests,
)
from ccl_bench.side_files.prices import DevicePrice, Prices, read_prices
from ccl_bench.side_files.step_times import RankStepTimes, RunStepTimes, read_rank_step_times, read_step_times
from ccl_bench.side_files.torchtitan import (
    TrainConfig,
    is_train_config,
    is_train_config_file,
    read_train_config,
    train_config_in_text,
)
from ccl_bench.side_files.training_metrics import Point, TrainingMetrics, read_training_metrics

__all__ = [
    "MEMORY_FILE_NAMES",
    "MOE_FILE_PATTERN",
    "DeviceMemory",
    "DevicePrice",
    "DeviceSamples",
    "ExpertTokens",
    "MemoryStats",
    "MoeAssignments",
    "NcclTests",
    "Point",
    "Prices",
    "RankStepTimes",
    "RunMetadata",
    "RunStepTimes",
    "SideFile",
    "TrainConfig",
    "TrainingMetrics",
    "device_samples_in_text",
    "is_device_samples_file",
    "is_nccl_tests_file",
    "is_train_config",
    "is_train_config_file",
    "kind_named",
    "kind_of",
    "metadata_in_text",
    "nccl_tests_in_text",
    "read_device_samples",
    "read_memory_stats",
    "read_metadata",
    "read_moe_assignments",
    "read_nccl_tests",
    "read_prices",
    "read_rank_step_times",
    "read_step_times",
    "read_train_config",
    "read_training_metrics",
    "side_file",
    "train_config_in_text",
]
