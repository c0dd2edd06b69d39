#!/usr/bin/env bash
# Train on all hosts of a Cloud TPU pod (or of a single TPU VM) by gcloud.
#
#   export TPU=my-pod ZONE=us-east5-a PROJECT=my-project
#   scripts/launch_tpu_pod.sh install                                    # once: jaxformer and JAX for TPU on every host
#   scripts/launch_tpu_pod.sh train --config=configs/paper/ende_big.py --workdir=/mnt/shared/runs/big
#   scripts/launch_tpu_pod.sh stop                                       # save and end; before, end `train` by Ctrl-C
#
# `install` copies this checkout to ~/jaxformer of every host and makes an environment beside it. What follows `train`
# goes to `jaxformer train --distributed`, started in that folder; JAX finds the other hosts by itself.
#
# All hosts must see the same --workdir: mount a file system that they share (Filestore, or another NFS) under the same
# path on each. The text must be the same on all: put it there too, or take a data set that every host fetches itself.
#
# Training outlives this script and its connections: the processes go on when Ctrl-C, or the network, ends it here, and
# `train` with the same arguments follows them again. They log to ~/jaxformer/train.log on each host. Before maintenance
# the hosts get SIGTERM, save, and end with exit code 130; as long as the pod is there `train` then starts them again,
# and they go on at that step. A spot pod that was taken away no longer exists: create it anew, `install`, and call the
# same `train`.
#
# Environment: TPU, its name; ZONE; PROJECT (default: that of gcloud).
set -euo pipefail

usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
    exit 2
}

[[ -n ${TPU-} && -n ${ZONE-} && $# -gt 0 ]] || usage
place=("--zone=$ZONE")
[[ -z ${PROJECT-} ]] || place+=("--project=$PROJECT")
vm=(gcloud compute tpus tpu-vm)

on() {
    "${vm[@]}" ssh "$TPU" "${place[@]}" --worker="$1" --command="$2"
}

install() {
    local folder
    folder=$(mktemp -d)
    git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$folder/jaxformer.tar.gz" HEAD
    "${vm[@]}" scp "$folder/jaxformer.tar.gz" "$TPU:jaxformer.tar.gz" "${place[@]}" --worker=all
    rm -r "$folder"
    on all 'set -e; mkdir -p jaxformer; tar -xzf jaxformer.tar.gz -C jaxformer; cd jaxformer
        python3 -m venv .venv; .venv/bin/pip install --quiet --upgrade pip
        .venv/bin/pip install --quiet --editable ".[train]" "jax[tpu]"'
}

# Start a process on each host unless it runs, and show what they say until they end; their exit codes are kept there.
train() {
    local run
    run=".venv/bin/jaxformer train --distributed $(printf '%q ' "$@"); echo \$? > train.code"
    # What outlives the connection is quoted once more, for a shell of its own.
    on all "cd jaxformer || exit 1
        if ! pgrep -F train.pid -f 'jaxformer train' > /dev/null 2>&1; then
            rm -f train.code
            setsid nohup bash -c $(printf '%q' "$run") > train.log 2>&1 < /dev/null &
            echo \$! > train.pid
        fi
        tail -n +1 -F --pid=\"\$(cat train.pid)\" train.log
        wait # else the shell would become tail, which never takes note of the end of a process that the shell started"
}

case $1 in
    install) install ;;
    stop) on all "pkill -TERM -P \"\$(cat jaxformer/train.pid)\"" ;;
    train)
        shift
        while true; do
            train "$@" || echo "the connection ended" >&2
            state=$("${vm[@]}" describe "$TPU" "${place[@]}" --format='value(state)') || state=gone
            if [[ $state != READY ]]; then
                echo "the pod is $state: create it anew, install, and train with the same arguments" >&2
                exit 1
            fi
            code=$(on 0 'cat jaxformer/train.code') || code=
            case $code in
                130) echo "saved and ended, and the pod is there: training goes on" >&2 ;;
                '') echo "training goes on without this script: it is followed again" >&2 ;;
                *) exit "$code" ;;
            esac
            sleep 5
        done
        ;;
    *) usage ;;
esac
