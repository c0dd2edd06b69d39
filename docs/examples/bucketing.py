"""Length buckets in an input pipeline of one's own: few static shapes, little padding,
NumPy alone.

The lengths are drawn as those of sentences fall: most are short, and one that is long
would make all others long.

    python docs/examples/bucketing.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxformer as jf

PAD, EOS, PAIRS, TOKENS_PER_BATCH = 0, 1, 5000, 2048


def draw_pairs(random):
    """Draw pairs of token sequences with the lengths of sentences: mostly short,
    some long.
    """
    lengths = np.clip(random.lognormal(2.7, 0.6, PAIRS), 1, 90).astype(int)
    others = np.clip(lengths * random.normal(1.1, 0.15, PAIRS), 1, 99).astype(int)
    sides = (
        [random.integers(2, 1000, length) for length in side]
        for side in (lengths, others)
    )
    return jf.data.Encoded(
        *(jf.data.Sentences.from_lists(side, PAD, last=EOS) for side in sides)
    )


def batches(pairs, num_buckets, random):
    """Return every pair once, in batches of at most ``num_buckets`` shapes, in random
    order.
    """
    lengths = pairs.source_lengths, pairs.target_lengths
    buckets = jf.data.plan_buckets(
        *lengths, num_buckets=num_buckets, tokens_per_batch=TOKENS_PER_BATCH
    )
    epoch = jf.data.group(
        jf.data.assign(buckets, *lengths), random.permutation(len(pairs)), buckets
    )
    for number in random.permutation(len(epoch)):
        yield jf.data.make_batch(
            pairs.take(epoch.pairs(number)), buckets[epoch.shapes[number]]
        )


def main():
    """Measure the padding, and count how often a step is compiled."""
    pairs = draw_pairs(np.random.default_rng(0))
    real = int(pairs.source_lengths.sum() + pairs.target_lengths.sum())
    for num_buckets in (1, 4, 8):
        epoch = list(batches(pairs, num_buckets, np.random.default_rng(1)))
        slots = sum(batch["source"].size + batch["target"].size for batch in epoch)
        print(
            f"{num_buckets} buckets: {len(epoch)} batches, {1 - real / slots:.0%} of"
            " the slots are padding"
        )

    traced = []

    @jax.jit
    def count_tokens(batch):
        traced.append(batch["source"].shape)
        return sum(jnp.sum(side != PAD) for side in batch.values())

    counted = sum(int(count_tokens(batch)) for batch in epoch)
    print(f"{counted} tokens of {real} came through {len(traced)} compiled shapes:")
    print(sorted(traced))


if __name__ == "__main__":
    main()
