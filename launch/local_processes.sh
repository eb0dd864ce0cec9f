#!/usr/bin/env bash
# Several processes on this machine train one model together, as the hosts of a pod do.
#
#   launch/local_processes.sh N [flags of encoderjax.train]
#   launch/local_processes.sh 2 --config=configs/bert_tiny.py:tiny --workdir=runs/two
#
# Each process has JAX_NUM_CPU_DEVICES devices (1), or CUDA_VISIBLE_DEVICES as you set it.
# SIGTERM or Ctrl-C stops all of them at the same step, saved. If one fails, all end.
#
#   --dry-run as the first argument prints what would run.
#   PYTHON    the interpreter (python)
#   PORT      of the coordinator, process 0 (a free one)
set -euo pipefail

usage() {
    sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p;}' "$0"
}

dry_run=false
if [[ ${1:-} == --dry-run ]]; then
    dry_run=true
    shift
fi
if [[ ! ${1:-} =~ ^[1-9][0-9]*$ ]]; then
    usage >&2
    exit 2
fi
count=$1
shift

python=${PYTHON:-python}
free_port='import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
port=${PORT:-$("$python" -c "$free_port")}

declare -A running=() # by their process ids
tell_all() {
    for process in "${!running[@]}"; do
        kill -s "$1" "$process" 2>/dev/null || true
    done
}
trap 'tell_all TERM' TERM INT

for ((number = 0; number < count; number++)); do
    settings=(
        JAX_COORDINATOR_ADDRESS="localhost:$port"
        JAX_NUM_PROCESSES="$count"
        JAX_PROCESS_ID="$number"
    )
    if $dry_run; then
        printf '%q ' env "${settings[@]}" "$python" -m encoderjax.train "$@"
        echo
    else
        env "${settings[@]}" "$python" -m encoderjax.train "$@" &
        running[$!]=$number
    fi
done

# The first failure is the exit code. The other processes notice it by themselves; one
# that still runs after half a minute is ended.
code=0
while ((${#running[@]} > 0)); do
    sleep 0.2
    for process in "${!running[@]}"; do
        if kill -0 "$process" 2>/dev/null; then
            continue
        fi
        unset "running[$process]"
        ended=0
        wait "$process" || ended=$?
        if ((ended != 0 && code == 0)); then
            code=$ended
            failed_at=$SECONDS
        fi
    done
    if ((code != 0 && SECONDS > failed_at + 30)); then
        tell_all KILL
    fi
done
exit "$code"
