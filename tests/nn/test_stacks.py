"""Stacks whose layers are scanned, beside those whose layers are looped."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer.nn import Decoder, Encoder, LayerConfig

LITTLE = {"d_model": 32, "num_heads": 2, "d_ff": 8}


@pytest.mark.parametrize("scan", [False, True], ids=["looped", "scanned"])
@pytest.mark.parametrize("rematerialization", ["none", "layer", "dots"])
def test_every_layer_draws_masks_of_its_own(scan, rematerialization):
    """Four layers that add 1 each, kept with probability .5, add up to 0, 2, 4, 6 and
    8; had they one mask, to 0 and 8 alone. Without training nothing is dropped,
    whatever the key.
    """
    config = LayerConfig(**LITTLE, norm_order="pre", dropout_rate=0.5)
    encoder = Encoder(config, 4, rematerialization, scan)
    x = jnp.zeros((2, 9, 32))

    def ones(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return jnp.full(leaf.shape, float(name.endswith(("outer/bias", "norm/scale"))))

    params = jax.tree_util.tree_map_with_path(
        ones, jax.eval_shape(encoder.init, jax.random.key(0), x)["params"]
    )

    @functools.partial(jax.jit, static_argnums=1)
    def run(seed, train):
        return encoder.apply(
            {"params": params}, x, train=train, rngs={"dropout": jax.random.key(seed)}
        )[0]

    found = np.asarray(run(0, True))
    # the final norm moves and scales the five sums of a position, and leaves them apart
    sums = [len(np.unique(row.round(4))) for row in found.reshape(-1, 32)]
    assert max(sums) == 5
    assert min(sums) > 2
    np.testing.assert_array_equal(found, run(0, True))
    assert (found != np.asarray(run(1, True))).any()
    np.testing.assert_array_equal(run(0, False), run(1, False))
    np.testing.assert_array_equal(run(0, False), np.zeros(x.shape))


@pytest.mark.parametrize("order", ["post", "pre"])
def test_the_norms_of_scanned_stacks(order):
    """Scanned or looped, post-LN has a norm a sub-layer and no other, pre-LN one
    more, of no layer.
    """
    config = LayerConfig(**LITTLE, norm_order=order)
    x = jax.ShapeDtypeStruct((1, 2, 32), jnp.float32)
    for stack, inputs, sublayers in ((Encoder, (x,), 2), (Decoder, (x, x, None), 3)):
        params = jax.eval_shape(
            stack(config, 5, scan=True).init, jax.random.key(0), *inputs
        )["params"]
        scales = {
            jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
            if path[-1].key == "scale"
        }
        assert scales.pop("norm/scale", None) == (None if order == "post" else (32,))
        assert list(scales.values()) == [(5, 32)] * sublayers


def test_an_unknown_rematerialization_is_named():
    """With those that there are."""
    encoder = Encoder(
        LayerConfig(d_model=8, num_heads=2, d_ff=8), 1, rematerialization="full"
    )
    with pytest.raises(InputError, match="one of none, layer, dots, not 'full'"):
        encoder.init(jax.random.key(0), jnp.ones((1, 2, 8)))
