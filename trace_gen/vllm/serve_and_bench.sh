#!/usr/bin/env bash
# Start vLLM, send it requests, and leave traces and the benchmark's result where `ccl-bench collect` asks for them:
#
#     ccl-bench collect --output runs/vllm -- bash trace_gen/vllm/serve_and_bench.sh MODEL TENSOR_PARALLEL
#
# vLLM 0.13 and later; earlier ones take VLLM_TORCH_PROFILER_DIR in place of --profiler-config.
# Requests are sent twice: alone, for times that count, and then a few under the profiler.
set -euo pipefail

usage="serve_and_bench.sh MODEL TENSOR_PARALLEL"
model=${1:?$usage} tensor_parallel=${2:?$usage}
dir=${CCL_BENCH_OUTPUT:?is set by ccl-bench collect}
port=${PORT:-8000}
if [[ ${CCL_BENCH_PROFILE_MODE:-torch} == nsys ]]; then
    profiler='{"profiler": "cuda"}' # opens and closes the capture range of Nsight Systems
else
    profiler=$(printf '{"profiler": "torch", "torch_profiler_dir": "%s", "torch_profiler_record_shapes": true, "torch_profiler_with_stack": false}' "$dir/profile_trace")
fi

vllm serve "$model" --tensor-parallel-size "$tensor_parallel" --port "$port" --profiler-config "$profiler" &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait "$server" || true' EXIT
until curl --silent --fail "http://127.0.0.1:$port/health" > /dev/null; do
    kill -0 "$server" # ends the script with the server's own message above
    sleep 2
done

requests=(vllm bench serve --model "$model" --port "$port" --dataset-name random --random-input-len 1024 --random-output-len 128)
"${requests[@]}" --num-prompts 200 --save-result --save-detailed --result-dir "$dir" --result-filename requests.json
"${requests[@]}" --num-prompts 8 --profile
