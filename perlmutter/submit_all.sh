#!/usr/bin/env bash
# Submit workloads: submit_all.sh [NAME...] [OPTIONS of sbatch]. Without names, all in trace_collection/.
#
#   ACCOUNT=m1234 perlmutter/submit_all.sh --test-only
#   ACCOUNT=m1234 perlmutter/submit_all.sh llama3.1-8b-torchtitan-tp-perlmutter-16 --time=20
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
case " $* " in
    *" --help "* | *" -h "*)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
# shellcheck source=perlmutter/common.sh
source "$here/common.sh"

need_account() {
    [[ $NEEDS_ACCOUNT != yes || -n $ACCOUNT ]] ||
        fail 2 "ACCOUNT is not set, and $CLUSTER charges every job to an allocation" "export ACCOUNT=m1234 (yours)"
}

holds_run() { # holds_run RUN: whether anything was recorded there
    [[ -e $1/profile_trace ]] || compgen -G "$1/*.nsys-rep" >/dev/null
}

# Submit the job of a workload, and explain a refusal of sbatch.
submit() { # submit FOLDER [OPTIONS of sbatch]
    local folder=$1 name said
    shift
    name=$(basename -- "$folder")
    [[ -f $folder/run.sbatch ]] || fail 2 "$folder has no run.sbatch" "ls '$CCL_BENCH_ROOT/trace_collection'"
    if [[ $FORCE != 1 ]] && holds_run "$TRACES/$name"; then
        fail 2 "$TRACES/$name already holds a run" "move it away, or export FORCE=1 to replace it"
    fi
    local options=(${ACCOUNT:+--account="$ACCOUNT"} "${SBATCH_OPTIONS[@]}" "$@")
    if ! said=$(cd -- "$folder" && CLUSTER=$CLUSTER sbatch "${options[@]}" run.sbatch 2>&1); then
        refused "$name" "$said"
    fi
    printf '%s: %s\n' "$name" "$said"
}

refused() { # refused NAME MESSAGE-OF-SBATCH
    local next="read the message, correct the options of sbatch, and submit again"
    case $2 in
        *"nvalid feature"* | *"node configuration is not available"*) next="sinfo --format='%P %f %G %l' shows what the nodes offer; then submit_all.sh --constraint=..." ;;
        *"nvalid account"*) next="sacctmgr show associations user=$(id -un) format=account; then export ACCOUNT=..." ;;
        *"nvalid qos"*) next="sacctmgr show qos format=name,maxwall; then submit_all.sh --qos=..." ;;
        *"nvalid partition"*) next="sinfo --summarize; then submit_all.sh --partition=..." ;;
        *"Unable to contact slurm"* | *"not found"* | *"configuration source"*) next="scontrol ping, on a login node of the cluster" ;;
    esac
    fail 1 "Slurm refused $1: ${2//$'\n'/; }" "$next"
}

names=() options=()
for word in "$@"; do
    case $word in
        -*) options+=("$word") ;;
        *) names+=("$(basename -- "$word")") ;;
    esac
done
if ((${#names[@]} == 0)); then
    for folder in "$CCL_BENCH_ROOT"/trace_collection/*/; do
        names+=("$(basename -- "$folder")")
    done
fi

need_account
failed=() status=0
for name in "${names[@]}"; do
    (submit "$CCL_BENCH_ROOT/trace_collection/$name" "${options[@]}") || status=$? failed+=("$name")
done
if ((${#failed[@]} && ${#names[@]} > 1)); then
    say "${#failed[@]} of ${#names[@]} workloads were not submitted, for the causes above: ${failed[*]}"
    next "correct them, then: $here/submit_all.sh ${failed[*]}"
fi
case " ${options[*]-} " in
    *" --test-only "*) ;;
    *) ((${#failed[@]} == ${#names[@]})) || say "$here/status.sh shows the state of the jobs; traces go to $TRACES" ;;
esac
exit "$status"
