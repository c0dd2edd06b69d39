"""What training changes from step to step, as one pytree."""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

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
        params: float32, whatever the type of the computation.
        optimizer: the optimizer's own.
        key: raw random key; the key of a step is this one folded with ``step``, so that
            it never changes.
        average: the moving average of the parameters; None without
            ``training.ema_decay``.
        loss_scale: None but under float16.
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
        """Return what a checkpoint holds besides the weights."""
        rest = {
            "step": self.step,
            "updates": self.updates,
            "optimizer": self.optimizer,
            "key": self.key,
        }
        if self.average is not None:
            rest["params"] = self.params
        if self.loss_scale is not None:
            rest["loss_scale"] = {
                "scale": self.loss_scale.scale,
                "good_steps": self.loss_scale.good_steps,
            }
        return rest

    @classmethod
    def of(cls, weights: PyTree, rest: dict[str, PyTree]) -> TrainState:
        """Put together what :attr:`weights` and :meth:`rest` gave."""
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
    """Make the state of a run that begins, from its seed alone."""
    parameters_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    # Scanned layers begin as looped ones do.
    params = _draw(
        Transformer(dataclasses.replace(model.config, scan_layers=False)),
        parameters_key,
    )
    if model.config.scan_layers:
        # one program, and not one for each shape
        params = jax.jit(stack_layers)(params)
    scaled = model.config.dtype == "float16"
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=jax.jit(make_optimizer(config, model.config.d_model).init)(params),
        key=jax.random.key_data(dropout_key),
        # Arrays of its own: a step uses up what it is given, and must not be given the
        # same array twice.
        average=None if config.ema_decay is None else jax.tree.map(jnp.copy, params),
        loss_scale=LossScale(jnp.float32(config.loss_scale), jnp.zeros((), jnp.int32))
        if scaled
        else None,
    )


def _draw(model: Transformer, key: Key) -> Parameters:
    """Draw the parameters and compute nothing else, each by the program of its kind and
    shape.

    Compiled as a whole, the code that draws would be compiled once for each parameter;
    and what a forward pass computes besides, such as positions and masks, would be
    compiled and run if what is traced were not rid of it.
    """
    traced = _parameters.trace(model, key)
    structure = jax.tree.structure(traced.out_info)
    drawing, _ = dce_jaxpr(
        traced.jaxpr.jaxpr, [True] * structure.num_leaves, instantiate=True
    )
    return jax.tree.unflatten(
        structure, jaxpr_as_fun(ClosedJaxpr(drawing, traced.jaxpr.consts))(key)
    )


@functools.partial(jax.jit, static_argnums=0)
def _parameters(model: Transformer, key: Key) -> Parameters:
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return model.lazy_init(key, tokens, tokens)["params"]
