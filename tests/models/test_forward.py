"""The whole forward pass and its gradient against a plain float64 Transformer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_model, make_sentences, run, same

from jaxformer.models import shift_right


def attention_64(params, x, memory, allowed):
    """Attend with every head of one sentence; ``allowed`` is [T, S]."""
    heads = []
    for h in range(params["query"]["kernel"].shape[1]):
        query, key, value = (
            source @ params[name]["kernel"][:, h] + params[name]["bias"][h]
            for name, source in (("query", x), ("key", memory), ("value", memory))
        )
        scores = np.where(allowed, query @ key.T / math.sqrt(query.shape[1]), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(weights / weights.sum(1, keepdims=True) @ value)
    kernel = params["output"]["kernel"]
    return (
        np.concatenate(heads, 1) @ kernel.reshape(-1, kernel.shape[2])
        + params["output"]["bias"]
    )


def feed_forward_64(params, x, activation):
    hidden = x @ params["inner"]["kernel"] + params["inner"]["bias"]
    silu = activation == "silu"
    hidden = hidden / (1 + np.exp(-hidden)) if silu else np.maximum(hidden, 0)
    return hidden @ params["outer"]["kernel"] + params["outer"]["bias"]


def norm_64(params, x):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * params["scale"]
        + params["bias"]
    )


def stack_64(config, params, x, sublayers):
    """Run every layer, whose sub-layers are functions of (their parameters, input)."""
    for i in range(len([name for name in params if name.startswith("layer_")])):
        layer = params[f"layer_{i}"]
        for name, function in sublayers:
            norm = layer[f"{name}_residual"]["norm"]
            if config.norm_order == "post":
                x = norm_64(norm, x + function(layer[name], x))
            else:
                x = x + function(layer[name], norm_64(norm, x))
    return norm_64(params["norm"], x) if config.norm_order == "pre" else x


def root_64(config):
    return math.sqrt(config.d_model) if config.scale_embedding else 1.0


def positions_64(config, params, length):
    if config.positions == "learned":
        return params["table"][:length] * root_64(config)
    table = np.zeros((length, config.d_model))
    for p, i in np.ndindex(length, config.d_model // 2):
        angle = p / 10_000 ** (2 * i / config.d_model)
        apart = config.positions == "sinusoidal_concatenated"
        columns = [i, config.d_model // 2 + i] if apart else [2 * i, 2 * i + 1]
        table[p, columns] = math.sin(angle), math.cos(angle)
    return table


def transformer_64(config, params, source, target):
    """Predict one sentence without any padding, all in float64: logits [T, V]."""
    if config.tied_embeddings == "all":
        tables = [params["embedding"]["table"]] * 2
    else:
        tables = [
            params[name]["table"] for name in ("source_embedding", "target_embedding")
        ]
    places = [params.get(name) for name in ("source_positions", "target_positions")]
    root = root_64(config)
    x = tables[0][source] * root + positions_64(config, places[0], len(source))
    everything = np.ones((len(source), len(source)), bool)
    feed = ("feed_forward", lambda p, x: feed_forward_64(p, x, config.activation))
    look = ("self_attention", lambda p, x: attention_64(p, x, x, everything))
    memory = stack_64(config, params["encoder"], x, [look, feed])
    inputs = [config.bos_id, *target[:-1]]
    x = tables[1][inputs] * root + positions_64(config, places[1], len(target))
    causal = np.tri(len(target), dtype=bool)
    look = ("self_attention", lambda p, x: attention_64(p, x, x, causal))
    ask = (
        "cross_attention",
        lambda p, x: attention_64(
            p, x, memory, np.ones((len(target), len(source)), bool)
        ),
    )
    x = stack_64(config, params["decoder"], x, [look, ask, feed])
    logits = x @ (params["output"] if config.tied_embeddings == "none" else tables[1]).T
    return logits + params["logits"]["bias"] if config.output_bias else logits


def sentences_64(config, params, source, target):
    """Return the logits of each sentence at its real positions, as a list."""
    found = []
    for s, t in zip(np.asarray(source), np.asarray(target), strict=True):
        found.append(
            transformer_64(
                config, params, list(s[s != config.pad_id]), list(t[t != config.pad_id])
            )
        )
    return found


SETTINGS = {
    "paper": {"num_decoder_layers": 2},
    "pre, learned, unscaled, untied": {
        "norm_order": "pre",
        "num_encoder_layers": 2,
        "positions": "learned",
        "scale_embedding": False,
        "tied_embeddings": "none",
        "source_vocabulary_size": 17,
        "output_bias": True,
    },
    "widths, Marian's positions": {
        "num_heads": 3,
        "d_k": 5,
        "d_v": 2,
        "activation": "silu",
        "positions": "sinusoidal_concatenated",
        "tied_embeddings": "target",
        "source_vocabulary_size": 17,
        "output_bias": True,
        "bos_id": 0,
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_model_equals_a_plain_transformer(settings):
    """A padded batch has the logits and the loss of a loop in float64 without masks;
    its gradient is that of central differences. Attention weights sum to 1 over the
    allowed keys and are 0 elsewhere.
    """
    model, params = make_model(1, **settings)
    source_size = model.config.source_vocabulary_size or 13
    source = make_sentences(2, [5, 2, 4], size=source_size)
    target = make_sentences(3, [3, 6, 1])
    value, gradient, logits, weights = run(model, params, source, target)

    def loss_64(params):
        total = 0.0
        rows = sentences_64(model.config, params, source, target)
        for logits, tokens in zip(rows, target, strict=True):
            log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            for t, row in enumerate(log_probabilities):
                wanted = np.full(13, 0.1 / 12)
                wanted[tokens[t]] = 0.9
                total -= (wanted * row).sum()
        return total

    wide = jax.tree.map(lambda x: x.astype(np.float64), params)
    rows = sentences_64(model.config, wide, source, target)
    for row, expected in zip(logits, rows, strict=True):
        same(row[: len(expected)], expected)
    np.testing.assert_allclose(value, loss_64(wide), rtol=1e-5)
    rng = np.random.default_rng(7)
    leaves, tree = jax.tree.flatten(wide)
    for _ in range(3):
        direction = [rng.normal(size=leaf.shape) for leaf in leaves]
        moved = zip(leaves, direction, strict=True)
        moved = [(leaf + 1e-6 * d, leaf - 1e-6 * d) for leaf, d in moved]
        ahead, behind = (loss_64(tree.unflatten(x)) for x in zip(*moved, strict=True))
        pairs = zip(jax.tree.leaves(gradient), direction, strict=True)
        terms = [np.asarray(g, np.float64) * d for g, d in pairs]
        # Rounding is relative to the thousand terms of both signs, not to their sum.
        size = max(math.sqrt(sum((term**2).sum() for term in terms)), 1.0)
        slope = pytest.approx((ahead - behind) / 2e-6, abs=1e-5 * size)
        assert sum(term.sum() for term in terms) == slope

    real = (source != 0)[:, None, None, :]
    inputs = np.pad(target[:, :-1] != 0, ((0, 0), (1, 0)), constant_values=True)
    causal = np.tri(6, dtype=bool) & inputs[:, None, None, :]
    masks = {"encoder": real, "decoder": causal, "cross": real}
    for name, mask in masks.items():
        side = "encoder" if name == "encoder" else "decoder"
        layers = getattr(weights, name)
        assert len(layers) == getattr(model.config, f"num_{side}_layers")
        for found in layers:
            assert found.dtype == jnp.float32
            same(found.sum(-1), np.ones(found.shape[:-1]))
            allowed = np.broadcast_to(mask, found.shape)
            np.testing.assert_array_equal(np.asarray(found) > 0.0, allowed)


def test_the_decoder_sees_the_target_one_position_late():
    """BOS, then every token but the last."""
    shifted = shift_right(jnp.array([[5, 6, 7], [8, 1, 0]]), 2)
    np.testing.assert_array_equal(shifted, [[2, 5, 6], [2, 8, 1]])
