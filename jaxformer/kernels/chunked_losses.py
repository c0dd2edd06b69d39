"""The losses of :mod:`jaxformer.functional.losses` from hidden states and the output
table, in chunks of positions: the logits of all positions never exist at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxformer.errors import InputError
from jaxformer.functional.layers import wide_dtype
from jaxformer.functional.losses import check_targets, smoothed_probabilities, weigh
from jaxformer.functional.shapes import check_shapes
from jaxformer.kernels.matmul import matmul_transposed, matmul_transposed_gradients
from jaxformer.kernels.mesh import check_mesh, match_varying
from jaxformer.typing import Array, Bool, Float, Int, PyTree

# The table's gradient is updated once for so many positions: each time it is read and
# written in float32. A CPU is fastest with few.
_ON_CPU, _ELSEWHERE = 1024, 4096
# On a TPU their logits are computed in parts of so many bytes: the vector memory of a
# v5e or v6e (128 MiB) holds them, so that the main memory does not move them.
_TPU_BYTES = 80 * 10**6
# The vector memory of other TPUs is smaller: there chunks move 1.6 to 2 times as much
# as all logits.
_SMALL_TPU = re.compile(r"TPU (?!v\d+( lite|e)$)")
# Tiles of matmuls on TPUs and GPUs have this many columns, or a divisor of it.
_TILE = 128


class OutputLosses(NamedTuple):
    """Sums over the weighted targets. Only ``loss`` has a gradient by the hidden
    states and parameters.

    Attributes:
        loss: the smoothed cross-entropy plus the weighted z-loss, in nats.
        nll: the cross-entropy without smoothing, in nats.
        correct: targets that have the highest logit.
        z_loss: (log Z)^2, not multiplied by its weight.
        tokens: the sum of the weights, to divide the others by.
    """

    loss: Float[Array, ""]
    nll: Float[Array, ""]
    correct: Float[Array, ""]
    z_loss: Float[Array, ""]
    tokens: Float[Array, ""]


def log_sum_exp(x: Float[Array, "*B V"]) -> Float[Array, "*B"]:
    """Compute ``jax.nn.logsumexp(x, axis=-1)``, without a derivative.

    That reads x twice, for its maximum and for the sum. A GPU is limited by what it
    reads, and takes both in one pass; other compilers compute the maximum together with
    x, and a CPU is limited by its exponentials.
    """
    twice = functools.partial(jax.nn.logsumexp, axis=-1)
    return jax.lax.platform_dependent(
        x, cuda=_log_sum_exp_in_one_pass, rocm=_log_sum_exp_in_one_pass, default=twice
    )


def _log_sum_exp_in_one_pass(x: Array) -> Array:
    def shift(top: Array) -> Array:
        return jnp.where(jnp.isfinite(top), top, 0.0)

    def add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        top = jnp.maximum(a[0], b[0])
        low, high = jnp.exp(a[0] - shift(top)), jnp.exp(b[0] - shift(top))
        return top, a[1] * low + b[1] * high

    start = jnp.array(-jnp.inf, x.dtype), jnp.zeros((), x.dtype)
    top, total = jax.lax.reduce((x, jnp.ones_like(x)), start, add, (x.ndim - 1,))
    return shift(top) + jnp.log(total)


def chunks_move_less() -> bool:
    """Return whether :func:`output_losses` moves less than all logits on the devices of
    the current mesh.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is None or not _SMALL_TPU.match(device.device_kind)


class _Settings(NamedTuple):
    on: float
    off: float
    z_weight: float
    chunk: int | None


class _Output(NamedTuple):
    """The output layer, padded to whole tiles.

    Attributes:
        rows: the table in the compute dtype.
        bias: of the logits.
        size: V, the tokens of the vocabulary; rows from there on are padding.
    """

    rows: Float[Array, "P D"]
    bias: Float[Array, " P"] | None
    size: int


_Losses: TypeAlias = tuple[
    Float[Array, "..."], Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]
]
"""Loss, nll, correct and z-loss."""


