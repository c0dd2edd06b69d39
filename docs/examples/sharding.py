"""Our encoder in your own model, over a mesh of devices: the names of their axes shard
the parameters.

Eight virtual devices of the CPU stand in for eight accelerators: four share the rows of
a batch, and each of these is two that share heads and hidden units. The compiler adds
what they exchange, and the numbers are those of one device.

    python docs/examples/sharding.py
"""

import os

# before JAX is imported
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxformer as jf

# any other axis of a parameter is whole on every device
RULES = {"heads": "tensor", "hidden": "tensor"}
LAYER = jf.nn.LayerConfig(d_model=32, num_heads=4, d_ff=64, dropout_rate=0.0)


class Regression(nn.Module):
    """Gives each sequence a number."""

    @nn.compact
    def __call__(self, x):
        """Encode sequences [B, S, D] and map their means to numbers [B]."""
        x, _ = jf.nn.Encoder(LAYER, num_layers=1, name="encoder")(x)
        return nn.Dense(1, name="head")(x.mean(axis=1))[:, 0]


def shardings(params, mesh):
    """Say where each parameter lies: ours by their logical axes, all others on every
    device.
    """

    def of(axes):
        return NamedSharding(mesh, PartitionSpec(*(RULES.get(axis) for axis in axes)))

    whole = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), params)
    axes = jf.models.logical_axes(params["encoder"])
    return {
        **whole,
        "encoder": jax.tree.map(of, axes, is_leaf=lambda node: isinstance(node, tuple)),
    }


def main():
    """Make one update on one device and on the mesh, and compare."""
    model = Regression()
    x, y = (
        jax.random.normal(jax.random.key(1), (16, 6, 32)),
        jnp.linspace(-1.0, 1.0, 16),
    )
    params = jax.jit(model.init)(jax.random.key(0), x)["params"]

    def step(params, x, y):
        loss, gradients = jax.value_and_grad(
            lambda own: jnp.square(model.apply({"params": own}, x) - y).mean()
        )(params)
        return (
            jax.tree.map(lambda old, gradient: old - 0.1 * gradient, params, gradients),
            loss,
        )

    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    places, rows = shardings(params, mesh), NamedSharding(mesh, PartitionSpec("data"))
    sharded_step = jax.jit(
        step, in_shardings=(places, rows, rows), out_shardings=(places, None)
    )
    found, loss = sharded_step(
        jax.device_put(params, places), *jax.device_put((x, y), rows)
    )
    expected, expected_loss = jax.jit(step)(params, x, y)

    kernel = found["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
    print(
        f"{mesh.size} devices, a kernel {kernel.shape} lies in parts"
        f" {kernel.addressable_shards[0].data.shape}"
    )
    heads = found["encoder"]["layer_0"]["self_attention"]["query"]["kernel"]
    print(
        f"queries {heads.shape} lie in parts {heads.addressable_shards[0].data.shape}"
    )
    close = jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-5), found, expected)
    print(
        "one device and the mesh agree:",
        np.allclose(loss, expected_loss),
        all(jax.tree.leaves(close)),
    )


if __name__ == "__main__":
    main()
