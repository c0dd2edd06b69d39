# shellcheck shell=bash
# Flags of XLA for training, to be sourced: source scripts/xla_flags.sh gpu (or tpu).
#
# Only flags that JAX's or MaxText's documentation recommends, that exist in jaxlib 0.10.2 and libtpu 0.0.42, and that
# are not the default there. What the user has set comes last and wins.
case ${1-} in
    gpu)
        # Compute while gradients are exchanged (JAX, GPU performance tips). It changes programs for several A100, and
        # none for H200.
        flags=--xla_gpu_enable_latency_hiding_scheduler=true
        export XLA_FLAGS="$flags ${XLA_FLAGS-}"
        ;;
    tpu)
        # The same on TPUs (MaxText, continuation fusion for all-reduce; XLA, flags guidance): the embedding's gradient
        # is exchanged during the backward pass. The second flag alone changes nothing.
        flags='--xla_enable_async_all_reduce=true --xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true'
        export LIBTPU_INIT_ARGS="$flags ${LIBTPU_INIT_ARGS-}"
        ;;
    *)
        echo "xla_flags.sh: the argument is gpu or tpu, not '${1-}'" >&2
        # Sourced, or not.
        # shellcheck disable=SC2317
        return 2 2> /dev/null || exit 2
        ;;
esac
unset flags
