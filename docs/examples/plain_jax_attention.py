"""Attention, masks and positions as functions on arrays, with a plain dict of
parameters.

Two sentences of different length attend to themselves, causally. Checks then show the
effect of the masks.

    python docs/examples/plain_jax_attention.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxformer as jf

PAD, D_MODEL, HEADS, WIDTH = 0, 16, 4, 4


@jax.jit
def attend(params, table, tokens):
    """Return the output [B, T, D] and the weights [B, H, T, T] of causal
    self-attention.
    """
    places = jnp.arange(tokens.shape[1])
    x = jf.functional.embed(table, tokens) + jf.functional.sinusoidal(places, D_MODEL)
    mask = jf.functional.combine(
        # [B, 1, 1, S]: no position sees padding
        jf.functional.padding_mask(tokens, PAD),
        # [1, 1, T, T]: nor what comes after it
        jf.functional.causal_mask(tokens.shape[1]),
    )
    return jf.functional.multi_head_attention(params, x, x, mask)


def attend_by_hand(query, key, value, mask):
    """Write softmax(Q K^T / sqrt(d_k)) V out, head by head, in NumPy and float64."""
    output = np.zeros((*query.shape[:3], value.shape[3]))
    for row, head in np.ndindex(query.shape[0], query.shape[2]):
        scores = query[row, :, head] @ key[row, :, head].T / np.sqrt(query.shape[3])
        scores[~mask] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        output[row, :, head] = (
            weights / weights.sum(axis=1, keepdims=True) @ value[row, :, head]
        )
    return output


def main():
    """Attend, and check."""
    params_key, table_key, key = jax.random.split(jax.random.key(0), 3)
    params = jf.functional.init_multi_head_attention(params_key, D_MODEL, HEADS)
    table = jf.functional.init_embedding(table_key, (10, D_MODEL))
    tokens = jnp.array([[5, 6, 7, 8, 9], [5, 6, 7, PAD, PAD]])

    output, weights = attend(params, table, tokens)
    print("output", output.shape, "weights", weights.shape)
    print("first head of the short sentence, what each position attends to:")
    print(
        np.array2string(np.asarray(weights[1, 0, :3]), precision=2, floatmode="fixed")
    )

    print("weights add up to 1:", np.allclose(weights.sum(-1), 1))
    print("none on padding:", not np.asarray(weights)[1, :, :, 3:].any())
    print(
        "the same without the padding:",
        np.allclose(
            attend(params, table, tokens[1:, :3])[0], output[1:, :3], atol=1e-5
        ),
    )
    later = attend(params, table, tokens.at[0, 4].set(5))[0]
    print(
        "a later token changes nothing before it:",
        np.allclose(later[0, :4], output[0, :4], atol=1e-5),
    )

    query, memory, value = (
        jax.random.normal(own, (2, 5, HEADS, WIDTH)) for own in jax.random.split(key, 3)
    )
    found, _ = jf.functional.dot_product_attention(
        query, memory, value, jf.functional.causal_mask(5)
    )
    expected = attend_by_hand(
        *(np.asarray(x, np.float64) for x in (query, memory, value)),
        np.tri(5, dtype=bool),
    )
    print("as the formula, by hand:", np.allclose(found, expected, atol=1e-5))


if __name__ == "__main__":
    main()
