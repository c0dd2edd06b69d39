"""Gradients under ``jax.shard_map`` with its default check, and under ``pmap``, against
one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec

from jaxformer import functional as F
from jaxformer.functional.fused_attention import pallas_attention

REPLICATED, ROWS = PartitionSpec(), PartitionSpec("rows")


def plain(params, x, targets, weights):
    logits = F.project_to_vocabulary(params["table"], x, params["bias"])
    return F.cross_entropy(logits, targets, weights, smoothing=0.1)


def chunked(params, x, targets, weights):
    given = x, params["table"], targets, weights, params["bias"]
    sums = F.output_losses(*given, smoothing=0.1, z_loss=0.1, chunk=4)
    return sums.loss, sums.tokens


def layers(params, x, targets, weights):
    """Attention, feed-forward and norm of shared parameters."""
    kernel = params["table"][:8]
    heads, whole = {"kernel": kernel.reshape(8, 2, 4)}, {"kernel": kernel}
    attention = dict.fromkeys(("query", "key", "value"), heads)
    attention["output"] = {"kernel": kernel.reshape(2, 4, 8)}
    x, _ = F.multi_head_attention(attention, x, x)
    for activation, more in (("relu", {}), ("swiglu", {"gate": whole})):
        mapped = {"inner": whole, "outer": whole, **more}
        normal = F.layer_norm(x, params["scale"])
        x = F.feed_forward(mapped, normal, activation=activation)
    return plain(params, x, targets, weights)


def kernel(params, x, targets, weights):
    """Attention by the Pallas kernel, to a memory that all devices share."""
    memory = params["table"][None, :, None].repeat(len(x), 0).astype(x.dtype)
    mask = F.SegmentMask(jnp.ones(memory.shape[:2], jnp.int32))
    x = pallas_attention(x[:, :, None], memory, memory, mask)[:, :, 0]
    return plain(params, x, targets, weights)


@pytest.mark.parametrize(
    ("devices", "dtype", "loss"),
    [
        (8, "float32", plain),
        (4, "float32", chunked),
        (8, "bfloat16", chunked),
        (4, "float32", layers),
        (8, "bfloat16", layers),
        (4, "bfloat16", kernel),
    ],
)
@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
def test_sums_of_devices_are_those_of_one(devices, dtype, loss):
    """Gradient and count summed over the axis and divided are those of one device:
    under ``pmap``, and under ``shard_map`` for parameters that vary. For those that do
    not, JAX has summed the gradient already.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "table": jax.random.normal(keys[0], (11, 8)) / 4,
        "bias": jax.random.normal(keys[1], (11,)),
        "scale": jnp.ones(8),
    }
    x = jax.random.normal(keys[2], (8, 6, 8), dtype)
    targets = jax.random.randint(keys[3], (8, 6), 0, 11)
    weights = jnp.arange(6)[None] < jnp.array([1, 6, 2, 0, 6, 6, 1, 4])[:, None]
    batch = x, targets, weights

    def gradient(params, batch, summed=()):
        with pltpu.force_tpu_interpret_mode():
            found, count = jax.grad(loss, has_aux=True)(params, *batch)
        found = jax.lax.psum(found, "rows") if "gradient" in summed else found
        count = jax.lax.psum(count, "rows") if summed else count
        return jax.tree.map(lambda leaf: leaf / count, found)

    def varying(params, batch):
        params = jax.lax.pcast(params, "rows", to="varying")
        return gradient(params, batch, ("gradient", "count"))

    expected = jax.jit(gradient)(params, batch)
    mesh = jax.make_mesh(
        (devices,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    specs = {"in_specs": (REPLICATED, ROWS), "out_specs": REPLICATED}
    found = [
        jax.jit(jax.shard_map(run, mesh=mesh, **specs))(params, batch)
        for run in (varying, lambda *given: gradient(*given, ("count",)))
    ]
    parts = jax.tree.map(lambda a: a.reshape(devices, -1, *a.shape[1:]), batch)
    run = jax.pmap(
        lambda *given: gradient(*given, ("gradient", "count")),
        "rows",
        in_axes=(None, 0),
        out_axes=None,
        devices=jax.devices()[:devices],
    )
    # In half precision the gradient by the logits is rounded before it is summed.
    rtol = 1e-5 if dtype == "float32" else 2e-2
    near = {"rtol": rtol, "atol": rtol / 10}
    for each in (*found, run(params, parts)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, **near), each, expected
        )
