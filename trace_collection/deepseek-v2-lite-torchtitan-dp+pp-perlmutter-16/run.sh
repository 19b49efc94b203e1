#!/usr/bin/env bash
# Train and record this workload: submit the job that does, or do it on the nodes of the allocation this is started in.
# Further options go to torchtitan. Configuration: perlmutter/README.md of ccl-bench.
set -euo pipefail

folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
common=${CCL_BENCH_ROOT:-$folder/../..}/perlmutter/common.sh
if [[ ! -f $common ]]; then
    echo "run.sh: $common is missing: set CCL_BENCH_ROOT to a checkout of ccl-bench" >&2
    exit 4
fi
export CLUSTER=${CLUSTER:-perlmutter}
# shellcheck source=/dev/null
source "$common"
run_workload "$folder" "$@"
