"""A project of others in NNX: an encoder-decoder of our bridged stacks, under NNX's
optimizer.
"""

import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx import bridge

import jaxformer as jf

PAD, BOS = 0, 2


class Reverser(nnx.Module):
    """An encoder and a decoder of one layer each, over one table."""

    def __init__(self, vocabulary_size, layer, *, rngs):
        self.width = layer.d_model
        x, mask = jnp.zeros((1, 1, self.width)), jnp.ones((1, 1, 1, 1), bool)
        table = jf.nn.Embedding(vocabulary_size, self.width)
        self.tokens = bridge.ToNNX(table, rngs=rngs).lazy_init(
            jnp.zeros((1, 1), jnp.int32)
        )
        self.reader = bridge.ToNNX(jf.nn.Encoder(layer, 1), rngs=rngs).lazy_init(x)
        self.writer = bridge.ToNNX(jf.nn.Decoder(layer, 1), rngs=rngs).lazy_init(
            x, x, mask
        )

    def embed(self, tokens):
        return (
            self.tokens(tokens)
            + jf.functional.sinusoidal(jnp.arange(tokens.shape[1]), self.width)[None]
        )

    def __call__(self, source, target, *, train=False):
        mask = jf.functional.padding_mask(source, PAD)
        memory, _ = self.reader(self.embed(source), mask, train=train)
        inputs, seen = (
            jf.models.shift_right(target, BOS),
            jf.functional.causal_mask(target.shape[1]),
        )
        x, _ = self.writer(self.embed(inputs), memory, seen, mask, train=train)
        return self.tokens.logits(x)


def mean_loss(model, source, target):
    """Return the mean label-smoothed loss of a batch, and the logits."""
    logits, real = model(source, target), target != PAD
    total, count = jf.functional.cross_entropy(logits, target, real, smoothing=0.1)
    return total / count, logits


@nnx.jit
def step(model, optimizer, source, target):
    """Update both in place; return the loss, logits and gradients before."""
    differentiate = nnx.value_and_grad(mean_loss, has_aux=True)
    (loss, logits), gradients = differentiate(model, source, target)
    optimizer.update(model, gradients)
    return loss, (logits, gradients)


def train(model, params, batches, warmup_steps):
    """Update once a batch, beginning with given parameters; return as the other
    project does.
    """
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    schedule = jf.training.paper_schedule(model.width, warmup_steps)
    adam = optax.adam(schedule, b1=0.9, b2=0.98, eps=1e-9)
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
    losses, first = [], None
    for source, target in batches:
        loss, own = step(model, optimizer, source, target)
        first = first or own
        losses.append(float(loss))
    logits, gradients = first
    trained = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return losses, trained, (logits, nnx.to_pure_dict(gradients))
