#!/usr/bin/env bash
# Compare a run with a baseline in a pipeline of tests: a summary in Markdown, and the status of ccl-bench compare.
#
#   scripts/compare_in_pipeline.sh BASELINE RUN
#
# Variables, all optional:
#   FAIL_ON    limits, one a line; 5% by default
#   METRICS    metrics to compare, one a line; all by default
#   TOLERANCE  percent below which a change is none
#   SUMMARY    file of the summary; comparison.md by default
#   PAGE       file of a page with charts, such as comparison.html
#
# On GitHub the summary is also that of the job, and the outputs are `outcome` (passed, regression, not-judged,
# unreadable, failed), `exit-status`, `summary` and `page`.
set -uo pipefail

if (($# != 2)); then
    echo "usage: $0 BASELINE RUN" >&2
    exit 2
fi
baseline=$1 run=$2
summary=${SUMMARY:-comparison.md}
page=${PAGE:-}

options=(--force)
while read -r limit; do
    [[ -z $limit ]] || options+=(--fail-on "$limit")
done <<<"${FAIL_ON:-5%}"
while read -r metric; do
    [[ -z $metric ]] || options+=(--metric "$metric")
done <<<"${METRICS:-}"
[[ -z ${TOLERANCE:-} ]] || options+=(--tolerance "$TOLERANCE")

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

ccl-bench compare "${options[@]}" --output "$summary" -- "$baseline" "$run" 2>"$errors"
status=$?
cat "$errors" >&2
case $status in
    0) outcome=passed ;;
    3) outcome=not-judged ;;
    4) outcome=unreadable ;;
    5) outcome=regression ;;
    *) outcome=failed ;;
esac

case $status in
    0 | 3 | 5)
        if [[ -n $page ]]; then
            ccl-bench compare "${options[@]}" --output "$page" -- "$baseline" "$run" >/dev/null 2>&1
        fi
        ;;
    *)
        page=
        {
            printf '## %s was not compared\n\n````text\n' "$run"
            cat "$errors"
            printf '````\n'
        } >"$summary"
        ;;
esac

if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$summary" >>"$GITHUB_STEP_SUMMARY"
fi
if [[ -n ${GITHUB_OUTPUT:-} ]]; then
    printf '%s=%s\n' outcome "$outcome" exit-status "$status" summary "$summary" page "$page" >>"$GITHUB_OUTPUT"
fi
exit "$status"
