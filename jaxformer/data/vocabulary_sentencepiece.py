"""Vocabularies of SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.vocabulary import MASK, MODEL, SPECIAL, Vocabulary, valid
from jaxformer.errors import InputError, require

_FEW = 8  # texts that are encoded sooner than threads begin


@dataclass(frozen=True)
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model, built from the bytes of its file.

    The model normalises text first, by ``data.normalization`` if it was trained here;
    white space collapses. So ``decode(encode(text))`` is the normalised text: never
    score a translation against decoded references.

    Raises:
        InputError: the bytes are no SentencePiece model, or it lacks padding, beginning
            or end of sentence.
    """

    model: bytes = field(repr=False)
    """The content of the model file."""
    _processor: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Load the model."""
        processor = load_sentencepiece().SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.model)
        except RuntimeError:
            raise InputError(
                "not a SentencePiece model, or a damaged one: train or copy it again"
            ) from None
        object.__setattr__(self, "_processor", processor)
        for name, value in self._facts().items():
            object.__setattr__(self, name, value)

    def _facts(self) -> dict[str, Any]:
        """Return the attributes that the model determines."""
        found = {name: getattr(self._processor, f"{name}_id")() for name in SPECIAL}
        for name, id_ in found.items():
            if id_ < 0:  # also for a piece that text can spell
                raise InputError(
                    f"the SentencePiece model has no control piece for {name}: train it"
                    f" with --{name}_id (pad, unk, bos and eos are all needed)"
                )
        silent = frozenset((found["pad"], found["bos"]))
        facts = {"size": self._processor.get_piece_size(), "_silent": silent}
        mask = self._processor.piece_to_id(MASK)
        if mask != found["unk"] and self._processor.is_control(mask):
            facts["mask_id"] = mask
        return facts | {f"{name}_id": id_ for name, id_ in found.items()}

    def __reduce__(self) -> tuple[type[SentencePieceVocabulary], tuple[bytes, ...]]:
        """Copy by the contents of the files."""
        return SentencePieceVocabulary, (self.model,)

    @property
    def files(self) -> dict[str, bytes]:
        """The model."""
        return {MODEL: self.model}

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Encode each sentence; -1 threads: all cores."""
        texts = valid(texts)
        if len(texts) <= _FEW:
            return [self._processor.encode(text) for text in texts]
        return self._processor.encode(texts, num_threads=threads)

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a text; return its ids, and the characters of each."""
        (text,) = valid([text])
        try:
            found = self._processor.encode(text, return_type="offset_mapping")
            pieces, ids, places = (found[x] for x in ("pieces", "ids", "offsets"))
        except TypeError:  # SentencePiece 0.2.1
            found = self._processor.encode(text, out_type="immutable_proto").pieces
            pieces, ids = ([getattr(x, y) for x in found] for y in ("piece", "id"))
            places = [(each.begin, each.end) for each in found]
        return self._ids(pieces, ids), places

    def _ids(self, pieces: Sequence[str], ids: list[int]) -> list[int]:
        """Return the ids of pieces, which the model numbers so."""
        del pieces
        return ids

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Encode each sentence in a random segmentation."""
        from jaxformer.data.segmentation import sample

        return sample(self._processor, valid(texts), alpha=alpha, seed=seed)

    @property
    def languages(self) -> dict[str, int]:
        """The id of each tag by its language."""
        names = enumerate(self.pieces(range(self.size)))
        return {name[2:-1]: id_ for id_, name in names if re.match("<2.+>$", name)}

    def tag_id(self, language: str) -> int:
        """Return the id of the piece that asks for a language, ``<2de>`` for ``de``.

        Raises:
            InputError: the vocabulary was trained without it.
        """
        found = self._processor.piece_to_id(tag(language))
        if found == self.unk_id:
            raise InputError(
                f"the vocabulary has no tag {tag(language)}: train with"
                f" data.language_tags=True and text in {language}"
            )
        return found

    def _text(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return the model's name of each token; "▁" is a space."""
        return [self._processor.id_to_piece(token) for token in self._known(ids)]


def tag(language: str) -> str:
    """Return the piece of a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def load_sentencepiece() -> ModuleType:
    """Import SentencePiece and silence it: its failures are exceptions too."""
    module = require("sentencepiece", "train")
    module.set_min_log_level(2)
    return module
