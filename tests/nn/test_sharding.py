"""The sharding of activations, by the kind of the mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxformer as jf
from jaxformer import InputError
from jaxformer import kernels as fast
from jaxformer.nn.sharding import keep_rows

X = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)


def mesh(kind, *names):
    sizes = [{"data": 2, "fsdp": 2}.get(name, 1) for name in names]
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names), devices=devices)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("data", "fsdp", "tensor"), ("data", "fsdp")),
        (("fsdp", "tensor"), ("fsdp",)),
    ],
)
def test_activations_are_sharded_by_rows(names, rows):
    """Also where they were sharded by width, as after a matmul with sharded weights."""
    here = mesh(AxisType.Auto, *names)
    with jax.set_mesh(here):
        by_width = jax.device_put(X, NamedSharding(here, PartitionSpec(None, rows)))
        found = jax.jit(keep_rows)(by_width)
    assert found.sharding.is_equivalent_to(NamedSharding(here, PartitionSpec(rows)), 2)
    np.testing.assert_array_equal(found, X)


def test_nothing_is_constrained_where_others_decide():
    """Under ``pmap``, ``shard_map`` and explicit shardings, on other axes, and without
    a mesh.
    """
    np.testing.assert_array_equal(jax.jit(keep_rows)(X), X)
    np.testing.assert_array_equal(jax.pmap(keep_rows, axis_name="data")(X), X)
    for kind, name, is_constrained in (
        (AxisType.Auto, "data", True),
        (AxisType.Auto, "model", False),
        (AxisType.Explicit, "data", False),
    ):
        with jax.set_mesh(mesh(kind, name)):
            text = jax.jit(keep_rows).lower(jnp.asarray(X)).as_text()
        assert ("sharding_constraint" in text) == is_constrained
    rows = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    mapped = jax.shard_map(keep_rows, mesh=mesh(AxisType.Auto, "data"), **rows)
    np.testing.assert_array_equal(jax.jit(mapped)(X), X)


TABLE = np.ones((8, 4), np.float32)
RULES = jf.search.SearchRules(bos_id=0, eos_id=1, max_lengths=[1] * 8)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: fast.linear(x, TABLE.T),
        lambda x: fast.linear(X, x.T),
        lambda x: fast.dropout(x, 0.1, jax.random.key(0)),
        lambda x: fast.layer_norm(x, TABLE[0]),
        lambda x: fast.embed(x, jnp.zeros((1, 2), int)),
        lambda x: fast.embed(TABLE, x.astype(int)),
        lambda x: fast.output_losses(
            X[None], x, X[None, :, 0].astype(int), X[None, :, 0]
        ),
        lambda x: jf.nn.Encoder(jf.nn.LayerConfig(4, 2, 8), 1).init(
            jax.random.key(0), x[None]
        ),
        lambda x: jf.search.greedy_search(lambda _, cache: (TABLE, cache), x, RULES),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_arrays_on_explicit_axes_are_refused(unchecked, function, compiled):
    """In a line that names the cure, where parameters and inputs enter."""
    here = mesh(AxisType.Explicit, "data")
    x = jax.device_put(X, NamedSharding(here, PartitionSpec("data")))
    with pytest.raises(InputError, match=r"axis_types=\(jax.sharding.AxisType.Auto,\)"):
        (jax.jit(function) if compiled else function)(x)
