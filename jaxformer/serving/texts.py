"""A text of a request: cut into sentences that are ready for a batch, and put together
from their translations.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from jaxformer.serving.engine import EncodedSentence, TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import MOST_REQUIRED, PLAIN, RICH, TERMS
from jaxformer.translation.results import Hypothesis, blank, distinct
from jaxformer.translation.text.blocks import TranslatedPart
from jaxformer.translation.text.html_text import Markup, parse
from jaxformer.translation.text.layout import Layout, SentenceSpan, count_lines, divide
from jaxformer.translation.text.placeholders import Hidden, hide

if TYPE_CHECKING:
    from jaxformer.translation.text.glossary import Glossary

_MOST_ALIGNED = 1024
"""Most tokens of a sentence whose words are linked: the links take time and memory that
grow with their square.
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
        sentences: whether to cut the text into sentences; else it is one.
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

    @property
    def lines(self) -> int:
        """Number of lines with a letter or digit, each of a sentence or more."""
        if self.format == "html" or not self.split_newlines:
            return 1
        return count_lines(self.text)


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
    """

    text: str
    sentences: list[SentenceResult]
    alternatives: list[str]
    unmet: list[str]
    source: str


@dataclasses.dataclass
class Cut:
    """A sentence of a text.

    Attributes:
        piece: the sentence.
        place: of the sentence in the text, from 0.
        objects: of HTML, by the characters that stand for them.
        hidden: with its placeholders hidden; None: it has none.
        asks: what is searched: the sentence, or the texts between its placeholders;
            one of too many tokens has several parts.
        whole: whether it is the sentence.
    """

    piece: SentenceSpan
    place: int
    objects: Mapping[str, str]
    hidden: Hidden | None
    asks: list[list[EncodedSentence]] = dataclasses.field(default_factory=list)
    whole: bool = True


class _Block(NamedTuple):
    """Text between tags that end a sentence; plain text is one block."""

    layout: Layout
    cuts: list[Cut]


class Text:
    """A text on its way through a server.

    Attributes:
        query: what is asked for.
        engine: that translates it.
        cuts: its sentences.
    """

    def __init__(
        self, query: Query, engine: TranslationEngine, glossary: Glossary | None
    ) -> None:
        """Cut the text of a query into sentences.

        Raises:
            ServingError: required phrases are asked for of several sentences.
        """
        self.query, self.engine, self._glossary = query, engine, glossary
        self._markup: Markup | None = None
        texts: list[tuple[str, Mapping[str, str]]] = [(query.text, {})]
        if query.format == "html":
            self._markup = parse(query.text)
            texts = [(block.text, block.objects) for block in self._markup.blocks]
        layouts = [self._divide(text) for text, _ in texts]
        if query.required and sum(len(layout.pieces) for layout in layouts) > 1:
            raise ServingError(
                400,
                "out_of_range",
                "required phrases need a text of one sentence: send each sentence as a"
                " text of its own, or leave them out",
                field="required",
            )
        self._blocks: list[_Block] = []
        self.cuts: list[Cut] = []
        for layout, (_, objects) in zip(layouts, texts, strict=True):
            cuts = [
                Cut(piece, place, objects, hide(piece.text, engine.writes))
                for place, piece in enumerate(layout.pieces, len(self.cuts))
            ]
            self._blocks.append(_Block(layout, cuts))
            self.cuts += cuts

    def encode(self) -> None:
        """Encode the sentences.

        Raises:
            ServingError: a sentence, the prefix or a phrase cannot be encoded.
        """
        for cut in self.cuts:
            self._ask(cut)

    @property
    def tokens(self) -> int:
        """Number of tokens that are searched."""
        asks = (ask for cut in self.cuts for ask in cut.asks)
        return sum(each.width for ask in asks for each in ask)

    @property
    def searches(self) -> int:
        """Number of sentences, where each part of a divided one counts."""
        parts = (sum(map(len, cut.asks)) for cut in self.cuts)
        return sum(max(1, count) for count in parts)

    def _divide(self, text: str) -> Layout:
        language = self.engine.languages[0]
        return divide(
            text,
            language,
            split_newlines=self.query.split_newlines and self._markup is None,
            sentences=self.query.sentences,
        )

    def _ask(self, cut: Cut) -> None:
        """Encode a sentence, with marks in place of its placeholders."""
        text, marks = cut.piece.text, []
        prefix = "" if cut.place else self.query.prefix
        if cut.hidden is not None:
            text, marks = cut.hidden.text, cut.hidden.marks
            prefix = cut.hidden.hide(prefix)
        if not text:  # too many placeholders
            self.ask_between(cut)
            return
        try:
            required = [*self.query.required, *marks]
            cut.asks = [self._encode(text, cut.place, prefix, required)]
        except ServingError as error:
            if not marks or error.code != "cannot_write":
                raise
            self.ask_between(cut)
        if marks and len(cut.asks[0]) > 1:
            # Only the first part would be required to have its marks.
            self.ask_between(cut)

    def ask_between(self, cut: Cut) -> None:
        """Encode the texts between the placeholders of a sentence instead of it."""
        assert cut.hidden is not None
        cut.whole = False
        cut.asks = [
            self._encode(text, cut.place, "", []) for text in cut.hidden.fragments
        ]

    def _encode(
        self, text: str, place: int, prefix: str, required: Sequence[str]
    ) -> list[EncodedSentence]:
        """Encode a text. Terms that cannot be required of it are left out; the answer
        says if they are missing.
        """
        if self._glossary is not None:
            terms = self._glossary.terms_in(text)[: MOST_REQUIRED - len(required)]
            try:
                return self._encode_with([*required, *terms], text, place, prefix)
            except ServingError as error:
                if not terms or error.code != "cannot_write":
                    raise
        return self._encode_with(required, text, place, prefix)

    def _encode_with(
        self, required: Sequence[str], text: str, place: int, prefix: str
    ) -> list[EncodedSentence]:
        query = self.query
        linked = query.alignment or self._markup is not None
        rich = query.n_best > 1 or linked or prefix
        encoded = self.engine.encode(
            text,
            kind=TERMS if required else RICH if rich else PLAIN,
            prefix=prefix,
            required=required,
            # Any of them may have all marks, or a text that no better one has.
            aligned=0 if not linked else None if required or query.n_best > 1 else 1,
            place=place,
        )
        tokens = sum(each.width for each in encoded)
        if query.alignment and tokens > _MOST_ALIGNED:
            raise ServingError(
                422,
                "too_many_tokens",
                f"words are linked in sentences of at most {_MOST_ALIGNED:,} tokens,"
                f" not {tokens:,}: shorten the sentence, or leave out alignment",
                field="alignment",
                limit=_MOST_ALIGNED,
                given=tokens,
            )
        return encoded

    def settle(
        self, cut: Cut, found: Sequence[Sequence[list[Hypothesis]]]
    ) -> tuple[SentenceResult, list[Hypothesis]] | None:
        """Return the result of a sentence, and its hypotheses with alignments; None if
        a translation lacks its placeholders, see :meth:`ask_between`.

        Args:
            cut: of this text.
            found: the hypotheses of each part of each of its ``asks``.
        """
        every = [self._join(*own) for own in zip(cut.asks, found, strict=True)]
        if cut.hidden is None:
            (hypotheses,) = every
        elif cut.whole:
            given = [self.query.prefix, *self.query.required]
            if self._glossary:
                given += self._glossary.terms_in(cut.hidden.text)
            hypotheses = cut.hidden.restore(every[0], given)
        else:
            hypotheses = cut.hidden.join(every)
        if not hypotheses:
            return None
        hypotheses = distinct(hypotheses)[: self.query.n_best]
        table = str.maketrans(dict(cut.objects))
        shown = [
            dataclasses.replace(
                each,
                text=each.text.translate(table),
                alignment=each.alignment if self.query.alignment else None,
            )
            for each in hypotheses
        ]
        source, span = cut.piece.text.translate(table), cut.piece[1:]
        return SentenceResult(source, span, shown), hypotheses

    def _join(
        self, ask: list[EncodedSentence], found: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        if not ask:  # it has no token
            return [blank(aligned=True)] * self.query.n_best
        if sum(each.width for each in ask) > _MOST_ALIGNED:
            found = [
                [dataclasses.replace(each, alignment=None) for each in own]
                for own in found
            ]
        return self.engine.join(ask, found)

    def finish(
        self, results: Sequence[tuple[SentenceResult, list[Hypothesis]]]
    ) -> Translated:
        """Put the text together from the results of its sentences, in order."""
        rows = best_rows([found for _, found in results], self.query.n_best)
        texts = list(dict.fromkeys(map(self._render, rows)))
        unmet = [phrase for phrase in self.query.required if phrase not in texts[0]]
        if self._glossary is not None:
            for cut, each in zip(self.cuts, rows[0], strict=True):
                unmet += self._glossary.unmet(cut.piece.text, each.text)
        return Translated(
            texts[0],
            [result for result, _ in results],
            [text for text in texts[1:] if text],
            list(dict.fromkeys(unmet)),
            self.engine.languages[0],
        )

    def _render(self, row: Sequence[Hypothesis]) -> str:
        chosen = iter(row)
        rows = [[next(chosen) for _ in block.cuts] for block in self._blocks]
        if self._markup is None:
            return self._blocks[0].layout.join([each.text for each in rows[0]])
        return self._markup.render(
            [
                [
                    TranslatedPart(
                        cut.piece.start, cut.piece.stop, own.text, own.alignment
                    )
                    for cut, own in zip(block.cuts, chosen, strict=True)
                ]
                for block, chosen in zip(self._blocks, rows, strict=True)
            ]
        )


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
    rows: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for own in choices:
        longer = (
            (score + each.score, (*row, each)) for score, row in rows for each in own
        )
        rows = heapq.nlargest(count, longer, key=lambda scored: scored[0])
    return [row for _, row in rows]
