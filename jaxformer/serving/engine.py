"""A run behind a server: text to the sentences of a batch, batches in shapes that were
compiled before, and what a model says of pairs.

Any thread may call ``encode`` and ``join`` of a :class:`TranslationEngine`. The other
methods compute on a device and belong to one thread, but for ``warm``, which may have a
thread of its own.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxformer.data.language_codes import describe_choices
from jaxformer.data.records import Pair
from jaxformer.errors import LineError
from jaxformer.models.make import count_parameters
from jaxformer.serving.compiled import CompiledTranslator
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import (
    MOST_ATTENDED,
    MOST_READ,
    MOST_REQUIRED,
    PLAIN,
    RICH,
    TERMS,
    SearchKind,
)
from jaxformer.serving.words import Alternative
from jaxformer.translation import pairs as given_pairs
from jaxformer.translation.batch import Sentence, most_tokens
from jaxformer.translation.codec import Passage
from jaxformer.translation.options import SourceLine
from jaxformer.translation.results import Attention, Hypothesis, PairScore
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Translator


@dataclass(frozen=True)
class EncodedSentence:
    """A sentence that is checked and ready for a batch.

    Attributes:
        sentence: its tokens.
        kind: of its search.
        width: tokens of the source.
        passage: the text that it is, or that it is a part of.
    """

    sentence: Sentence
    kind: SearchKind
    width: int
    passage: Passage


class TranslationEngine(CompiledTranslator):
    """A translator of text that compiles nothing after :meth:`warm`.

    Attributes:
        name: of the run's directory.
        languages: codes of source and target; empty: unknown.
        checkpoint: name of the parameters.
        beam_size: most translations of a sentence.
        positions: most tokens of either side.
        parameters: number of the model's parameters.
    """

    def __init__(self, translator: Translator, name: str = "", rows: int = 0) -> None:
        """Take a translator.

        Args:
            translator: of the run.
            name: of the run.
            rows: most sentences of a batch on each device; 0: 16 on a CPU, 64 on a GPU
                or TPU.
        """
        super().__init__(translator, rows)
        self.name = name
        self.languages = translator.languages
        self.checkpoint = str(translator.checkpoint)
        self.beam_size = translator.decoding.beam_size
        self.positions = translator.models.positions
        self.parameters = count_parameters(translator.params)

    @classmethod
    def load(
        cls,
        workdir: str | Path,
        *,
        decoding: Mapping[str, Any] | None = None,
        shortlist: bool = False,
        rows: int = 0,
        **which: Any,
    ) -> TranslationEngine:
        """Read a run.

        Args:
            workdir: directory of the run.
            decoding: settings of the search that differ from the run's.
            shortlist: whether the search is limited to the run's shortlist.
            rows: as of the constructor.
            **which: checkpoint and languages, see :meth:`jaxformer.Translator.load`.

        Raises:
            InputError: there is no such run, checkpoint, language or shortlist, or a
                setting is out of range.
        """
        found = Translator.load(workdir, **which)
        found.decoding = replace(found.decoding, **(decoding or {}))
        if shortlist:
            found.shortlist = Shortlist.find(
                found.directory or Path(workdir),
                found.vocabularies,
                found.languages,
                tagged=bool(found.codec.frame.source_before),
            )
        return cls(found, os.path.basename(os.path.abspath(workdir)), rows)

    def encode(
        self,
        text: str,
        *,
        kind: SearchKind | None = None,
        prefix: str = "",
        required: Sequence[str] = (),
        n_best: int = 1,
        aligned: int | None = None,
        place: int = 0,
    ) -> list[EncodedSentence]:
        """Encode a sentence of text and check what it asks for.

        Args:
            text: a sentence.
            kind: of its search; None: that which the rest asks for.
            prefix: what the translation begins with; it needs a rich kind.
            required: phrases that the translation contains; they need a kind for them.
            n_best: translations that are asked for.
            aligned: how many of its translations a rich search aligns, the best first;
                None: all.
            place: of the sentence in its request, which its samples depend on.

        Returns:
            The sentence, or its parts if it is too long and ``decoding.long_sources``
            is ``split``; none for a text without tokens.

        Raises:
            ServingError: 422, it is too long, or its prefix cannot be written.
            LineError: a phrase cannot be required.
            ValueError: a search of this kind takes no prefix or no phrases.
        """
        begin, phrases = (prefix,) if prefix else (), tuple(required)
        if kind is None:
            rich = n_best > 1 or aligned != 0 or prefix
            kind = TERMS if phrases else RICH if rich else PLAIN
        if (begin and not kind.rich) or (phrases and not kind.required):
            raise ValueError(f"a search of {kind} takes no such phrases")
        search = self.searches.get(kind)
        if search is None:
            raise _cannot_require(
                "needs a search of 2 hypotheses or more for required phrases, and this"
                " server's has fewer: leave them out"
            )
        try:
            line = SourceLine(place, text, begin, phrases)
            (passage,), sentences = search.prepare([line])
        except LineError as error:
            if error.kind == "source":
                raise self._too_long(text) from None
            if error.kind == "required":
                raise
            raise _cannot_write(f"a sentence {error.fault}", "prefix") from None
        for each in sentences:
            most = max([len(each.required), *map(len, each.required)])
            if most > MOST_REQUIRED:
                raise _cannot_require(
                    f"may have {MOST_REQUIRED} required phrases of {MOST_REQUIRED}"
                    f" tokens each, not {most}: shorten them, or leave some out"
                )
        kept = (each._replace(aligned=aligned) for each in sentences if each.ids)
        return [EncodedSentence(each, kind, len(each.ids), passage) for each in kept]

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
        if len(parts) == 1:
            return parts[0]
        return self.searches[encoded[0].kind].join(encoded[0].passage, parts)

    def search(
        self, kind: SearchKind, encoded: Sequence[EncodedSentence]
    ) -> list[list[Hypothesis] | Exception]:
        """Translate sentences of one kind in batches of the smallest shapes that are
        compiled; return the translations of each, or its error.
        """
        found: list[list[Hypothesis] | Exception] = []
        while rest := encoded[len(found) :]:
            width = max(each.width for each in rest)
            with self.program(kind, len(rest), width) as shape:
                batch = [each.sentence for each in rest[: shape.rows]]
                found += self.searches[kind].search(batch, shape)
        return found

    def attend(
        self, text: str, translation: str, k: int = 0
    ) -> tuple[Attention, list[list[tuple[str, float]]]]:
        """Return all attention weights of a sentence and its translation, and the
        ``k`` most probable tokens at each place of it, with their probabilities.

        Args:
            text: a sentence.
            translation: of it.
            k: at most :data:`~jaxformer.serving.compiled.MOST_CANDIDATES`.

        Raises:
            ServingError: 400, the text is blank; 422, a side has too many tokens.
        """
        if not text.strip():
            message = "attention needs a sentence that is not blank: give one"
            raise ServingError(400, "missing", message, field="text")
        (longest,) = self.translator.codec.measure([text], [translation])
        what = "attention and steps are shown for"
        self._check_pair(longest, MOST_ATTENDED, what, "too_many_tokens")
        pair = self.translator.models, self.translator.codec, text, translation
        with self.program("attend", 1, longest) as shape:
            maps, best = given_pairs.attend(
                *pair, width=shape.width, k=self._candidates
            )
        pieces = self.translator.vocabularies.target.pieces
        return maps, [
            [(pieces([token])[0], math.exp(value)) for token, value in own[:k]]
            for own in best
        ]

    def alternatives(self, text: str, prefix: str, k: int) -> list[Alternative]:
        """Return the most probable words after a prefix of a sentence's translation,
        each with the best translation that begins so.

        The words begin with the pieces that are most probable after the prefix. Each is
        completed by a search, all in one batch, whose other hypotheses add words.

        Args:
            text: a sentence.
            prefix: words of its translation; empty: alternatives of the first word.
            k: how many at most.

        Raises:
            ServingError: 422, the text is too long for one search, or the prefix cannot
                be written.
        """
        parts = self.encode(text, kind=RICH, prefix=prefix, aligned=0)
        if len(parts) > 1:
            raise self._too_long(text)
        if not parts:
            return []
        sentence = parts[0].sentence
        begin = [*sentence.prefixes[0]] if sentence.prefixes else []
        decoding, positions = self.translator.decoding, self.positions
        if len(begin) + 1 >= most_tokens(decoding, sentence.words, positions):
            return []
        before = len(begin) - len(self.translator.codec.frame.target_before)
        words, likely = self.words, self._next_tokens(sentence, begin)
        pieces = [each for each in likely if words.may_begin(each, first=not before)]
        asked = [
            replace(parts[0], sentence=sentence._replace(prefixes=[[*begin, token]]))
            for token in pieces[:k]
        ]
        completed: list[Hypothesis] = []
        for found in self.search(RICH, asked):
            if isinstance(found, Exception):
                raise found
            completed += found

        def ending(ids: Sequence[int]) -> float:
            after = [*begin, *ids[before:]]
            if len(after) >= min(MOST_READ, positions):
                return 1.0  # no token has room after it
            likely = self._next_tokens(sentence, after).items()
            return sum(value for token, value in likely if words.ends(token))

        return words.rank(completed, before, k, ending)

    def _next_tokens(self, sentence: Sentence, begin: list[int]) -> dict[int, float]:
        """Return the most probable tokens after others with their probabilities."""
        pair = sentence.ids, [*begin, self.translator.codec.frame.end]
        self._check_pair(longest := max(map(len, pair)))
        with self.program("candidates", 1, longest) as shape:
            own = self.translator.models, pair, self._considered
            places = given_pairs.candidates(*own, width=shape.width)
        return {token: math.exp(value) for token, value in places[len(begin)]}

    def score(self, pairs: Sequence[Pair]) -> list[PairScore]:
        """Return the log-probability of each target given its source.

        Raises:
            ServingError: 422, a side is too long.
        """
        models, codec = self.translator.models, self.translator.codec
        longest = codec.measure(*map(list, zip(*pairs, strict=True))) if pairs else []
        self._check_pair(max(longest, default=0))
        order = sorted(range(len(pairs)), key=lambda index: longest[index])
        found: dict[int, PairScore] = {}
        while rest := order[len(found) :]:
            with self.program("score", len(rest), longest[rest[0]]) as shape:
                own = [each for each in rest if longest[each] <= shape.width]
                batch = [pairs[index] for index in own[: shape.rows]]
                how = self.translator.decoding, shape
                scores = given_pairs.score(models, codec, batch, *how)
            found |= dict(zip(own[: len(batch)], scores, strict=True))
        return [found[index] for index in range(len(pairs))]

    def _check_pair(
        self,
        given: int,
        most: int = MOST_READ,
        what: str = "a pair has",
        code: str = "sentence_too_long",
    ) -> None:
        """Check the tokens of the longer side of a pair.

        Raises:
            ServingError: 422, they are too many.
        """
        limit = min(most, self.positions)
        if given > limit:
            message = f"{what} at most {limit} tokens a side, not {given}: shorten it"
            raise _too_long(message, limit, given, code)

    def _too_long(self, text: str) -> ServingError:
        codec, limit = self.translator.codec, self.longest
        given = len(codec.vocabularies.source.encode(text)) + codec.frame.added
        fault = f"a sentence has {given} tokens, and the model takes {limit} at once"
        return _too_long(f"{fault}: shorten it", limit, given)


def load_engines(
    workdirs: Sequence[Path],
    sources: Sequence[str | None],
    targets: Sequence[str | None],
    *,
    say: Callable[[str], object] = warnings.warn,
    **how: Any,
) -> list[TranslationEngine]:
    """Read runs, each for all pairs of languages.

    Args:
        workdirs: directories of runs.
        sources: codes; None: that of the run.
        targets: codes; None: that of the run.
        say: called with a note where a run reads a code as another language or region.
        **how: see :meth:`TranslationEngine.load`.

    Raises:
        InputError: a run cannot be read or does not have the languages.
    """
    engines = []
    for run, source, target in itertools.product(workdirs, sources, targets):
        if source is None or source != target:
            which = {"source_language": source, "target_language": target}
            engines.append(TranslationEngine.load(run, **which, **how))
            for note in describe_choices(which.values(), engines[-1].languages):
                say(note)
    return engines


def _too_long(
    message: str, limit: int, given: int, code: str = "sentence_too_long"
) -> ServingError:
    return ServingError(422, code, message, field="text", limit=limit, given=given)


def _cannot_write(message: str, field: str) -> ServingError:
    return ServingError(422, "cannot_write", message, field=field)


def _cannot_require(fault: str) -> LineError:
    return LineError(f"a sentence {fault}", kind="required", number=1, fault=fault)
