#!/usr/bin/env bash
# Start the ranks of one node: node.sh [OPTIONS of torchtitan]. perlmutter/common.sh runs it once on each node.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

program=(-m torchtitan.train)
[[ $DEVICE != cpu ]] || program=("$here/on_cpu.py")

options=("$@" --job.dump_folder "$CCL_BENCH_OUTPUT")
# CUPTI has one subscriber: under Nsight Systems the profiler of torch would see no kernels.
[[ $CCL_BENCH_PROFILE_MODE != nsys ]] || options+=(--profiling.no-enable-profiling)

if [[ ${EXECUTION_TRACE:-} == 1 && $CCL_BENCH_PROFILE_MODE != nsys ]]; then
    program=(--no-python "$here/rank.sh" "${program[@]}")
fi

# The rank of a node is Slurm's, so that rank 0 is on the first node.
exec torchrun --nnodes "$NODES" --nproc-per-node "$RANKS_PER_NODE" --node-rank "${SLURM_NODEID:-0}" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "${program[@]}" "${options[@]}"
