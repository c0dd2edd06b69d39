"""One forward pass over a sentence and its translation: all that a server shows of a
pair, by one program.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.models.base import AttentionWeights, EncoderDecoder
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.serving.programs import MOST_ATTENDED
from jaxformer.translation.batch import pad
from jaxformer.translation.models import Models
from jaxformer.typing import Array, Float, Int, PyTree

MOST_CANDIDATES = 8
"""Most tokens that are named for a place of a translation."""

_CONSIDERED = 64  # first pieces among which the words of alternatives are looked for


class Reading(NamedTuple):
    """What a pass over a pair shows; the first model has the attention."""

    links: Float[Array, "T S"]
    """The cross-attention of the layer that aligns, mean over its heads."""
    log_probabilities: Float[Array, " T"]
    """Of the tokens of the target."""
    next: tuple[Float[Array, " n"], Int[Array, " n"]]
    """The most probable tokens at the place asked for: log-probabilities and tokens."""
    candidates: tuple[Float[Array, "t k"], Int[Array, "t k"]]
    """Those at each of the first places."""
    encoder: Float[Array, "L H s s"]
    """The weights of self-attention between the first tokens."""
    decoder: Float[Array, "L H t t"]
    """As ``encoder``, of the target."""
    cross: Float[Array, "L H t s"]
    """As ``encoder``, from target to source."""


def read(
    models: Models,
    source: Sequence[int],
    target: Sequence[int],
    *,
    width: int,
    layer: int,
    place: int = 0,
) -> Reading:
    """Read a pair.

    Args:
        models: one, or an ensemble.
        source: tokens of a sentence.
        target: tokens of its translation.
        width: tokens that each side is padded to.
        layer: of the decoder that aligns, counted from 1.
        place: of the token of the target that ``next`` is about.
    """
    pad_id = models.models[0].config.pad_id
    sides = (pad([list(ids)], 1, width, pad_id) for ids in (source, target))
    given = models.models, models.params, models.weights
    return _read(*given, *sides, place, layer)


@functools.partial(jax.jit, static_argnums=(0, 6))
def _read(
    models: tuple[EncoderDecoder, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "1 S"],
    target: Int[Array, "1 T"],
    place: int,
    layer: int,
) -> Reading:
    passes = [
        cast(
            tuple[Array, AttentionWeights],
            model.apply({"params": own}, source, target, method="forward"),
        )
        for model, own in zip(models, params, strict=True)
    ]
    values = mean_log_probabilities([logits for logits, _ in passes], weights)[0]
    size = values.shape[-1]
    found = passes[0][1]
    maps = {
        kind: jnp.concatenate(layers)[..., :MOST_ATTENDED, :MOST_ATTENDED]
        if (layers := getattr(found, kind))
        else jnp.zeros((0, 0, 0, 0))
        for kind in found._fields
    }
    return Reading(
        cast(Array, found.cross[layer - 1])[0].mean(axis=0),
        jnp.take_along_axis(values, target[0][:, None], axis=-1)[:, 0],
        lax.top_k(values[place], min(_CONSIDERED, size)),
        lax.top_k(values[:MOST_ATTENDED], min(MOST_CANDIDATES, size)),
        **maps,
    )
