#!/usr/bin/env bash
# Record the example runs again: record.sh [DIRECTORY], with a python that has torch 2.13 and ccl-bench in $PYTHON or on PATH.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runs=$(realpath -m "${1:-$here/../runs}")
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

export OMP_NUM_THREADS=1               # four ranks share the cores
export TORCH_EXTENSIONS_DIR=$scratch   # where recording_gloo.cpp is compiled

"$python" "$here/recording_gloo.py"    # once, before four ranks want it
launch=("$python" -m torch.distributed.run --standalone --nproc_per_node 4)
"${launch[@]}" "$here/train_fsdp_tp.py" --backend rgloo "$scratch/fsdp_tp"
"${launch[@]}" "$here/train_pipeline.py" "$scratch/pipeline"
"$python" "$here/tidy.py" "$scratch/fsdp_tp" "$runs/llama-tiny-fsdp2-tp2-gloo"
"$python" "$here/tidy.py" "$scratch/pipeline" "$runs/llama-tiny-pp4-gloo"
