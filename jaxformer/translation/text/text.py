"""Divide a text into sentences for a search, and put their translations together."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from jaxformer.errors import InputError, LineError
from jaxformer.translation.paragraphs import join_row
from jaxformer.translation.results import (
    Hypothesis,
    blank,
    concatenate_hypotheses,
    distinct,
)
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.html_text import Html, TranslatedPart
from jaxformer.translation.text.layout import Layout, SentenceSpan
from jaxformer.translation.text.placeholders import Hidden, hide

MOST_ALIGNED = 1024
"""Most tokens of a sentence whose words are linked: the links take time and memory that
grow with their square.
"""
MOST_REQUIRED = 8
"""Most phrases that are required of a sentence, with those of a glossary and its
placeholders, and most tokens of each.
"""


@dataclasses.dataclass(frozen=True)
class Query:
    """A text to translate.

    Attributes:
        text: to translate.
        source: code of its language; empty: that of the only pair.
        target: code of the language to translate into; empty: that of the only pair.
        format: whether the text has tags.
        n_best: number of translations of each sentence, and of whole texts.
        prefix: what the translation of the first sentence begins with.
        required: phrases that the translation of the only sentence contains.
        alignment: whether each sentence needs the links of its words.
        split_newlines: whether a line break ends a sentence.
        sentences: whether to divide the text into sentences; else it is one.
        placeholders: whether those of plain text are kept; those of HTML always are.
        tags: of HTML, what elements are that the rules of
            :class:`~jaxformer.translation.text.html_text.Html` know otherwise.
    """

    text: str
    source: str = ""
    target: str = ""
    format: Literal["text", "html"] = "text"
    n_best: int = 1
    prefix: str = ""
    required: tuple[str, ...] = ()
    alignment: bool = False
    split_newlines: bool = True
    sentences: bool = True
    placeholders: bool = True
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)


class SentenceResult(NamedTuple):
    """The translations of a sentence.

    Attributes:
        source: the sentence.
        span: its first character in the text and the one after its last; of HTML, in
            the plain text of its block.
        hypotheses: the best first.
    """

    source: str
    span: tuple[int, int]
    hypotheses: list[Hypothesis]


@dataclasses.dataclass(frozen=True)
class Translated:
    """The translations of a text.

    Attributes:
        text: the best translation.
        sentences: in the order of the text.
        alternatives: other translations of the whole text, the best first.
        unmet: phrases, required or of the glossary, that ``text`` does not contain.
        source: code of the language of the text.
        hypotheses: of the whole text, the best first.
    """

    text: str
    sentences: list[SentenceResult]
    alternatives: list[str]
    unmet: list[str]
    source: str
    hypotheses: Sequence[Hypothesis] = ()


@dataclasses.dataclass
class Segment:
    """A sentence of a text.

    Attributes:
        piece: the sentence.
        place: of the sentence in the text, from 0.
        objects: of HTML, by the codes of the characters that stand for them.
        hidden: with its placeholders hidden; None: it has none.
        units: what is searched: the sentence, or the texts between its placeholders;
            one of too many tokens has several parts.
        whole: whether it is the sentence.
    """

    piece: SentenceSpan
    place: int
    objects: Mapping[int, str]
    hidden: Hidden | None
    units: list[Sequence[Any]] = dataclasses.field(default_factory=list)
    whole: bool = True

    @property
    def tokens(self) -> int:
        """Number of tokens that are searched."""
        return sum(each.width for unit in self.units for each in unit)


class Text:
    """A text on its way to its translation: :meth:`encode`, a search of the units of
    each segment, :meth:`complete`, and :meth:`finish`.

    Attributes:
        query: what is asked for.
        engine: that translates it.
        segments: its sentences.
    """

    def __init__(
        self, query: Query, engine: Any, glossary: Glossary | None = None
    ) -> None:
        """Divide the text of a query into sentences.

        Args:
            query: a text, and what is asked for.
            engine: that translates it: ``languages``, the codes of source and target;
                ``writes``, which returns whether both vocabularies can write a text;
                ``encode``, which returns what is to be searched for a sentence, in
                parts with a ``width`` in tokens, or raises a
                :class:`~jaxformer.errors.LineError` of the kind ``required``; and
                ``join``, which returns the translations of a sentence from those of
                its parts, if there are several.
            glossary: whose terms translations contain.

        Raises:
            InputError: required phrases are asked for of several sentences.
        """
        self.query, self.engine = query, engine
        self._glossary = glossary or Glossary({})
        self._html = Html(query.text, query.tags) if query.format == "html" else None
        blocks: Any = self._html.blocks if self._html else [query]
        self._layouts, self.segments = list[Layout](), list[Segment]()
        for block in blocks:
            objects = block.objects if self._html else {}
            layout = Layout(
                block.text,
                engine.languages[0],
                split_newlines=query.split_newlines and self._html is None,
                sentences=query.sentences,
            )
            self._layouts.append(layout)
            for piece in layout.pieces:
                hidden = None
                if query.placeholders or self._html:
                    hidden = hide(piece.text, engine.writes, "#" * layout.is_message)
                self.segments.append(
                    Segment(piece, len(self.segments), objects, hidden)
                )
        if query.required and len(self.segments) > 1:
            raise InputError(
                "required phrases need a text of one sentence: send each sentence as a"
                " text of its own, or leave them out"
            )

    def encode(self) -> None:
        """Encode the sentences, with marks in place of their placeholders.

        Raises:
            InputError: a sentence, the prefix or a phrase cannot be encoded.
        """
        for segment in self.segments:
            text, marks = segment.piece.text, []
            prefix = "" if segment.place else self.query.prefix
            if segment.hidden is not None:
                text, marks = segment.hidden.text, segment.hidden.marks
                prefix = segment.hidden.hide(prefix)
            try:
                required = [*self.query.required, *marks]
                segment.units = [self._encode(text, segment.place, prefix, required)]
            except LineError as error:
                if not marks or error.kind != "required":
                    raise
                text = ""
            # Without a text there are too many placeholders; and only the first part
            # of a long sentence would be required to have its marks.
            if not text or (marks and len(segment.units[0]) > 1):
                self.encode_fragments(segment)

    @property
    def tokens(self) -> int:
        """Number of tokens that are searched."""
        return sum(segment.tokens for segment in self.segments)

    def encode_fragments(self, segment: Segment) -> None:
        """Encode the texts between the placeholders of a sentence instead of it."""
        assert segment.hidden is not None
        segment.whole = False
        segment.units = [
            self._encode(text, segment.place, "", [])
            for text in segment.hidden.fragments
        ]

    def _encode(
        self, text: str, place: int, prefix: str, required: Sequence[str]
    ) -> Sequence[Any]:
        """Encode a text. Terms that cannot be required of it are left out; the answer
        says if they are missing.
        """
        terms = self._glossary.terms_in(text)[: max(0, MOST_REQUIRED - len(required))]
        phrases, n_best, aligned = [*required, *terms], self.query.n_best, 0
        if self.query.alignment or self._html:
            # Any translation may have all marks, or a text that no better one has.
            aligned = None if phrases or n_best > 1 else 1
        how: Any = {"n_best": n_best, "aligned": aligned, "place": place}
        try:
            return self.engine.encode(text, prefix=prefix, required=phrases, **how)
        except LineError as error:
            if not terms or error.kind != "required":
                raise
            return self.engine.encode(text, prefix=prefix, required=required, **how)

    def complete(
        self, segment: Segment, found: Sequence[Sequence[list[Hypothesis]]]
    ) -> tuple[SentenceResult, list[Hypothesis]] | None:
        """Return the result of a sentence, and its hypotheses with alignments; None if
        a translation lacks its placeholders, see :meth:`encode_fragments`.

        Args:
            segment: of this text.
            found: the hypotheses of each part of each of its ``units``.
        """
        every = [self._join(*own) for own in zip(segment.units, found, strict=True)]
        if segment.hidden is None:
            (hypotheses,) = every
        elif segment.whole:
            terms = self._glossary.terms_in(segment.hidden.text)
            given = self.query.prefix, *self.query.required, *terms
            hypotheses = segment.hidden.restore(every[0], given)
        else:
            hypotheses = segment.hidden.join(every)
        if not hypotheses:
            return None
        hypotheses = distinct(hypotheses)[: self.query.n_best]
        shown = [
            dataclasses.replace(
                each,
                text=each.text.translate(segment.objects),
                alignment=each.alignment if self.query.alignment else None,
            )
            for each in hypotheses
        ]
        source, span = segment.piece.text.translate(segment.objects), segment.piece[1:]
        return SentenceResult(source, span, shown), hypotheses

    def _join(
        self, unit: Sequence[Any], found: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        if not unit:  # it has no token
            return [blank(aligned=True)] * self.query.n_best
        if sum(each.width for each in unit) > MOST_ALIGNED:
            found = [
                [dataclasses.replace(each, alignment=None) for each in own]
                for own in found
            ]
        return found[0] if len(unit) == 1 else self.engine.join(unit, found)

    def finish(
        self, results: Sequence[tuple[SentenceResult, list[Hypothesis]]]
    ) -> Translated:
        """Put the text together from the results of its sentences, in order."""
        rows = best_rows([found for _, found in results], self.query.n_best)
        spaces = [" " * (segment.place > 0) for segment in self.segments]

        def join(row: Sequence[Hypothesis]) -> Hypothesis:
            text = self._render(row)
            if not self.query.alignment:
                return concatenate_hypotheses(row, text, None)
            whole = join_row(row or [blank(aligned=True)], spaces or [""])
            return dataclasses.replace(whole, text=text)

        whole = distinct([join(row) for row in rows])
        text = whole[0].text
        unmet = [phrase for phrase in self.query.required if phrase not in text]
        for segment, each in zip(self.segments, rows[0], strict=True):
            unmet += self._glossary.unmet(segment.piece.text, each.text)
        return Translated(
            text,
            [result for result, _ in results],
            [each.text for each in whole[1:] if each.text],
            list(dict.fromkeys(unmet)),
            self.engine.languages[0],
            whole,
        )

    def _render(self, row: Sequence[Hypothesis]) -> str:
        if self._html is None:
            return self._layouts[0].join([each.text for each in row])
        blocks, rest = [], iter(row)
        for layout in self._layouts:
            own = [*islice(rest, len(layout.pieces))]
            filled = layout.fill([each.text for each in own])
            links = *(each.alignment for each in own), None
            blocks.append(
                [
                    TranslatedPart(*piece[1:], text, alignment, gap)
                    for (gap, piece, text), alignment in zip(filled, links, strict=True)
                ]
            )
        return self._html.render(blocks)


def best_rows(
    choices: Sequence[Sequence[Hypothesis]], count: int
) -> list[tuple[Hypothesis, ...]]:
    """Choose a hypothesis of each sentence: the rows with the greatest sums of scores.

    Args:
        choices: hypotheses of each sentence, the best first.
        count: most rows.
    """
    if count == 1:
        return [tuple(own[0] for own in choices)]
    rows = [(0.0, tuple[Hypothesis, ...]())]
    for own in choices:
        longer = (
            (score + each.score, (*row, each)) for score, row in rows for each in own
        )
        rows = heapq.nlargest(count, longer, key=lambda scored: scored[0])
    return [row for _, row in rows]
