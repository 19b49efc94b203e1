#!/usr/bin/env bash
# Review a merge request to a board in a pipeline: a comment in Markdown, and the status of ccl-bench board review.
#
#   scripts/review_in_pipeline.sh BOARD SINCE
#
# BOARD is the folder of the board in the checkout, SINCE the branch that the request goes to.
#
# Variables, all optional:
#   TRACES        folder with the files of runs, whose numbers are recomputed
#   SUMMARY       file of the comment; review.md by default
#   PULL_REQUEST  number of the pull request on GitHub that gets the comment, with gh and its GH_TOKEN
#
# On GitHub the comment is also the summary of the job, and the outputs are `outcome` (passed, differs, refused,
# failed), `exit-status` and `summary`.
set -uo pipefail

if (($# != 2)); then
    echo "usage: $0 BOARD SINCE" >&2
    exit 2
fi
board=$1 since=$2
summary=${SUMMARY:-review.md}

options=(--force "--since=$since" "--output=$summary")
[[ -z ${TRACES:-} ]] || options+=("--traces=$TRACES")

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

rm -f "$summary"
ccl-bench board review "${options[@]}" -- "$board" 2>"$errors"
status=$?
cat "$errors" >&2
case $status in
    0) outcome=passed ;;
    1) outcome=differs ;;
    4) outcome=refused ;;
    *) outcome=failed ;;
esac

if [[ ! -f $summary ]]; then
    outcome=failed
    {
        printf '<!-- ccl-bench review -->\n\n## The board was not reviewed\n\n'
        sed 's/^/    /' "$errors"
    } >"$summary"
fi

if [[ -n ${PULL_REQUEST:-} ]]; then
    # The token of a request from a fork may not write: its comment stays on the page of the job.
    gh pr comment "$PULL_REQUEST" --body-file "$summary" --edit-last --create-if-none ||
        echo "the comment was not written to the pull request; it is in $summary" >&2
fi
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$summary" >>"$GITHUB_STEP_SUMMARY"
fi
if [[ -n ${GITHUB_OUTPUT:-} ]]; then
    printf '%s=%s\n' outcome "$outcome" exit-status "$status" summary "$summary" >>"$GITHUB_OUTPUT"
fi
exit "$status"
