# shellcheck shell=bash
# What the run.sh of every workload, submit_all.sh and setup_env.sh share. It is sourced, never run.
#
# Variables of the environment, all explained in README.md:
#   CLUSTER        profile in clusters/: perlmutter, generic, cpu, or your own
#   ACCOUNT        allocation to charge, as for sbatch -A
#   SCRATCH        large and fast storage
#   TRACES         where traces go                    $SCRATCH/ccl-bench-traces
#   ASSETS         tokenizers and texts               $SCRATCH/ccl-bench-assets
#   DATA           c4 (downloaded) or synthetic       c4
#   PROFILE_MODE   torch, nsys, or both in two runs   torch
#   NSYS_OPTIONS   more options for nsys profile
#   EXECUTION_TRACE=1   record Execution Traces with Kineto, which makes steps longer
#   FORCE=1        replace a run in $TRACES
#   ACTIVATE       script that activates the environment; by default the one that setup_env.sh wrote

CCL_BENCH_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

say() {
    printf 'ccl-bench: %s\n' "$1" >&2
}

next() {
    printf '  next: %s\n' "$1" >&2
}

fail() { # fail STATUS WHAT NEXT-COMMAND
    say "$2"
    next "$3"
    exit "$1"
}

configure() {
    local profile=$CCL_BENCH_ROOT/clusters/${CLUSTER:=perlmutter}.sh
    TORCHTITAN_OPTIONS=() OWN_OPTIONS=()
    # shellcheck disable=SC2034 # submit_all.sh reads it
    SBATCH_OPTIONS=()
    [[ -f $profile ]] || fail 2 "CLUSTER=$CLUSTER has no profile $profile" "cp clusters/generic.sh clusters/$CLUSTER.sh"
    # shellcheck source=clusters/perlmutter.sh
    source "$profile"
    : "${DATA:=c4}" "${PROFILE_MODE:=torch}" "${NSYS_OPTIONS:=}" "${FORCE:=}" "${ACCOUNT:=${SBATCH_ACCOUNT:-${SLURM_JOB_ACCOUNT:-}}}"
    case $PROFILE_MODE in
        torch | nsys | both) ;;
        *) fail 2 "PROFILE_MODE=$PROFILE_MODE is not torch, nsys or both" "export PROFILE_MODE=torch" ;;
    esac
    [[ -n ${SCRATCH:-} ]] || fail 2 "SCRATCH is not set: traces need a folder" "export SCRATCH=/path/to/large/storage"
    : "${TRACES:=$SCRATCH/ccl-bench-traces}" "${ASSETS:=$SCRATCH/ccl-bench-assets}"
    : "${ACTIVATE:=$CCL_BENCH_ROOT/perlmutter/activate.sh}"
    export DEVICE RANKS_PER_NODE EXECUTION_TRACE
    export HF_HOME=${HF_HOME:-$ASSETS/huggingface}
}

load_modules() {
    local module status=0
    [[ -n $MODULES ]] || return 0
    if ! type module &>/dev/null; then
        say "there is no module command; not loaded: $MODULES"
        return 0
    fi
    for module in $MODULES; do
        set +u # the module command reads variables that are not set
        module load "$module" || status=$?
        set -u
        ((status == 0)) || fail 4 "the module $module cannot be loaded" "module avail ${module%%/*}, then export MODULES='...'"
    done
}

activate() {
    local program
    load_modules
    if [[ -f $ACTIVATE ]]; then
        # shellcheck source=/dev/null
        source "$ACTIVATE"
    fi
    for program in ccl-bench torchrun; do
        type -P "$program" >/dev/null || fail 4 "$program is not on PATH" "$CCL_BENCH_ROOT/perlmutter/setup_env.sh"
    done
}

# Choose the text to train on: adds to TORCHTITAN_OPTIONS.
place_data() { # place_data FOLDER
    local model
    if [[ $DATA == synthetic ]]; then
        python "$CCL_BENCH_ROOT/workloads/torchtitan/synthetic_data.py" "$ASSETS/synthetic"
        TORCHTITAN_OPTIONS+=(
            --model.hf_assets_path "$ASSETS/synthetic/tokenizer"
            --training.dataset c4_test --training.dataset_path "$ASSETS/synthetic/text"
        )
        export HF_HUB_OFFLINE=1
        return
    fi
    model=$(sed -n 's|^hf_assets_path = "assets/\(.*\)"$|\1|p' "$1/train_config.toml")
    [[ -f $ASSETS/$model/tokenizer.json ]] || fail 4 "the tokenizer of $model is not in $ASSETS/$model" \
        "hf download $model --include 'tokenizer*' --local-dir '$ASSETS/$model', or export DATA=synthetic"
    TORCHTITAN_OPTIONS+=(--model.hf_assets_path "$ASSETS/$model")
}

# Set NODES, MASTER_ADDR and MASTER_PORT from the allocation, or for this machine alone.
place_ranks() { # place_ranks FOLDER
    local needed
    needed=$(sed -n 's/^#SBATCH --nodes=//p' "$1/run.sbatch")
    NODES=${SLURM_JOB_NUM_NODES:-1}
    if [[ -z ${SLURM_JOB_ID:-} && $DEVICE != cpu ]]; then
        fail 2 "there is no allocation: run.sh trains on the nodes of a Slurm job" \
            "cd '$1' && sbatch -A ${ACCOUNT:-ACCOUNT} run.sbatch, or salloc --nodes=$needed and run.sh in it"
    elif ((NODES != needed)) && [[ -n ${SLURM_JOB_ID:-} ]]; then
        fail 2 "the allocation has $NODES nodes, but this workload needs $needed" "$(submission "$1")"
    fi
    MASTER_ADDR=localhost
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    fi
    MASTER_PORT=${MASTER_PORT:-$((20000 + ${SLURM_JOB_ID:-$$} % 20000))}
    export NODES MASTER_ADDR MASTER_PORT
}