class _Inputs(NamedTuple):
    """What the losses depend on, or their gradients by it; groups of rows are an axis
    of their own.
    """

    x: Float[Array, "G N D"]
    table: Float[Array, "V D"]
    bias: Float[Array, " V"] | None
    weights: Float[Array, "G N"]
    targets: Int[Array, "G N"] | None


@check_shapes()
def output_losses(
    x: Float[Array, "B T D"],
    table: Float[Array, "V D"],
    targets: Int[Array, "B T"],
    weights: Bool[Array, "B T"] | Int[Array, "B T"] | Float[Array, "B T"],
    bias: Float[Array, " V"] | None = None,
    *,
    smoothing: float = 0.0,
    convention: str = "others",
    z_loss: float = 0.0,
    chunk: int | None = None,
    groups: int = 1,
) -> OutputLosses:
    """Sum the losses of the logits x E^T + b without an array of all logits.

    The values are those of :func:`jaxformer.functional.cross_entropy`,
    :func:`jaxformer.functional.correct` and :func:`jaxformer.functional.z_loss` on
    :func:`jaxformer.functional.project_to_vocabulary`. Under differentiation the
    forward pass computes the logits of a chunk, its losses, and at once the gradient by
    x and by the table; the backward pass only scales them. There is no forward-mode
    derivative.

    In half precision the gradient by the logits is rounded before it is multiplied by
    the cotangent of the loss: in float16 a scaled loss does not keep it from underflow.

    Args:
        x: hidden states, in the compute dtype. With weight 0 they may be anything.
        table: one row a token. It is cast to the dtype of x.
        targets: the true tokens. With weight 0 they may be any number. Otherwise a
            target outside 0 to V - 1 makes losses and gradient NaN under ``jit``, and
            is refused where values are known.
        weights: 0 or False at padding, which contributes exactly 0. One below 0 is
            treated as a target out of range.
        bias: of the logits.
        smoothing: epsilon; 0.1 in the paper.
        convention: see :func:`jaxformer.functional.smoothed_probabilities`.
        z_loss: weight of the z-loss in ``loss``.
        chunk: positions of one group in a chunk. None: a number for the device that
            the program is compiled for.
        groups: equal groups of adjacent rows, each with chunks of its own. On a mesh
            this is the number of shards of the rows: each device computes its own, and
            the gradients of the table are added once, after the last chunk.

    Returns:
        Sums in float32, or in float64 for float64 inputs.

    Raises:
        InputError: shapes that do not match, a target out of range, a weight below 0,
            invalid smoothing, an empty chunk, or groups that do not divide the rows.

    Example:
        >>> x, table = jnp.zeros((1, 2, 8)), jnp.ones((4, 8))
        >>> targets, weights = jnp.array([[1, 0]]), jnp.array([[True, False]])
        >>> sums = output_losses(x, table, targets, weights)
        >>> round(float(sums.loss / sums.tokens), 4)  # log 4
        1.3863
    """
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk={chunk} must be at least 1, or None to choose it")
    if groups < 1 or x.shape[0] % groups:
        raise InputError(f"groups={groups} must divide the {x.shape[0]} rows")
    check_mesh((x, table))
    on, off = smoothed_probabilities(table.shape[0], smoothing, convention)
    targets, weights = check_targets((*x.shape[:-1], table.shape[0]), targets, weights)

    def group(array: Array) -> Array:
        return array.reshape(groups, -1, *array.shape[2:])

    settings = _Settings(on, off, z_loss, chunk)
    inputs = _Inputs(group(x), table, bias, group(weights), group(targets))
    sums = _sums(settings, match_varying(inputs))
    return OutputLosses(*cast(_Losses, sums), weights.sum())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(settings: _Settings, inputs: _Inputs) -> _Losses:
    return _losses(settings, False, inputs)[0]


def _sums_backward(
    settings: _Settings, gradients: _Inputs, cotangents: _Losses
) -> tuple[_Inputs]:
    def scale(gradient: Array) -> Array:
        wide = gradient.astype(wide_dtype(gradient))
        return (wide * cotangents[0].astype(wide.dtype)).astype(gradient.dtype)

    return (jax.tree.map(scale, gradients),)


