"""Text to the tokens of a model, and its tokens to text."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.data.files import can_be_seen
from jaxformer.data.frame import Frame
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError, LineError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.rules import SearchResult
from jaxformer.translation.results import Hypothesis, nothing

_SPACE_MARK = "▁"
# Marks before a word without a space between.
_OPENING = "\"'“„‚‘«»(["


class Passage(NamedTuple):
    """The tokens of a line, in one part unless it is a paragraph or too long."""

    parts: list[list[int]]
    """All tokens of each part; a blank one has none."""
    spaces: list[str]
    """White space before each part."""
    longest: int
    """Most tokens of a sentence before it was cut for its length."""


@dataclasses.dataclass(frozen=True)
class Codec:
    """Encode text and decode tokens.

    Attributes:
        vocabularies: of source and target.
        positions: of the model, on either side.
        frame: the tokens around the text.
        source_language: for the abbreviations of paragraphs; empty: unknown.
        trained: most tokens of a source in training, those added to it included; None:
            unknown.
    """

    vocabularies: Vocabularies
    positions: int
    frame: Frame
    source_language: str = ""
    trained: int | None = None

    @property
    def longest(self) -> int:
        """Most tokens of a source in training; if unknown, the model's positions."""
        return min(self.trained or self.positions, self.positions)

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode, in the frame of the run; a blank text has no tokens.

        Raises:
            InputError: a text has more tokens than the model has positions.
        """
        return self._check("source", self._sources(texts))

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode, in the frame of the run; a blank text has only the frame.

        Raises:
            InputError: a text has more tokens than the model has positions.
        """
        return self._check("target", self._targets(texts))

    def fit(self, sources: Sequence[str], targets: Sequence[str]) -> list[bool]:
        """Return for each pair whether the model has positions for both sides."""
        return [longest <= self.positions for longest in self.measure(sources, targets)]

    def measure(self, sources: Sequence[str], targets: Sequence[str]) -> list[int]:
        """Return for each pair the tokens of its longer side."""
        pairs = zip(self._sources(sources), self._targets(targets), strict=True)
        return [max(map(len, pair)) for pair in pairs]

    def _sources(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.vocabularies.source.encode_batch(list(texts))
        return [self._complete(ids) for ids in encoded]

    def _targets(self, texts: Sequence[str]) -> list[list[int]]:
        frame = self.frame
        encoded = self.vocabularies.target.encode_batch(list(texts))
        return [[*frame.target_before, *ids, frame.end] for ids in encoded]

    def _check(self, side: str, encoded: list[list[int]]) -> list[list[int]]:
        for number, ids in enumerate(encoded, start=1):
            check_length(side, number, ids, self.positions, self.positions)
        return encoded

    def passages(
        self,
        texts: Sequence[str],
        decoding: DecodingConfig,
        *,
        paragraphs: bool = False,
        before: int = 0,
    ) -> list[Passage]:
        """Encode lines, in parts if they are paragraphs or too long.

        A source that is too long is cut at the end of every sentence, and sentences
        that are still too long between clauses or words. A model that was trained on
        single sentences omits text of a part with several, even if they fit.

        Args:
            texts: the lines.
            decoding: how long a source may be, and whether longer ones are cut.
            paragraphs: whether each line is cut into sentences first.
            before: number of lines before these, for an error.

        Raises:
            LineError: a line is too long.
        """
        asked, language = decoding.max_source_length, self.source_language
        most = min(asked or self.positions, self.positions)
        room = (
            max(1, min(asked or self.longest, most) - self.frame.added)
            if decoding.long_sources == "split"
            else None
        )
        # Not all vocabularies have nothing for what cannot be seen.
        texts = [text if can_be_seen(text) else "" for text in texts]
        divided = [[("", text)] for text in texts]
        if paragraphs:
            from jaxformer.translation.paragraphs import split_sentences

            divided = [split_sentences(text, language) for text in texts]
        encoded = iter(
            self.vocabularies.source.encode_batch(
                [text for each in divided for _, text in each]
            )
        )
        found = []
        for number, sentences in enumerate(divided, start=before + 1):
            parts, spaces, longest = [], [], 0
            for space, text in sentences:
                ids = next(encoded)
                longest = max(longest, len(ids) + self.frame.added)
                for own_space, part in self._cut(space, text, ids, room):
                    parts.append(self._complete(part))
                    spaces.append(own_space)
            check_length(
                "source", number, max(parts, key=len), most, self.positions, _SHORTER
            )
            found.append(Passage(parts, spaces, longest))
        return found

    def _complete(self, ids: list[int]) -> list[int]:
        frame = self.frame
        return frame.row(ids) if ids else []

    def _cut(
        self, space: str, text: str, ids: list[int], room: int | None
    ) -> Iterator[tuple[str, list[int]]]:
        """Cut a text that is too long into its sentences, and these if necessary; yield
        the space before each part.
        """
        if room is None or len(ids) <= room:
            yield space, ids
            return
        from jaxformer.translation.paragraphs import split, split_sentences

        sentences = split_sentences(text, self.source_language)
        encoded = self.vocabularies.source.encode_batch(
            [sentence for _, sentence in sentences]
        )
        for (between, _), own in zip(sentences, encoded, strict=True):
            space += between
            pieces = self.vocabularies.source.pieces(own)
            for start, stop in split(pieces, room):
                if start and pieces[start].startswith(_SPACE_MARK):
                    space = " "
                yield space, own[start:stop]
                space = ""

    def banned(self, phrases: Sequence[str]) -> list[list[int]]:
        """Encode banned phrases in every form that a reader takes for the same words.

        A lower-case word is banned with a capital first letter too, as at the beginning
        of a sentence; a capitalised one is banned as it is. Both are also banned after
        an opening quote, an opening bracket and a hyphen, where the vocabulary has
        other pieces for them. Within a longer word they are allowed: "he" does not ban
        "the". A form that the vocabulary cannot write bans nothing.

        Raises:
            InputError: a phrase is blank.
        """
        vocabulary = self.vocabularies.target
        forms: list[str] = []
        for phrase in map(str.strip, phrases):
            forms += [phrase, phrase[:1].upper() + phrase[1:]]
        found = vocabulary.encode_batch(forms)
        if not all(found):
            raise InputError("a banned word must not be blank: leave it out")
        for ids in vocabulary.encode_batch(
            [mark + form for form in forms for mark in _OPENING]
        ):
            # A space with a piece of its own is not necessary.
            found.append(
                ids[1:] if vocabulary.pieces(ids[:1]) == [_SPACE_MARK] else ids
            )
        # After a hyphen no word begins: "x" makes it an inner part.
        word = vocabulary.encode("x")
        for ids in vocabulary.encode_batch([f"x-{form}" for form in forms]):
            found.append(ids[len(word) :] if ids[: len(word)] == word else ids)
        forms_of_ids = dict.fromkeys(map(tuple, found))
        return [list(ids) for ids in forms_of_ids if vocabulary.unk_id not in ids]

    def hypotheses(
        self, found: SearchResult, row: int
    ) -> list[tuple[list[int], Hypothesis]]:
        """Return the translations of one sentence of a batch with their tokens, those
        of the frame included: as many as exist, or else one without text.
        """
        vocabulary, skip = self.vocabularies.target, len(self.frame.target_before)
        hypotheses = []
        for rank, score in enumerate(found.scores[row]):
            if not np.isfinite(score):
                continue  # an empty place
            length = found.lengths[row][rank]
            ids = found.tokens[row][rank][:length].tolist()
            each = found.token_log_probabilities[row][rank][skip:length]
            hypothesis = Hypothesis(
                " ".join(vocabulary.decode(ids[skip:]).split("\n")),
                float(score),
                float(found.log_probabilities[row][rank]),
                vocabulary.pieces(ids[skip:]),
                bool(found.finished[row][rank]),
                token_log_probabilities=each.tolist(),
            )
            hypotheses.append((ids, hypothesis))
        return hypotheses or [([], nothing())]


_SHORTER = "translate it in parts (--split_long, decoding.long_sources=split)"


def check_length(
    side: str,
    number: int,
    ids: list[int],
    limit: int,
    positions: int,
    cure: str = "give one sentence a line",
) -> None:
    """Check the length of a sentence.

    Raises:
        LineError: it has more tokens than ``limit``.
    """
    if len(ids) > limit:
        rule = (
            f"decoding.max_source_length is {limit}"
            if limit < positions
            else f"the model has {limit} positions"
        )
        raise line_error(side, number, f"has {len(ids)} tokens and {rule}; {cure}")


def line_error(kind: str, number: int, fault: str) -> LineError:
    """Return the error of a sentence, of its prefixes or required phrases, of a prompt
    or of a text.
    """
    side = f"{kind} " if kind in ("source", "target") else ""
    name = kind if kind in ("prompt", "text") else f"{side}sentence"
    message = f"{name} {number} {fault}"
    return LineError(message, kind=kind, number=number, fault=fault)


def find_nan(scores: np.ndarray, numbers: Sequence[int]) -> list[LineError | None]:
    """Return the error of each sentence that has a score of NaN, None for the others.

    Args:
        scores: of each sentence [N, ...], in a batch that may have more rows.
        numbers: of the sentences, counted from 0.
    """
    fault = (
        "has probabilities that are not a number (NaN): weights of the model are NaN or"
        " infinite, or overflow in its precision; use another checkpoint"
        " (--checkpoint), or decoding.precision=float32"
    )
    return [
        line_error("source", number + 1, fault) if np.isnan(own).any() else None
        for number, own in zip(numbers, scores, strict=False)
    ]


def raise_first(results: Iterable[object]) -> None:
    """Raise the error of the first line that has one.

    Raises:
        LineError: there are errors among the results.
    """
    errors = [each for each in results if isinstance(each, LineError)]
    if errors:
        raise min(errors, key=lambda error: error.number)


def number_words(
    vocabulary: Vocabulary,
    ids: Sequence[int],
    tags: Collection[int] = (),
    *,
    unknown_alone: bool = False,
) -> list[int | None]:
    """Return the number of the word between white space that each token belongs to,
    from 0; None for a token without text.

    Args:
        vocabulary: of the tokens.
        ids: the tokens.
        tags: tokens without text, besides padding and the ends of a sentence.
        unknown_alone: whether an unknown token is a word of its own, as in the output,
            where it is written as " ⁇ ".
    """
    controls = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id, *tags}
    numbers: list[int | None] = []
    word, begun = -1, False
    for token, piece in zip(ids, vocabulary.pieces(ids), strict=True):
        alone = unknown_alone and (
            token == vocabulary.unk_id or token >= vocabulary.size
        )
        begun = begun and not alone and not piece.startswith(_SPACE_MARK)
        if token in controls or not piece.strip(_SPACE_MARK):
            numbers.append(None)
            continue
        word, begun = word + (not begun), not alone
        numbers.append(word)
    return numbers
