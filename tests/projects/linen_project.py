"""Someone else's project in Linen: an encoder-decoder out of our layers, with a loss
and an update of its own.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import jaxformer as jf

PAD, BOS = 0, 2


class Reverser(nn.Module):
    """Two encoder layers and two decoder layers over one table."""

    vocabulary_size: int
    layer: jf.nn.LayerConfig

    def setup(self):
        self.tokens = jf.nn.Embedding(self.vocabulary_size, self.layer.d_model)
        self.places = jf.nn.Positions("sinusoidal", self.layer.d_model, max_length=64)
        self.drop = jf.nn.Dropout(self.layer.dropout_rate)
        self.read_0, self.read_1 = (
            jf.nn.EncoderLayer(self.layer),
            jf.nn.EncoderLayer(self.layer),
        )
        self.write_0, self.write_1 = (
            jf.nn.DecoderLayer(self.layer),
            jf.nn.DecoderLayer(self.layer),
        )

    def embed(self, tokens, train):
        x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1]))[None]
        return self.drop(x, train=train)

    def __call__(self, source, target, *, train=False):
        mask = jf.functional.padding_mask(source, PAD)
        memory = self.embed(source, train)
        for layer in (self.read_0, self.read_1):
            memory, _ = layer(memory, mask, train=train)
        x = self.embed(jf.models.shift_right(target, BOS), train)
        seen = jf.functional.causal_mask(target.shape[1])
        for layer in (self.write_0, self.write_1):
            x, _ = layer(x, memory, seen, mask, train=train)
        return self.tokens.logits(x)


def mean_loss(model, params, source, target):
    """Return the mean label-smoothed loss of a batch."""
    logits = model.apply({"params": params}, source, target)
    total, count = jf.functional.cross_entropy(
        logits, target, target != PAD, smoothing=0.1
    )
    return total / count


def train(model, params, batches, warmup_steps):
    """Make one update a batch; give the losses and the parameters."""
    schedule = jf.training.paper_schedule(model.layer.d_model, warmup_steps)
    optimizer = optax.adam(schedule, b1=0.9, b2=0.98, eps=1e-9)

    @jax.jit
    def step(params, state, source, target):
        loss, gradients = jax.value_and_grad(
            lambda own: mean_loss(model, own, source, target)
        )(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    losses, state = [], optimizer.init(params)
    for source, target in batches:
        params, state, loss = step(params, state, source, target)
        losses.append(float(loss))
    return losses, params
