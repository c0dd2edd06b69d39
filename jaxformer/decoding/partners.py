"""Translators that predict together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.decoding.ensemble import check_weights
from jaxformer.decoding.models import Models
from jaxformer.errors import InputError

if TYPE_CHECKING:
    from jaxformer.decoding.translator import Translator


def combine(translators: Sequence[Translator], weights: Sequence[float] | None = None) -> Models:
    """Put the models of single translators together, the first of which says what the others must agree in.

    Raises:
        InputError: there is none, they do not read and write the same tokens, or the weights do not fit.
    """
    if not translators:
        raise InputError("an ensemble needs a translator: give at least one")
    if weights is not None:
        check_weights(weights, len(translators))
    for number, other in enumerate(translators[1:], start=2):
        _check_partner(translators[0], other, number)
    return Models(
        tuple(each.model for each in translators),
        tuple(each.params for each in translators),
        None if weights is None else np.asarray(weights, np.float32),
    )


def _check_partner(first: Translator, other: Translator, number: int) -> None:
    """Refuse a model that reads or writes other tokens than the first of an ensemble.

    Raises:
        InputError: one is an ensemble, or vocabularies, what is added to sources, or columns of the output differ.
    """
    if len(first.models.models) > 1 or len(other.models.models) > 1:
        raise InputError("an ensemble is put together at once: give its models, not another ensemble of some")
    own, others = first.vocabularies.hash, other.vocabularies.hash
    if own != others:
        raise InputError(
            f"model {number} of the ensemble has another vocabulary (hash {others[:12]}) than the first "
            f"({own[:12]}): train both with one, by the same vocabulary files in their directories"
        )
    before, after = (
        {
            "data.source_eos": each.source_eos,
            "the language tag": each.vocabularies.source.pieces(each.codec.before),
            "model.vocabulary_size": each.model.config.vocabulary_size,
            "model.pad_id": each.model.config.pad_id,
            "model.bos_id": each.model.config.bos_id,
        }
        for each in (first, other)
    )
    for name, value in before.items():
        if after[name] != value:
            raise InputError(
                f"the first model of the ensemble has {name} {value} and model {number} has {after[name]}: "
                "put models together that agree in it"
            )
