"""Subword regularisation: segmentations drawn at random, the same for a seed in every
process.

SentencePiece's own sampling cannot be seeded in a thread, so a resumed run would read
other segmentations. Here SentencePiece lists the best segmentations of a unigram model,
one of which is drawn by NumPy. BPE-dropout merges the pieces of a BPE model in Python.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxformer.errors import require

# Segmentations of a sentence that one is drawn from, as Kudo (2018, section 5.1).
_NBEST = 64
_SPACE = "▁"


def sample(
    processor: Any, texts: Sequence[str], *, alpha: float, seed: int
) -> list[list[int]]:
    """Encode each text by a segmentation drawn at random, without bos and eos.

    BPE: words are split into characters, and at each step every possible merge is
    dropped with probability ``alpha``, until none is left (BPE-dropout, Provilkov et
    al. 2020, section 3.1). 0 is the best segmentation, 1 is characters.

    Unigram: of the 64 most probable segmentations x of a text one is drawn with a
    probability proportional to ``p(x) ** alpha`` (Kudo 2018, section 3.3). 0 draws
    evenly, and large values draw the best.

    Word and character models have one segmentation.

    Args:
        processor: a ``sentencepiece.SentencePieceProcessor``.
        texts: valid Unicode.
        alpha: at least 0, and for BPE at most 1.
        seed: not negative. The model, the texts, ``alpha`` and ``seed`` determine the
            result.
    """
    rng = np.random.default_rng(seed)
    kind, pieces = _read_model(processor)
    if kind == "unigram":
        return [_draw_unigram(processor, text, alpha, rng) for text in texts]
    if kind == "bpe":
        normalized = processor.normalize(list(texts))
        return [_drop_merges(pieces, text, alpha, rng) for text in normalized]
    return processor.encode(list(texts))


def _draw_unigram(
    processor: Any, text: str, alpha: float, rng: np.random.Generator
) -> list[int]:
    proto = require("sentencepiece.sentencepiece_pb2", "train")
    found = proto.NBestSentencePieceText.FromString(
        processor.nbest_encode(text, out_type="serialized_proto", nbest_size=_NBEST)
    )
    scores = np.array([each.score for each in found.nbests])
    sums = np.cumsum(np.exp(alpha * (scores - scores.max())))
    drawn = found.nbests[int(np.searchsorted(sums, rng.random() * sums[-1], "right"))]
    return [piece.id for piece in drawn.pieces]


class _BpePieces(NamedTuple):
    """What BPE-dropout needs of a model.

    Attributes:
        ids: of each piece that text may become.
        ranks: of each merge, by its result; the least is made first.
        words: cuts a text where no piece crosses.
        characters: cuts a word into characters and user-defined pieces.
        frozen: user-defined pieces, which are never merged.
        spell: the ids of a character that is not a piece: bytes or unk.
        unk_id: the id of unk.
    """

    ids: Mapping[str, int]
    ranks: Mapping[str, float]
    words: Callable[[str], list[str]]
    characters: Callable[[str], list[str]]
    frozen: frozenset[str]
    spell: Callable[[str], list[int]]
    unk_id: int


def _drop_merges(
    pieces: _BpePieces, text: str, alpha: float, rng: np.random.Generator
) -> list[int]:
    """Encode a normalised text (Provilkov et al. 2020, algorithm 1)."""
    ids: list[int] = []
    # For each step, how many of the best merges are dropped before one is made.
    numbers = rng.geometric(1 - alpha, len(text)) - 1 if alpha < 1 else np.zeros(0)
    dropped = map(int, numbers.tolist())
    for word in pieces.words(text):
        symbols = pieces.characters(word)
        if alpha < 1:
            _merge(symbols, pieces, dropped)
        for symbol in symbols:
            known = pieces.ids.get(symbol)
            spelled = pieces.spell(symbol) if known is None else [known]
            # A run of unknown characters is one unk.
            if spelled != [pieces.unk_id] or ids[-1:] != spelled:
                ids += spelled
    return ids


def _merge(symbols: list[str], pieces: _BpePieces, dropped: Iterator[int]) -> None:
    """Merge the symbols of a word in place, each time the best merge that is not
    dropped.
    """

    def rank(place: int) -> float:
        left, right = symbols[place : place + 2]
        if left in pieces.frozen or right in pieces.frozen:
            return math.inf
        return pieces.ranks.get(left + right, math.inf)

    ranks = [rank(place) for place in range(len(symbols) - 1)]
    while ranks:
        skipped = next(dropped)
        if skipped >= len(ranks):
            return
        best = min(ranks)
        place = ranks.index(best)
        if skipped:
            best, place = sorted(zip(ranks, itertools.count(), strict=False))[skipped]
        if best == math.inf:
            return
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        del ranks[place]
        for neighbour in (place - 1, place):
            if 0 <= neighbour < len(ranks):
                ranks[neighbour] = rank(neighbour)


@functools.lru_cache(maxsize=8)
def _read_model(processor: Any) -> tuple[str, _BpePieces]:
    """Read the type of a model, and its pieces."""
    proto = require("sentencepiece.sentencepiece_model_pb2", "train")
    model = proto.ModelProto.FromString(processor.serialized_model_proto())
    types = proto.ModelProto.SentencePiece
    usable = {
        each.piece: (id_, -each.score)
        for id_, each in enumerate(model.pieces)
        if each.type in (types.NORMAL, types.USER_DEFINED)
    }
    frozen = frozenset(
        each.piece for each in model.pieces if each.type == types.USER_DEFINED
    )
    longest_first = sorted(frozen, key=len, reverse=True)
    across = any(re.search(f"[^{_SPACE}]{_SPACE}", piece) for piece in usable)
    word = f"{_SPACE}*[^{_SPACE}]+|{_SPACE}+"
    one_word = across or _SPACE not in usable

    def spell(character: str) -> list[int]:
        if not model.trainer_spec.byte_fallback:
            return [processor.unk_id()]
        names = [f"<0x{byte:02X}>" for byte in character.encode()]
        return [processor.piece_to_id(name) for name in names]

    pieces = _BpePieces(
        ids={piece: id_ for piece, (id_, _) in usable.items()},
        ranks={piece: rank for piece, (_, rank) in usable.items()},
        words=re.compile("(?s).+" if one_word else word).findall,
        characters=re.compile(
            "(?s)" + "|".join([*map(re.escape, longest_first), "."])
        ).findall,
        frozen=frozen,
        spell=spell,
        unk_id=processor.unk_id(),
    )
    kinds = {proto.TrainerSpec.UNIGRAM: "unigram", proto.TrainerSpec.BPE: "bpe"}
    return kinds.get(model.trainer_spec.model_type, "other"), pieces
