# shellcheck shell=bash
# `nsys stats --report NAME` by any name that the summary ever had. activate.sh and nsys_tables.sh source this.
#
# Nsight Systems renamed its summaries in 2023, and prints nothing for a name that the installed release does not have.

# Names of one summary in a line: the later one, the earlier one, others in use.
NSYS_SUMMARIES="
cuda_gpu_kern_sum gpukernsum gpu-kern-summary
cuda_gpu_mem_time_sum gpumemtimesum gpu-mem-time-summary
cuda_gpu_mem_size_sum gpumemsizesum gpu-mem-size-summary
cuda_api_sum cudaapisum cuda-api-summary
cuda_gpu_sum gpusum gpu-summary
cuda_gpu_trace gputrace gpu-trace
cuda_api_trace cudaapitrace cuda-api-trace
cuda_kern_exec_sum kernexecsum kern-exec-summary
nvtx_sum nvtxsum nvtx-summary
nvtx_pushpop_sum nvtxppsum nvtx-pushpop-summary
osrt_sum osrtsum osrt-summary
"

nsys_installed_name() { # nsys_installed_name NAME: what the installed release calls a summary; NAME if it has none
    local installed summary found
    installed=$(command nsys stats --help-reports 2>&1 || true)
    summary=$(grep -w -e "${1%%:*}" <<<"$NSYS_SUMMARIES" || true)
    for found in ${summary:-}; do
        if grep -qw -e "$found" <<<"$installed"; then
            printf '%s\n' "$found${1#"${1%%:*}"}"
            return
        fi
    done
    printf '%s\n' "$1"
}

nsys() { # nsys as it is installed, with the names of summaries that it has
    local words=() word names name printed previous=""
    [[ ${1:-} == stats ]] || {
        command nsys "$@"
        return
    }
    for word in "$@"; do
        if [[ $previous == -r || $previous == --report || $word == --report=* ]]; then
            names=
            for name in $(tr , ' ' <<<"${word#--report=}"); do
                names+=${names:+,}$(nsys_installed_name "$name")
            done
            [[ $word == --report=* ]] && word=--report=$names || word=$names
        fi
        words+=("$word")
        previous=$word
    done
    if [[ " $* " != *" json "* ]]; then
        command nsys "${words[@]}"
        return
    fi
    # JSON and nothing else: what nsys says of its progress would stand before it.
    printed=$(command nsys stats --quiet "${words[@]:1}") || return
    [[ -z ${printed//[[:space:]]/} ]] || printf '%s\n' "$printed"
    [[ -n ${printed//[[:space:]]/} ]] || printf 'nsys: nothing was recorded for this summary\n' >&2
}
