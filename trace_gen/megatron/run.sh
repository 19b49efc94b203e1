#!/usr/bin/env bash
# Record Megatron-LM: run.sh DIR GPUS pretrain_gpt.py [OPTION OF MEGATRON]...
# Steps 15 to 19 of 20 are recorded on every rank, after one in which the profiler warms up.
# Megatron writes beside its TensorBoard folder: torch_profile/rank-N.json.gz, chakra/rank-N.json.gz.
set -euo pipefail

usage="run.sh DIR GPUS pretrain_gpt.py [OPTION OF MEGATRON]..."
dir=${1:?$usage} gpus=${2:?$usage} script=${3:?$usage}
shift 3
mapfile -t ranks < <(seq 0 $((gpus - 1)))
window=(--profile --profile-step-start 15 --profile-step-end 20 --profile-ranks "${ranks[@]}")
if [[ ${CCL_BENCH_PROFILER:-torch} == torch ]]; then
    window+=(--use-pytorch-profiler --pytorch-profiler-collect-shapes --pytorch-profiler-collect-chakra)
    nsys=""
else
    nsys="--capture-range=cudaProfilerApi --capture-range-end=stop" # Megatron opens and closes it
fi
ccl-bench collect --output "$dir" --profile-mode "${CCL_BENCH_PROFILER:-torch}" --nsys-options "$nsys" -- \
    torchrun --standalone --nproc-per-node "$gpus" "$script" "$@" \
    --train-iters 20 --tensorboard-dir "$dir/tensorboard" --log-interval 1 "${window[@]}"
