#!/usr/bin/env bash
# Show the state of jobs: status.sh [NAME...]. For each workload the state of its last job, the traces of its last good
# run, and the last message of the job. Without names, all that workloads/ defines.
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

outputs() { # outputs NAME: files that its jobs printed into, those of Slurm itself included
    find "$TRACES" "$CCL_BENCH_ROOT/trace_collection/$1" -maxdepth 3 \
        \( -path "$TRACES/$1_*/logs/slurm-*.out" -o -name "$1-*.out" \) 2>/dev/null || true
}

show() { # show FOLDER
    local name job='' state reason traces
    name=$(basename -- "$1")
    read -r job state reason < <(squeue --me --noheader --sort=-i --name="$name" --format='%i %T %r' 2>/dev/null | head -n 1) || true
    if [[ -n $job ]]; then
        [[ $reason == None ]] || state="$state ($reason)"
    else
        job=$(outputs "$name" | sed -n 's/.*-\([0-9]*\)\.out$/\1/p' | sort -n | tail -n 1)
        state="not submitted"
        [[ -z $job ]] || state=$(state_of "$job")
    fi
    traces=$(traces_in "$TRACES/$name" | wc -l)
    ((traces == 0)) || traces="$traces in $(cd -P -- "$TRACES/$name" && pwd)"
    printf '%s: %s%s; traces: %s\n' "$name" "${job:+job $job }" "$state" "$traces"
    # The file of Slurm comes last: it holds how a job ended that could not write into its run.
    outputs "$name" | grep -e "-$job\.out\$" | xargs -r -d '\n' grep -hE '^(ccl-bench: |Measurable: )' |
        grep -v '^ccl-bench: the output continues in ' | tail -n 1 | sed 's/^/    /' || true
}

names=("$@")
(($# > 0)) || mapfile -t names < <(workloads)
for name in "${names[@]}"; do
    folder=$CCL_BENCH_ROOT/trace_collection/$(basename -- "$name")
    [[ -d $folder ]] || fail 2 "there is no $folder" "ls '$CCL_BENCH_ROOT/trace_collection'"
    show "$folder"
done
