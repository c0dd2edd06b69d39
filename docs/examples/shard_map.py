"""A gradient, the training step and a search under ``jax.shard_map``.

Four virtual devices of the CPU stand in for four accelerators, which share the rows of
a batch. The numbers are those of one device.

    python docs/examples/shard_map.py
"""

import os

# before JAX is imported
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxformer as jf

MODEL = jf.Transformer(
    jf.TransformerConfig(
        vocabulary_size=20,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.0,
        max_length=16,
    )
)
TRAINING = jf.training.TrainingConfig(warmup_steps=10)
TABLE = jax.random.normal(jax.random.key(0), (20, 20))


def gradient_of(params, batch, axis=None):
    """Return the gradient of the mean loss of the rows of all devices."""
    source, target = batch["source"], batch["target"]

    def loss(params):
        logits = MODEL.apply({"params": params}, source, target)
        return jf.functional.cross_entropy(logits, target, target > 0)

    if axis is None:
        gradient, count = jax.grad(loss, has_aux=True)(params)
    else:
        params = jax.lax.pcast(params, axis, to="varying")
        sums = jax.grad(loss, has_aux=True)(params)
        gradient, count = jax.lax.psum(sums, axis)
    return jax.tree.map(lambda each: each / count, gradient)


def search(limits, axis=None):
    """Find greedy translations of at most ``limits`` tokens."""
    rules = jf.search.SearchRules(bos_id=1, eos_id=2, max_lengths=limits, length=6)
    found = jf.search.greedy_search(
        lambda tokens, cache: (TABLE[tokens], cache), jnp.zeros(len(limits)), rules
    )
    if axis is None:
        return found
    # a scalar: devices stop at different times
    return found._replace(iterations=jax.lax.pmax(found.iterations, axis))


def main():
    """Compare four devices with one."""
    state = jf.training.create_state(MODEL, TRAINING)
    tokens = jax.random.randint(jax.random.key(1), (8, 6), 4, 20)
    batch, limits = {"source": tokens, "target": tokens}, jnp.arange(8) % 5

    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
    over = partial(jax.shard_map, mesh=mesh)
    gradient = over(
        partial(gradient_of, axis="data"), in_specs=(P(), P("data")), out_specs=P()
    )
    step = over(
        jf.training.make_train_step(MODEL, TRAINING, axis_name="data"),
        in_specs=(P(), P("data")),
        out_specs=P(),
    )
    rows = {name: P("data") for name in jf.search.SearchResult._fields}
    result = jf.search.SearchResult(**{**rows, "iterations": P()})
    find = over(partial(search, axis="data"), in_specs=P("data"), out_specs=result)

    same = []
    own_step = jf.training.make_train_step(MODEL, TRAINING)
    for name, mapped, own, given in (
        ("gradient", gradient, gradient_of, (state.params, batch)),
        ("training step", step, own_step, (state, batch)),
        ("search", find, search, (limits,)),
    ):
        found, expected = (jax.jit(each)(*given) for each in (mapped, own))
        if name == "training step":
            found, expected = found[1], expected[1]  # the metrics
        close = jax.tree.map(partial(np.allclose, atol=1e-5), found, expected)
        same.append(f"{name} {all(jax.tree.leaves(close))}")
    print("as on one device:", ", ".join(same))


if __name__ == "__main__":
    main()
