#!/usr/bin/env bash
# Summaries of the Nsight Systems reports of a run as CSV: nsys_tables.sh RUN. They go to RUN/nsys_tables/.
# Files have the later names of the summaries, whatever the installed release calls them.
set -euo pipefail

if (($# != 1)) || [[ $1 == -* ]]; then
    echo "usage: nsys_tables.sh RUN" >&2
    exit 2
fi
run=$1
summaries=(cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_api_sum nvtx_sum osrt_sum)
# shellcheck source=perlmutter/nsys.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/nsys.sh"

if ! type -P nsys >/dev/null; then
    printf 'nsys_tables.sh: nsys is not on PATH\n  next: load the module of Nsight Systems (Perlmutter: cudatoolkit)\n' >&2
    exit 4
fi
shopt -s nullglob
reports=("$run"/*.nsys-rep)
if ((${#reports[@]} == 0)); then
    printf 'nsys_tables.sh: %s has no *.nsys-rep\n  next: record with PROFILE_MODE=nsys or both\n' "$run" >&2
    exit 4
fi

mkdir -p "$run/nsys_tables"
for report in "${reports[@]}"; do
    base=$(basename -- "$report" .nsys-rep)
    for summary in "${summaries[@]}"; do
        # A summary without a row is no error: nsys says so, and writes no file.
        nsys stats --quiet --force-export=true --report "$summary" --format csv --output - "$report" \
            >"$run/nsys_tables/${base}_$summary.csv" 2>>"$run/nsys_tables/messages.txt" || true
        [[ -s $run/nsys_tables/${base}_$summary.csv ]] || rm -f "$run/nsys_tables/${base}_$summary.csv"
    done
done
echo "$run/nsys_tables: $(find "$run/nsys_tables" -name '*.csv' | wc -l) tables of ${#reports[@]} reports"
