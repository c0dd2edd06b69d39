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
    def __init__(self, vocabulary_size, layer, *, rngs):
        def bridged(module, *given):
            return bridge.ToNNX(module, rngs=rngs).lazy_init(*given)

        self.width = layer.d_model
        x, mask = jnp.zeros((1, 1, self.width)), jnp.ones((1, 1, 1, 1), bool)
        table = jf.nn.Embedding(vocabulary_size, self.width)
        self.tokens = bridged(table, jnp.zeros((1, 1), jnp.int32))
        self.reader = bridged(jf.nn.Encoder(layer, 1), x)
        self.writer = bridged(jf.nn.Decoder(layer, 1), x, x, mask)

    def embed(self, tokens):
        places = jf.functional.sinusoidal(jnp.arange(tokens.shape[1]), self.width)
        return self.tokens(tokens) + places[None]

    def __call__(self, source, target, *, train=False):
        mask = jf.functional.padding_mask(source, PAD)
        memory, _ = self.reader(self.embed(source), mask, train=train)
        x = self.embed(jf.models.shift_right(target, BOS))
        seen = jf.functional.causal_mask(target.shape[1])
        x, _ = self.writer(x, memory, seen, mask, train=train)
        return self.tokens.logits(x)


def mean_loss(model, source, target):
    logits, real = model(source, target), target != PAD
    total, count = jf.functional.cross_entropy(logits, target, real, smoothing=0.1)
    return total / count, logits


@nnx.jit
def step(model, optimizer, source, target):
    differentiate = nnx.value_and_grad(mean_loss, has_aux=True)
    (loss, logits), gradients = differentiate(model, source, target)
    optimizer.update(model, gradients)
    return loss, (logits, gradients)


def train(model, params, batches, warmup_steps):
    """Update once a batch; return as the other project does."""
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
