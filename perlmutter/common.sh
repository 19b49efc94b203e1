# shellcheck shell=bash
# What the run.sh of every workload, submit_all.sh and setup_env.sh share. It is sourced, never run.
#
# Variables of the environment, all explained in README.md:
#   CLUSTER        profile in clusters/: perlmutter, generic, cpu, or your own
#   NERSC_ALLOCATION   allocation to charge, as for sbatch -A; it may be set below
#   ACCOUNT        the same on other clusters         $NERSC_ALLOCATION
#   SCRATCH        large and fast storage
#   TRACES         where traces go                    $SCRATCH/ccl-bench-traces
#   ASSETS         tokenizers and texts               $SCRATCH/ccl-bench-assets
#   DATA           c4 (downloaded) or synthetic       c4 where its tokenizer is there
#   PROFILE_MODE   torch, nsys, or both in two runs   both
#   NSYS_OPTIONS   more options for nsys profile
#   EXECUTION_TRACE   0: no Execution Traces with Kineto, which make steps longer   1
#   SCHEDULER      slurm: run.sh submits itself outside of an allocation; none: it trains here
#   ACTIVATE       script that activates the environment; by default the one that setup_env.sh wrote

GIVEN_ALLOCATION=${NERSC_ALLOCATION:-}
# Your allocation, such as m1234; `iris` lists those you have.
export NERSC_ALLOCATION="${NERSC_ALLOCATION:-}"

CCL_BENCH_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

say() {
    printf 'ccl-bench: %s\n' "$1" >&2
}

next() {
    printf '  next: %s\n' "$1" >&2
}

# Say how something ended. A job says it in Slurm's file too: the disk of its run may be full.
conclude() { # conclude WHAT NEXT-COMMAND
    say "$1" || true
    next "$2" || true
    [[ -z ${QUEUE:-} ]] || printf 'ccl-bench: %s\n  next: %s\n' "$1" "$2" >&"$QUEUE" || true
}

fail() { # fail STATUS WHAT NEXT-COMMAND
    conclude "$2" "$3"
    exit "$1"
}

configure() {
    local profile=$CCL_BENCH_ROOT/clusters/${CLUSTER:=perlmutter}.sh
    TORCHTITAN_OPTIONS=() OWN_OPTIONS=()
    SBATCH_OPTIONS=()
    [[ -f $profile ]] || fail 2 "CLUSTER=$CLUSTER has no profile $profile" "cp clusters/generic.sh clusters/$CLUSTER.sh"
    # shellcheck source=clusters/perlmutter.sh
    source "$profile"
    : "${DATA:=}" "${PROFILE_MODE:=both}" "${EXECUTION_TRACE:=1}" "${NSYS_OPTIONS:=}" "${SCHEDULER:=slurm}"
    case $PROFILE_MODE in
        torch | nsys | both) ;;
        *) fail 2 "PROFILE_MODE=$PROFILE_MODE is not torch, nsys or both" "export PROFILE_MODE=torch" ;;
    esac
    case $DATA in
        c4 | synthetic | '') ;;
        *) fail 2 "DATA=$DATA is not c4 or synthetic" "export DATA=synthetic" ;;
    esac
    [[ $EXECUTION_TRACE == [01] ]] || fail 2 "EXECUTION_TRACE=$EXECUTION_TRACE is not 0 or 1" "export EXECUTION_TRACE=1"
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

# Choose the text to train on: adds to TORCHTITAN_OPTIONS. Unless it is asked for, c4 needs a tokenizer that was downloaded.
place_data() { # place_data FOLDER
    local model download
    model=$(sed -n 's|^hf_assets_path = "assets/\(.*\)"$|\1|p' "$1/train_config.toml")
    download="hf download $model --include 'tokenizer*' --local-dir '$ASSETS/$model'"
    if [[ $DATA != synthetic && -f $ASSETS/$model/tokenizer.json ]]; then
        TORCHTITAN_OPTIONS+=(--model.hf_assets_path "$ASSETS/$model")
        return
    elif [[ $DATA == c4 ]]; then
        fail 4 "the tokenizer of $model is not in $ASSETS/$model" "$download, or export DATA=synthetic"
    elif [[ -z $DATA ]]; then
        say "the tokenizer of $model is not in $ASSETS/$model, so the text is synthetic; for c4: $download"
    fi
    python "$CCL_BENCH_ROOT/workloads/torchtitan/synthetic_data.py" "$ASSETS/synthetic"
    TORCHTITAN_OPTIONS+=(
        --model.hf_assets_path "$ASSETS/synthetic/tokenizer"
        --training.dataset c4_test --training.dataset_path "$ASSETS/synthetic/text"
    )
    export HF_HUB_OFFLINE=1
}

