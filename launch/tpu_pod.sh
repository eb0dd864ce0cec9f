#!/usr/bin/env bash
# Trains on a Cloud TPU slice, on all of its hosts; goes on after preemptions.
#
#   launch/tpu_pod.sh --name=NAME --zone=ZONE --type=v5litepod-16 [options] -- [train flags]
#   launch/tpu_pod.sh --name=bert --zone=us-west4-a --type=v5litepod-16 --spot -- \
#       --config=configs/bert_base.py --workdir=gs://my-bucket/bert \
#       --config.data.corpus=gs://my-bucket/corpora/wiki
#
# Makes the TPU VM unless it is there, installs this repository on every host, and runs
# the same command on all of them. A slice that was preempted is made anew, and the run
# goes on from its last checkpoint; so it does after a failure, a few times.
# --workdir must be in a bucket (gs://): the hosts have no folder in common.
#
#   --name=NAME         of the TPU VM (TPU_NAME)
#   --zone=ZONE         (TPU_ZONE)
#   --type=TYPE         accelerator type, such as v5litepod-16, v4-32, v6e-64 (TPU_TYPE)
#   --project=PROJECT   (TPU_PROJECT; default: gcloud's)
#   --version=VERSION   runtime of the VM (TPU_VERSION; default: by the type)
#   --spot              cheaper, may be preempted
#   --queued            asks by a queued resource, and waits until it is there
#   --retries=N         after failures of the run itself, one after the other (3)
#   --delete            deletes the TPU VM when the run is finished
#   --dry-run           prints what would run
set -euo pipefail

readonly STOPPED=75 # the exit code of a run that was told to stop, and has saved

usage() {
    sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p;}' "$0"
}

fail() {
    echo "error: $*" >&2
    exit 2
}

name=${TPU_NAME:-} zone=${TPU_ZONE:-} type=${TPU_TYPE:-} project=${TPU_PROJECT:-}
version=${TPU_VERSION:-} spot=false queued=false retries=3 delete=false dry_run=false
while (($# > 0)); do
    case $1 in
        --name=*) name=${1#*=} ;;
        --zone=*) zone=${1#*=} ;;
        --type=*) type=${1#*=} ;;
        --project=*) project=${1#*=} ;;
        --version=*) version=${1#*=} ;;
        --retries=*) retries=${1#*=} ;;
        --spot) spot=true ;;
        --queued) queued=true ;;
        --delete) delete=true ;;
        --dry-run) dry_run=true ;;
        -h | --help) usage && exit 0 ;;
        --) shift && break ;;
        *) fail "unknown option $1; flags of train come after -- (see $0 --help)" ;;
    esac
    shift
done
[[ -n $name ]] || fail "--name is missing (see $0 --help)"
[[ -n $zone ]] || fail "--zone is missing (see $0 --help)"
[[ -n $type ]] || fail "--type is missing, such as --type=v5litepod-16"
[[ $retries =~ ^[0-9]+$ ]] || fail "--retries=$retries must be a whole number"

workdir=
for flag in "$@"; do
    [[ $flag == --workdir=* ]] && workdir=${flag#*=}
done
[[ $workdir == gs://* ]] ||
    fail "--workdir=$workdir must be in a bucket (gs://...): the hosts share no folder"

if [[ -z $version ]]; then
    case $type in
        v5litepod-*) version=v2-alpha-tpuv5-lite ;;
        v5p-*) version=v2-alpha-tpuv5 ;;
        v6e-*) version=v2-alpha-tpuv6e ;;
        *) version="tpu-ubuntu2204-base" ;;
    esac
fi

where=(--zone="$zone" ${project:+--project="$project"})
tpu=(gcloud compute tpus tpu-vm)
resources=(gcloud compute tpus queued-resources)
kind=(--accelerator-type="$type" --runtime-version="$version")
if $spot; then
    kind+=(--spot)
fi

