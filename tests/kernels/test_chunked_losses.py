"""Losses from hidden states in chunks, against those of all logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.kernels import chunked_losses
from jaxformer.kernels.chunked_losses import output_losses

SETTINGS = {"smoothing": 0.1, "z_loss": 0.3}


def draw(seed, size, dtype=np.float64, bias=True):
    """Draw hidden states, table, bias and fractional weights, and targets. Padding
    holds inf and no token.
    """
    rng = np.random.default_rng(seed)
    x, table = rng.normal(size=(4, 7, 6)), rng.normal(size=(size, 6))
    weights = rng.random((4, 7)) + 0.5
    targets = rng.integers(0, size, (4, 7))
    targets[0] = table.dot(x[0].T).argmax(axis=0)  # some are correct
    weights[1, 3:], x[1, 4], targets[1, 3:] = 0.0, np.inf, -100
    arrays = x, table, rng.normal(size=size) if bias else None, weights
    arrays = jax.tree.map(lambda each: jnp.asarray(each, dtype), arrays)
    return arrays, jnp.asarray(targets)


@functools.partial(jax.jit, static_argnums=0, static_argnames=(*SETTINGS, "chunk"))
def differentiate(losses, given, targets, **settings):
    """Return the five sums, and the gradient of the first by the floats given."""

    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def run(x, table, bias, weights):
        loss, *rest = losses(x, table, targets, weights, bias, **settings)
        return 2.0 * loss, (loss, *rest)

    (_, sums), gradients = run(*given)
    return sums, gradients


def of_all_logits(x, table, targets, weights, bias, *, z_loss, **smoothing):
    """Compute the sums by the plain functions."""
    # Their logits of padding may be anything; the matmul's gradient by the table is
    # NaN where x is inf.
    x = jnp.where(weights[..., None] > 0, x, jnp.zeros((), x.dtype))
    given = F.project_to_vocabulary(table, x, bias), targets, weights
    loss, tokens = F.cross_entropy(*given, **smoothing)
    squares, _ = F.z_loss(given[0], weights)
    nll, correct = F.cross_entropy(*given)[0], F.correct(*given)[0]
    return loss + z_loss * squares, nll, correct, squares, tokens


def assert_equal(found, expected):
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert a.dtype == jnp.float64
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_several_chunks_a_block(bias, monkeypatch):
    """On a TPU, here chosen on a CPU, the table's gradient is updated once for several
    chunks: three blocks of 10 positions in chunks of 4, neither of which divides.
    """
    monkeypatch.setattr(chunked_losses, "_TILE", 2)
    monkeypatch.setattr(chunked_losses, "_ELSEWHERE", 12)
    monkeypatch.setattr(chunked_losses, "_TPU_BYTES", 4 * 4 * 131)
    depending, sizes = jax.lax.platform_dependent, []

    def on_tpu(*given, tpu=None, **others):
        if tpu is None:
            return depending(*given, **others)
        sizes.append(tpu.args[-2:])
        return tpu(*given)

    monkeypatch.setattr(jax.lax, "platform_dependent", on_tpu)
    with jax.enable_x64(True):
        given, targets = draw(5, 131, bias=bias)
        expected = differentiate(of_all_logits, given, targets, **SETTINGS)
        found = differentiate(output_losses, given, targets, **SETTINGS)
        assert_equal(found, expected)
    assert set(sizes) == {(10, 4)}


def test_half_precision_is_that_of_all_logits():
    """bfloat16 gives float32 sums, a bfloat16 gradient by the hidden states and a
    float32 one by the table.

    Both paths multiply the same bfloat16 numbers and add in float32. The slope of a
    logit is rounded to bfloat16 before it is multiplied, here before and there after
    its multiplication with the cotangent: each term of a gradient may differ by two
    halves of its last place, 2^-8, and the gradient by x by its own rounding.
    """
    (x, table, bias, weights), targets = draw(1, 300, np.float32)
    given = 4.0 * x.astype(jnp.bfloat16), table, bias, weights
    expected, wanted = differentiate(of_all_logits, given, targets, **SETTINGS)
    for chunk in (None, 5):
        sums, found = differentiate(
            output_losses, given, targets, chunk=chunk, **SETTINGS
        )
        np.testing.assert_allclose(sums, expected, rtol=1e-5)
        assert [each.dtype for each in sums] == [jnp.float32] * 5
        assert [each.dtype for each in found] == [each.dtype for each in given]
        real = np.where(weights[..., None] > 0, np.asarray(given[0], np.float32), 0.0)
        rows = np.asarray(table.astype(jnp.bfloat16), np.float32)
        logits = real @ rows.T + np.asarray(bias)
        slope = slope_of(logits, np.asarray(targets), np.asarray(weights))
        terms = (
            np.abs(slope) @ np.abs(rows),
            np.einsum("BTV,BTD->VD", np.abs(slope), np.abs(real)),
        )
        for a, b, size in zip(found[:2], wanted[:2], terms, strict=True):
            a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
            assert (np.abs(a - b) <= 2.0**-8 * (size + np.abs(b)) + 1e-6).all()
            assert np.abs(b).max() > 100 * 2.0**-8
        for a, b in zip(found[2:], wanted[2:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def slope_of(logits, targets, weights):
    """Compute the gradient of twice the loss by the logits, in NumPy."""
    wide = logits.astype(np.float64)
    log_z = np.log(np.exp(wide).sum(-1, keepdims=True))
    wanted = np.full(wide.shape, 0.1 / (wide.shape[-1] - 1))
    np.put_along_axis(wanted, np.maximum(targets, 0)[..., None], 0.9, axis=-1)
    slope = np.exp(wide - log_z) * (1 + 2 * SETTINGS["z_loss"] * log_z) - wanted
    return 2 * weights[..., None] * slope


def test_a_target_out_of_range():
    """Under ``jit`` it makes losses and gradients NaN; where it is known it is refused.
    With weight 0 it is nothing.
    """
    given, targets = draw(2, 131, np.float32)
    for wrong in (131, 140, -1):
        bad = targets.at[0, 0].set(wrong)
        sums, gradients = differentiate(output_losses, given, bad, **SETTINGS)
        assert np.isnan(sums[:3]).all()
        assert np.isfinite(sums[3:]).all()
        assert np.isnan(gradients[0][0, 0]).all()
        assert np.isfinite(gradients[0][0, 1:]).all()
        assert np.isnan(gradients[1]).all()
        x, table, bias, weights = given
        with pytest.raises(InputError, match=f"target {wrong} is not in 0 to 130"):
            output_losses(x, table, bad, weights, bias)
        nothing = weights.at[0, 0].set(0.0)
        sums, gradients = differentiate(
            output_losses, (x, table, bias, nothing), bad, **SETTINGS
        )
        assert all(np.isfinite(each).all() for each in (*sums, *gradients))


def test_a_weight_below_0(unchecked):
    """Under ``jit`` losses and gradients are NaN; a known one is refused."""
    (x, table, bias, weights), targets = draw(5, 131, np.float32)
    weights = weights.at[2, 3].set(-0.5)
    given = x, table, bias, weights
    sums, gradients = differentiate(output_losses, given, targets, **SETTINGS)
    assert np.isnan(np.asarray(sums)).all()
    assert np.isnan(gradients[0][2, 3]).all()
    assert np.isfinite(gradients[0][0]).all()
    with pytest.raises(InputError, match=r"a weight is at least 0, not -0.5"):
        output_losses(x, table, targets, weights)


def test_no_positions_and_no_tokens():
    """Their sums and gradients are 0."""
    (x, table, bias, weights), targets = draw(3, 131, np.float32)
    for given in (
        (x, table, bias, jnp.zeros_like(weights)),
        (x[:, :0], table, bias, weights[:, :0]),
    ):
        shape = given[3].shape
        sums, gradients = differentiate(
            output_losses, given, targets[:, : shape[1]], **SETTINGS
        )
        assert not any(np.asarray(each).any() for each in (*sums, *gradients[:3]))


def test_wrong_arguments(unchecked):
    """Each is refused in a line that says what is expected."""
    (x, table, _, weights), targets = draw(4, 131, np.float32)
    for arguments, more, message in (
        (
            (x, table[:, :5], targets, weights),
            {},
            r"table: Float\[V D\], not float32\[131, 5\]",
        ),
        ((x, table, targets[:, :1], weights), {}, r"targets: Int\[B T\], not"),
        ((x, table, targets, weights[:1]), {}, r"weights: .*, not float32\[1, 7\]"),
        ((x.astype(int), table, targets, weights), {}, r"x: Float\[B T D\], not int32"),
        (
            (x[0], table, targets[0], weights[0]),
            {},
            r"x: Float\[B T D\], not float32\[7, 6\]",
        ),
        ((x, table, targets, weights), {"chunk": 0}, "chunk=0 must be at least 1"),
        (
            (x, table, targets.astype(float), weights),
            {},
            r"targets: Int\[B T\], not float",
        ),
        ((x, table, targets, weights), {"groups": 3}, "groups=3 must divide the 4"),
        ((x, table, targets, weights), {"convention": "some"}, "others or all"),
    ):
        with pytest.raises(InputError, match=message):
            output_losses(*arguments, **more)