# Set NODES, MASTER_ADDR and MASTER_PORT from the allocation, or for this machine alone.
place_ranks() { # place_ranks FOLDER
    local needed
    needed=$(sed -n 's/^#SBATCH --nodes=//p' "$1/run.sbatch")
    NODES=${SLURM_JOB_NUM_NODES:-1}
    if ((NODES != needed)) && [[ -n ${SLURM_JOB_ID:-} ]]; then
        fail 2 "the allocation has $NODES nodes, but this workload needs $needed" "$(submission "$1")"
    fi
    MASTER_ADDR=localhost
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
    fi
    MASTER_PORT=${MASTER_PORT:-$((20000 + ${SLURM_JOB_ID:-$$} % 20000))}
    export NODES MASTER_ADDR MASTER_PORT
}

# Train and record a workload on the nodes of this allocation; outside of one, submit it as a job that does.
run_workload() { # run_workload FOLDER [OPTIONS of torchtitan]
    local folder=$1 status=0
    shift
    OWN_OPTIONS=("$@")
    if [[ -z ${SLURM_JOB_ID:-} && $SCHEDULER != none ]]; then
        need_account
        submit "$folder"
        say "$CCL_BENCH_ROOT/perlmutter/status.sh shows the state of the job; traces go to $TRACES/$(basename -- "$folder")"
        return
    fi
    if is_charged_elsewhere; then
        say "this job is charged to ${SLURM_JOB_ACCOUNT:-no allocation}, so it ends and submits itself again with $(account)"
        HANDED_OVER=yes submit "$folder" --time="$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%l)"
        return
    fi
    begin_run "$(basename -- "$folder")"
    place_ranks "$folder"
    activate
    place_data "$folder"

    local train=(bash "$CCL_BENCH_ROOT/workloads/torchtitan/node.sh"
        --job.config_file "$folder/train_config.toml" "${TORCHTITAN_OPTIONS[@]}" "$@")
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        # srun takes the number of processors from its own options only, since Slurm 22.05.
        train=(srun --nodes="$NODES" --ntasks="$NODES" --ntasks-per-node=1 --kill-on-bad-exit=1
            --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "${train[@]}")
    fi
    local collect=(ccl-bench collect --output "$RUN" --profile-mode "$PROFILE_MODE")
    # On a CPU the card of the GPUs and the full model is wrong; there a new one holds what is observed.
    [[ $DEVICE == cpu ]] || collect+=(--workload-card "$folder/workload_card.yaml")
    [[ -z $NSYS_OPTIONS ]] || collect+=("--nsys-options=$NSYS_OPTIONS")

    say "ranks: $((NODES * RANKS_PER_NODE)), nodes: $NODES ($CLUSTER), profile mode $PROFILE_MODE, traces in $RUN"
    say "should the job be killed: ccl-bench collect --output '$RUN' gathers what it left"
    supervised "${collect[@]}" -- "${train[@]}" || status=$?
    end_run "$status"
    explain "$folder" "$RUN" "$status"
    return "$status"
}

# Set RUN to a new directory beside earlier runs of the workload. A job prints into its logs/ from here on.
begin_run() { # begin_run NAME
    local output
    LATEST=$TRACES/$1
    mkdir -p "$TRACES" || fail 4 "cannot create $TRACES" "export SCRATCH=/path/to/large/storage"
    until RUN=${LATEST}_$(date +%Y%m%dT%H%M%S) && mkdir "$RUN" 2>/dev/null; do
        [[ -e $RUN ]] || fail 4 "cannot create $RUN" "free space there, or export SCRATCH=/other/storage"
        sleep 1 # another job of this workload began in this second
    done
    mkdir "$RUN/logs"
    has_traces "$LATEST" || link_latest
    # Slurm sets this in batch jobs, not where a person looks at the output.
    if [[ -n ${SLURM_JOB_ID:-} && ${ENVIRONMENT:-} == BATCH ]]; then
        output=logs/slurm-$SLURM_JOB_ID.out
        say "the output continues in $RUN/$output"
        exec {QUEUE}>&1 >"$RUN/$output" 2>&1
    fi
    ln -s "${output:-logs/${PROFILE_MODE/both/torch}.log}" "$RUN/$1.log"
}

# Link to the run by the name of its workload, unless it failed and an earlier one has traces.
end_run() { # end_run STATUS
    if (($1 == 0)) || ! has_traces "$LATEST"; then
        link_latest
    fi
}

link_latest() {
    if [[ -e $LATEST && ! -L $LATEST ]]; then
        say "$LATEST is no link to a run and stays as it is; this run is in $RUN"
    else
        ln -sfn -- "$(basename -- "$RUN")" "$LATEST"
    fi
}

traces_in() { # traces_in RUN: its traces and reports, without the links to them
    find -H "$1" -type f \( -name 'rank*_trace.json*' -o -name 'rank*_et.json' -o -name '*.nsys-rep' \) 2>/dev/null || true
}

