#!/usr/bin/env bash
# Record torchtitan 0.2: run.sh DIR CONFIG.toml GPUS [OPTION OF TORCHTITAN]...
# One window: 10 steps alone, 5 in which the profiler warms up, 5 recorded, straight into DIR.
set -euo pipefail

usage="run.sh DIR CONFIG.toml GPUS [OPTION OF TORCHTITAN]..."
dir=${1:?$usage} config=${2:?$usage} gpus=${3:?$usage}
shift 3
profiling=(--profiling.enable_profiling)
if [[ ${CCL_BENCH_PROFILER:-torch} == nsys ]]; then
    profiling=(--profiling.no-enable_profiling) # Nsight Systems records; CUDA lets one profiler look at a time
fi
ccl-bench collect --output "$dir" --profile-mode "${CCL_BENCH_PROFILER:-torch}" -- \
    torchrun --standalone --nproc-per-node "$gpus" -m torchtitan.train \
    --job.config_file "$config" --job.dump_folder "$dir" --training.steps 20 \
    "${profiling[@]}" --profiling.save_traces_folder profile_trace \
    --profiling.profile_freq 20 --profiling.profiler_warmup 5 --profiling.profiler_active 5 "$@"
