"""Vocabularies of a ``tokenizer.json``, as the library ``tokenizers`` reads it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.vocabulary import MASK, SPECIAL, TOKENIZER, Vocabulary, valid
from jaxformer.errors import InputError, require

LANGUAGE = re.compile("[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")
"""A language's piece: ``en_XX`` of mBART, ``eng_Latn`` of NLLB."""


_NAMES = (
    SPECIAL,
    {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]"},
    # GPT-2 has neither padding nor unknown text, and GPT has one special piece.
    {"bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    {"unk": "<unk>", "bos": "<unk>", "eos": "<unk>"},
)
"""What the families call their special pieces; the first that fits is taken."""

_MASKS = (MASK, "[MASK]")


@dataclass(frozen=True)
class TokenizerVocabulary(Vocabulary):
    """A tokenizer, built from the bytes of its ``tokenizer.json``.

    The post-processor, truncation and padding of the file are ignored.
    Without a piece for padding or for unknown text its id is :attr:`size`.

    Raises:
        InputError: the bytes are no such file, or it lacks a special piece, or the
            package ``tokenizers`` is missing.
    """

    tokenizer: bytes = field(repr=False)
    """The content of the file."""
    _languages: dict[str, int] = field(init=False, repr=False, compare=False)
    _special: dict[int, str] = field(init=False, repr=False, compare=False)
    _backend: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        backend = _load(self.tokenizer)
        special = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        names = _special_names(backend)
        special |= {
            id_: piece
            for piece in (*names.values(), *_MASKS)
            if (id_ := backend.token_to_id(piece)) is not None
        }
        ids = {piece: id_ for id_, piece in special.items()}
        size = max(backend.get_vocab_size(), 1 + max(special))
        for name in SPECIAL:
            id_ = ids[names[name]] if name in names else size
            object.__setattr__(self, f"{name}_id", id_)
        if type(backend.model).__name__ == "Unigram":
            backend = _without(backend, special)
        # Else a special piece in a text becomes its id.
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        languages = {
            piece: id_ for piece, id_ in ids.items() if LANGUAGE.fullmatch(piece)
        }
        masks = [ids[piece] for piece in _MASKS if piece in ids]
        object.__setattr__(self, "mask_id", masks[0] if masks else None)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_languages", languages)
        object.__setattr__(self, "_silent", frozenset({*special, self.pad_id}))
        object.__setattr__(self, "_special", special)
        object.__setattr__(self, "_backend", backend)

    def __reduce__(self) -> tuple[type[TokenizerVocabulary], tuple[bytes]]:
        return TokenizerVocabulary, (self.tokenizer,)

    @property
    def files(self) -> dict[str, bytes]:
        """The tokenizer."""
        return {TOKENIZER: self.tokenizer}

    def count_rows(self) -> int:
        """Return how many rows a table of all ids has: more than :attr:`size` if the
        ids have holes. It reads every piece.
        """
        return 1 + max(self._backend.get_vocab().values())

    @property
    def languages(self) -> dict[str, int]:
        """The id of each language by its code, ``en_XX`` or ``eng_Latn``."""
        return self._languages

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Encode each sentence as :meth:`encode` does; other than 1 threads: as many as
        the library takes.
        """
        options = {"add_special_tokens": False}
        texts = valid(texts)
        if threads == 1:
            found = [self._backend.encode(text, **options) for text in texts]
        else:
            found = self._backend.encode_batch_fast(texts, **options)
        return [self._of_text(each.ids) for each in found]

    def _of_text(self, ids: Sequence[int]) -> list[int]:
        # A merge may have made a special piece of text.
        return [self.unk_id if id_ in self._special else id_ for id_ in ids]

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a text; return its ids, and the characters of each."""
        found = self._backend.encode(*valid([text]), add_special_tokens=False)
        return self._of_text(found.ids), [*found.offsets]

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Refuse to draw: there is one segmentation.

        Raises:
            InputError: always.
        """
        raise InputError(
            "data.segmentation_alpha needs a vocabulary of SentencePiece, not a"
            " tokenizer.json: leave it out"
        )

    def _text(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return the model's name of each token; "▁" is a space. Bytes that are no
        character on their own read as "\ufffd".
        """
        known = self._known(ids)
        names = [self._special.get(id_) or self._piece(id_) for id_ in known]
        return [SPECIAL["unk"] if name is None else name for name in names]

    def _piece(self, id_: int) -> str | None:
        name = self._backend.id_to_token(id_)
        if name is None or type(self._backend.decoder).__name__ != "ByteLevel":
            return name
        known = _bytes_of_characters()
        if not known.keys() >= set(name):  # an added piece, which is text
            return name
        values = bytes(known[character] for character in name)
        return values.decode("utf-8", "replace").replace(" ", "▁")


def _special_names(backend: Any) -> dict[str, str]:
    """Return the pieces of padding, of unknown text and of both ends, by name.

    Raises:
        InputError: a piece is missing.
    """
    for names in _NAMES:
        # Only GPT's pieces end words, and others may have <unk> alone by damage.
        ends_words = getattr(backend.model, "end_of_word_suffix", None)
        if (names["eos"] != "<unk>" or ends_words) and all(
            backend.token_to_id(piece) is not None for piece in names.values()
        ):
            return names
    missing = [x for x in SPECIAL.values() if backend.token_to_id(x) is None]
    raise InputError(f"the tokenizer has no {missing[0]}")


def _load(content: bytes) -> Any:
    tokenizers = require("tokenizers", "train")
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception:  # the library raises no other class
        raise InputError(
            "not a tokenizer.json, or a damaged one: download or import it again"
        ) from None


def _without(backend: Any, special: dict[int, str]) -> Any:
    """Return a unigram tokenizer whose model cannot make special pieces of text.

    Their scores are the best of all, so that the model would choose them. New names
    that no text has keep every other score and id as it is.
    """
    parts = json.loads(backend.to_str())
    pieces = parts["model"]["vocab"]
    for id_ in special.keys() - {parts["model"]["unk_id"]}:
        if id_ < len(pieces):
            pieces[id_][0] = f"\0{id_}▁"
    parts["added_tokens"] = [
        token
        for token in parts["added_tokens"]
        if token["id"] >= len(pieces) or token["id"] not in special
    ]
    return type(backend).from_str(json.dumps(parts))


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character of byte-level pieces: printable
    ones of Latin-1 for themselves, the others in order from U+0100 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
