#!/bin/sh
# Print one metric of a run: ./scripts/get_coll_call_num.sh [RUN] [OPTIONS of ccl-metrics]
#
# Without a run it measures the one that comes with the repository, and says so on stderr.
#
# The metric is the one in the name that the script is called by; every get_<metric>.sh is a link
# to this file. `scripts/link_metrics.py` makes the links.
set -eu

called=$(basename -- "$0" .sh)
metric=${called#get_}

file=$0
while [ -L "$file" ]; do
    target=$(readlink -- "$file")
    case $target in
        /*) file=$target ;;
        *) file=$(dirname -- "$file")/$target ;;
    esac
done
root=$(cd -- "$(dirname -- "$file")/.." && pwd -P)

if [ "$metric" = metric ]; then
    echo "get_metric.sh: call a link to this script, such as get_mfu.sh; ccl-metrics --list-metrics lists the names" >&2
    exit 2
fi
if [ $# -eq 0 ]; then
    example=examples/runs/llama-tiny-fsdp2-tp2-gloo
    echo "$called.sh: no run is named, so this is of $example; for your own: $called.sh RUN" >&2
    set -- "$root/$example"
fi

if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x "$root/.venv/bin/python" ]; then
        PYTHON=$root/.venv/bin/python
    fi
fi
case $1 in
    -*) exec "$PYTHON" "$root/tools/main.py" --metric "$metric" "$@" ;;
esac
run=$1
shift
exec "$PYTHON" "$root/tools/main.py" --metric "$metric" "--trace=$run" "$@"
