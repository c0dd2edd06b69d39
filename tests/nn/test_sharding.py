"""Where activations are said to lie, by the kind of mesh that is set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.nn.sharding import keep_rows

X = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)


def mesh(kind: AxisType, *names: str) -> jax.sharding.Mesh:
    sizes = [{"data": 2, "fsdp": 2}.get(name, 1) for name in names]
    return jax.make_mesh(
        sizes,
        names,
        axis_types=(kind,) * len(names),
        devices=jax.devices()[: int(np.prod(sizes))],
    )


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("data", "fsdp", "tensor"), ("data", "fsdp")),
        (("data",), ("data",)),
        (("fsdp", "tensor"), ("fsdp",)),
    ],
)
def test_rows_are_shared_out_and_kept_whole(names, rows):
    """Where they lay by their width, as activations after a product with sharded
    parameters may.
    """
    here = mesh(AxisType.Auto, *names)
    with jax.set_mesh(here):
        by_width = jax.device_put(X, NamedSharding(here, PartitionSpec(None, rows)))
        found = jax.jit(keep_rows)(by_width)
    assert found.sharding.is_equivalent_to(NamedSharding(here, PartitionSpec(rows)), 2)
    np.testing.assert_array_equal(found, X)


def test_nothing_is_said_where_others_decide():
    """Within ``pmap``, ``shard_map`` and explicit shardings, on axes of other names,
    and on no mesh at all.
    """
    np.testing.assert_array_equal(jax.jit(keep_rows)(X), X)
    np.testing.assert_array_equal(jax.pmap(keep_rows, axis_name="data")(X), X)
    kinds = [
        (AxisType.Auto, "data", True),
        (AxisType.Auto, "model", False),
        (AxisType.Explicit, "data", False),
    ]
    for kind, name, is_said in kinds:
        with jax.set_mesh(mesh(kind, name)):
            text = jax.jit(keep_rows).lower(jnp.asarray(X)).as_text()
        assert ("sharding_constraint" in text) == is_said
    rows = PartitionSpec("data")
    mapped = jax.shard_map(
        keep_rows, mesh=mesh(AxisType.Auto, "data"), in_specs=rows, out_specs=rows
    )
    np.testing.assert_array_equal(jax.jit(mapped)(X), X)
