#!/usr/bin/env bash
# Make the environment that the jobs run in, once, on a login node: setup_env.sh [--dry-run]
#
# It holds ccl-bench, torchtitan and PyTorch built for the CUDA of the cluster's profile, and is made by uv where that is
# installed, else by venv and pip. It writes perlmutter/activate.sh.
#
#   ENVIRONMENT     where it goes: $SCRATCH/ccl-bench-env
#   TORCH_BACKEND   build of PyTorch for uv: cu129, cu130, cpu ... (the profile says which)
#   PYTORCH_INDEX   with pip alone: address of the package index with that build, as pytorch.org names it
#   TORCH           requirement, such as torch==2.13.0
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
: "${ENVIRONMENT:=$SCRATCH/ccl-bench-env}" "${TORCH:=torch}"
PYTHON=${PYTHON:-python3}
requirements=("torchtitan==0.2.2" "datasets<4.8")
# torchtitan imports triton, which PyTorch for processors does not bring.
[[ $DEVICE != cpu ]] || requirements+=(triton)

run() {
    printf '+ %s\n' "$(printf '%q ' "$@")" >&2
    [[ -n $dry_run ]] || "$@"
}

load_modules
if type -P uv >/dev/null; then
    run uv venv --python ">=3.11" "$ENVIRONMENT"
    run uv pip install --python "$ENVIRONMENT/bin/python" --torch-backend="$TORCH_BACKEND" "$TORCH" "${requirements[@]}"
    run uv pip install --python "$ENVIRONMENT/bin/python" "$CCL_BENCH_ROOT"
else
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail 4 "$PYTHON is older than 3.11" "module load python, or install uv, or export PYTHON=python3.11"
    [[ -n ${PYTORCH_INDEX:-} || $TORCH_BACKEND == cpu ]] ||
        fail 2 "pip does not know where PyTorch for $TORCH_BACKEND is" "install uv, or export PYTORCH_INDEX=ADDRESS as pytorch.org shows it"
    run "$PYTHON" -m venv "$ENVIRONMENT"
    run "$ENVIRONMENT/bin/python" -m pip install ${PYTORCH_INDEX:+--index-url "$PYTORCH_INDEX"} "$TORCH"
    run "$ENVIRONMENT/bin/python" -m pip install "${requirements[@]}" "$CCL_BENCH_ROOT"
fi

if [[ -z $dry_run ]]; then
    printf '# Written by setup_env.sh: the environment that jobs run in.\nsource %q\n' "$ENVIRONMENT/bin/activate" >"$ACTIVATE"
    "$ENVIRONMENT/bin/python" -c 'import torch; print("PyTorch", torch.__version__, "for CUDA", torch.version.cuda)'
    say "$ACTIVATE activates $ENVIRONMENT"
fi
next "$CCL_BENCH_ROOT/perlmutter/submit_all.sh --test-only"
