"""The state of training, as one pytree."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.models.base import Model
from jaxformer.models.lora import Adapted, draw_adapters
from jaxformer.models.make import make_model
from jaxformer.models.stacking import stack_layers, unstack_layers
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import make_optimizer, match_paths
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
        base: under LoRA the parameters of ``training.initial_run``, which no step
            changes and no checkpoint holds; ``params`` are adapters for them. None
            without LoRA.
        lora_scale: factor on what the adapters add; see
            :class:`jaxformer.models.lora.Adapted`.
    """

    step: Int[Array, ""]
    updates: Int[Array, ""]
    params: PyTree
    optimizer: PyTree
    key: UInt32[Array, "..."]
    average: PyTree = None
    loss_scale: LossScale | None = None
    base: PyTree = None
    lora_scale: float = flax.struct.field(pytree_node=False, default=1.0)

    @property
    def weights(self) -> PyTree:
        """The parameters that a checkpoint is evaluated and translated with: the
        average, where there is one. Under LoRA they are adapters.
        """
        return self.params if self.average is None else self.average

    @property
    def evaluated(self) -> PyTree:
        """The parameters of the whole model that is evaluated and translated with; with
        adapters they are not merged.
        """
        return self.on_base(self.weights)

    def on_base(self, params: PyTree) -> PyTree:
        """Return parameters of the whole model: under LoRA the base with adapters that
        are not merged, else what is given.
        """
        if self.base is None:
            return params
        return Adapted(self.base, params, self.lora_scale)

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


def create_state(model: Model, config: TrainingConfig) -> TrainState:
    """Draw the first state of a run from its seed."""
    parameters_key, dropout_key = jax.random.split(jax.random.key(config.seed))
    # Scanned layers begin as looped ones do.
    looped = make_model(dataclasses.replace(model.config, scan_layers=False))
    # Each parameter is drawn by the program of its shape, and nothing else is computed.
    params = looped.lazy_init(parameters_key, *looped.example())["params"]
    if config.initializer != "glorot":
        layers = max(model.config.num_encoder_layers, model.config.num_decoder_layers)
        residual = config.initializer == "normal_residual"
        params = draw_normal(
            params, jax.random.fold_in(parameters_key, 2), layers if residual else None
        )
    if model.config.scan_layers:
        # one program, and not one for each shape
        params = jax.jit(stack_layers)(params)
    base, scale = None, 1.0
    if config.lora_rank is not None:
        base, scale = params, config.lora_alpha / config.lora_rank
        params = _draw_adapters(params, config, jax.random.fold_in(parameters_key, 1))
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
        base=base,
        lora_scale=scale,
    )


def _draw_adapters(params: Parameters, config: TrainingConfig, key: Key) -> Parameters:
    """Draw the adapters of the kernels that ``training.lora_kernels`` matches; those of
    scanned layers as those of looped ones.
    """
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    kernels = {path: leaf for path, leaf in flat.items() if path.endswith("/kernel")}
    chosen = match_paths(
        "training.lora_kernels", config.lora_kernels, [*kernels], "kernel"
    )
    shapes = unflatten_dict(
        {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for path, leaf in kernels.items()
            if path in chosen
        },
        sep="/",
    )
    looped = unstack_layers(shapes)
    adapters = draw_adapters(looped, config.lora_rank or 0, key)
    return adapters if looped == shapes else stack_layers(adapters)


def draw_normal(params: Parameters, key: Key, layers: int | None) -> Parameters:
    """Redraw kernels and tables with standard deviation 0.02 (Devlin et al. 2019).

    Args:
        params: of looped layers; biases and norms stay.
        key: random key.
        layers: of the model, if kernels that write into the residual stream are to be
            divided by the square root of their number, two a layer (Radford et al.
            2019, section 2.3); else None.
    """
    flat, drawn = cast(dict[str, Any], flatten_dict(params, sep="/")), {}
    for number, (path, leaf) in enumerate(sorted(flat.items())):
        deviation = 0.02
        if layers and path.endswith(("/output/kernel", "/outer/kernel")):
            deviation /= (2 * layers) ** 0.5
        if leaf.ndim > 1 and not path.endswith("/bias"):
            own = jax.random.fold_in(key, number)
            leaf = deviation * jax.random.normal(own, leaf.shape, leaf.dtype)
        drawn[path] = leaf
    return unflatten_dict(drawn, sep="/")
