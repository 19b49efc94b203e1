# shellcheck shell=bash disable=SC2034  # common.sh and setup_env.sh read what is set here
# Any machine, no GPU: torchtitan over gloo, a tiny flavour of the model, synthetic text. It checks parallelism,
# scripts and traces of a workload, not speed.

NEEDS_ACCOUNT=no
: "${SCHEDULER:=none}" # slurm: on the nodes of a job
: "${PROFILE_MODE:=torch}"
DEVICE=cpu
: "${RANKS_PER_NODE:=4}"
: "${TORCH_BACKEND=cpu}"
: "${MODULES=}"
: "${DATA:=synthetic}"
TORCHTITAN_OPTIONS=(
    --model.flavor tiny
    --optimizer.implementation for-loop
    --training.dtype float32
    --training.local_batch_size 4
    --training.mixed_precision_param float32
    --training.seq_len 128
)

export OMP_NUM_THREADS=1