run() {
    if $dry_run; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# READY, PREEMPTED, CREATING, ...; nothing where there is none, and UNKNOWN where gcloud
# does not say: a slice that works is not to be made anew because a connection failed.
state() {
    local found problem
    problem=$(mktemp)
    if found=$("${tpu[@]}" describe "$name" "${where[@]}" \
        --format='value(state)' 2>"$problem"); then
        echo "$found"
    elif ! grep -qi 'not.found' "$problem"; then
        cat "$problem" >&2
        echo UNKNOWN
    fi
    rm "$problem"
}

remove() {
    if $queued; then
        run "${resources[@]}" delete "$name" "${where[@]}" --quiet --force
    else
        run "${tpu[@]}" delete "$name" "${where[@]}" --quiet
    fi
}

# Ends the script where a queued request has ended without a slice: it stays as it is.
check_request() {
    local found
    found=$("${resources[@]}" describe "$name" "${where[@]}" \
        --format='value(state.state)') || return 0 # gcloud does not say
    if [[ $found == FAILED || $found == SUSPENDED ]]; then
        fail "the queued request $name is $found; see '${resources[*]} describe" \
            "$name ${where[*]}', ask for another --zone or --type, or leave --queued out"
    fi
}

make() {
    if $queued; then
        # The request of a slice that is gone may still be there, under this name.
        run "${resources[@]}" delete "$name" "${where[@]}" --quiet --force || true
        run "${resources[@]}" create "$name" --node-id="$name" "${where[@]}" "${kind[@]}"
        until $dry_run || [[ $(state) == READY ]]; do
            check_request
            sleep 60
        done
    else
        # Without capacity it fails; it is asked for again until there is some.
        local problem
        problem=$(mktemp)
        until { run "${tpu[@]}" create "$name" "${where[@]}" "${kind[@]}" 2>&1 >&3 |
            tee "$problem" >&2; } 3>&1 || [[ $(state) == READY ]]; do
            if grep -qE 'INVALID_ARGUMENT|PERMISSION_DENIED|UNAUTHENTICATED' "$problem"; then
                fail "gcloud cannot make $name; see above"
            fi
            sleep 60
        done
        rm "$problem"
    fi
}

on_all() {
    run "${tpu[@]}" ssh "$name" "${where[@]}" --worker=all --command="$1"
}

# Names what belongs to the code in this folder, each name ending with a 0 byte. Beside
# it may lie corpora, models and runs of any size.
code_files() {
    local file
    if [[ -e .git ]] && command -v git >/dev/null; then
        git ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do
                if [[ -e $file || -L $file ]]; then # what was deleted is listed, too
                    printf '%s\0' "$file"
                fi
            done
    else
        # Of the top only: encoderjax/models is code.
        find . -mindepth 1 -maxdepth 1 ! -name .git ! -name .venv ! -name corpora \
            ! -name texts ! -name models ! -name exported ! -name runs -print0
    fi
}

pack() { # the code in the folder $1 to the archive $2
    (cd "$1" && code_files) | tar -C "$1" --null -T - -czf "$2"
}

install() {
    local root archive
    root=$(cd "$(dirname "$0")/.." && pwd)
    archive=${TMPDIR:-/tmp}/encoderjax-$name.tar.gz
    run pack "$root" "$archive"
    run "${tpu[@]}" scp "$archive" "$name:encoderjax.tar.gz" "${where[@]}" --worker=all
    run rm "$archive"
    # The VMs' own Python is older than ours; uv brings one.
    on_all 'set -e
        mkdir -p encoderjax && tar -C encoderjax -xzf encoderjax.tar.gz
        python3 -m pip install --quiet --user uv
        ~/.local/bin/uv venv --quiet --allow-existing --python 3.11 encoderjax-venv
        ~/.local/bin/uv pip install --quiet --python encoderjax-venv/bin/python \
            "./encoderjax[tpu,gcs,demo]"'
}

prepare() { # what is needed until the VMs can train
    local now
    now=$($dry_run || state)
    case $now in
        READY) ;;
        "") make ;;
        UNKNOWN) fail "gcloud cannot tell whether $name is there" ;;
        *) remove && make ;; # PREEMPTED, TERMINATED, ...
    esac
    install
}

train() {
    local flags
    flags=$(printf ' %q' "$@" --stopped_code="$STOPPED")
    # A connection may break while the run goes on: whatever is left of it is ended
    # before it is started again, since a TPU belongs to one process.
    on_all "cd encoderjax
        if pid=\$(cat ../encoderjax.pid 2>/dev/null) && kill -TERM \$pid 2>/dev/null; then
            for _ in \$(seq 120); do kill -0 \$pid 2>/dev/null || break; sleep 1; done
            kill -KILL \$pid 2>/dev/null || true
        fi
        echo \$\$ > ../encoderjax.pid
        export JAX_COMPILATION_CACHE_DIR=${workdir%/}/compiled
        exec ../encoderjax-venv/bin/python -m encoderjax.train$flags"
}

failures=0
prepare
while true; do
    code=0
    started_at=$SECONDS
    train "$@" || code=$?
    if $dry_run || ((code == 0)); then
        break
    fi
    sleep 60 # a preemption shows with some delay
    until now=$(state) && [[ $now != UNKNOWN ]]; do
        sleep 60
    done
    if [[ $now != READY ]]; then
        echo "the TPU is gone; making another" >&2
        failures=0
        prepare
    elif ((code != STOPPED)); then
        if ((SECONDS > started_at + 3600)); then
            failures=0 # it had gone well for a while
        fi
        failures=$((failures + 1))
        if ((failures > retries)); then
            fail "the run failed $failures times, the last with exit code $code"
        fi
        echo "exit code $code; starting again ($failures of $retries)" >&2
    fi
done
if $delete; then
    remove
fi
