"""How gradients become updates: optimizer, schedule, clipping, frozen parameters, and
the moving average of parameters.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from jaxformer.errors import InputError
from jaxformer.models.axis_names import LAYERS, logical_axes
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.schedules import Schedule, make_schedule
from jaxformer.typing import Array, Bool, Int, PyTree

NOT_DECAYED = ("bias", "scale")
"""Names of the parameters without weight decay: biases and the scales of norms. All
others are kernels and embeddings. The number of axes does not distinguish them: the
bias of an attention projection has two, heads and width.
"""

MATRICES = ({"embed", "heads"}, {"embed", "hidden"}, {"rank"})
"""Names that the axes of Muon's parameters include: kernels of layers and factors of
adapters.
"""

MIN_FACTORED_SIZE = 32
"""Adafactor keeps the second moment of a parameter as two vectors if its two longest
axes are at least so long. The optax default, 128, would leave all attention kernels
whole, since a head is 64 wide in every model of the paper.
"""


def make_optimizer(
    config: TrainingConfig, d_model: int
) -> optax.GradientTransformationExtraArgs:
    """Build the optimizer; by default Adam with the paper's schedule, without clipping
    or decay (section 5.3).

    - ``adam``: Kingma and Ba 2015.
    - ``adamw``: Loshchilov and Hutter 2019.
    - ``lion``: Chen et al. 2023; ``adam_b1`` and ``adam_b2`` are its two decay rates,
      and there is no epsilon. It wants a rate 3 to 10 times lower than Adam's, and as
      much more decay (their section 5).
    - ``adafactor``: Shazeer and Stern 2018 with the factored second moment, no first
      moment, updates clipped to a root mean square of 1 and the decay 1 - step^-0.8
      (their sections 3, 6 and 7). The step size is absolute as Adam's, not relative to
      the size of each parameter (section 8), so a schedule for Adam fits.
    - ``sgd``: gradient descent with ``momentum`` (Polyak 1964), as in PyTorch: m <-
      momentum m + gradient, from m = 0, is the direction.
    - ``muon``: Jordan et al. 2024 for the kernels of layers, whose Nesterov
      ``momentum`` is made orthogonal; an attention projection is one matrix for all
      heads. Adam for all others: tables, heads that read an encoder, biases and norms.
      The root mean square of an orthogonal update is 0.2, which is usual for Adam's
      (Liu et al. 2025, section 2.2), so a schedule for Adam fits. The parameters are of
      modules of jaxformer.

    Weight decay is decoupled from the gradient and multiplied by the learning rate, for
    all optimizers: each update takes rate * weight_decay * parameter off, except
    from biases and the scales of norms (``NOT_DECAYED``).

    Clipping sees the gradient that ``update`` is given, which is to be that of the
    global batch; frozen parameters do not count in its norm. Moments are float32 like
    the parameters, and frozen parameters have none.

    Args:
        config: the recipe.
        d_model: width of the model, on which the paper's schedule depends.

    Returns:
        A transformation; its ``init`` raises :class:`InputError` if ``frozen`` does not
        fit the parameters, as :func:`frozen_mask` does. ``update(gradients, state,
        params, good=...)`` leaves the state as it is where ``good`` [] is False;
        without it all steps are good.
    """
    optimizer = _descend(config, make_schedule(config, d_model))
    if config.gradient_clip is not None:
        optimizer = optax.chain(
            optax.clip_by_global_norm(config.gradient_clip), optimizer
        )
    if config.frozen is None:
        return optimizer
    patterns = config.frozen

    def labels(params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda frozen: "frozen" if frozen else "trained",
            frozen_mask(params, patterns),
        )

    return optax.partition(
        {"trained": optimizer, "frozen": optax.set_to_zero()}, labels
    )


def _descend(
    config: TrainingConfig, schedule: Schedule
) -> optax.GradientTransformationExtraArgs:
    b1, b2 = config.adam_b1, config.adam_b2
    rate = _unless_bad(optax.scale_by_learning_rate(schedule))
    decayed = optax.add_decayed_weights(config.weight_decay, decay_mask)
    if config.optimizer == "adafactor":
        # The parts of optax.adafactor, whose own decay does not follow the rate.
        factored = optax.scale_by_factored_rms(min_dim_size_to_factor=MIN_FACTORED_SIZE)
        clip = optax.clip_by_block_rms(1.0)
        return optax.chain(_unless_bad(factored), clip, decayed, rate)
    direction = adam = _adam(b1, b2, config.adam_epsilon)
    if config.optimizer == "adam":
        return optax.chain(adam, rate)
    if config.optimizer == "lion":
        direction = _unless_bad(optax.scale_by_lion(b1, b2))
    if config.optimizer == "sgd":
        direction = _unless_bad(optax.trace(config.momentum), lambda kept: kept.trace)
    if config.optimizer == "muon":
        # At the rate -1 it returns the direction.
        orthogonal = muon(
            -1.0,
            beta=config.momentum,
            muon_weight_dimension_numbers=_by_axes(_sides),
            consistent_rms=0.2,
        )
        direction = optax.partition(
            {"muon": _unless_bad(orthogonal), "adam": adam}, _by_axes(_label)
        )
    return optax.chain(direction, decayed, rate)


def _by_axes(function: Callable[[tuple[str, ...]], Any]) -> Callable[..., PyTree]:
    """Map a function over the names of the axes of parameters."""
    return lambda params: jax.tree.map(
        lambda _, axes: function(axes), params, logical_axes(params)
    )


def _label(axes: tuple[str, ...]) -> str:
    """Name the optimizer of a parameter under Muon."""
    return "muon" if any(each <= {*axes} for each in MATRICES) else "adam"


def _sides(axes: tuple[str, ...]) -> MuonDimensionNumbers:
    """Return the axis on one side of a matrix, d_model or an adapter's rank, and those
    on the other; layers are on neither.
    """
    one = "rank" if "rank" in axes else "embed"
    others = (i for i, name in enumerate(axes) if name not in (one, LAYERS))
    return MuonDimensionNumbers(axes.index(one), tuple(others))


def keep(good: Bool[Array, ""] | bool, new: PyTree, old: PyTree) -> PyTree:
    """Return the new arrays of a state where the step was good, and the old ones where
    not.
    """
    return jax.tree.map(lambda changed, kept: jnp.where(good, changed, kept), new, old)


def _adam(
    b1: float, b2: float, epsilon: float
) -> optax.GradientTransformationExtraArgs:
    """Return ``optax.scale_by_adam`` whose direction is computed only from the moments
    that it keeps.

    Otherwise the compiler computes the direction from the old moments and the gradient,
    since a bad step may keep the old ones. Then old and new cannot share memory: 8
    bytes a parameter more, copied in every step.
    """

    def direction(kept: Any) -> PyTree:
        first, second = (
            optax.tree.bias_correction(moment, decay, kept.count)
            for moment, decay in ((kept.mu, b1), (kept.nu, b2))
        )
        return jax.tree.map(
            lambda mean, square: mean / (jnp.sqrt(square) + epsilon), first, second
        )

    return _unless_bad(optax.scale_by_adam(b1, b2, epsilon), direction)


def _unless_bad(
    transformation: optax.GradientTransformation,
    direction: Callable[[Any], PyTree] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Let a transformation keep its state in a bad step, and compute its updates from
    the state that is kept if there is a function for that.
    """

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree = None,
        *,
        good: Bool[Array, ""] | bool = True,
        **_: Any,
    ) -> tuple[PyTree, Any]:
        updates, new = transformation.update(updates, state, params)
        new = keep(good, new, state)
        return (updates if direction is None else direction(new)), new

    return optax.GradientTransformationExtraArgs(transformation.init, update)


