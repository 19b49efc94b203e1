#!/usr/bin/env bash
# Summaries of the Nsight Systems reports of a run as CSV: nsys_tables.sh RUN. They go to RUN/nsys_tables/.
#
# Nsight Systems renamed its summaries in 2023 (gpukernsum became cuda_gpu_kern_sum): the installed names are used,
# and files have the later ones.
set -euo pipefail

if (($# != 1)) || [[ $1 == -* ]]; then
    echo "usage: nsys_tables.sh RUN" >&2
    exit 2
fi
run=$1
summaries=(
    cuda_gpu_kern_sum:gpukernsum
    cuda_gpu_mem_time_sum:gpumemtimesum
    cuda_api_sum:cudaapisum
    nvtx_sum:nvtxsum
    osrt_sum:osrtsum
)

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

known=$(nsys stats --help-reports 2>&1 || true)
mkdir -p "$run/nsys_tables"
for report in "${reports[@]}"; do
    base=$(basename -- "$report" .nsys-rep)
    for summary in "${summaries[@]}"; do
        later=${summary%%:*} earlier=${summary##*:}
        name=$later
        grep -qw -- "$later" <<<"$known" || name=$earlier
        # A summary without a row is no error: nsys says so, and writes no file.
        nsys stats --quiet --force-export=true --report "$name" --format csv --output - "$report" \
            >"$run/nsys_tables/${base}_$later.csv" 2>>"$run/nsys_tables/messages.txt" || true
        [[ -s $run/nsys_tables/${base}_$later.csv ]] || rm -f "$run/nsys_tables/${base}_$later.csv"
    done
done
echo "$run/nsys_tables: $(find "$run/nsys_tables" -name '*.csv' | wc -l) tables of ${#reports[@]} reports"
