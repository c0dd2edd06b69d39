"""Attention before the Transformer on one task, and why the square root of d_k.

A sentence is a list of letters in any order, each with a number. The decoder asks for
the letter of number 0, 1, 2, ...: only attention can tell where it is.

    python docs/examples/earlier_attention.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxformer as jf

LETTERS, LENGTH, WIDTH = 20, 10, 64
STEPS, BATCH, RATE = 150, 32, 3e-3
KINDS = {
    "additive": "Bahdanau 2015",
    "general": "Luong 2015",
    "dot": "Luong 2015",
    "scaled dot": "Vaswani 2017",
}


class Reader(nn.Module):
    """Ask a memory of letters for one after the other."""

    kind: str

    @nn.compact
    def __call__(self, letters, numbers):
        """Return the logits of the letters in order, and the alignment."""
        unit = nn.initializers.normal(1.0)
        embed = functools.partial(nn.Embed, features=WIDTH, embedding_init=unit)
        memory = embed(LETTERS)(letters) + embed(LENGTH)(numbers)
        places = jnp.broadcast_to(jnp.arange(LENGTH), letters.shape)
        query = embed(LENGTH)(places)
        if self.kind == "scaled dot":
            heads = (x[:, :, None] for x in (query, memory, memory))
            context, weights = jf.functional.dot_product_attention(*heads)
            context, weights = context[:, :, 0], weights[:, 0]
        else:
            attention = jf.nn.EarlierAttention(self.kind, WIDTH)
            context, weights = attention(query, memory)
        return nn.Dense(LETTERS)(context), weights


def draw_sentences(seed, count=BATCH):
    """Draw letters, their numbers, the letters in order, and where each is."""
    random = np.random.default_rng(seed)
    letters = random.integers(0, LETTERS, (count, LENGTH))
    numbers = random.permuted(np.tile(np.arange(LENGTH), (count, 1)), axis=1)
    where = numbers.argsort(axis=1)
    return letters, numbers, np.take_along_axis(letters, where, axis=1), where


def train(kind):
    """Train a reader; return it with its parameters."""
    reader = Reader(kind)
    letters, numbers, *_ = draw_sentences(0)
    params = reader.init(jax.random.key(0), letters, numbers)["params"]
    optimizer = optax.adam(RATE)

    @jax.jit
    def step(params, state, letters, numbers, target):
        def loss(params):
            logits, _ = reader.apply({"params": params}, letters, numbers)
            total, count = jf.functional.cross_entropy(logits, target)
            return total / count

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for number in range(STEPS):
        params, state = step(params, state, *draw_sentences(number)[:3])
    return reader, params


def align(kind):
    """Train a reader; return how many letters it finds, and the weight that it gives
    where they are, with an alignment [LENGTH, LENGTH] to draw.
    """
    reader, params = train(kind)
    letters, numbers, target, where = draw_sentences(10_000, 500)
    logits, weights = jax.jit(reader.apply)({"params": params}, letters, numbers)
    right = (logits.argmax(-1) == target).mean()
    there = np.take_along_axis(np.asarray(weights), where[..., None], axis=2).mean()
    return float(right), float(there), np.asarray(weights[0])


def measure_scale(d_k, divide, keys=10, draws=2000):
    """Return the variance of scores of random queries and keys, and the mean norm of
    the derivative of their softmax.
    """
    random = np.random.default_rng(0)
    query = random.normal(size=(draws, 1, d_k))
    scores = (query * random.normal(size=(draws, keys, d_k))).sum(-1)
    scores /= d_k**0.5 if divide else 1
    weights = np.asarray(jf.functional.masked_softmax(jnp.asarray(scores, jnp.float32)))
    slope = np.eye(keys) * weights[:, None] - weights[:, None] * weights[..., None]
    return scores.var(), np.linalg.norm(slope, axis=(1, 2)).mean()


def main():
    """Print both comparisons."""
    for kind, source in KINDS.items():
        right, there, _ = align(kind)
        print(f"{kind}, {source}: {right:.0%} right, weight {there:.2f} where it is")
    for d_k in (4, 16, 64, 256):
        plain, scaled = (measure_scale(d_k, divide) for divide in (False, True))
        print(
            f"d_k {d_k}: variance {plain[0]:.2f} derivative {plain[1]:.3f},"
            f" divided {scaled[0]:.2f} {scaled[1]:.3f}"
        )


if __name__ == "__main__":
    main()
