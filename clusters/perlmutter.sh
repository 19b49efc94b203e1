# shellcheck shell=bash disable=SC2034  # common.sh and setup_env.sh read what is set here
# NERSC's Perlmutter: GPU nodes with four A100 and Slingshot 11.
# https://docs.nersc.gov/systems/perlmutter/running-jobs/

NEEDS_ACCOUNT=yes
DEVICE=cuda
: "${RANKS_PER_NODE:=4}"
: "${TORCH_BACKEND=cu129}"
# nccl brings the plugin that lets NCCL use Slingshot; cudatoolkit brings nsys.
: "${MODULES=cudatoolkit/12.9 nccl}"

export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-hsn}
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-hsn0}
export PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF:-expandable_segments:True}