def _losses(
    settings: _Settings, differentiate: bool, inputs: _Inputs
) -> tuple[_Losses, _Inputs | None]:
    """Sum the losses of all positions, and return the gradients of the first sum."""
    positions, width = inputs.x.shape[1:]
    cpu, block = _divide(positions, _ON_CPU), _divide(positions, _ELSEWHERE)
    fit = _TPU_BYTES // (4 * inputs.table.shape[0]) // _TILE * _TILE
    # Smaller chunks would read the table so often that it moves more than the logits.
    tpu = _divide(block, fit) if 4 * fit >= width else block
    sizes = {"cpu": (cpu, cpu), "tpu": (block, tpu), "default": (block, block)}
    if settings.chunk is not None:
        chunk = min(settings.chunk, max(positions, 1))
        sizes = {"default": (chunk, chunk)}
    losses, gradients = jax.lax.platform_dependent(
        inputs,
        **{
            platform: functools.partial(_scan, settings, differentiate, *size)
            for platform, size in sizes.items()
        },
    )
    return jax.tree.map(lambda each: weigh(each, inputs.weights)[0], losses), gradients


_sums.defvjp(lambda settings, inputs: _losses(settings, True, inputs), _sums_backward)


def _divide(positions: int, most: int) -> int:
    """Return the size of the fewest equal chunks of up to ``most`` positions, in whole
    tiles.
    """
    number = max(-(-positions // most), 1)
    return max(-(-positions // (number * _TILE)), 1) * _TILE


def _scan(
    settings: _Settings, differentiate: bool, block: int, chunk: int, inputs: _Inputs
) -> tuple[_Losses, _Inputs | None]:
    """Compute :func:`_losses` with one update of the table's gradient a block, and the
    logits of one chunk of it at once.
    """
    x, table, bias, weights, targets = inputs
    size, wide = table.shape[0], wide_dtype(x)
    missing = -size % _TILE
    rows = jnp.pad(table.astype(x.dtype), ((0, missing), (0, 0)))
    padded = None if bias is None else jnp.pad(bias.astype(wide), (0, missing))
    step = functools.partial(_block, settings, _Output(rows, padded, size), chunk)
    totals = None
    if differentiate:
        shapes = rows, padded
        totals = jax.tree.map(
            lambda a: jnp.zeros_like(a, wide, shape=(len(x), *a.shape)), shapes
        )
    totals, (losses, to_x) = _by_chunks(step, block, totals, (x, weights, targets))
    if totals is None:
        return losses, None
    to_table, to_bias = jax.tree.map(lambda each: each[:, :size].sum(axis=0), totals)
    return losses, _Inputs(
        to_x,
        to_table.astype(table.dtype),
        to_bias if bias is None else to_bias.astype(bias.dtype),
        losses[0].astype(weights.dtype),
        None,
    )


def _block(
    settings: _Settings,
    output: _Output,
    chunk: int,
    totals: tuple[Array, Array | None] | None,
    part: tuple[Array, Array, Array],
) -> tuple[tuple[Array, Array | None] | None, tuple[_Losses, Array | None]]:
    """Return the losses of one block and its gradient by the hidden states, and add
    those by table and bias. Without totals there are no gradients.
    """
    x, weights, targets = part
    # A padded position may hold inf, and 0 * inf is NaN.
    x = jnp.where(weights[..., None] != 0.0, x, jnp.zeros((), x.dtype))
    step = functools.partial(_chunk, settings, output, totals is not None)
    to_table, to_bias = (None, None) if totals is None else totals
    to_bias, found = _by_chunks(step, chunk, to_bias, (x, weights, targets))
    losses, to_x, slope = found
    if to_table is None:
        return None, (losses, None)
    return (to_table + _multiply(x, output.rows, slope)[1], to_bias), (losses, to_x)


def _chunk(
    settings: _Settings,
    output: _Output,
    differentiate: bool,
    to_bias: Array | None,
    part: tuple[Array, Array, Array],
) -> tuple[Array | None, tuple[_Losses, Array | None, Array | None]]:
    """Return the losses of one chunk and its gradients by hidden states and logits, and
    add that by the bias.
    """
    x, weights, targets = part
    logits = _logits(output, x)
    losses, slope = _measure(settings, output.size, logits, weights, targets)
    if not differentiate:
        return None, (losses, None, None)
    to_x, _ = _multiply(x, output.rows, slope)
    if to_bias is not None:
        to_bias += slope.sum(axis=1)
    return to_bias, (losses, to_x, slope.astype(x.dtype))


_multiply = jax.vmap(matmul_transposed_gradients, in_axes=(0, None, 0))


def _logits(output: _Output, x: Float[Array, "G C D"]) -> Float[Array, "G C P"]:
    """Compute the logits of a chunk; those of padding rows are minus infinity."""
    flat = matmul_transposed(x.reshape(-1, x.shape[-1]), output.rows)
    logits = flat.reshape(*x.shape[:-1], -1)
    if output.bias is not None:
        logits += output.bias[None, None]
    if logits.shape[-1] == output.size:
        return logits
    return jnp.where(_columns(logits) < output.size, logits, -jnp.inf)


def _measure(
    settings: _Settings,
    size: int,
    logits: Float[Array, "G C P"],
    weights: Float[Array, "G C"],
    targets: Int[Array, "G C"],
) -> tuple[_Losses, Float[Array, "G C P"]]:
    """Return the losses of each position, 0 at padding, and the gradient of the
    weighted loss by the logits: softmax * (1 + 2 w log Z) - q, with w the weight of the
    z-loss.
    """
    log_z = log_sum_exp(logits)
    columns = _columns(logits, targets.dtype)
    is_target, is_token = columns == targets[..., None], columns < size
    known = (targets >= 0) & (targets < size)
    # Unlike a gather, this sum is part of the one pass over the logits.
    true = jnp.where(is_target, logits, 0.0).sum(axis=-1)
    true = jnp.where(known, true, jnp.nan)
    loss = log_z - (settings.on - settings.off) * true
    if settings.off > 0.0:
        loss -= settings.off * jnp.where(is_token, logits, 0.0).sum(axis=-1)
    z_loss = log_z**2
    if settings.z_weight:
        loss += settings.z_weight * z_loss
    hits = (jax.lax.argmax(logits, 2, targets.dtype) == targets).astype(logits.dtype)
    hits = jnp.where(known, hits, jnp.nan)
    loss, nll, correct, z_loss = (
        jnp.where(weights != 0.0, each, 0.0)
        for each in (loss, log_z - true, hits, z_loss)
    )
    others = jnp.where(known, settings.off, jnp.nan).astype(logits.dtype)
    wanted = jnp.where(is_token, others[..., None], 0.0)
    wanted = jnp.where(is_target, settings.on, wanted)
    softmax = jnp.exp(logits - log_z[..., None])
    if settings.z_weight:
        softmax *= (1.0 + 2.0 * settings.z_weight * log_z)[..., None]
    weights = weights.astype(logits.dtype)[..., None]
    slope = jnp.where(weights != 0.0, weights * (softmax - wanted), 0.0)
    return (loss, nll, correct, z_loss), slope


def _columns(
    logits: Float[Array, "G C P"], dtype: DTypeLike = jnp.int32
) -> Int[Array, "G C P"]:
    return jax.lax.broadcasted_iota(dtype, logits.shape, 2)


def _by_chunks(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    chunk: int,
    carry: PyTree,
    parts: PyTree,
) -> tuple[PyTree, PyTree]:
    """Scan over chunks of arrays [G, N, ...], the last one filled up by 0, and join
    what they return.
    """
    groups, positions = parts[0].shape[:2]
    number = -(-positions // chunk)

    def cut(array: Array) -> Array:
        rest = array.shape[2:]
        widths = [(0, 0), (0, number * chunk - positions), *[(0, 0)] * len(rest)]
        cut = jnp.pad(array, widths).reshape(groups, number, chunk, *rest)
        return cut.swapaxes(0, 1)

    def join(chunks: Array) -> Array:
        whole = chunks.swapaxes(0, 1).reshape(groups, -1, *chunks.shape[3:])
        return whole[:, :positions]

    carry, found = jax.lax.scan(step, carry, jax.tree.map(cut, parts))
    return carry, jax.tree.map(join, found)
