"""The state of training, as one pytree."""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from jaxformer.models.layer_stacking import stack_layers
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.typing import Array, Float, Int, Key, Parameters, PyTree, UInt32


@flax.struct.dataclass
class LossScale:
    """The factor on a float16 loss, and how many steps in a row it left everything
    finite.
    """

    scale: Float[Array, ""]
    good_steps: Int[Array, ""]


@flax.struct.dataclass
class TrainState:
    """All that a step changes.

    Attributes:
        step: batches seen.
        updates: updates made: batches seen but those that were skipped. The schedule
            counts these.
        params: float32, whatever the compute dtype.
        optimizer: the optimizer's own.
        key: raw random key; the key of a step is this one folded with ``step``, so that
            it never changes.
        average: the moving average of the parameters; None without
            ``training.ema_decay``.
        loss_scale: only under float16, else None.
    """

    step: Int[Array, ""]
    updates: Int[Array, ""]
    params: PyTree
    optimizer: PyTree
    key: UInt32[Array, "..."]
    average: PyTree = None
    loss_scale: LossScale | None = None

    @property
    def weights(self) -> PyTree:
        """The parameters that are evaluated and translated with: the average, where
        there is one.
        """
        return self.params if self.average is None else self.average

    def rest(self) -> dict[str, PyTree]:
        """Return what a checkpoint holds in addition to the weights."""
        rest = {
            "step": self.step,
            "updates": self.updates,
            "optimizer": self.optimizer,
            "key": self.key,
        }
        if self.average is not None:
            rest["params"] = self.params
        if self.loss_scale is not None:
            rest["loss_scale"] = vars(self.loss_scale).copy()
        return rest

    @classmethod
    def from_parts(cls, weights: PyTree, rest: dict[str, PyTree]) -> TrainState:
        """Build a state from what :attr:`weights` and :meth:`rest` return."""
        rest = dict(rest)
        scale = rest.pop("loss_scale", None)
        averaged = "params" in rest
        return cls(
            params=rest.pop("params", weights),
            average=weights if averaged else None,
            loss_scale=None if scale is None else LossScale(**scale),
            **rest,
        )


def create_state(model: Transformer, config: TrainingConfig) -> TrainState:
    """Draw the first state of a run from its seed."""
    parameters_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    # Scanned layers begin as looped ones do.
    params = _draw(
        Transformer(dataclasses.replace(model.config, scan_layers=False)),
        parameters_key,
    )
    if model.config.scan_layers:
        # one program, and not one for each shape
        params = jax.jit(stack_layers)(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=jax.jit(make_optimizer(config, model.config.d_model).init)(params),
        key=jax.random.key_data(dropout_key),
        # Its own arrays: a step consumes its state, which must not hold an array twice.
        average=None if config.ema_decay is None else jax.tree.map(jnp.copy, params),
        loss_scale=LossScale(jnp.float32(config.loss_scale), jnp.zeros((), jnp.int32))
        if model.config.dtype == "float16"
        else None,
    )


def _draw(model: Transformer, key: Key) -> Parameters:
    """Draw the parameters and compute nothing else, each by the program of its shape.

    Compiled as one program, the drawing of each parameter would be compiled on its own.
    """
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return model.lazy_init(key, tokens, tokens)["params"]
