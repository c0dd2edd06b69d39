"""Two projects of other people, written against the public names alone, get the numbers
of our own model.

One is in Linen and made of layers, the other in NNX and made of stacks. From the same
parameters each gives our logits and our gradients, and trained on the same batches by
an optimizer of its own, our losses and our parameters.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from name_uses import private_uses
from projects import linen_project, nnx_project
from projects.ours import (
    CONFIG,
    PAD,
    STEPS,
    VOCABULARY,
    WARMUP,
    draw_batches,
    our_numbers,
)
from training.little import assert_trees_close, without_key_biases

FOLDER = Path(__file__).parent


def for_linen(params):
    """Name our parameters as the Linen project does."""
    stacks = {
        f"{name}_{number}": params[stack][f"layer_{number}"]
        for name, stack in (("read", "encoder"), ("write", "decoder"))
        for number in range(2)
    }
    return {"tokens": params["embedding"], **stacks}


def for_nnx(params):
    """Name our parameters as the NNX project does."""
    return {
        "tokens": params["embedding"],
        "reader": params["encoder"],
        "writer": params["decoder"],
    }


def nnx_model():
    return nnx_project.Reverser(
        VOCABULARY, CONFIG.layer, rngs=nnx.Rngs(params=5, dropout=6)
    )


def assert_same_logits(logits, ours, batch):
    """Where there is a target; what is predicted of padding is nobody's business,
    and has no gradient.
    """
    real = np.asarray(batch[1]) != PAD
    assert 0.3 < real.mean() < 1.0
    np.testing.assert_allclose(np.asarray(logits)[real], ours[real], atol=1e-5)


def assert_learned(losses):
    """Whatever agrees here is of a model that learned something."""
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["linen_project.py", "nnx_project.py", "ours.py"])
def test_public_names_suffice(name):
    """What they use of jaxformer, ``__all__`` of the package and of its rooms holds."""
    source = (FOLDER / name).read_text(encoding="utf-8")
    assert "jf." in source
    assert private_uses(source) == []


def test_linen_has_our_logits_and_gradients():
    """Layers put together by another module compute what our model does, forwards
    and backwards.
    """
    ours = our_numbers()
    model, params = (
        linen_project.Reverser(VOCABULARY, CONFIG.layer),
        for_linen(ours.params),
    )
    batch = draw_batches()[0]
    own = jax.eval_shape(model.init, jax.random.key(0), *batch)["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, own) == jax.tree.map(
        lambda leaf: leaf.shape, params
    )
    logits = jax.jit(model.apply)({"params": params}, *batch)
    assert_same_logits(logits, ours.logits, batch)
    gradients = jax.jit(
        jax.grad(lambda own: linen_project.mean_loss(model, own, *batch))
    )(params)
    assert_trees_close(gradients, for_linen(ours.gradients), atol=1e-6)


def test_linen_trains_as_ours():
    """The project's own loop over optax, schedule and loss makes the updates of our
    train step.
    """
    ours = our_numbers()
    model = linen_project.Reverser(VOCABULARY, CONFIG.layer)
    losses, trained = linen_project.train(
        model, for_linen(ours.params), draw_batches(), WARMUP
    )
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, ours.losses, rtol=1e-4)
    assert_trees_close(
        without_key_biases(trained),
        without_key_biases(for_linen(ours.trained)),
        atol=2e-3,
    )
    assert_learned(losses)


def test_nnx_has_our_logits_and_gradients():
    """Stacks behind the bridge compute what our model does, forwards and backwards,
    in the same tree.
    """
    ours, model = our_numbers(), nnx_model()
    batch, apply = draw_batches()[0], nnx.jit(lambda model, *batch: model(*batch))
    # its own first parameters are others
    assert np.abs(apply(model, *batch) - ours.logits).max() > 0.1
    nnx_project.load(model, for_nnx(ours.params))
    assert_same_logits(apply(model, *batch), ours.logits, batch)
    gradients = nnx.jit(nnx.grad(nnx_project.mean_loss))(model, *batch)
    assert_trees_close(nnx.to_pure_dict(gradients), for_nnx(ours.gradients), atol=1e-6)


def test_nnx_trains_as_ours():
    """NNX's optimizer on bridged modules makes the updates of our train step."""
    ours, model = our_numbers(), nnx_model()
    nnx_project.load(model, for_nnx(ours.params))
    losses = nnx_project.train(model, draw_batches(), WARMUP)
    np.testing.assert_allclose(losses, ours.losses, rtol=1e-4)
    trained = nnx_project.parameters(model)
    assert_trees_close(
        without_key_biases(trained),
        without_key_biases(for_nnx(ours.trained)),
        atol=2e-3,
    )
    assert_learned(losses)
