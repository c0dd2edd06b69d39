"""Steps under ``jax.pmap``: the state on every device of every host, and an equal share
of the rows of each batch.

``pmap`` maps the leading axis of a batch over the devices. The state and the metrics
have no such axis (``in_axes`` and ``out_axes`` of None): they are replicated.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.errors import InputError
from jaxformer.models.base import Model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.mesh import compiler_options
from jaxformer.training.step import make_eval_step, make_train_step

AXIS = "devices"


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """Arrange the devices of all hosts as ``pmap`` does, those of a host together."""
    by_host = sorted(devices, key=lambda device: device.process_index)
    return Mesh(np.array(by_host), (AXIS,))


def make_steps(model: Model, config: TrainingConfig, mesh: Mesh) -> tuple[Any, Any]:
    """Compile ``train_step(state, batch)`` and ``eval_step(params, batch)``.

    Args:
        model: what is trained.
        config: the recipe.
        mesh: from :func:`make_mesh`.

    Raises:
        InputError: ``training.deterministic`` needs an option of the compiler, which
            ``pmap`` does not take, and the environment does not set it.
    """
    for option in compiler_options(config, mesh):
        if f"--{option}=true" not in os.environ.get("XLA_FLAGS", "").split():
            raise InputError(
                "training.deterministic=True with training.engine=pmap on GPUs needs"
                f" XLA_FLAGS=--{option}=true before jaxformer starts: set it, or"
                " training.engine=mesh"
            )
    over_devices = functools.partial(
        jax.pmap,
        axis_name=AXIS,
        in_axes=(None, 0),
        out_axes=None,
        devices=mesh.devices.tolist(),
        # The batch on several hosts is an array over the devices of all.
        axis_size=mesh.size,
    )
    train_step = make_train_step(model, config, axis_name=AXIS)
    eval_step = make_eval_step(model, config, axis_name=AXIS)
    return over_devices(train_step, donate_argnums=0), over_devices(eval_step)
