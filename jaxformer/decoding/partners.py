"""Whether translators may predict together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import InputError

if TYPE_CHECKING:
    from jaxformer.decoding.translator import Translator


def check_partner(first: Translator, other: Translator, number: int) -> None:
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
