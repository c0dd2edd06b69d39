"""Small models with drawn parameters, and the programs that the tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import Transformer, TransformerConfig
from jaxformer import functional as F

LITTLE = {"vocabulary_size": 13, "d_model": 8, "d_ff": 12, "num_heads": 2}
LITTLE |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
LITTLE |= {"dropout_rate": 0.0, "max_length": 16}
# Blocks later than the paper, as of today's decoders, T5 and ALiBi.
LATER = {
    "rotary, grouped, windowed": {
        "norm": "rms",
        "norm_order": "pre",
        "positions": "rotary",
        "num_heads": 4,
        "d_k": 4,
        "num_key_value_heads": 2,
        "activation": "swiglu",
        "biases": False,
        "query_key_norm": True,
        "attention_window": 3,
    },
    "relative bias, gated": {
        "norm": "rms",
        "norm_order": "pre",
        "positions": "none",
        "position_bias": "relative",
        "activation": "geglu",
        "biases": False,
        "scale_embedding": False,
    },
    "alibi, one head of keys": {
        "positions": "none",
        "position_bias": "alibi",
        "num_heads": 3,
        "d_k": 5,
        "d_v": 2,
        "num_key_value_heads": 1,
        "activation": "reglu",
        "embedding_norm": True,
    },
}
# Draws of this kind compile in a fraction of the time.
KEY = jax.random.key(3, impl="unsafe_rbg")


def shapes(config):
    """Return the abstract parameters of a model."""
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    init = Transformer(config).init
    return jax.eval_shape(init, jax.random.key(0), token, token)["params"]


def make_model(seed=0, **settings):
    """Return a small Transformer and parameters without zeros or ones among them."""
    config = TransformerConfig(**LITTLE | settings)
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        drawn = 0.3 * rng.normal(size=leaf.shape).astype(np.float32)
        return drawn + np.float32(path[-1].key == "scale")

    return Transformer(config), jax.tree_util.tree_map_with_path(draw, shapes(config))


def make_sentences(seed, lengths, width=None, size=13):
    """Draw sentences of some lengths, padded on the right with 0, from the ids 3 to
    size - 1.
    """
    width = width or max(lengths)
    tokens = np.random.default_rng(seed).integers(3, size, (len(lengths), width))
    real = np.arange(width)[None] < np.array(lengths)[:, None]
    return np.where(real, tokens, 0).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def program(model, params, source, target, segments=None, key=None):
    """Return loss, gradient, logits and attention weights; a key is for training."""
    more = segments or {}
    if key is not None:
        more = more | {"train": True, "rngs": {"dropout": key}}

    def loss(params):
        logits, weights = model.apply(
            {"params": params}, source, target, **more, method="forward"
        )
        real = target != model.config.pad_id
        total, _ = F.cross_entropy(logits, target, real, smoothing=0.1)
        return total, (logits, weights)

    (value, rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    return value, gradient, *rest


def run(*given, **more):
    """Run the program and bring its results to NumPy."""
    return jax.device_get(program(*given, **more))


def trace(model, params, source, target, **segments):
    """Run only the checks: the tokens are known and nothing is compiled."""
    pair, segments = jax.tree.map(jnp.asarray, ((source, target), segments))
    apply = lambda params: model.apply({"params": params}, *pair, **segments)  # noqa: E731
    jax.eval_shape(apply, params)


def same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
