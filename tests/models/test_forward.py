"""The whole forward pass and its gradient against a plain float64 Transformer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_model, make_sentences, run, same


def linear_64(params, x, head=slice(None)):
    return x @ params["kernel"][:, head] + params["bias"][head]


def attention_64(params, x, memory, allowed=True):
    """Attend with every head of one sentence; ``allowed`` is [T, S]."""
    heads = []
    for h in range(params["query"]["kernel"].shape[1]):
        query = linear_64(params["query"], x, h)
        key, value = (linear_64(params[name], memory, h) for name in ("key", "value"))
        scores = np.where(allowed, query @ key.T / math.sqrt(query.shape[1]), -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(weights / weights.sum(1, keepdims=True) @ value)
    kernel, bias = params["output"]["kernel"], params["output"]["bias"]
    return np.concatenate(heads, 1) @ kernel.reshape(-1, kernel.shape[2]) + bias


def feed_forward_64(params, x, activation):
    x = linear_64(params["inner"], x)
    x = x / (1 + np.exp(-x)) if activation == "silu" else np.maximum(x, 0)
    return linear_64(params["outer"], x)


def norm_64(params, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * params["scale"] + params["bias"]


def stack_64(config, params, x, **sublayers):
    """Run every layer; sub-layers are functions of (their parameters, input)."""
    layers = [params[name] for name in sorted(params) if name.startswith("layer_")]
    for layer in layers:
        for name, function in sublayers.items():
            norm = layer[f"{name}_residual"]["norm"]
            if config.norm_order == "post":
                x = norm_64(norm, x + function(layer[name], x))
            else:
                x = x + function(layer[name], norm_64(norm, x))
    return norm_64(params["norm"], x) if config.norm_order == "pre" else x


def embed_64(config, params, side, tokens):
    x = add_positions_64(config, params, side, tokens)
    norm = params.get(f"{side}_embedding_norm")
    return x if norm is None else norm_64(norm, x)


def add_positions_64(config, params, side, tokens):
    shared = config.tied_embeddings == "all"
    table = params["embedding" if shared else f"{side}_embedding"]["table"]
    width, root = config.d_model, 1.0
    if config.scale_embedding:
        root = math.sqrt(width)
    if config.positions == "learned":
        first = config.position_offset
        places = params[f"{side}_positions"]["table"][first : first + len(tokens)]
        return table[tokens] * root + places * (root if config.scale_positions else 1)
    waves = np.zeros((len(tokens), width))
    for p, i in np.ndindex(len(tokens), width // 2):
        angle = (p + config.position_offset) / 10_000 ** (2 * i / width)
        apart = config.positions == "sinusoidal_concatenated"
        columns = [i, width // 2 + i] if apart else [2 * i, 2 * i + 1]
        waves[p, columns] = math.sin(angle), math.cos(angle)
    return table[tokens] * root + waves


def transformer_64(config, params, source, target):
    """Return the logits [T, V] of one sentence without padding, in float64."""
    feed = lambda p, x: feed_forward_64(p, x, config.activation)  # noqa: E731
    x, encoder = embed_64(config, params, "source", source), params["encoder"]
    look = lambda p, x: attention_64(p, x, x)  # noqa: E731
    memory = stack_64(config, encoder, x, self_attention=look, feed_forward=feed)
    x = embed_64(config, params, "target", [config.bos_id, *target[:-1]])
    causal = np.tri(len(target), dtype=bool)
    x = stack_64(
        config,
        params["decoder"],
        x,
        self_attention=lambda p, x: attention_64(p, x, x, causal),
        cross_attention=lambda p, x: attention_64(p, x, memory),
        feed_forward=feed,
    )
    tables = {"all": "embedding", "target": "target_embedding"}
    table = params[tables.get(config.tied_embeddings, "output")]
    logits = x @ (table if config.tied_embeddings == "none" else table["table"]).T
    return logits + params["logits"]["bias"] if config.output_bias else logits


def sentences_64(config, params, *pair):
    """Return the logits of each sentence at its real positions, as a list."""
    rows = zip(*pair, strict=True)
    real = [[list(side[side != config.pad_id]) for side in row] for row in rows]
    return [transformer_64(config, params, *row) for row in real]


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
    "embedding norm, offset, learned positions unscaled": {
        "positions": "learned",
        "position_offset": 2,
        "scale_positions": False,
        "embedding_norm": True,
        "max_length": 9,
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
