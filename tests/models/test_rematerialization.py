"""Rematerialization: the same numbers while less is kept."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from models.little import KEY, make_model, make_sentences, program

from jaxformer.nn.stacks import REMATERIALIZATIONS

RATES = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2}
RATES |= {"activation_dropout_rate": 0.1}
SOURCE, TARGET = make_sentences(1, [5, 2]), make_sentences(2, [3, 4])


def gradient(model, params, source, target, key):
    return program(model, params, source, target, key=key)[:2]


def same(found, expected, tolerance=2e-6):
    """Compare up to rounding, which is relative to the largest entry of an array."""

    def compare(x, y):
        least = tolerance * max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=least)

    jax.tree.map(compare, found, expected)


def make(kind, scan=False, **settings):
    settings = RATES | settings | {"rematerialization": kind, "scan_layers": scan}
    return make_model(0, **settings)


def test_scanned_layers_on_a_mesh():
    """With sharded parameters and rows, the gradient is that of one device without
    rematerialization.
    """
    rates = dict.fromkeys(RATES, 0.0) | {"dropout_rate": 0.3}
    (plain, params), (model, _) = (
        make(kind, True, norm_order="pre", **rates) for kind in ("none", "dots")
    )
    expected = gradient(plain, params, SOURCE, TARGET, KEY)
    kinds = {"axis_types": (AxisType.Auto,) * 2, "devices": jax.devices()[:4]}
    mesh = jax.make_mesh((2, 2), ("data", "fsdp"), **kinds)

    def place(leaf):
        last = leaf.ndim - 1
        axes = [
            "fsdp" if n == 8 and i == last else None for i, n in enumerate(leaf.shape)
        ]
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    sharded = jax.tree.map(place, params)
    assert not all(x.sharding.is_fully_replicated for x in jax.tree.leaves(sharded))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    batch = jax.device_put((SOURCE, TARGET), rows)
    # The devices add in another order.
    same(gradient(model, sharded, *batch, KEY), expected, tolerance=1e-5)


def test_less_is_kept():
    """What waits for the backward pass shrinks from none to dots to layer."""
    pair = [jnp.asarray(make_sentences(seed, [12] * 4)) for seed in (1, 2)]

    def size(tree):
        leaves = jax.tree.leaves(tree)
        floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(x.size * x.dtype.itemsize for x in floats)

    sizes = {}
    for kind in REMATERIALIZATIONS:
        model, params = make(kind, True, num_encoder_layers=3, dtype="bfloat16")

        def residuals(params, model=model):
            more = {"train": True, "rngs": {"dropout": KEY}}
            apply = lambda params: model.apply({"params": params}, *pair, **more)  # noqa: E731
            return jax.vjp(apply, params)[1]

        sizes[kind] = size(jax.eval_shape(residuals, params)) - size(params)
    assert sizes["layer"] < 0.5 * sizes["dots"] < 0.5 * sizes["none"]
