#!/usr/bin/env bash
# Submit workloads: submit_all.sh [NAME...] [OPTIONS of sbatch]. Without names, all that workloads/ defines.
#
#   NERSC_ALLOCATION=m1234 perlmutter/submit_all.sh --test-only
#   NERSC_ALLOCATION=m1234 perlmutter/submit_all.sh llama3.1-8b-torchtitan-tp-perlmutter-16 --time=20
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

names=() options=()
for word in "$@"; do
    case $word in
        -*) options+=("$word") ;;
        *) names+=("$(basename -- "$word")") ;;
    esac
done
if ((${#names[@]} == 0)); then
    mapfile -t names < <(workloads)
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
