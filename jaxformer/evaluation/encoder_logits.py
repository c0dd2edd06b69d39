"""The logits of encoder-only models, on all devices of a host."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxformer.models.encoder import TextEncoder
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.objectives import Batch, make_objective
from jaxformer.translation.models import SENTENCES
from jaxformer.typing import Array, Float, PyTree


def softmax(logits: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    """Return probabilities in float64."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return shares / shares.sum()


def share_rows(rows: int, mesh: Mesh | None) -> int:
    """Round rows up to equally many on each device."""
    return rows if mesh is None else -(-rows // mesh.size) * mesh.size


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def find_logits(
    model: TextEncoder,
    config: TrainingConfig,
    params: PyTree,
    batch: Batch,
    mesh: Mesh | None = None,
) -> Float[Array, "..."]:
    """Return the logits that the objective of a run reads, as in its validation.

    Args:
        model: of the run.
        config: of its training.
        params: of the model, on all devices.
        batch: as of the objective. Without ``places`` masked words are not asked for,
            but whether the second text of each row follows the first.
        mesh: the devices, each with a share of the rows; None: a single one.
    """
    objective = make_objective(model.config, config)

    def read(module: TextEncoder, batch: Batch) -> Float[Array, "..."]:
        if config.masks and "places" not in batch:
            return module.next(module(jnp.asarray(batch["source"])))
        return objective.output(module, batch, train=False).logits()

    def run(params: PyTree, batch: Batch) -> Float[Array, "..."]:
        return model.apply({"params": params}, batch, method=read)  # pyright: ignore[reportReturnType]

    if mesh is not None:
        whole, share = PartitionSpec(), PartitionSpec(SENTENCES)
        specs = {"in_specs": (whole, share), "out_specs": share}
        run = jax.shard_map(run, mesh=mesh, check_vma=False, **specs)
    return run(params, batch)
