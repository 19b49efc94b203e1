#!/usr/bin/env bash
# Run one rank with an Execution Trace beside the Kineto one: rank.sh PROGRAM [ARGUMENTS]. torchrun starts it as each rank.
#
# torch writes Execution Traces among temporary files, and offers no other place and no name; they are brought to
# execution_trace/rank<rank>_et.json.
set -euo pipefail

place=$CCL_BENCH_OUTPUT/execution_trace
mkdir -p "$place"
TMPDIR=$(mktemp -d "$place/rank$RANK.XXXXXX")
export TMPDIR ENABLE_PYTORCH_EXECUTION_TRACE=1
status=0
python -u "$@" || status=$?
for trace in "$TMPDIR"/*.et.json; do
    [[ ! -s $trace ]] || mv -- "$trace" "$place/rank${RANK}_et.json"
done
rm -rf -- "$TMPDIR"
exit "$status"
