#!/usr/bin/env bash
# Show the state of jobs: status.sh [NAME...]. For each workload the state of its last job, the number of traces, and the
# last message of the job. Without names, all in trace_collection/.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
if [[ ${1:-} == -* ]]; then
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    [[ $1 == --help || $1 == -h ]] && exit 0 || exit 2
fi
# shellcheck source=perlmutter/common.sh
source "$here/common.sh"

state_of() { # state_of JOB: as Slurm remembers it, for minutes without accounting
    local state
    state=$(sacct --noheader --allocations --parsable2 --jobs="$1" --format=State 2>/dev/null | head -n 1) || true
    [[ -n $state ]] || state=$(scontrol --oneliner show job "$1" 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\) .*/\1/p')
    printf '%s\n' "${state:-ended; Slurm no longer knows how}"
}

show() { # show FOLDER
    local name job='' state reason output traces
    name=$(basename -- "$1")
    traces=$(find "$TRACES/$name" -name 'rank*_trace.json*' -o -name '*.nsys-rep' 2>/dev/null | wc -l) || true
    read -r job state reason < <(squeue --me --noheader --sort=-i --name="$name" --format='%i %T %r' 2>/dev/null | head -n 1) || true
    # shellcheck disable=SC2012 # the newest by time, of names that run.sbatch makes
    output=$(ls -t -- "$1/$name"-*.out 2>/dev/null | head -n 1) || true
    if [[ -n $job ]]; then
        [[ $reason == None ]] || state="$state ($reason)"
        output=$1/$name-$job.out
    elif [[ -n $output ]]; then
        job=${output##*-}
        job=${job%.out}
        state=$(state_of "$job")
    else
        state="not submitted"
    fi
    printf '%s: %s%s; traces: %s\n' "$name" "${job:+job $job }" "$state" "$traces"
    if [[ -f $output ]]; then
        grep -E '^(ccl-bench: |Measurable: )' -- "$output" | tail -n 1 | sed 's/^/    /'
    fi
}

(($# > 0)) || set -- "$CCL_BENCH_ROOT"/trace_collection/*/
for name in "$@"; do
    folder=$CCL_BENCH_ROOT/trace_collection/$(basename -- "$name")
    [[ -d $folder ]] || fail 2 "there is no $folder" "ls '$CCL_BENCH_ROOT/trace_collection'"
    show "$folder"
done
