#!/usr/bin/env bash
# Train on all hosts of a Cloud TPU slice, or on a single TPU VM, through gcloud.
#
#   export TPU=my-tpu ZONE=us-east5-a PROJECT=my-project
#   scripts/launch_tpu_pod.sh install    # once: jaxformer and JAX for TPU on every host
#   scripts/launch_tpu_pod.sh check      # each host prints its number, its chips and those of the slice
#   scripts/launch_tpu_pod.sh train --config=configs/paper/ende_big.py --workdir=gs://my-bucket/runs/big
#   scripts/launch_tpu_pod.sh stop       # save and end; train then exits with 130
#
# install copies the commit that is checked out here to ~/jaxformer of every host and makes an environment there with
# the versions of constraints.txt. uv brings Python 3.11, since images with Ubuntu 22.04 have 3.10. The arguments after
# train go to `jaxformer train --distributed`, which starts in that folder with the flags of scripts/xla_flags.sh.
#
# All hosts must see the same --workdir, such as a bucket, and the same text: docs/accelerators.md.
#
# Training outlives this script. After Ctrl-C or a lost network, train with the same arguments follows it again. The
# hosts log to ~/jaxformer/train.log. When a host shuts down, its processes get SIGTERM: the run saves on all hosts and
# ends with 130. As long as the slice exists, train starts it again at that step. Without a network it asks again every
# 30 seconds. When a Spot slice was taken away, its queued resource keeps its name: delete it, create it again, install,
# and train with the same arguments. A VM that was stopped can be started.
#
# Exit code: that of the training; 1 also if the slice is gone or stopped, or gcloud fails.
#
# Environment: TPU, its name; ZONE; PROJECT (default: that of gcloud). XLA_FLAGS and LIBTPU_INIT_ARGS go to the hosts.
set -euo pipefail

usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"
}

refuse() {
    printf '%s: %s\n\n' "${0##*/}" "$1" >&2
    usage >&2
    exit 2
}

fail() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

on() {
    "${vm[@]}" ssh "$TPU" "${place[@]}" --worker="$1" --command="$2"
}

install() {
    local folder
    folder=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -r '$folder'" EXIT
    git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$folder/jaxformer.tar.gz" HEAD
    "${vm[@]}" scp "$folder/jaxformer.tar.gz" "$TPU:jaxformer.tar.gz" "${place[@]}" --worker=all
    # Huge pages shorten the start of the TPU's runtime from v5e on, as JAX says where they are off.
    on all 'set -e; mkdir -p jaxformer; tar -xzf jaxformer.tar.gz -C jaxformer; cd jaxformer
        python3 -m pip install --quiet --user uv
        test -x .venv/bin/python || python3 -m uv venv --quiet --seed --python 3.11 .venv
        .venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[train,tpu,gcs]"
        echo always | sudo -n tee /sys/kernel/mm/transparent_hugepage/enabled > /dev/null || true'
}

check() {
    on all 'jaxformer/.venv/bin/python -c "import jax; jax.distributed.initialize()
print(jax.process_index(), jax.local_device_count(), jax.device_count(), jax.devices()[0].device_kind)"'
}

# Start a process on each host unless it runs, and show its log until it ends. It leaves its exit code in train.code.
train() {
    local name run
    # The shell waits for the run after a signal too, to write its code.
    run='trap : HUP INT TERM; '
    for name in XLA_FLAGS LIBTPU_INIT_ARGS; do
        [[ -z ${!name-} ]] || run+="export $name=$(printf '%q' "${!name}"); "
    done
    run+="source scripts/xla_flags.sh tpu; .venv/bin/jaxformer train --distributed $(printf '%q ' "$@"); "
    run+="echo \$? > train.code"
    # What outlives the connection is quoted once more, for a shell of its own.
    on all "cd jaxformer || exit 1
        if ! pgrep -F train.pid -f 'jaxformer train' > /dev/null 2>&1; then
            rm -f train.code train.stop; : > train.log
            setsid nohup bash -c $(printf '%q' "$run") > train.log 2>&1 < /dev/null &
            echo \$! > train.pid
        fi
        tail -n +1 -F --pid=\"\$(cat train.pid)\" train.log
        wait # else the shell would become tail, which never takes note of the end of a process that the shell started"
}

# Let the run on each host save and end, and not be started again.
stop() {
    # shellcheck disable=SC2016 # the hosts expand it
    on all 'cd jaxformer && echo stop > train.stop && pkill -TERM -P "$(cat train.pid)"'
}

# Follow the training to its end, through shutdowns of hosts, and exit with its code.
follow() {
    local answer state codes code again
    again="delete its queued resource (gcloud compute tpus queued-resources delete ID --force), create it again,"
    again+=" install, and train with the same arguments"
    while true; do
        train "$@" || echo "the connection ended" >&2
        if ! answer=$("${vm[@]}" describe "$TPU" "${place[@]}" --format='value(state)' 2>&1); then
            case $answer in
                *NOT_FOUND*/nodes/*) fail "the slice $TPU is not found in $ZONE: $again" ;;
                *onnection* | *"find the server"* | *esolv* | *"imed out"* | *imeout* | *nreachable* | *UNAVAILABLE*)
                    printf '%s\n' "$answer" "no network: asking again" >&2
                    sleep 30
                    continue
                    ;;
                *) fail "gcloud cannot describe $TPU, where training may continue: $answer" ;;
            esac
        fi
        state=$(grep -Ex '[A-Z_]+' <<< "$answer" | tail -n 1) || state=unknown # gcloud may warn too
        case $state in
            READY) ;;
            CREATING | STARTING | RESTARTING | REPAIRING | REIMAGING)
                echo "the slice is $state: waiting" >&2
                sleep 30
                continue
                ;;
            STOPPING | STOPPED)
                fail "the slice is $state: start it (${vm[*]} start $TPU ${place[*]}) and train with the same arguments"
                ;;
            unknown) fail "gcloud does not say the state of $TPU: $answer" ;;
            *) fail "the slice is $state: $again" ;;
        esac
        codes=$(on all 'cd jaxformer || { echo 127; exit; }
            cat train.code 2> /dev/null || echo running
            cat train.stop 2> /dev/null || true' | sort -u) || codes=running
        # The worst of the hosts: a failure, then what still runs, a request to stop, an interruption, success.
        code=$(grep -Ex '[0-9]+' <<< "$codes" | grep -Evx '0|130' | head -n 1) || true
        [[ -z $code ]] || exit "$code"
        case $codes in
            *running*) echo "training continues without this script: following it again" >&2 ;;
            *stop*) exit 130 ;;
            *130*) echo "saved, and the slice exists: training continues" >&2 ;;
            *) exit 0 ;;
        esac
        sleep 5
    done
}

case ${1-} in
    -h | --help)
        usage
        exit
        ;;
    install | check | stop | train) ;;
    *) refuse "the first argument is install, check, train or stop" ;;
esac
[[ -n ${TPU-} && -n ${ZONE-} ]] || refuse "set TPU and ZONE"
place=("--zone=$ZONE")
[[ -z ${PROJECT-} ]] || place+=("--project=$PROJECT")
vm=(gcloud compute tpus tpu-vm)

case $1 in
    install | check | stop)
        (($# == 1)) || refuse "$1 takes no argument, not '$2'"
        "$1"
        ;;
    train)
        shift
        (($#)) || refuse "give the arguments of jaxformer train"
        follow "$@"
        ;;
esac
