"""A classifier in plain JAX and optax: one layer of the Transformer from functions,
with our loss.

Each sequence contains the tokens 1 and 2 once. The classifier predicts which is first;
only positions tell.

    python docs/examples/plain_jax_classifier.py
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxformer as jf

PAD, VOCABULARY, LENGTH, CLASSES = 0, 10, 12, 2
D_MODEL, HEADS, D_FF = 32, 4, 64
STEPS, BATCH = 200, 32


def init(key):
    """Draw the parameters: a plain dict, in the layout that the functions document."""
    keys = jax.random.split(key, 4)
    return {
        "table": jf.functional.init_embedding(keys[0], (VOCABULARY, D_MODEL)),
        "attention": jf.functional.init_multi_head_attention(keys[1], D_MODEL, HEADS),
        "attention_norm": jf.functional.init_layer_norm(D_MODEL),
        "feed_forward": jf.functional.init_feed_forward(keys[2], D_MODEL, D_FF),
        "feed_forward_norm": jf.functional.init_layer_norm(D_MODEL),
        "classes": jf.functional.init_linear(keys[3], (D_MODEL, CLASSES)),
    }


def classify(params, tokens):
    """Give each sequence [B, S] the logits of its classes [B, 2]."""
    x = jf.functional.embed(params["table"], tokens) + jf.functional.sinusoidal(
        jnp.arange(LENGTH), D_MODEL
    )
    attended, _ = jf.functional.multi_head_attention(
        params["attention"], x, x, jf.functional.padding_mask(tokens, PAD)
    )
    x = jf.functional.layer_norm(x + attended, **params["attention_norm"])
    x = jf.functional.layer_norm(
        x + jf.functional.feed_forward(params["feed_forward"], x),
        **params["feed_forward_norm"],
    )
    real = (tokens != PAD)[..., None]
    mean = (x * real).sum(axis=1) / real.sum(axis=1)
    return jf.functional.linear(mean, **params["classes"])


def draw_batch(seed):
    """Draw sequences of 6 to 12 tokens with one 1 and one 2, and say where 1 comes
    first.
    """
    random = np.random.default_rng(seed)
    tokens = random.integers(3, VOCABULARY, (BATCH, LENGTH))
    lengths = random.integers(6, LENGTH + 1, BATCH)
    tokens[np.arange(LENGTH) >= lengths[:, None]] = PAD
    for row, length in enumerate(lengths):
        tokens[row, random.choice(length, 2, replace=False)] = 1, 2
    return tokens, ((tokens == 1).argmax(axis=1) < (tokens == 2).argmax(axis=1)).astype(
        int
    )


def loss(params, tokens, classes):
    """Return the mean cross-entropy, and how many of a batch are right."""
    logits = classify(params, tokens)
    total, count = jf.functional.cross_entropy(logits, classes)
    right, _ = jf.functional.correct(logits, classes)
    return total / count, right / count


def main():
    """Train on sequences drawn for each step; evaluate on others."""
    optimizer = optax.adam(
        jf.training.cosine_schedule(peak=3e-3, warmup_steps=40, steps=STEPS)
    )
    params = init(jax.random.key(0))
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens, classes):
        gradients, _ = jax.grad(loss, has_aux=True)(params, tokens, classes)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    for number in range(STEPS + 1):
        if number % STEPS == 0:
            right = np.mean(
                [
                    jax.jit(loss)(params, *draw_batch(10_000 + held_out))[1]
                    for held_out in range(8)
                ]
            )
            print(f"after {number} steps {right:.0%} of held-out sequences are right")
        params, state = step(params, state, *draw_batch(number))


if __name__ == "__main__":
    main()
