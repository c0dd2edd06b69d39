"""Functions with drawn parameters in the programs of others."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from training.little import assert_trees_close

import jaxformer as jf

F, K = jf.functional, jf.kernels


def layer(x, params):
    y, _ = F.multi_head_attention(
        params[0], x, x, F.causal_mask(5), linear=K.linear, attend=K.attend
    )
    y = F.feed_forward(params[1], x + y)
    return F.layer_norm(x + y, **params[2]), None


def loop(x, params, layer=layer):
    for number in range(3):
        x, _ = layer(x, jax.tree.map(lambda each: each[number], params))  # noqa: B023
    return x


def mesh(x, params):
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return loop(jax.lax.with_sharding_constraint(x, rows), params)


def module(x, params):
    layers = nnx.Dict(params=nnx.data(jax.tree.map(nnx.Param, params)))
    return nnx.remat(lambda own: loop(x, own.params))(layers)


@pytest.mark.parametrize(
    "run",
    [
        mesh,
        module,
        lambda x, params: jax.lax.scan(layer, x, params)[0],
        lambda x, params: jax.vmap(lambda row: loop(row[None], params)[0])(x),
        lambda x, params: loop(x, params, jax.checkpoint(layer)),
    ],
    ids=["mesh", "nnx", "scan", "vmap", "remat"],
)
@pytest.mark.usefixtures("unchecked")
def test_values_and_gradients_are_those_of_a_loop(run):
    keys = jax.random.split(jax.random.key(0), 3)
    draw = lambda key: (  # noqa: E731
        F.init_multi_head_attention(key, 16, 4, num_key_value_heads=2),
        F.init_feed_forward(key, 16, 32, gated=True, biases=False),
        F.init_layer_norm(16),
    )
    given = jax.random.normal(keys[0], (4, 5, 16)), jax.vmap(draw)(keys)
    found, expected = (
        jax.jit(jax.value_and_grad(lambda *x: jnp.sin(how(*x)).mean(), (0, 1)))(*given)  # noqa: B023
        for how in (run, loop)
    )
    assert_trees_close(found, expected, atol=1e-6)
