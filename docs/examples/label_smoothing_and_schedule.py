"""Our loss and our schedule under optax, for a table of logits.

A loss is a sum and a count, so micro-batches of unequal size add up to the gradient of
the whole batch.

    python docs/examples/label_smoothing_and_schedule.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxformer as jf

PAD, VOCABULARY, SMOOTHING = 0, 8, 0.1


def summed_loss(table, tokens):
    """Predict each token from the one before it; give the sum of the losses and the
    number of targets.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return jf.functional.cross_entropy(
        table[inputs], targets, targets != PAD, smoothing=SMOOTHING
    )


def mean_gradient(table, *parts):
    """Add gradients and counts over parts of a batch, and divide once."""
    differentiate = jax.jit(jax.grad(summed_loss, has_aux=True))
    gradients, counts = zip(
        *(differentiate(table, part) for part in parts), strict=True
    )
    return sum(gradients) / sum(counts)


def main():
    """Show the schedule, add up micro-batches, and train to the lowest loss that
    smoothing allows.
    """
    paper = jf.training.paper_schedule(d_model=512, warmup_steps=4000)
    # optax counts the updates made before
    for update in (1, 1000, 4000, 16_000, 100_000):
        print(f"update {update}: learning rate {paper(update - 1):.2e}")

    # Counting around: after 1 comes 2, and after 7 comes 1.
    rows = 1 + (np.arange(12)[None] + np.arange(7)[:, None]) % 7
    tokens = jnp.asarray(
        np.where(
            np.arange(12) < np.array([[12], [3], [7], [5], [12], [4], [2]]), rows, PAD
        )
    )
    table = jax.random.normal(jax.random.key(0), (VOCABULARY, VOCABULARY))
    whole, parts = (
        mean_gradient(table, tokens),
        mean_gradient(table, tokens[:2], tokens[2:]),
    )
    print("in parts as in one:", np.allclose(whole, parts, atol=1e-6))

    optimizer = optax.adam(
        jf.training.cosine_schedule(peak=0.1, warmup_steps=20, steps=300), b2=0.98
    )
    state = optimizer.init(table)

    @jax.jit
    def step(table, state):
        updates, state = optimizer.update(mean_gradient(table, tokens), state)
        return optax.apply_updates(table, updates), state

    for _ in range(300):
        table, state = step(table, state)
    total, count = summed_loss(table, tokens)
    floor = jf.functional.smoothing_floor(VOCABULARY, SMOOTHING)
    print(f"loss {total / count:.3f}, floor {floor:.3f}")
    on, off = jf.functional.smoothed_probabilities(VOCABULARY, SMOOTHING, "others")
    print(
        f"the true token is to get {on:.2f}, gets {jax.nn.softmax(table[1])[2]:.2f};"
        f" each other {off:.3f}"
    )


if __name__ == "__main__":
    main()
