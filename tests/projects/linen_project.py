"""A project of others in Linen: an encoder-decoder of our layers, with a loss and an
update of its own.
"""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import jaxformer as jf

PAD, BOS = 0, 2


class Reverser(nn.Module):
    vocabulary_size: int
    layer: jf.nn.LayerConfig

    def setup(self):
        self.tokens = jf.nn.Embedding(self.vocabulary_size, self.layer.d_model)
        self.places = jf.nn.Positions("sinusoidal", self.layer.d_model)
        self.drop = jf.nn.Dropout(self.layer.dropout_rate)
        self.read = jf.nn.EncoderLayer(self.layer)
        self.write = jf.nn.DecoderLayer(self.layer)

    def embed(self, tokens, train):
        x = self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1]))[None]
        return self.drop(x, train=train)

    def __call__(self, source, target, *, train=False):
        mask = jf.functional.padding_mask(source, PAD)
        memory, _ = self.read(self.embed(source, train), mask, train=train)
        x = self.embed(jf.models.shift_right(target, BOS), train)
        seen = jf.functional.causal_mask(target.shape[1])
        x, _ = self.write(x, memory, seen, mask, train=train)
        return self.tokens.logits(x)


def mean_loss(model, params, source, target):
    logits, real = model.apply({"params": params}, source, target), target != PAD
    total, count = jf.functional.cross_entropy(logits, target, real, smoothing=0.1)
    return total / count, logits


def train(model, params, batches, warmup_steps):
    """Update once a batch; return losses, parameters, first logits and gradients."""
    schedule = jf.training.paper_schedule(model.layer.d_model, warmup_steps)
    optimizer = optax.adam(schedule, b1=0.9, b2=0.98, eps=1e-9)

    @jax.jit
    def step(params, state, source, target):
        differentiate = jax.value_and_grad(mean_loss, argnums=1, has_aux=True)
        (loss, logits), gradients = differentiate(model, params, source, target)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss, (logits, gradients)

    losses, first, state = [], None, optimizer.init(params)
    for source, target in batches:
        params, state, loss, own = step(params, state, source, target)
        first = first or own
        losses.append(float(loss))
    return losses, params, first
