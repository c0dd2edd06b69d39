"""What is faster than its equation equals it: value and gradients, in each type, as
CPUs and accelerators compute it, with infinities behind masks.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.inputs import HALF, draw, within_backend

from jaxformer import functional as F
from jaxformer import kernels as K
from jaxformer.kernels import int8
from jaxformer.kernels.elementwise import ACTIVATIONS, random_bits

ULP = {"float64": 2**-46, **HALF, "float32": 2**-20}
WIDE = {"float64": 2**-46, "float32": 2**-20}
FULL, ONE = tuple(WIDE), ("float32",)


class Kernel(NamedTuple):
    """A fast function and its equation.

    Attributes:
        fast: of the inputs.
        plain: the same in float64.
        inputs: floating-point arrays.
        bounds: of the errors of outputs and gradients, in their order; the last is that
            of all others.
        kept: inputs that are float32 when the others are in half precision.
        wide: outputs that are float32 then.
        types: of the inputs.
        hidden: by number of an input, the entries that change nothing.
        contents: of these.
        derivatives: whether there are any; 2 with those of second order, forward.
        within: where it is computed.
        cancelled: outputs whose zeros are differences of equal numbers, rounded: in
            flash attention the gradient of a query with one key.
    """

    fast: Callable[..., Any]
    plain: Callable[..., Any]
    inputs: tuple[Any, ...]
    bounds: tuple[Callable[..., Any], ...]
    kept: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    types: tuple[str, ...] = tuple(ULP)
    hidden: Mapping[int, Any] = MappingProxyType({})
    contents: tuple[float, ...] = (np.inf, -np.inf, np.nan)
    derivatives: int = 2
    within: Callable[[], Any] = contextlib.nullcontext
    cancelled: tuple[int, ...] = ()


def rounded(times=1.0, slack=1.0):
    """Bound the error by roundings of an entry to its type, and by some of the largest
    entry to float32; without slack by the first alone, in full precision by the second.
    """
    return lambda exact, own, wide, _: (
        (own > wide or not slack) * times * own * np.abs(exact)
        + slack * wide * largest(exact)
    )


def of_largest(times):
    """Bound the error by roundings of the largest entry to the type of the inputs."""
    return lambda exact, _own, _wide, ulp: times * ulp * largest(exact)


def largest(exact):
    return np.abs(exact, where=np.isfinite(exact), out=np.zeros_like(exact)).max()


def coarse(x):
    """Round to numbers that are exact in every type."""
    return np.clip(np.rint(16 * x), -127, 127) / np.float32(16)


def attend(query, key, value, mask=True, bias=0.0):
    """Compute equation 1; rows without keys are 0."""
    key, value = (x.repeat(query.shape[2] // x.shape[2], 2) for x in (key, value))
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / query.shape[-1] ** 0.5 + bias
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True, where=mask, initial=-1e9))
    shares = jnp.where(mask, jnp.exp(jnp.where(mask, scores - top, 0.0)), 0.0)
    total = shares.sum(-1, keepdims=True)
    weights = shares / jnp.where(total == 0, 1.0, total)
    return jnp.einsum("bhts,bshk->bthk", weights, value), weights


def attention(mask=None, *, sizes=(3, 4, 5, 2, 2, 16, 6), bias=None, **more):
    """Build a kernel of batch, queries, keys, heads of both, widths of both."""
    batch, queries, keys, heads, groups, width, values = sizes
    inputs = [
        draw(1, batch, queries, heads, width),
        draw(2, batch, keys, groups, width),
        draw(3, batch, keys, groups, values),
    ]
    inputs += [] if bias is None else [draw(4, *bias)]
    allowed = True if mask is None else mask

    def fast(query, key, value, bias=None):
        given = query, key, value, None if mask is None else jnp.asarray(mask)
        return K.attend(*given, bias=bias)

    def plain(query, key, value, bias=0.0):
        return attend(query, key, value, allowed, bias)

    how = {"bounds": (of_largest(4),), "wide": (1,), **more}
    return Kernel(fast, plain, tuple(inputs), **how)


def some(*shape):
    mask = np.random.default_rng(5).random(shape) < 0.6
    mask[-1] &= len(mask) == 1  # without keys
    return mask


KEYS_ONLY = np.array([1, 0, 1, 0, 1], bool).reshape(1, 1, 1, 5)
MASKED = {i: ~KEYS_ONLY.reshape(1, 5, 1, 1) for i in (1, 2)}


def segments(rows):
    return jnp.array([[s for s, times in row for _ in range(times)] for row in rows])


QUERIES, KEYS = 13, 21
PADDED = segments([[(1, KEYS)], [(1, 9), (0, KEYS - 9)], [(0, KEYS)]])
PACKED = segments([[(1, 8), (2, 13)], [(1, 9), (2, 4), (0, 8)], [(0, KEYS)]])
TARGETS = segments([[(1, 6), (2, 7)], [(1, 9), (2, 2), (0, 2)], [(0, QUERIES)]])
SEGMENTS = {
    "everything": None,
    "padded": F.SegmentMask(PADDED),
    "keys of several segments": F.SegmentMask(PACKED),
    "more keys than queries": F.SegmentMask(PADDED, causal=True),
    "causal": F.SegmentMask(PADDED[:, :QUERIES], causal=True),
    "packed": F.SegmentMask(PACKED, TARGETS),
    "packed and causal": F.SegmentMask(TARGETS, TARGETS, causal=True),
}


def fused(backend, mask, heads=(2, 2)):
    """Build attention by a kernel, with lengths that fill no lanes."""
    keys = KEYS if mask is None else mask.keys.shape[1]
    dense = True if mask is None else np.asarray(mask.dense(QUERIES))
    values = 8 if backend == "cudnn" else 16
    return attention(
        sizes=(3, QUERIES, keys, *heads, 8, values),
        types=ONE,
        bounds=(of_largest(0.45),),
        derivatives=1,
        within=functools.partial(within_backend, backend),
        cancelled=(1,) if backend == "pallas" else (),
    )._replace(
        fast=lambda *x: K.attend(*x, mask, backend=backend)[0],
        plain=lambda *x: attend(*x, dense)[0],
    )


def linear(subscripts, x, kernel, *bias, contract=1, **more):
    def plain(x, kernel, bias=0.0):
        return jnp.einsum(subscripts, x, kernel) + bias

    fast = functools.partial(K.linear, contract=contract)
    bounds = (of_largest(2) if bias else rounded()), rounded()
    return Kernel(fast, plain, (x, kernel, *bias), bounds, **more)


def three(x, *parameters):
    """Apply three maps of one input."""
    pairs = zip(parameters[:3], parameters[3:], strict=True)
    maps = [{"kernel": each, "bias": bias} for each, bias in pairs]
    linear = K.joint_linear(x, *maps)
    return tuple(linear(x, **each) for each in maps)


def three_plain(x, *parameters):
    pairs = zip(parameters[:3], parameters[3:], strict=True)
    return tuple(jnp.einsum("btd,dhk->bthk", x, kernel) + b for kernel, b in pairs)


def normalized(x, scale, bias=0.0):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-6) * scale + bias


def norm(x, *parameters, slack=1.0):
    bounds = *[rounded(slack=slack)] * 2, rounded(slack=16), rounded()
    return Kernel(K.layer_norm, normalized, (x, *parameters), bounds, kept=(1,))


def activation(name, plain):
    points = [-60000, -200, -45, -3, -0.5, 0.25, 2, 45, 200, 60000]
    bound = lambda exact, ulp, *_: ulp * np.abs(exact) + 2**-24  # noqa: E731
    given = np.float32(points)
    return Kernel(ACTIVATIONS[name], plain, (given,), (bound,), types=tuple(HALF))


KEY, RATE = jax.random.key(3), 0.1
DROPPED = np.asarray(random_bits(KEY, (50, 50))) < RATE * 2**32


REAL = np.arange(5) < np.array([[5], [3], [1]])
FRACTIONS = REAL * np.random.default_rng(10).random((3, 5)).astype(np.float32)
WANTED = np.where(REAL, np.random.default_rng(11).integers(0, 1000, (3, 5)), -100)
LOGITS, OTHERS = 2 * draw(0, 3, 5, 1000), 2 * draw(1, 3, 5, 1000)


def logarithms(logits):
    """Compute log-probabilities, and the logarithm of their denominator."""
    top = logits.max(-1, keepdims=True)
    total = top + jnp.log(jnp.exp(logits - top).sum(-1, keepdims=True))
    return logits - total, total[..., 0]


def smoothed_loss(logits, targets, smoothing, convention):
    """Compute the cross-entropy with the whole smoothed distribution."""
    size = logits.shape[-1]
    rest = smoothing / (size - 1 if convention == "others" else size)
    true = 1 - smoothing + (0 if convention == "others" else rest)
    wanted = np.where(np.arange(size) == targets[..., None], true, rest)
    return -(wanted * logarithms(logits)[0]).sum(-1)


def divergence(one, other):
    p, q = logarithms(one)[0], logarithms(other)[0]
    return ((jnp.exp(p) - jnp.exp(q)) * (p - q)).sum(-1) / 2


def loss(fast, plain, *logits, weights=FRACTIONS):
    """Build a sum over the positions of logits."""

    def add(*given):
        *logits, weights = given
        return (weights * jnp.where(weights, plain(*logits), 0.0)).sum(), weights.sum()

    return Kernel(
        fast,
        add,
        (*logits, weights),
        (rounded(),),
        kept=(len(logits),),
        wide=(0, 1),
        hidden=dict.fromkeys(range(len(logits)), ~REAL[..., None]),
        contents=(6e4, np.inf, -np.inf, np.nan),
    )


def cross_entropy(smoothing, convention, scale=1, **more):
    how = {"smoothing": smoothing, "convention": convention}
    return loss(
        lambda x, weights: K.cross_entropy(x, jnp.asarray(WANTED), weights, **how),
        lambda logits: smoothed_loss(logits, WANTED, smoothing, convention),
        np.float32(scale) * LOGITS,
        **more,
    )


def chunked(size, convention, z_loss, *, biased, types=tuple(ULP), **chunks):
    """Build the losses of hidden states: only the first of the sums has a gradient."""
    rng = np.random.default_rng(size)
    x, table, bias = draw(20, 4, 7, 6), coarse(draw(21, size, 6)), draw(22, size)
    weights = rng.random((4, 7)).astype(np.float32) + np.float32(0.5)
    targets = rng.integers(0, size, (4, 7))
    targets[0] = table.dot(x[0].T).argmax(axis=0)  # some are correct
    real = np.ones((4, 7), bool)
    real[1, 3:] = False
    weights[~real], targets[~real] = 0.0, -100
    how = {"smoothing": 0.1, "convention": convention}
    stop = jax.lax.stop_gradient

    def fast(x, table, weights, bias=None):
        given = x, table, jnp.asarray(targets), weights, bias
        first, *rest = K.output_losses(*given, z_loss=z_loss, **how, **chunks)
        return first, *map(stop, rest)

    def plain(x, table, weights, bias=0.0):
        logits = x @ table.T + bias
        squares = logarithms(logits)[1] ** 2
        smooth = smoothed_loss(logits, targets, *how.values()) + z_loss * squares
        nll = smoothed_loss(logits, targets, 0.0, "all")
        is_target = np.arange(size) == targets[..., None]
        hits = (is_target & (logits == logits.max(-1, keepdims=True))).any(-1)
        add = lambda each: (weights * jnp.where(real, each, 0.0)).sum()  # noqa: E731
        rest = add(nll), add(hits), add(squares), weights.sum()
        return add(smooth), *map(stop, rest)

    return Kernel(
        fast,
        plain,
        (x, table, weights, *([bias] if biased else [])),
        (*[rounded(10, 0)] * 5, of_largest(2), of_largest(2), rounded()),
        kept=(1, 2, 3),
        wide=tuple(range(5)),
        types=types,
        hidden={0: ~real[..., None]},
        derivatives=1,
    )


def rounded_rows(x):
    """Round each row to 255 steps from its least to its largest, 0 among them."""
    least, largest = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    steps = (largest - least) / 254
    first = jnp.rint((least + largest) / 2 / steps) - 128
    return jnp.clip(jnp.rint(x / steps), first, first + 255) * steps


def multiply_int8(x, kernel, axes, *, rows=False):
    """Build a product of both rounded operands."""
    weights = int8.quantize(kernel, axes)
    scales = np.abs(kernel).max(axis=axes, keepdims=True).astype(np.float64) / 127
    meant = np.rint(kernel / scales) * scales
    lead = x.ndim - len(axes)
    outer = [n for i, n in enumerate(kernel.shape) if i not in axes]
    meant = meant.T if rows else meant.reshape(-1, int(np.prod(outer)))

    def fast(x):
        if rows:
            return int8.multiply_int8_rows(x, weights)
        return int8.multiply_int8(x, weights, len(axes))

    def plain(x):
        flat = rounded_rows(x.reshape(*x.shape[:lead], -1))
        return (flat @ meant).reshape(*x.shape[:lead], *outer)

    how = {"types": ONE, "derivatives": 0}
    return Kernel(fast, plain, (x,), (rounded(2, 2),), **how)


SCORES = np.float32([[1e4, -1e4, 1e4], [3e30, 3e30, -3e30], [-1e4, -1e4, -1e4]])
EDGES = np.float32([-3, -0.0, 0.0, 2**-14, 2, np.inf, -np.inf])
X, MIXED = draw(3, 2, 5, 8), [draw(i, 8, 2, 4) for i in (4, 5, 6)]
EXACT = (lambda *_: 0.0,)

KERNELS = {
    "linear": linear(
        "bthk,hkd->btd", draw(4, 3, 5, 2, 8), draw(5, 2, 8, 6), draw(7, 6), contract=2
    ),
    "linear without bias": linear(
        "bthk,hkd->btd", draw(4, 3, 5, 2, 8), draw(5, 2, 8, 6), contract=2
    ),
    "linear of 4,096 terms": linear(
        "td,dk->tk", draw(3, 2, 4096), coarse(draw(4, 4096, 8)), kept=(1,)
    ),
    "three maps": Kernel(
        three,
        three_plain,
        (X, *map(coarse, MIXED), *(draw(i, 2, 4) for i in (7, 8, 9))),
        (*[of_largest(2)] * 3, of_largest(3), rounded()),
        kept=tuple(range(1, 7)),
    ),
    "logits": Kernel(
        lambda table, x: K.project_to_vocabulary(table, x),
        lambda table, x: x @ table.T,
        (coarse(draw(1, 8, 1024)), draw(2, 2, 1024)),
        (rounded(), of_largest(1)),
        kept=(0,),
        wide=(0,),
    ),
    "tied table": Kernel(
        lambda table: K.project_to_vocabulary(
            table, K.embed(table, jnp.array([[1, 2, 2]]))
        ),
        lambda table: 4 * table[np.array([[1, 2, 2]])] @ table.T,
        (draw(8, 24, 16),),
        (rounded(), of_largest(2)),
        wide=(0,),
    ),
    "layer norm": norm(draw(30, 2, 3, 16), draw(31, 16), draw(32, 16)),
    "layer norm far from 0": norm(
        draw(30, 2, 3, 16) + 30, draw(31, 16), draw(32, 16), slack=16
    ),
    "layer norm of constant rows": norm(np.full((2, 16), 3, np.float32), draw(31, 16)),
    "RMS norm": Kernel(
        F.rms_norm,
        lambda x, scale: x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale,
        (draw(1, 3, 8) + 5, draw(2, 8)),
        (rounded(),),
        kept=(1,),
    ),
    "ReLU": Kernel(K.relu, lambda x: jnp.where(x > 0, x, 0.0), (EDGES,), EXACT),
    "GELU": activation(
        "gelu",
        lambda x: x / 2 * (1 + jnp.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    ),
    "exact GELU": activation(
        "gelu_exact", lambda x: x / 2 * (1 + jax.lax.erf(x / 2**0.5))
    ),
    "SiLU": activation("silu", lambda x: x * jax.nn.sigmoid(x)),
    "dropout": Kernel(
        lambda x: K.dropout(x, RATE, KEY),
        lambda x: jnp.where(DROPPED, 0.0, x / (1 - RATE)),
        (draw(34, 50, 50),),
        (rounded(1.001, 0),),
    ),
    "cross-entropy": cross_entropy(0.0, "others")._replace(types=ONE),
    "smoothed cross-entropy": cross_entropy(0.1, "others"),
    "cross-entropy smoothed over all": cross_entropy(0.1, "all"),
    "cross-entropy of large logits": cross_entropy(0.1, "others", 1e4)._replace(
        types=FULL
    ),
    "cross-entropy of nothing": cross_entropy(
        0.1, "all", weights=0 * FRACTIONS
    )._replace(types=ONE),
    "z-loss": loss(F.z_loss, lambda x: logarithms(x)[1] ** 2, LOGITS),
    "divergence": loss(F.symmetric_divergence, divergence, LOGITS, OTHERS),
    "losses in chunks": chunked(131, "others", 0.3, biased=True),
    "losses in chunks of groups": chunked(
        131, "all", 0.0, biased=True, types=FULL, chunk=5, groups=2
    ),
    "losses in chunks of whole tiles": chunked(
        256, "others", 0.0, biased=False, types=FULL, chunk=7
    ),
    "losses in one chunk a group": chunked(
        131, "all", 0.3, biased=False, types=FULL, chunk=100, groups=4
    ),
    "int8": multiply_int8(draw(2, 3, 4, 96), draw(3, 96, 6, 8), (0,)),
    "int8 with an offset": multiply_int8(
        draw(2, 3, 4, 96) + 3, draw(3, 96, 6, 8), (0,)
    ),
    "int8 over two axes": multiply_int8(draw(4, 5, 4, 8), draw(5, 4, 8, 6), (0, 1)),
    "int8 of a table": multiply_int8(draw(4, 5, 32), draw(5, 6, 32), (1,), rows=True),
    "softmax": Kernel(
        F.masked_softmax,
        lambda _: np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [1 / 3] * 3]),
        (SCORES,),
        (rounded(10),),
        wide=(0,),
        types=(*FULL, "bfloat16"),
        derivatives=0,
    ),
    "attention": attention(),
    "attention of one head": attention(sizes=(1, 7, 5, 1, 1, 1, 3), types=ONE),
    "attention with a mask of each head": attention(some(3, 2, 4, 5)),
    "attention with a mask of queries": attention(some(1, 2, 4, 1), types=ONE),
    "attention with a mask of keys": attention(
        KEYS_ONLY, hidden=MASKED, contents=(1e3, -1e3)
    ),
    "attention with a bias": attention(some(3, 1, 4, 5), bias=(3, 2, 4, 5)),
    "attention with a bias of keys": attention(
        some(3, 1, 4, 5), bias=(1, 2, 1, 5), types=ONE
    ),
    "attention with a bias of all heads": attention(
        some(3, 1, 4, 5), bias=(1, 1, 4, 5), types=ONE
    ),
    "attention of one group": attention(sizes=(3, 4, 5, 4, 1, 16, 6), types=ONE),
    "attention of two groups": attention(sizes=(3, 4, 5, 4, 2, 16, 6), types=ONE),
    "attention to 4,000 keys": attention(
        sizes=(1, 1, 4000, 1, 1, 16, 6),
        bounds=(of_largest(4), rounded(8, 0), of_largest(4)),
    ),
}
for backend in ("pallas", "cudnn"):
    KERNELS |= {f"{backend}, {k}": fused(backend, mask) for k, mask in SEGMENTS.items()}
    KERNELS[f"{backend}, groups"] = fused(backend, SEGMENTS["causal"], (4, 2))


# On GPUs they are computed otherwise.
DIFFERENT = ["linear", "linear without bias", "three maps", "logits", "layer norm"]
DIFFERENT += ["layer norm far from 0", "losses in chunks"]
DIFFERENT += [
    "attention",
    "attention with a mask of each head",
    "attention with a bias",
]


@pytest.fixture(scope="module")
def platform(request):
    """The CPU, and what GPUs compute, there."""
    choose = lambda *given, default, cuda=None, **_: (cuda or default)(*given)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cuda":
            jax.clear_caches()
            patch.setattr(jax.lax, "platform_dependent", choose)
        yield
    jax.clear_caches()


def derive(function, order, inputs, cotangents, changes):
    """Compute value and gradients, and the changes of both."""
    results = [(function(*inputs), ())]
    if order:

        def both(*inputs):
            value, pull = jax.vjp(function, *inputs)
            return value, pull(cotangents)

        more = (both(*inputs),) if order == 1 else jax.jvp(both, inputs, changes)
        results += more
    return results


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("platform", "name", "dtype"),
    [
        (platform, name, dtype)
        for platform in ("cpu", "cuda")
        for name, kernel in KERNELS.items()
        for dtype in kernel.types
        if platform == "cpu" or name in DIFFERENT
    ],
    indirect=["platform"],
)
def test_equals_its_equation(name, dtype):
    """Value, gradients and, in float64, forward and second derivatives. They have the
    types of the inputs. What is 0 is exactly 0, and no bit depends on what is hidden.
    """
    kernel, full = KERNELS[name], dtype == "float64"
    wide, order = dtype if full else "float32", min(kernel.derivatives, 1 + full)

    def like(seed, tree):
        leaves, form = jax.tree.flatten(tree)
        return form.unflatten(
            jnp.asarray(draw(seed + i, *leaf.shape), leaf.dtype)
            for i, leaf in enumerate(leaves)
        )

    with jax.enable_x64(full), kernel.within():
        inputs = tuple(
            jnp.asarray(x, wide if i in kernel.kept else dtype)
            for i, x in enumerate(kernel.inputs)
        )
        outputs = jax.eval_shape(kernel.fast, *inputs)
        for i, output in enumerate(jax.tree.leaves(outputs)):
            assert output.dtype == (wide if i in kernel.wide else dtype)
        more = like(50, outputs), like(70, inputs)
        run = jax.jit(functools.partial(derive, kernel.fast, order))
        found = run(inputs, *more)
        for content in kernel.contents if kernel.hidden and not full else ():
            dirty = tuple(
                jnp.where(kernel.hidden.get(i, False), jnp.asarray(content, x.dtype), x)
                for i, x in enumerate(inputs)
            )
            again = run(dirty, *more)
            jax.tree.map(np.testing.assert_array_equal, again, found)
    with (
        jax.enable_x64(True),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        given = jax.tree.map(lambda x: x.astype(np.float64), (inputs, *more))
        exact = jax.jit(functools.partial(derive, kernel.plain, order))(*given)
    for near, far in zip(found, exact, strict=True):
        for i, (a, b) in enumerate(
            zip(*map(jax.tree.leaves, (near, far)), strict=True)
        ):
            bound = kernel.bounds[min(i, len(kernel.bounds) - 1)]
            ulps = ULP[str(a.dtype)], WIDE[wide], ULP[dtype]
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            with np.errstate(invalid="ignore"):
                error, allowed = np.abs(a - b), bound(b, *ulps)
                close = (a == b) | (np.isnan(a) & np.isnan(b)) | (error <= allowed)
            assert close.all(), (name, dtype, i, (error / largest(b)).max() / ulps[2])
            assert i in kernel.cancelled or (a[b == 0] == 0).all(), (name, dtype, i)
