"""Vocabularies of SentencePiece whose pieces get their ids from a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.vocabulary import MASK, PIECES, SPECIAL, Vocabulary, valid
from jaxformer.data.vocabulary_sentencepiece import SentencePieceVocabulary
from jaxformer.errors import InputError


@dataclass(frozen=True)
class TableVocabulary(SentencePieceVocabulary):
    """A SentencePiece model with the ids of a table, as Marian, M2M-100 and fairseq
    number pieces.

    Raises:
        InputError: the bytes are no SentencePiece model, or a special piece is
            missing.
    """

    table: bytes = field(repr=False)
    """The content of a file: JSON of ``pieces``, a list by id with null where there is
    none, and ``languages``, the piece of each code.
    """
    _table: _Table = field(init=False, repr=False, compare=False)

    def _facts(self) -> dict[str, Any]:
        """Read the table, and return the attributes that it determines."""
        table = _Table(self.table)
        ids = {f"{name}_id": id_ for name, id_ in table.special.items()}
        facts = {"size": len(table.pieces), "_silent": frozenset(table.silent)}
        return facts | ids | {"_table": table, "mask_id": table.mask_id}

    def __reduce__(self) -> tuple[type[TableVocabulary], tuple[bytes, bytes]]:
        """Copy by the contents of the files."""
        return TableVocabulary, (self.model, self.table)

    @property
    def files(self) -> dict[str, bytes]:
        """The model and the table."""
        return super().files | {PIECES: self.table}

    @property
    def languages(self) -> dict[str, int]:
        """The id of each language of the table."""
        return self._table.languages

    tag_id = Vocabulary.tag_id

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Encode each sentence; -1 threads: all cores."""
        # Not by the model's ids: the table may have a piece that the model calls unk.
        found = self._processor.encode(valid(texts), out_type=str, num_threads=threads)
        return [self._table.ids(pieces) for pieces in found]

    def _ids(self, pieces: Sequence[str], ids: list[int]) -> list[int]:
        del ids
        return self._table.ids(pieces)

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Encode each sentence in a random segmentation of the model."""
        drawn = super().sample_batch(texts, alpha=alpha, seed=seed)
        return [self._table.ids(map(self._processor.id_to_piece, ids)) for ids in drawn]

    def _text(self, ids: list[int]) -> str:
        # A piece that the model lacks comes back as it is.
        text = self._processor.decode_pieces([self._table.pieces[id_] for id_ in ids])
        return text.replace("▁", " ").strip()

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return the table's name of each token; "▁" is a space."""
        return [self._table.pieces[token] for token in self._known(ids)]


class _Table:
    """The pieces by id of a model whose file numbers them otherwise.

    Attributes:
        pieces: by id; where there is none, unk's.
        special: ids of pad, unk, bos and eos.
        mask_id: that of the mask, if there is one.
        languages: ids of languages by their codes.
        silent: the ids without text.
    """

    def __init__(self, content: bytes) -> None:
        """Read it.

        Raises:
            InputError: a special piece is missing.
        """
        table = json.loads(content)
        ids = {piece: id_ for id_, piece in enumerate(table["pieces"]) if piece}
        codes = {code: ids[piece] for code, piece in table["languages"].items()}
        special = {name: ids[piece] for name, piece in SPECIAL.items() if piece in ids}
        for name in ("pad", "unk", "eos"):
            if name not in special:
                raise InputError(f"its table of pieces has no {SPECIAL[name]}")
        special.setdefault("bos", special["pad"])
        self.pieces = [piece or SPECIAL["unk"] for piece in table["pieces"]]
        self.special = special
        self.mask_id = ids.get(MASK)
        self.languages = codes
        holes = {id_ for id_, piece in enumerate(table["pieces"]) if not piece}
        controls = {*special.values(), *codes.values(), ids.get(MASK)} - {None}
        self.silent = controls | holes
        self._of_text = {
            piece: id_ for piece, id_ in ids.items() if id_ not in controls
        }

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Return the ids of pieces of text; that of unk for a missing piece or a
        control id.
        """
        unknown = self.special["unk"]
        return [self._of_text.get(piece, unknown) for piece in pieces]
