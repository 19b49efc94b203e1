#!/usr/bin/env bash
# Make the environment that the jobs run in, once, on a login node: setup_env.sh [--dry-run]
#
# It holds ccl-bench, torchtitan and PyTorch built for the CUDA of the cluster's profile. uv creates it; if uv is not
# installed, venv creates it and uv is installed into it. Jobs then source perlmutter/activate.sh, which this script writes.
#
#   ENVIRONMENT     where it goes: $SCRATCH/ccl-bench-env
#   TORCH           requirement, such as torch==2.13.0
#   TORCH_BACKEND   build of PyTorch: cu129, cu130, cpu ... (the profile says which); empty: what the index has
#   PYTHON          interpreter for venv: python3
#   ACTIVATE        where activate.sh goes
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
dry_run=
case ${1:-} in
    --dry-run) dry_run=yes ;;
    '') ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        [[ $1 == --help || $1 == -h ]] && exit 0 || exit 2
        ;;
esac
# shellcheck source=perlmutter/common.sh
source "$here/common.sh"
: "${ENVIRONMENT:=$SCRATCH/ccl-bench-env}" "${TORCH:=torch}" "${PYTHON:=python3}"
requirements=("$TORCH" "torchtitan==0.2.2" "datasets<4.8" "$CCL_BENCH_ROOT")
# torchtitan imports triton, which the CPU build of PyTorch does not bring.
[[ $DEVICE != cpu ]] || requirements+=(triton)

run() {
    printf '+ %s\n' "$(printf '%q ' "$@")" >&2
    [[ -n $dry_run ]] || "$@" ||
        fail 1 "cannot create the environment in $ENVIRONMENT, for the cause above" "correct it, then: ${BASH_SOURCE[0]}"
}

load_modules
if uv=$(type -P uv); then
    run "$uv" venv --allow-existing --python ">=3.11" "$ENVIRONMENT"
else
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail 4 "$PYTHON is older than 3.11" "module load python, or install uv, or export PYTHON=python3.11"
    uv=$ENVIRONMENT/bin/uv
    run "$PYTHON" -m venv "$ENVIRONMENT"
    run "$ENVIRONMENT/bin/python" -m pip install uv
fi
run "$uv" pip install --python "$ENVIRONMENT/bin/python" \
    ${TORCH_BACKEND:+--torch-backend="$TORCH_BACKEND"} "${requirements[@]}"

if [[ -z $dry_run ]]; then
    printf '# Written by setup_env.sh: the environment that jobs run in.\nsource %q\nsource %q\n' \
        "$ENVIRONMENT/bin/activate" "$here/nsys.sh" >"$ACTIVATE"
    "$ENVIRONMENT/bin/python" -c 'import torch; print("PyTorch", torch.__version__, "for CUDA", torch.version.cuda)'
    say "$ACTIVATE activates $ENVIRONMENT"
fi
next "$CCL_BENCH_ROOT/perlmutter/submit_all.sh --test-only"
