"""The search of texts that are more than lines: with placeholders, a glossary, tags."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.translation.batch import Sentence
from jaxformer.translation.codec import Passage, line_error
from jaxformer.translation.options import SourceLine
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.stream import LineSearch
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import Query, Text


class _Encoded(NamedTuple):
    """A sentence that is ready for a batch, with all of its parts."""

    width: int
    passage: Passage
    sentences: list[Sentence]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSearch(LineSearch):
    """The search of texts with placeholders, a glossary or tags.

    Attributes:
        query: an empty text, and what is asked for of all.
        glossary: whose terms translations contain; None: none.
        unmet: how many translations lack each term, so far.
    """

    query: Query
    glossary: Glossary | None
    unmet: Counter[str] = dataclasses.field(default_factory=Counter)

    @classmethod
    def of(
        cls, search: LineSearch, glossary: Mapping[str, str] | None, **query: Any
    ) -> TextSearch:
        """Return the search of texts by that of lines.

        Args:
            search: of the same options.
            glossary: the translation of each term; None: there is none.
            **query: fields of a :class:`Query`.
        """
        query |= {"n_best": search.n_best, "sentences": search.paragraphs}
        own = {**vars(search), "paragraphs": False}
        if not search.decoding.sample:  # among them is one with all placeholders
            own["n_best"] = search.decoding.beam_size
        terms = None if glossary is None else Glossary(glossary)
        return cls(
            **own, query=Query("", split_newlines=False, **query), glossary=terms
        )

    def _translate_lines(
        self,
        lines: Sequence[SourceLine],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
        long: Counter[str],
    ) -> Iterator[list[Hypothesis]]:
        """Translate texts by their sentences; those that lose placeholders again."""
        texts = [] if stop() else [self._encode_text(line) for line in lines]
        every = [(text, cut) for text in texts for cut in text.cuts]
        settled: dict[int, Any] = {}
        while todo := [own for own in every if id(own[1]) not in settled]:
            asks = [ask[0] for _, cut in todo for ask in cut.asks if ask]
            passages = [ask.passage for ask in asks]
            sentences = [each for ask in asks for each in ask.sentences]
            self._count(passages, long)
            found = self._translate(passages, sentences, lambda: False, lambda _: None)
            for text, cut in todo:
                own = [[next(found)] if ask else [] for ask in cut.asks]
                result = text.settle(cut, own)
                if result is None:
                    text.ask_between(cut)
                else:
                    settled[id(cut)] = result
        for text in texts:
            done = text.finish([settled[id(cut)] for cut in text.cuts])
            self.unmet.update(done.unmet)
            progress(1)
            yield [*done.hypotheses]
        yield from ([] for _ in lines[len(texts) :])

    def _encode_text(self, line: SourceLine) -> Text:
        if line.prefixes[1:]:
            fault = "has several prefixes: with a glossary or placeholders give one"
            raise line_error("prefixes", line.place + 1, fault)
        query = dataclasses.replace(
            self.query,
            text=line.text,
            prefix="".join(line.prefixes),
            required=tuple(filter(None, line.required)),
        )
        text = Text(query, _Engine(self, line.place), self.glossary)
        text.encode()
        return text


class _Engine(NamedTuple):
    """What translates the sentences of a line."""

    search: TextSearch
    line: int

    @property
    def languages(self) -> tuple[str, str]:
        return self.search.codec.source_language, ""

    def writes(self, text: str) -> bool:
        own = self.search.codec.vocabularies
        return all(x.decode(x.encode(text)) == text for x in (own.source, own.target))

    def encode(
        self,
        text: str,
        *,
        prefix: str,
        required: Sequence[str],
        n_best: int,
        aligned: int | None,
        place: int,
    ) -> list[_Encoded]:
        decoding, begin = self.search.decoding, (prefix,) if prefix else ()
        if required and (
            decoding.sample or decoding.beam_size < 2 * decoding.diversity_groups
        ):
            raise line_error("required", self.line + 1, "needs a wider beam")
        line = SourceLine(self.line, text, begin, tuple(required))
        (passage,), sentences = self.search.prepare([line])
        sentences = [
            each._replace(place=(self.line, place + part))
            for part, each in enumerate(sentences)
        ]
        width = sum(len(each.ids) for each in sentences)
        return [_Encoded(width, passage, sentences)] * bool(width)

    def join(
        self, encoded: Sequence[_Encoded], parts: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        return parts[0]
