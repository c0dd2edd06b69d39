"""Someone else's project in NNX: an encoder-decoder out of our stacks behind the
bridge, under NNX's optimizer.
"""

import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx import bridge

import jaxformer as jf

PAD, BOS = 0, 2


class Reverser(nnx.Module):
    """An encoder and a decoder of two layers each, over one table."""

    def __init__(self, vocabulary_size, layer, *, rngs):
        self.width = layer.d_model
        x, mask = jnp.zeros((1, 1, self.width)), jnp.ones((1, 1, 1, 1), bool)
        table = jf.nn.Embedding(vocabulary_size, self.width)
        self.tokens = bridge.ToNNX(table, rngs=rngs).lazy_init(
            jnp.zeros((1, 1), jnp.int32)
        )
        self.reader = bridge.ToNNX(jf.nn.Encoder(layer, 2), rngs=rngs).lazy_init(x)
        self.writer = bridge.ToNNX(jf.nn.Decoder(layer, 2), rngs=rngs).lazy_init(
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
    """Return the mean label-smoothed loss of a batch."""
    total, count = jf.functional.cross_entropy(
        model(source, target), target, target != PAD, smoothing=0.1
    )
    return total / count


@nnx.jit
def step(model, optimizer, source, target):
    """Update both in place; give the loss before."""
    loss, gradients = nnx.value_and_grad(mean_loss)(model, source, target)
    optimizer.update(model, gradients)
    return loss


def train(model, batches, warmup_steps):
    """Make one update a batch; give the losses."""
    schedule = jf.training.paper_schedule(model.width, warmup_steps)
    optimizer = nnx.Optimizer(
        model, optax.adam(schedule, b1=0.9, b2=0.98, eps=1e-9), wrt=nnx.Param
    )
    return [float(step(model, optimizer, source, target)) for source, target in batches]


def load(model, params):
    """Give a model the parameters of a dict that has its tree."""
    state = nnx.state(model, nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)


def parameters(module):
    """Return parameters, or their gradients, as a plain dict."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))