def update_average(
    average: PyTree, params: PyTree, decay: float, updates: Int[Array, ""] | int
) -> PyTree:
    """Move the average of the parameters towards their new values.

    average <- d * average + (1 - d) * params, where d = min(decay, (1 + updates) / (10
    + updates)). Young averages forget faster: the random first parameters have a share
    of 1/10 after the first update, and of 1e-5 after ten. This start is that of
    TensorFlow's ``tf.train.ExponentialMovingAverage`` with ``num_updates``; averages of
    parameters go back to Polyak and Juditsky 1992.

    Args:
        average: float32, as many leaves as ``params``; the parameters themselves where
            the run begins.
        params: the parameters after the update.
        decay: at least 0 and below 1; 0.999 looks back over about a thousand updates.
        updates: how many updates were made before this one.

    Example:
        >>> old, new = jnp.zeros(()), jnp.ones(())
        >>> float(update_average(old, new, decay=0.999, updates=0))
        0.8999999761581421
    """
    # 1 - d and not d: 1 - 0.9999 has no more than three right digits once 0.9999 is
    # float32.
    share = jnp.maximum(1.0 - decay, 9.0 / (10.0 + jnp.asarray(updates, jnp.float32)))
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)


def decay_mask(params: PyTree) -> PyTree:
    """Mark the parameters that weight decay applies to: kernels and embeddings, by
    their names.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _path(path).split("/")[-1] not in NOT_DECAYED, params
    )


def frozen_mask(params: PyTree, patterns: str) -> PyTree:
    """Mark the parameters whose path matches one of the patterns.

    Args:
        params: nested dicts.
        patterns: as of :func:`match_paths`.

    Raises:
        InputError: a pattern matches no parameter, or together they match all.
    """
    paths = [_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    frozen = match_paths("training.frozen", patterns, paths, "parameter")
    if len(frozen) == len(paths):
        raise InputError(
            f"training.frozen={patterns} matches every parameter and leaves nothing to"
            f" train: let it spare some, such as {paths[-1]}"
        )
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _path(path) in frozen, params
    )


def trained_part(params: PyTree, patterns: str | None) -> PyTree:
    """Return the parameters that ``training.frozen`` leaves, with None in place of the
    frozen ones.
    """
    if patterns is None:
        return params
    frozen = frozen_mask(params, patterns)
    return jax.tree.map(lambda leaf, stays: None if stays else leaf, params, frozen)


def fill(part: PyTree, whole: PyTree) -> PyTree:
    """Return a tree with the leaves of another in place of None."""
    return jax.tree.map(
        lambda leaf, other: other if leaf is None else leaf,
        *(part, whole),
        is_leaf=lambda node: node is None,
    )


def match_paths(key: str, patterns: str, paths: list[str], kind: str) -> set[str]:
    """Return the paths of parameters that match.

    Args:
        key: the configuration key that the patterns are of, for the error.
        patterns: shell patterns of paths such as
            ``encoder/layer_0/self_attention/query/kernel``, separated by commas; ``*``
            matches any characters, ``/`` too, so that ``encoder/*`` is the whole
            encoder.
        paths: of the parameters that may match.
        kind: what they are, for the error.

    Raises:
        InputError: a pattern matches none.
    """
    found = set[str]()
    for pattern in map(str.strip, patterns.split(",")):
        matching = [path for path in paths if fnmatchcase(path, pattern)]
        if not matching:
            raise InputError(
                f"{key}: no {kind} matches {pattern!r}; the nearest is"
                f" {_near(pattern, paths)}"
            )
        found.update(matching)
    return found


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _near(pattern: str, paths: list[str]) -> str:
    """Return the parameter, or the folder of parameters, nearest to a pattern."""
    folders = {
        f"{folder}/*" for path in paths for folder in PurePosixPath(path).parents
    }
    names = sorted({*paths, *folders} - {"./*"})
    return difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)[0]
