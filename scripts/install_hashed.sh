#!/usr/bin/env bash
# Install ccl-bench and what it needs: only files whose hashes are in hashes.txt, built by what is in
# hashes-build.txt.
#
# usage: [PYTHON=...] scripts/install_hashed.sh [EXTRA,...]
#
# pip of the second list does it: older ones ignore the hashes of constraints, and ask for a version instead.
set -euo pipefail

python=$(command -v "${PYTHON:-python3}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/build"
pip=("$scratch/build/bin/python" -m pip --disable-pip-version-check --no-cache-dir --quiet)
"${pip[@]}" install --require-hashes --requirement hashes-build.txt
"${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$scratch" .
wheel=("$scratch"/ccl_bench-*.whl)
hash=$(sha256sum "${wheel[0]}" | cut -d ' ' -f 1)
echo "ccl-bench${1:+[$1]} @ file://${wheel[0]} --hash=sha256:$hash" > "$scratch/ccl-bench.txt"
"${pip[@]}" --python "$python" install --require-hashes --constraint hashes.txt --requirement "$scratch/ccl-bench.txt"