has_traces() { # has_traces RUN
    [[ -n $(traces_in "$1") ]]
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

# The names of the workloads. Other folders of trace_collection/ are what a person keeps there, and are named to be used.
workloads() {
    local definition
    for definition in "$CCL_BENCH_ROOT"/workloads/*.toml; do
        basename -- "$definition" .toml
    done
}

account() {
    printf '%s' "${ACCOUNT:-${GIVEN_ALLOCATION:-${NERSC_ALLOCATION:-${SBATCH_ACCOUNT:-${SLURM_JOB_ACCOUNT:-}}}}}"
}

# Whether a batch job was submitted without an allocation, by plain sbatch, although one is set. The user's default account
# counts as none; an allocation that sbatch was given stays. NERSC charges GPU jobs of m1234 to m1234_g.
is_charged_elsewhere() {
    local charged=${SLURM_JOB_ACCOUNT:-} set=${ACCOUNT:-${GIVEN_ALLOCATION:-${NERSC_ALLOCATION:-}}}
    [[ $NEEDS_ACCOUNT == yes && ${ENVIRONMENT:-} == BATCH && -n $set && -z ${HANDED_OVER:-} ]] || return 1
    [[ ${charged%_g} != "${set%_g}" ]] || return 1
    [[ -z $charged ]] ||
        [[ $charged == "$(sacctmgr --noheader --parsable2 show user "$(id -un)" format=defaultaccount 2>/dev/null)" ]]
}

need_account() {
    [[ $NEEDS_ACCOUNT != yes || -n $(account) ]] ||
        fail 2 "NERSC_ALLOCATION is not set, and $CLUSTER charges every job to an allocation" \
            "export NERSC_ALLOCATION=m1234 (yours), or set it in $CCL_BENCH_ROOT/perlmutter/common.sh"
}

# Submit the job of a workload, and explain a refusal of sbatch.
submit() { # submit FOLDER [OPTIONS of sbatch]
    local folder=$1 name said account
    shift
    name=$(basename -- "$folder")
    account=$(account)
    [[ -f $folder/run.sbatch ]] || fail 2 "$folder has no run.sbatch" "ls '$CCL_BENCH_ROOT/trace_collection'"
    local options=(${account:+--account="$account"} "${SBATCH_OPTIONS[@]}" "$@")
    if ! said=$(cd -- "$folder" && CLUSTER=$CLUSTER sbatch "${options[@]}" run.sbatch "${OWN_OPTIONS[@]}" 2>&1); then
        refused "$name" "$said"
    fi
    printf '%s: %s\n' "$name" "$said"
}

refused() { # refused NAME MESSAGE-OF-SBATCH
    local next="read the message, correct the options of sbatch, and submit again"
    case $2 in
        *"nvalid feature"* | *"node configuration is not available"*) next="sinfo --format='%P %f %G %l' shows what the nodes offer; then submit_all.sh --constraint=..." ;;
        *"nvalid account"*) next="sacctmgr show associations user=$(id -un) format=account; then export NERSC_ALLOCATION=..." ;;
        *"nvalid qos"*) next="sacctmgr show qos format=name,maxwall; then submit_all.sh --qos=..." ;;
        *"nvalid partition"*) next="sinfo --summarize; then submit_all.sh --partition=..." ;;
        *"Unable to contact slurm"* | *"not found"* | *"configuration source"*) next="scontrol ping, on a login node of the cluster; without Slurm: CLUSTER=cpu" ;;
    esac
    fail 1 "Slurm refused $1: ${2//$'\n'/; }" "$next"
}

# The command that submits a workload again: the same allocation, the same options of torchtitan.
submission() { # submission FOLDER [OPTIONS of sbatch]
    local folder=$1 account words
    account=$(account)
    shift
    words=(${account:+-A "$account"} "$@" run.sbatch "${OWN_OPTIONS[@]}")
    printf 'cd %q && sbatch%s' "$folder" "$(printf ' %q' "${words[@]}")"
}

# Report a failure and the next command; summarise the Nsight Systems reports of a successful run.
explain() { # explain FOLDER RUN STATUS
    local run
    printf -v run %q "$2"
    if [[ -n $STOPPED ]]; then
        conclude "the job was stopped before the training ended: $(stop_reason)" \
            "ccl-bench inspect $run shows what was recorded; with more time: $(submission "$1" --time=60)"
    elif is_full "$2" "$(($3 == 0 ? 1 : 64))"; then
        conclude "the disk of $run is full, so traces may be incomplete" \
            "free space or export SCRATCH=/other/storage, then: $(submission "$1"); to see what was recorded: ccl-bench inspect $run"
    elif (($3 != 0)); then
        conclude "the run failed for the cause above; the log of each rank is in $run/logs" "$(submission "$1")"
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
