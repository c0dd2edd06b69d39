"""Little models with parameters that are drawn, not initialised: no compilation, and
no zeros or ones among them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import Transformer, TransformerConfig

LITTLE = {
    "vocabulary_size": 13,
    "d_model": 8,
    "d_ff": 12,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dropout_rate": 0.0,
    "max_length": 16,
}


@pytest.fixture
def make_model():
    """Return a function that makes a little Transformer with the settings it is given,
    and its parameters.
    """

    def make(seed=0, **settings):
        model = Transformer(TransformerConfig(**(LITTLE | settings)))
        token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
        rng = np.random.default_rng(seed)

        def draw(path, leaf):
            drawn = 0.3 * rng.normal(size=leaf.shape).astype(np.float32)
            return jnp.asarray(drawn + np.float32(path[-1].key == "scale"))

        return model, jax.tree_util.tree_map_with_path(draw, shapes)

    return make


@pytest.fixture
def make_sentences():
    """Return a function that draws sentences of the given lengths, padded with 0 on
    the right, without 0 to 2 inside.
    """

    def make(seed, lengths, width=None, size=13):
        rng = np.random.default_rng(seed)
        width = width or max(lengths)
        tokens = rng.integers(3, size, size=(len(lengths), width))
        return jnp.asarray(
            np.where(
                np.arange(width)[None] < np.array(lengths)[:, None], tokens, 0
            ).astype(np.int32)
        )

    return make


@pytest.fixture(autouse=True)
def _compile_quickly(request):
    """Compile without optimisations: nearly all the time of these tests is
    compilation, and the values are the same.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", "slow" not in request.keywords)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
