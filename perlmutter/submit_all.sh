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

for name in "${names[@]}"; do
    submit "$CCL_BENCH_ROOT/trace_collection/$name" "${options[@]}"
done
case " ${options[*]-} " in
    *" --test-only "*) ;;
    *) say "squeue --me shows the jobs; traces go to $TRACES" ;;
esac
