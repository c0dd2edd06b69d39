"""Text pairs to token ids: tokenise, end sentences, drop what cannot be trained on, and count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.sources import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError


@dataclass(frozen=True, eq=False)
class Sentences:
    """Token ids of many sentences, end to end in one array: compact, and quick to take batches from."""

    tokens: NDArray[np.int32]
    """int32 [sum of lengths]"""
    offsets: NDArray[np.int64]
    """int64 [N + 1]: sentence i is ``tokens[offsets[i]:offsets[i + 1]]``"""
    pad_id: int
    """What :meth:`padded` fills with: the padding id of the vocabulary."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]], pad_id: int) -> Sentences:
        """Lay the sentences end to end."""
        offsets = np.zeros(len(sentences) + 1, np.int64)
        np.cumsum([len(sentence) for sentence in sentences], out=offsets[1:])
        tokens = np.fromiter((token for sentence in sentences for token in sentence), np.int32, int(offsets[-1]))
        return cls(tokens, offsets, pad_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens in each sentence, int64 [N]."""
        return np.diff(self.offsets)

    def take(self, indices: NDArray[np.int64]) -> Sentences:
        """Give the sentences at these indices, in this order."""
        lengths = self.lengths[indices]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        # Position j of the result belongs to sentence i and lies as far from its start as it did before.
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[indices] - offsets[:-1], lengths)
        return Sentences(self.tokens[positions], offsets, self.pad_id)

    def padded(self, indices: NDArray[np.int64], rows: int, length: int) -> NDArray[np.int32]:
        """Give a batch, int32 [rows, length]: these sentences padded on the right, then rows of padding alone."""
        taken = self.take(indices)
        batch = np.full((rows, length), self.pad_id, np.int32)
        batch[: len(indices)][np.arange(length) < taken.lengths[:, None]] = taken.tokens
        return batch


@dataclass(frozen=True, eq=False)
class Encoded:
    """Pairs as token ids; pair i is ``source[i]``, ``target[i]``. Lengths count the end-of-sentence token."""

    source: Sentences
    target: Sentences

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: NDArray[np.int64]) -> Encoded:
        """Give the pairs at these indices, in this order."""
        return Encoded(self.source.take(indices), self.target.take(indices))


class Dropped(NamedTuple):
    """How many training pairs were left out, and why."""

    empty: int
    """A side holds no token: it is empty, or only white space."""
    too_long: int
    """A side has more than ``max_length`` tokens."""


def encode(pairs: Sequence[Pair], vocabularies: Vocabularies, *, source_eos: bool) -> Encoded:
    """Turn every pair into token ids; nothing is dropped and nothing is cut.

    Every target ends with exactly one end-of-sentence token, the source with one if ``source_eos``, else with none.
    """
    return Encoded(
        _encode_side([pair.source for pair in pairs], vocabularies.source, eos=source_eos),
        _encode_side([pair.target for pair in pairs], vocabularies.target, eos=True),
    )


def encode_training(
    pairs: Sequence[Pair], vocabularies: Vocabularies, *, source_eos: bool, max_length: int
) -> tuple[Encoded, Dropped]:
    """Turn pairs into token ids and drop those with an empty side or one of more than ``max_length`` tokens.

    Both sides of a pair go together, and never is a sentence cut. A pair that is both empty and too long counts as
    empty.
    """
    encoded = encode(pairs, vocabularies, source_eos=source_eos)
    sources, targets = encoded.source.lengths, encoded.target.lengths
    empty = (sources == int(source_eos)) | (targets == 1)
    too_long = ((sources > max_length) | (targets > max_length)) & ~empty
    kept = encoded.take(np.flatnonzero(~empty & ~too_long))
    return kept, Dropped(int(empty.sum()), int(too_long.sum()))


def encode_evaluation(
    pairs: Sequence[Pair], vocabularies: Vocabularies, *, source_eos: bool, max_length: int | None = None
) -> Encoded:
    """Turn every pair into token ids, for a loss that counts each pair once: nothing is dropped and nothing is cut.

    ``max_length`` is the most tokens that the model's positions allow on a side (None: any number), not the limit of
    training pairs.

    Raises:
        InputError: a sentence has more tokens than ``max_length``.
    """
    encoded = encode(pairs, vocabularies, source_eos=source_eos)
    if max_length is None:
        return encoded
    for side, sentences in (("source", encoded.source), ("target", encoded.target)):
        too_long = np.flatnonzero(sentences.lengths > max_length)
        if too_long.size:
            raise InputError(
                f"the {side} of pair {too_long[0] + 1} has {sentences.lengths[too_long[0]]} tokens and the model takes "
                f"{max_length} ({too_long.size} such): shorten it, or give the model more positions"
            )
    return encoded


def _encode_side(texts: list[str], vocabulary: Vocabulary, *, eos: bool) -> Sentences:
    ending = [vocabulary.eos_id] if eos else []
    return Sentences.of([ids + ending for ids in vocabulary.encode_batch(texts)], vocabulary.pad_id)
