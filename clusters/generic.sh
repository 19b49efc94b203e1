# shellcheck shell=bash disable=SC2034  # common.sh and setup_env.sh read what is set here
# Any Slurm cluster with GPUs. Copy it to clusters/<name>.sh, change what differs, and set CLUSTER=<name>.

# Whether jobs need an allocation (sbatch -A).
NEEDS_ACCOUNT=no
# cuda, or cpu to try a workload without GPUs.
DEVICE=cuda
# GPUs of a node, one rank each.
: "${RANKS_PER_NODE:=4}"
# Build of PyTorch that setup_env.sh installs, as `uv pip install --torch-backend` names it.
: "${TORCH_BACKEND=auto}"
# Modules to load, separated by spaces.
: "${MODULES=}"
# Options of sbatch over those in run.sbatch: its constraint and QOS are removed. Add a partition if one is needed.
SBATCH_OPTIONS=(--constraint= --qos=)
