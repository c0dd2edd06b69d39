#!/usr/bin/env bash
# Run `jaxformer train` as N processes on this machine, as if each were a host of its own.
#
#   scripts/launch_local.sh N [DEVICES] -- train --config=FILE --workdir=DIR ...
#
# The processes talk to each other by gloo through 127.0.0.1, on the CPU, where each has DEVICES (default: 1) virtual
# devices. It is for trying out what a cluster will do: a run on N x DEVICES devices gives what it gives on any hosts
# with as many. For speed on one machine, one process with all its devices is better.
#
# What the processes say comes with their numbers before it. Ctrl-C and SIGTERM are passed on to all: they save and end
# with 130. When one fails, the others get GRACE seconds to end by themselves, and are then ended. The exit code is 0 if
# all are done, and else that of the first that was not.
#
# Environment: PYTHON, the interpreter (default: .venv/bin/python of this clone, else python3); GRACE (default: 30);
# GLIBC_TUNABLES and JAX_CPU_ENABLE_ASYNC_DISPATCH replace what this script sets.
set -u

usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"
}

refuse() {
    printf '%s: %s\n\n' "${0##*/}" "$1" >&2
    usage >&2
    exit 2
}

case ${1-} in
    -h | --help)
        usage
        exit
        ;;
esac
[[ ${1-} =~ ^[1-9][0-9]*$ ]] || refuse "the first argument is the number of processes"
count=$1 devices=1
shift
if [[ ${1-} =~ ^[1-9][0-9]*$ ]]; then
    devices=$1
    shift
fi
[[ ${1-} == -- && $# -gt 1 ]] || refuse "give -- and the arguments of jaxformer"
shift

own=$(dirname "$0")/../.venv/bin/python
python=${PYTHON:-$([[ -x $own ]] && echo "$own" || echo python3)}
grace=${GRACE:-30}
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])') || exit 1
export JAX_PLATFORMS=cpu
# Keep a step's memory in the process, in pages of 2 MB; docs/training.md says what it gains.
tunables=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1
export GLIBC_TUNABLES="${GLIBC_TUNABLES-$tunables}"
export JAX_CPU_ENABLE_ASYNC_DISPATCH="${JAX_CPU_ENABLE_ASYNC_DISPATCH-false}"
export XLA_FLAGS="${XLA_FLAGS-} --xla_force_host_platform_device_count=$devices"

prefix() {
    local line
    # Ctrl-C is for the processes; what they say about it is to be read.
    trap '' INT TERM
    while IFS= read -r line || [[ -n $line ]]; do printf '[%s] %s\n' "$1" "$line"; done
}

send() {
    local pid
    for pid in ${running[@]+"${running[@]}"}; do kill "-$1" "$pid" 2>/dev/null; done
}

# Each process in a group of its own: otherwise the shell would have them ignore Ctrl-C.
set -m
running=()
for ((i = 0; i < count; i++)); do
    "$python" -m jaxformer.cli.main "$@" --coordinator="127.0.0.1:$port" --num_processes="$count" --process_id="$i" \
        < /dev/null > >(prefix "$i") 2> >(prefix "$i" >&2) &
    running+=("$!")
done
trap 'send INT' INT
trap 'send TERM' TERM

code=0 failed_at=0
while ((${#running[@]})); do
    alive=()
    for pid in "${running[@]}"; do
        if kill -0 "$pid" 2>/dev/null; then
            alive+=("$pid")
            continue
        fi
        wait "$pid"
        status=$?
        if ((status && !code)); then
            code=$status failed_at=$SECONDS
        fi
    done
    running=(${alive[@]+"${alive[@]}"})
    if ((code && SECONDS - failed_at >= 2 * grace)); then
        send KILL
    elif ((code && SECONDS - failed_at >= grace)); then
        send TERM
    fi
    ((${#running[@]})) && sleep 0.2
done
exit "$code"
