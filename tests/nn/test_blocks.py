"""Layers and stacks: what they draw, and what they refuse."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import Decoder, Encoder, LayerConfig

SIZES = {"d_model": 32, "num_heads": 2, "d_ff": 8}


@pytest.mark.parametrize(
    ("scan", "rematerialization"), [(False, "layer"), (True, "none"), (True, "dots")]
)
def test_every_layer_draws_masks_of_its_own(scan, rematerialization):
    """Four layers that add 1 each, kept with probability .5, add up to 0, 2, 4, 6 and
    8; with one mask they would to 0 and 8 only.
    """
    config = LayerConfig(**SIZES, norm_order="pre", dropout_rate=0.5)
    encoder = Encoder(config, 4, rematerialization, scan)
    x = jnp.zeros((2, 9, 32))

    def ones(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        value = float(name.endswith(("outer/bias", "norm/scale")))
        return np.full(leaf.shape, value, np.float32)

    shapes = jax.eval_shape(encoder.init, jax.random.key(0), x)["params"]
    params = jax.tree_util.tree_map_with_path(ones, shapes)

    @functools.partial(jax.jit, static_argnums=2)
    def apply(params, key, train):
        rngs = {"dropout": key}
        return encoder.apply({"params": params}, x, train=train, rngs=rngs)[0]

    def run(seed, train):
        return apply(params, jax.random.key(seed), train)

    found = np.asarray(run(0, True))
    # The final norm moves and scales the five sums of a position, and separates them.
    sums = [len(np.unique(row.round(4))) for row in found.reshape(-1, 32)]
    assert max(sums) == 5
    assert min(sums) > 2
    np.testing.assert_array_equal(found, run(0, True))
    assert (found != np.asarray(run(1, True))).any()
    np.testing.assert_array_equal(run(0, False), np.zeros(x.shape))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"activation": "swish"}, "activation must be one of relu, "),
        ({"d_model": 30, "num_heads": 4}, "d_model 30 is not divisible by num_heads 4"),
        ({"num_heads": 0}, "num_heads must be at least 1, not 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 must divide num_heads 8"),
        ({"rotary_base": 1e4, "d_k": 3}, "an even d_k, the width of a head, not 3"),
        ({"attention_window": 0}, "attention_window must be at least 1, not 0"),
        ({"dropout_rate": 1.0}, "dropout_rate must be at least 0 and below 1, not 1.0"),
    ],
)
def test_impossible_layers_are_refused(settings, line):
    with pytest.raises(InputError, match=re.escape(line)):
        LayerConfig(**settings)
    assert LayerConfig(d_model=30, num_heads=4, d_k=7, d_v=7).d_k == 7


@pytest.mark.parametrize(
    ("scan", "rematerialization"), [(False, "none"), (True, "layer")]
)
def test_dropped_layers_leave_their_residual_connection(scan, rematerialization):
    """Each row draws for itself in each sub-layer of each layer; those that add 1 add 0
    or 2. Without training nothing is dropped.
    """
    config = LayerConfig(
        **SIZES, norm_order="pre", dropout_rate=0.0, layer_drop_rate=0.5
    )
    encoder = Encoder(config, 3, rematerialization, scan)
    x = jnp.zeros((64, 2, 32))

    def adds_one(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        # The first feature, which the final norm leaves apart from the others.
        bias = np.zeros(leaf.shape, np.float32)
        bias[..., 0] = name.endswith("outer/bias")
        return bias + name.endswith("norm/scale")

    shapes = jax.eval_shape(encoder.init, jax.random.key(0), x)["params"]
    params = jax.tree_util.tree_map_with_path(adds_one, shapes)

    @functools.partial(jax.jit, static_argnums=1)
    def run(params, train):
        def output(params):
            given, rngs = {"params": params}, {"dropout": jax.random.key(3)}
            return encoder.apply(given, x, train=train, rngs=rngs)[0]

        slope = jax.grad(lambda params: (output(params) ** 2).sum())
        return output(params), slope(params)

    found, slope = run(params, True)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    rows = np.asarray(found)
    np.testing.assert_array_equal(rows[:, 0], rows[:, 1])
    # Sums of 0, 2, 4 and 6: the norm maps every sum but 0 to nearly the same.
    none = (np.abs(rows[:, 0, 0]) < 1e-3).mean()
    assert 0 < none < 0.35
    whole, _ = run(params, False)
    assert (np.asarray(whole)[..., 0] > 1).all()


def test_an_unknown_rematerialization_is_refused():
    with pytest.raises(InputError, match="one of none, layer, dots, not 'full'"):
        Encoder(LayerConfig(), 1, "full").init(jax.random.key(0), None)


def test_a_decoder_is_causal_and_sees_the_whole_memory_by_default():
    x, memory = jax.random.normal(jax.random.key(1), (2, 2, 5, 32))
    decoder = Decoder(LayerConfig(**SIZES), 1)
    (found, _), variables = decoder.init_with_output(jax.random.key(0), x, memory)
    everything = jnp.ones((1, 1, 1, 1), bool)
    expected, _ = decoder.apply(variables, x, memory, F.causal_mask(5), everything)
    np.testing.assert_array_equal(found, expected)