run_workload() { # run_workload FOLDER [OPTIONS of torchtitan]
    local folder=$1 run status=0
    shift
    OWN_OPTIONS=("$@")
    run=$TRACES/$(basename -- "$folder")
    place_ranks "$folder"
    activate
    place_data "$folder"
    mkdir -p "$TRACES" || fail 4 "cannot create $TRACES" "export SCRATCH=/path/to/large/storage"
    claim "$run"

    local train=(bash "$CCL_BENCH_ROOT/workloads/torchtitan/node.sh"
        --job.config_file "$folder/train_config.toml" "${TORCHTITAN_OPTIONS[@]}" "$@")
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        # srun takes the number of processors from its own options only, since Slurm 22.05.
        train=(srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --kill-on-bad-exit=1
            --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${train[@]}")
    fi
    local collect=(ccl-bench collect --output "$run" --profile-mode "$PROFILE_MODE")
    # On a CPU the card of the GPUs and the full model is wrong; there a new one holds what is observed.
    [[ $DEVICE == cpu ]] || collect+=(--workload-card "$folder/workload_card.yaml")
    [[ -z $NSYS_OPTIONS ]] || collect+=("--nsys-options=$NSYS_OPTIONS")
    [[ $FORCE != 1 ]] || collect+=(--force)

    say "ranks: $((NODES * RANKS_PER_NODE)), nodes: $NODES ($CLUSTER), profile mode $PROFILE_MODE, traces in $run"
    say "should the job be killed: ccl-bench collect --output '$run' gathers what it left"
    supervised "${collect[@]}" -- "${train[@]}" || status=$?
    release "$run"
    explain "$folder" "$run" "$status"
    return "$status"
}

# One job at a time records into a run directory, or their files would be mixed. What a job that was killed leaves of
# its claim counts for nothing.
claim() { # claim RUN
    local mark job host process
    mark=$(mark_of "$1")
    if ! (set -o noclobber && claimant >"$mark") 2>/dev/null; then
        read -r job host process <"$mark" || true
        if is_recording "${job:--}" "${host:--}" "${process:-0}"; then
            [[ $job == - ]] && job="process $process on $host" || job="job $job"
            fail 2 "$1 is being recorded by $job" \
                "wait until it has ended (squeue --me), or export TRACES=... to record elsewhere"
        fi
        claimant >"$mark" || fail 4 "cannot write $mark" "free space there, or export SCRATCH=/other/storage"
    fi
}

release() { # release RUN
    rm -f -- "$(mark_of "$1")"
}

mark_of() { # mark_of RUN
    printf '%s/.%s.recording\n' "$(dirname -- "$1")" "$(basename -- "$1")"
}

claimant() {
    printf '%s %s %s\n' "${SLURM_JOB_ID:--}" "$(uname -n)" "$$"
}

is_recording() { # is_recording JOB HOST PROCESS
    if [[ $1 == "${SLURM_JOB_ID:--}" ]]; then
        [[ $2 == "$(uname -n)" ]] && kill -0 "$3" 2>/dev/null
    else
        [[ -n $(squeue --noheader --jobs="$1" --format=%i 2>/dev/null) ]]
    fi
}

# Run a command, and forward Slurm's request to stop, which reaches only this shell.
supervised() {
    local status=0
    STOPPED=
    "$@" &
    local child=$!
    trap 'STOPPED=yes; kill -TERM "$child" 2>/dev/null || true' TERM
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    trap - TERM
    return "$status"
}

# The command that submits a workload again: the same allocation, the same options of torchtitan.
submission() { # submission FOLDER [OPTIONS of sbatch]
    local folder=$1 words
    shift
    words=(${ACCOUNT:+-A "$ACCOUNT"} "$@" run.sbatch "${OWN_OPTIONS[@]}")
    printf 'cd %q && %ssbatch%s' "$folder" "${FORCE_AGAIN:+FORCE=1 }" "$(printf ' %q' "${words[@]}")"
}

# Report a failure and the next command; summarise the Nsight Systems reports of a successful run.
explain() { # explain FOLDER RUN STATUS
    local run FORCE_AGAIN=yes
    printf -v run %q "$2"
    if [[ -n $STOPPED ]]; then
        say "the job was stopped before the training ended: $(stop_reason)"
        next "ccl-bench inspect $run shows what was recorded; with more time: $(submission "$1" --time=60)"
    elif is_full "$2" "$(($3 == 0 ? 1 : 64))"; then
        say "the disk of $run is full, so traces may be incomplete"
        next "free space or export SCRATCH=/other/storage, then: $(submission "$1"); to see what was recorded: ccl-bench inspect $run"
    elif (($3 != 0)); then
        say "the run failed for the cause above; the log of each rank is in $run/logs"
        next "$(submission "$1")"
    elif [[ $PROFILE_MODE != torch ]]; then
        "$CCL_BENCH_ROOT/perlmutter/nsys_tables.sh" "$2"
    fi
}

stop_reason() {
    local left
    left=$(squeue --noheader --jobs="${SLURM_JOB_ID:-0}" --format=%L 2>/dev/null) || left=
    if [[ $left =~ ^([0-2]:[0-9]{2}|INVALID)$ ]]; then
        echo "its time limit was near"
    else
        echo "it was cancelled${left:+ with $left left}"
    fi
}

# A run that failed on a full disk has freed some of it by the time of this check.
is_full() { # is_full PATH MEGABYTES: whether so many megabytes cannot be written there
    local free
    free=$(df --output=avail -B 1M -- "$1" 2>/dev/null | tail -n 1) || return 1
    ((free < $2))
}

configure
