"""Cross-entropy and label smoothing equal torch's, values and gradients."""

import jax
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
    @jax.jit
    @jax.value_and_grad
    def mean_loss(logits, targets, real):
        options = {"smoothing": smoothing, "convention": convention}
        total, count = F.cross_entropy(logits, targets, real, **options)
        return total / count

    return mean_loss(logits, targets, targets != PADDING)


def same(found, expected, logits):
    np.testing.assert_allclose(found[0], expected.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], logits.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_convention_all_is_torchs(smoothing):
    """torch.nn.functional.cross_entropy smooths over all V; without smoothing both
    conventions are equal.
    """
    logits, targets = draw(0)
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1),
        torch.tensor(targets, dtype=torch.long).flatten(),
        ignore_index=PADDING,
        label_smoothing=smoothing,
    )
    expected.backward()
    for convention in ("all",) if smoothing else ("all", "others"):
        same(ours(logits, targets, smoothing, convention), expected, theirs)


def test_the_convention_others_is_torchs_with_a_distribution():
    """Over V - 1 others, with the target distribution built by hand."""
    (logits, targets), smoothing = draw(1), 0.1
    wanted = np.full((BATCH, LENGTH, SIZE), smoothing / (SIZE - 1), np.float32)
    np.put_along_axis(wanted, targets[..., None], 1 - smoothing, -1)
    real = torch.tensor(targets != PADDING)
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        theirs[real], torch.tensor(wanted)[real]
    )
    expected.backward()
    same(ours(logits, targets, smoothing, "others"), expected, theirs)
