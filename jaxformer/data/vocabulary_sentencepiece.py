"""Vocabularies of SentencePiece, with ids of its own or those of a table."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.vocabulary import MODEL, PIECES, SPECIAL, Vocabulary, tag, valid
from jaxformer.errors import InputError, require


@dataclass(frozen=True)
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model, built from the bytes of its file.

    The model normalises text first, by ``nmt_nfkc`` if it was trained here: Unicode
    NFKC, control characters become spaces or are removed, white space collapses. So
    ``decode(encode(text))`` is the normalised text: never score a translation against
    decoded references.

    Raises:
        InputError: the bytes are no SentencePiece model, or it lacks padding, beginning
            or end of sentence, or the table is damaged.
    """

    model: bytes = field(repr=False)
    """The content of the model file."""
    table: bytes = field(default=b"", repr=False)
    """The content of a file that gives each piece its id: JSON of ``pieces``, a list by
    id with null where there is none, and ``languages``, the piece of each code.
    Empty: ids are the model's own.
    """
    _processor: Any = field(init=False, repr=False, compare=False)
    _table: _Table | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        processor = load_sentencepiece().SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.model)
        except RuntimeError:
            raise InputError(
                "not a SentencePiece model, or a damaged one: train or copy it again"
            ) from None
        table = _Table(self.table) if self.table else None
        found = table.special if table else _special_ids(processor)
        silent = table.silent if table else {found["pad"], found["bos"]}
        facts = {f"{name}_id": id_ for name, id_ in found.items()} | {
            "size": len(table.pieces) if table else processor.get_piece_size(),
            "_silent": frozenset(silent),
            "_processor": processor,
            "_table": table,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[SentencePieceVocabulary], tuple[bytes, bytes]]:
        return SentencePieceVocabulary, (self.model, self.table)

    @property
    def files(self) -> dict[str, bytes]:
        return {MODEL: self.model} | ({PIECES: self.table} if self.table else {})

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        if self._table is None:
            return self._processor.encode(valid(texts), num_threads=threads)
        # Not by the model's ids: the table may have a piece that the model calls unk.
        found = self._processor.encode(valid(texts), out_type=str, num_threads=threads)
        return [self._table.ids(pieces) for pieces in found]

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        from jaxformer.data.segmentation import sample

        drawn = sample(self._processor, valid(texts), alpha=alpha, seed=seed)
        if self._table is None:
            return drawn
        return [self._table.ids(map(self._processor.id_to_piece, ids)) for ids in drawn]

    @property
    def languages(self) -> dict[str, int]:
        return self._table.languages if self._table is not None else self._tags

    @functools.cached_property
    def _tags(self) -> dict[str, int]:
        names = enumerate(map(self._processor.id_to_piece, range(self.size)))
        return {
            found[1]: id_
            for id_, name in names
            if (found := re.fullmatch("<2(.+)>", name))
        }

    def tag_id(self, language: str) -> int:
        """Return the id of the piece that asks for a language, ``<2de>`` for ``de`` in
        a vocabulary that was trained here.
        """
        if self._table is not None:
            return super().tag_id(language)
        found = self._processor.piece_to_id(tag(language))
        if found == self.unk_id:
            raise InputError(
                f"the vocabulary has no tag {tag(language)}: train with"
                f" data.language_tags=True and text in {language}"
            )
        return found

    def _text(self, ids: list[int]) -> str:
        if self._table is None:
            return self._processor.decode(ids)
        # A piece that the model lacks comes back as it is.
        text = self._processor.decode_pieces([self._table.pieces[id_] for id_ in ids])
        return text.replace("▁", " ").strip()

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        if self._table is not None:
            return [self._table.pieces[token] for token in self._known(ids)]
        return [self._processor.id_to_piece(token) for token in self._known(ids)]


class _Table:
    """The pieces by id of a model whose file numbers them otherwise.

    Attributes:
        pieces: by id; where there is none, unk's.
        special: ids of pad, unk, bos and eos.
        languages: ids of languages by their codes.
        silent: the ids without text.
    """

    def __init__(self, content: bytes) -> None:
        """Read it.

        Raises:
            InputError: it is no such table.
        """
        try:
            table = json.loads(content)
            ids = {piece: id_ for id_, piece in enumerate(table["pieces"]) if piece}
            codes = {code: ids[piece] for code, piece in table["languages"].items()}
            special = {
                name: ids[piece] for name, piece in SPECIAL.items() if piece in ids
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                "its table of pieces is damaged: import the model again"
            ) from None
        for name in ("pad", "unk", "eos"):
            if name not in special:
                raise InputError(f"its table of pieces has no {SPECIAL[name]}")
        special.setdefault("bos", special["pad"])
        self.pieces = [piece or SPECIAL["unk"] for piece in table["pieces"]]
        self.special = special
        self.languages = codes
        holes = {id_ for id_, piece in enumerate(table["pieces"]) if not piece}
        controls = {*special.values(), *codes.values(), ids.get("<mask>")} - {None}
        self.silent = controls | holes
        self._of_text = {
            piece: id_ for piece, id_ in ids.items() if id_ not in controls
        }

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Return the ids of pieces of text; of one that is not there, or stands for a
        control id, unk's.
        """
        unknown = self.special["unk"]
        return [self._of_text.get(piece, unknown) for piece in pieces]


def _special_ids(processor: Any) -> dict[str, int]:
    found = {name: getattr(processor, f"{name}_id")() for name in SPECIAL}
    for name, id_ in found.items():
        if id_ < 0:  # also for a piece that text can spell
            raise InputError(
                f"the SentencePiece model has no control piece for {name}: train it"
                f" with --{name}_id (pad, unk, bos and eos are all needed)"
            )
    return found


def load_sentencepiece() -> ModuleType:
    """Import SentencePiece and silence it: its failures are exceptions too."""
    module = require("sentencepiece", "train")
    module.set_min_log_level(2)
    return module
