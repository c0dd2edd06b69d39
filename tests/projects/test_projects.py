"""A project in Linen, made of layers, against the public names gets the numbers of our
model: from the same parameters logits and gradients, and trained on the same batches by
an optimizer of its own losses and parameters.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from name_uses import private_uses
from projects import linen_project
from projects.ours import CONFIG, PAD, VOCABULARY, WARMUP, draw_batches
from projects.ours import train as train_ours
from training.little import assert_trees_close, without_key_biases


@pytest.fixture(scope="module", autouse=True)
def ours():
    """Train our model. optax raises a float to the power of an integer."""
    with jax.numpy_dtype_promotion("standard"):
        yield train_ours()


def compare(ours, rename, train):
    """Train another project from our parameters, which it has by other names."""
    params, our_losses, our_trained, (our_logits, our_gradients) = ours
    batches = draw_batches()
    losses, trained, (logits, gradients) = train(rename(params), batches, WARMUP)
    # Logits at padding have no gradient.
    real = batches[0][1] != PAD
    np.testing.assert_allclose(np.asarray(logits)[real], our_logits[real], atol=1e-5)
    assert_trees_close(gradients, rename(our_gradients), atol=1e-6)
    np.testing.assert_allclose(losses, our_losses, rtol=1e-4)
    pair = [without_key_biases(tree) for tree in (trained, rename(our_trained))]
    assert_trees_close(*pair, atol=2e-3)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["linen_project.py", "ours.py"])
def test_public_names_suffice(name):
    source = (Path(__file__).parent / name).read_text(encoding="utf-8")
    assert "jf." in source
    assert private_uses(source) == []


def test_linen_has_our_numbers(ours):
    model = linen_project.Reverser(VOCABULARY, CONFIG.layer)

    def rename(params):
        read, write = (params[name]["layer_0"] for name in ("encoder", "decoder"))
        return {"tokens": params["embedding"], "read": read, "write": write}

    own = jax.eval_shape(model.init, jax.random.key(0), *draw_batches()[0])["params"]
    shapes = [jax.tree.map(np.shape, tree) for tree in (own, rename(ours[0]))]
    assert shapes[0] == shapes[1]
    compare(ours, rename, lambda *given: linen_project.train(model, *given))
