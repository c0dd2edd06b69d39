"""Cross-entropy and label smoothing equal torch's, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F

try:
    import torch
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(torch is None, reason="needs the extra `parity`"),
]

BATCH, LENGTH, SIZE, PADDING = 4, 6, 11, 0


def draw(seed):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(BATCH, LENGTH, SIZE)).astype(np.float32)
    targets = rng.integers(1, SIZE, size=(BATCH, LENGTH)).astype(np.int32)
    targets[np.arange(LENGTH)[None] >= np.array([6, 4, 1, 0])[:, None]] = PADDING
    return logits, targets


def ours(logits, targets, smoothing, convention):
    real = targets != PADDING

    def loss(logits):
        total, count = F.cross_entropy(
            logits,
            jnp.asarray(targets),
            jnp.asarray(real),
            smoothing=smoothing,
            convention=convention,
        )
        return total / count

    return jax.value_and_grad(loss)(jnp.asarray(logits))


def same(actual, expected):
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_convention_all_is_torch_s(smoothing):
    """torch.nn.functional.cross_entropy smooths over all V."""
    logits, targets = draw(0)
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1),
        torch.tensor(targets, dtype=torch.long).flatten(),
        ignore_index=PADDING,
        label_smoothing=smoothing,
    )
    expected.backward()
    value, gradient = ours(logits, targets, smoothing, "all")
    same(value, expected.detach())
    same(gradient, theirs.grad)
    if smoothing == 0.0:
        value, gradient = ours(logits, targets, smoothing, "others")
        same(value, expected.detach())
        same(gradient, theirs.grad)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_the_convention_others_is_torch_s_with_a_distribution(smoothing):
    """Over V - 1 others, with the target distribution built by hand and given to
    torch.
    """
    logits, targets = draw(1)
    wanted = np.full((BATCH, LENGTH, SIZE), smoothing / (SIZE - 1), np.float32)
    np.put_along_axis(wanted, targets[..., None], 1 - smoothing, -1)
    real = torch.tensor(targets != PADDING)
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs[real], torch.tensor(wanted)[real]
    )
    expected.backward()
    value, gradient = ours(logits, targets, smoothing, "others")
    same(value, expected.detach())
    same(gradient, theirs.grad)
