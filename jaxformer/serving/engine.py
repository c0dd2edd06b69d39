"""The engine of a server: text to sentences that are ready for a batch, and batches in
programs that were compiled before.

Any thread may call any method: JAX's programs take no state with them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxformer.data.records import Pair
from jaxformer.errors import LineError
from jaxformer.models.make import count_parameters
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import (
    MOST_ATTENDED,
    MOST_READ,
    PAIRS,
    PLAIN,
    RICH,
    TERMS,
    Program,
    Programs,
    plan,
)
from jaxformer.serving.words import Alternative, NextWords
from jaxformer.translation import pairs as given_pairs
from jaxformer.translation.batch import (
    Sentence,
    Shape,
    most_tokens,
    power_of_two,
    rows_of_batch,
)
from jaxformer.translation.codec import Passage
from jaxformer.translation.compiled import count_workers
from jaxformer.translation.options import SourceLine
from jaxformer.translation.results import Attention, Hypothesis, PairScore
from jaxformer.translation.stream import LineSearch
from jaxformer.translation.text.placeholders import hide
from jaxformer.translation.text.text import MOST_REQUIRED
from jaxformer.translation.translator import Translator


@dataclasses.dataclass(frozen=True)
class EncodedSentence:
    """A sentence that is checked and ready for a batch.

    Attributes:
        sentence: its tokens.
        kind: of its search.
        width: tokens of the source.
        passage: the text that it is, or that it is a part of.
        aligned: how many of its translations have links of words; None: all.
    """

    sentence: Sentence
    kind: str
    width: int
    passage: Passage
    aligned: int | None = 0


class TranslationEngine:
    """A translator of one pair of languages, its searches and their programs.

    Attributes:
        translator: of the run.
        name: of the run's directory.
        languages: codes of source and target; ``("source", "target")``: unknown.
        checkpoint: name of the parameters.
        beam_size: most translations of a sentence.
        positions: most tokens of either side.
        parameters: number of the model's parameters.
        longest: most tokens of a source that is searched at once.
        searches: batches that are searched at the same time.
        programs: of the searches, and of passes over pairs.
    """

    def __init__(
        self,
        translator: Translator,
        name: str = "",
        rows: int = 0,
        searches: int = 0,
    ) -> None:
        """Plan the programs; none is compiled yet.

        Args:
            translator: of the run.
            name: of the run.
            rows: most sentences of a batch on each device; 0: 16 on a CPU, 64 on a GPU
                or TPU.
            searches: batches that are searched at the same time; 0: 2 on a CPU with two
                or more cores, else 1.
        """
        self.translator, self.name = translator, name
        self.languages = translator.languages
        self.checkpoint = str(translator.checkpoint)
        decoding, codec = translator.decoding, translator.codec
        self.beam_size = decoding.beam_size
        self.positions = translator.models.positions
        self.parameters = count_parameters(translator.params)
        self.words = NextWords(translator.vocabularies.target)
        own = codec.longest if decoding.long_sources == "split" else codec.positions
        self.longest = min(decoding.max_source_length or own, codec.positions)
        self._searches = plan_searches(translator)
        models = self._searches[PLAIN].models
        self.searches = searches or min(2, count_workers(models.devices))
        self._layer = translator.line_search(
            alignment=translator.model.config.attention_layers > 0
        ).layer
        is_cpu = jax.default_backend() == "cpu"
        # Other numbers were not measured.
        beam = 1 if decoding.sample else decoding.beam_size
        extra = max(self.longest, decoding.max_extra_length)
        pair = min(self.longest + extra, self.positions)
        planned = dict[Program, None]()
        for each in plan(self.longest, pair, rows or (16 if is_cpu else 64)):
            if each.use in (*self._searches, PAIRS):
                most = max(1, decoding.tokens_per_batch // each.width)
                least = models.devices * min(each.rows, most)
                own = each._replace(rows=rows_of_batch(least, beam, models))
                planned[own] = None
        self.programs = Programs([*planned], 4 if is_cpu else 256)

    @property
    def facts(self) -> dict[str, str]:
        """What clients are told of the model."""
        source, target = self.languages
        names = {"name": self.name, "source": source, "target": target}
        return names | {"checkpoint": self.checkpoint}

    def warm(self) -> bool:
        """Compile the next program; return False if there is none."""
        if (program := self.programs.next()) is None:
            return False
        if program.use == PAIRS:
            end = [self.translator.codec.frame.end]
            jax.block_until_ready(self._read(end, end, program.width))
        else:
            self._search(program, [])
        self.programs.done |= {program}
        return True

    def encode(
        self,
        text: str,
        *,
        prefix: str = "",
        required: Sequence[str] = (),
        n_best: int = 1,
        aligned: int | None = 0,
        place: int = 0,
    ) -> list[EncodedSentence]:
        """Encode a sentence of text and check what it asks for.

        Args:
            text: a sentence.
            prefix: what the translation begins with.
            required: phrases that the translation contains.
            n_best: translations that are asked for.
            aligned: how many of its translations have links of words, the best first;
                None: all.
            place: of the sentence in its request, which its samples depend on.

        Returns:
            The sentence, or its parts if it is too long and ``decoding.long_sources``
            is ``split``; none for a text without tokens.

        Raises:
            ServingError: 422, it is too long, or its prefix cannot be written.
            LineError: a phrase cannot be required.
        """
        # Links of the words of the best need a pass of their own, and no other search.
        rich = n_best > 1 or aligned is None or prefix
        kind = TERMS if required else RICH if rich else PLAIN
        search = self._searches.get(kind)
        if search is None:
            raise _cannot_require(
                "needs a search of 2 hypotheses or more for required phrases, and this"
                " server's has fewer: leave them out"
            )
        begin = (prefix,) if prefix else ()
        try:
            line = SourceLine(place, text, begin, tuple(required))
            (passage,), sentences = search.prepare([line])
        except LineError as error:
            if error.kind == "required":
                raise
            code, field = "cannot_write", "prefix"
            if error.kind == "source":
                code, field = "sentence_too_long", "text"
            raise ServingError(422, code, f"a sentence {error.fault}", field) from None
        for each in sentences:
            most = max([len(each.required), *map(len, each.required)])
            if most > MOST_REQUIRED:
                raise _cannot_require(
                    f"may have {MOST_REQUIRED} required phrases of {MOST_REQUIRED}"
                    f" tokens each, not {most}: shorten them, or leave some out"
                )
        return [
            EncodedSentence(each, kind, len(each.ids), passage, aligned)
            for each in sentences
            if each.ids
        ]

    def is_ready(self, encoded: EncodedSentence) -> bool:
        """Return whether the programs of a sentence are compiled, or else have one of
        them compiled next.
        """
        found, wait = self.programs, self.programs.wait_for
        length = encoded.width + self.translator.decoding.max_extra_length
        return wait(encoded.kind, encoded.width) and (
            encoded.aligned == 0 or wait(PAIRS, min(length, found.longest(PAIRS)))
        )

    def writes(self, text: str) -> bool:
        """Return whether both vocabularies can write a text as it is."""
        both = self.translator.vocabularies
        return all(x.decode(x.encode(text)) == text for x in (both.source, both.target))

    def join(
        self, encoded: Sequence[EncodedSentence], parts: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        """Return the translations of a sentence from those of its parts, of which
        there is one or more.
        """
        return self._searches[encoded[0].kind].join(encoded[0].passage, parts)

    def search(
        self, kind: str, encoded: Sequence[EncodedSentence]
    ) -> tuple[list[list[Hypothesis] | Exception], int]:
        """Translate sentences of one kind by programs that are compiled.

        Returns:
            The translations of each, or its error; and the source positions of the
            shapes, rows times width.
        """
        found, positions = list[list[Hypothesis] | Exception](), 0
        while rest := encoded[len(found) :]:
            program = self.programs.choose(
                kind, len(rest), max(each.width for each in rest)
            )
            part = rest[: program.rows]
            read = self._search(program, [each.sentence for each in part])
            found += map(self._align, part, read)
            positions += program.rows * program.width
        return found, positions

    def _search(
        self, program: Program, batch: Sequence[Sentence]
    ) -> list[list[Hypothesis] | LineError]:
        """Search in the shape of a program, with room for all that its use may ask."""
        use, rows, width = program
        codec, listed = self.translator.codec, self.translator.shortlist
        length = min(width + self.translator.decoding.max_extra_length, codec.positions)
        room = len(codec.frame.target_before) if use == PLAIN else length
        size = None
        if listed is not None:  # the most tokens that so many sentences may need
            own = listed.best.shape[1] * width + room + MOST_REQUIRED**2
            special = len(listed.first) + len(listed.special) + 3
            size = power_of_two(special + rows * own)
        shape = Shape(
            rows,
            width,
            prefixes=(1, room) if room else None,
            required=(MOST_REQUIRED, MOST_REQUIRED) if use == TERMS else None,
            listed=size,
        )
        return self._searches[use].search(batch, shape, concurrent=self.searches > 1)

    def _align(
        self, encoded: EncodedSentence, found: list[Hypothesis] | Exception
    ) -> list[Hypothesis] | Exception:
        """Add the links of words to the translations of a sentence. A pair that is too
        long for a pass has none, nor has a model without attention.
        """
        if not self._layer or isinstance(found, Exception):
            return found
        codec, ids = self.translator.codec, encoded.sentence.ids
        before = codec.frame.target_before
        linked = []
        for each in found[: encoded.aligned]:
            alignment, target = None, [*before, *self.words.encode(each.tokens)]
            given = max(len(ids), len(target))
            if given <= self.programs.longest(PAIRS):
                links = np.asarray(
                    self._read(ids, target, self._fit(given, given)).links
                )
                alignment = given_pairs.link(codec, ids, target, links)
            linked.append(dataclasses.replace(each, alignment=alignment))
        return linked + found[len(linked) :]

    def _read(
        self, source: Sequence[int], target: Sequence[int], width: int, place: int = 0
    ) -> given_pairs.Reading:
        how: Any = {"first": MOST_ATTENDED, "layer": self._layer or 1, "place": place}
        models = self.translator.models
        return given_pairs.read(models, source, target, width=width, **how)

    def attend(
        self, text: str, translation: str, k: int = 0
    ) -> tuple[Attention, list[list[tuple[str, float]]]]:
        """Return all attention weights of a sentence and its translation, and the
        ``k`` most probable tokens at each place of it, with their probabilities.

        Raises:
            ServingError: 422, a side has too many tokens.
        """
        source, target, width = self._encode_pair(text, translation, MOST_ATTENDED)
        found = self._read(source, target, width)
        models, codec = self.translator.models, self.translator.codec
        pieces = codec.vocabularies.target.pieces
        values, tokens = (np.asarray(own)[: len(target), :k] for own in found.likely)
        return given_pairs.show_attention(models, codec, source, target, found), [
            list(zip(pieces(own), map(math.exp, row), strict=True))
            for own, row in zip(tokens, values, strict=True)
        ]

    def alternatives(self, text: str, prefix: str, k: int) -> list[Alternative]:
        """Return the most probable words after a prefix of a sentence's translation,
        each with the best translation that begins so.

        The words begin with the pieces that are most probable after the prefix. Each is
        completed by a search, whose other hypotheses add words.

        A text with placeholders is searched with marks in their place.

        Args:
            text: a sentence.
            prefix: words of its translation; empty: alternatives of the first word.
            k: how many at most.

        Raises:
            ServingError: 422, the text is too long for one search, or the prefix cannot
                be written.
        """
        hidden, marks = hide(text, self.writes), list[str]()
        if hidden is not None:
            text, prefix, marks = hidden.text, hidden.hide(prefix), hidden.marks
        try:
            parts = self.encode(text, prefix=prefix, required=marks, n_best=2)
        except LineError:  # the marks cannot be required
            return []
        words, given = self.words, sum(each.width for each in parts)
        _check_length("a text whose words have alternatives", given, self.longest)
        if not parts:
            return []
        (own,) = parts
        sentence, frame = own.sentence, self.translator.codec.frame
        begin = [*next(iter(sentence.prefixes), ())]
        most = most_tokens(self.translator.decoding, sentence.words, self.positions)
        if len(begin) + 1 >= most:
            return []
        before = len(begin) - len(frame.target_before)
        likely = self._next_tokens(sentence, begin)
        first = [each for each in likely if words.begins(each, first=not before)]
        found, _ = self.search(
            own.kind,
            [
                dataclasses.replace(
                    own, sentence=sentence._replace(prefixes=[[*begin, token]])
                )
                for token in first[:k]
            ],
        )
        every = list[Hypothesis]()
        for completed in found:
            if isinstance(completed, Exception):
                raise completed
            every += hidden.restore(completed, [prefix]) if hidden else completed
        best: dict[str, tuple[Alternative, list[int]]] = {}
        for each in sorted(every, key=lambda own: -own.score):
            word, ids = words.read(each, before)
            if word.word:
                best.setdefault(word.word, (word, ids))

        def whole(own: Alternative, ids: Sequence[int]) -> Alternative:
            after = [*begin, *ids[before:]]
            shown = own._replace(word=hidden.show(own.word)) if hidden else own
            if len(after) >= min(MOST_READ, self.programs.longest(PAIRS)):
                return shown  # no token has room after it
            likely = self._next_tokens(sentence, after).items()
            ends = sum(value for token, value in likely if words.ends(token))
            return shown._replace(probability=own.probability * ends)

        shown = sorted(best.values(), key=lambda own: -own[0].probability)[:k]
        return sorted(itertools.starmap(whole, shown), key=lambda own: -own.probability)

    def _next_tokens(self, sentence: Sentence, begin: list[int]) -> dict[int, float]:
        """Return the most probable tokens after others with their probabilities."""
        target = [*begin, self.translator.codec.frame.end]
        width = self._fit(max(len(sentence.ids), len(target)))
        found = self._read(sentence.ids, target, width, len(begin)).next
        values, tokens = (np.asarray(own).tolist() for own in found)
        return dict(zip(tokens, map(math.exp, values), strict=True))

    def score(self, pair: Pair) -> PairScore:
        """Return the log-probability of a target given its source.

        Raises:
            ServingError: 422, a side is too long.
        """
        source, target, width = self._encode_pair(pair.source, pair.target)
        skip = len(self.translator.codec.frame.target_before)
        values = np.asarray(self._read(source, target, width).log_probabilities)
        return PairScore(float(values[skip : len(target)].sum()), len(target) - skip)

    def _encode_pair(
        self, source: str, target: str, most: int = MOST_READ
    ) -> tuple[list[int], list[int], int]:
        """Return the tokens of a pair, and the width of the program that reads it."""
        codec = self.translator.codec
        width = self._fit(codec.measure([source], [target])[0], most)
        sides = codec.encode_sources([source]), codec.encode_targets([target])
        return sides[0][0], sides[1][0], width

    def _fit(self, given: int, most: int = MOST_READ) -> int:
        """Return the width of the program that reads a pair.

        Raises:
            ServingError: 422, a side has too many tokens.
        """
        limit = min(most, self.programs.longest(PAIRS))
        code = "sentence_too_long" if most > MOST_ATTENDED else "too_many_tokens"
        _check_length("a side of a pair", given, limit, code)
        return self.programs.choose(PAIRS, 1, given).width


def plan_searches(translator: Translator) -> dict[str, LineSearch]:
    """Return the search of each kind that a run's settings allow."""
    decoding = translator.decoding
    rich: Any = {"n_best": decoding.beam_size, "prefixes": ()}
    found = {PLAIN: translator.line_search(), RICH: translator.line_search(**rich)}
    if not decoding.sample and decoding.beam_size >= 2 * decoding.diversity_groups:
        found[TERMS] = translator.line_search(required=(), **rich)
    return found


def _check_length(
    what: str, given: int, limit: int, code: str = "sentence_too_long"
) -> None:
    if given > limit:
        fault = f"{what} has at most {limit} tokens here, not {given}: shorten it"
        raise ServingError(422, code, fault, field="text", limit=limit, given=given)


def _cannot_require(fault: str) -> LineError:
    return LineError(f"a sentence {fault}", kind="required", number=1, fault=fault)
