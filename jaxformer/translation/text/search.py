"""The search of texts that are more than lines: with placeholders, a glossary, tags."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.translation.codec import line_error
from jaxformer.translation.options import SourceLine
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.stream import LineSearch
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import Query, Text


class _Ask(NamedTuple):
    """A text to search, and its number of tokens."""

    width: int
    line: SourceLine


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSearch(LineSearch):
    """The search of texts with placeholders, a glossary or tags; the engine of each
    :class:`~jaxformer.translation.text.text.Text`.

    Attributes:
        query: an empty text, and what is asked for of all.
        glossary: whose terms translations contain.
        unmet: how many translations lack each term, so far.
        line: number of the text, from 0.
    """

    query: Query
    glossary: Glossary
    unmet: Counter[str] = dataclasses.field(default_factory=Counter)
    line: int = 0

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
        asked = Query("", split_newlines=False, **query)
        return cls(**own, query=asked, glossary=Glossary(glossary or {}))

    def _translate_lines(
        self,
        lines: Sequence[SourceLine],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
        long: Counter[str],
    ) -> Iterator[list[Hypothesis]]:
        """Translate texts by their sentences; those that lose placeholders again."""
        texts = [] if stop() else [self._encode_text(line) for line in lines]
        todo = [(text, segment) for text in texts for segment in text.segments]
        completed: dict[int, Any] = {}
        while todo:
            units = [
                unit.line
                for _, segment in todo
                for own in segment.units
                for unit in own
            ]
            found = super()._translate_lines(units, lambda: False, lambda _: None, long)
            for text, segment in todo:
                own = [[next(found) for _ in unit] for unit in segment.units]
                completed[id(segment)] = text.complete(segment, own)
            todo = [own for own in todo if completed[id(own[1])] is None]
            for text, segment in todo:
                text.encode_fragments(segment)
        for text in texts:
            done = text.finish([completed[id(segment)] for segment in text.segments])
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
        text = Text(query, dataclasses.replace(self, line=line.place), self.glossary)
        text.encode()
        return text

    @property
    def languages(self) -> tuple[str, str]:
        """Code of the source's language, and an empty text."""
        return self.codec.source_language, ""

    def writes(self, text: str) -> bool:
        """Return whether both vocabularies can write a text as it is."""
        own = self.codec.vocabularies
        return all(x.decode(x.encode(text)) == text for x in (own.source, own.target))

    def encode(
        self, text: str, *, prefix: str, required: Sequence[str], **_: Any
    ) -> list[_Ask]:
        """Return what is to be searched for a sentence: itself, if it has tokens.

        Raises:
            LineError: the prefix or a phrase cannot be required.
        """
        decoding, begin = self.decoding, (prefix,) if prefix else ()
        if required and (
            decoding.sample or decoding.beam_size < 2 * decoding.diversity_groups
        ):
            raise line_error("required", self.line + 1, "needs a wider beam")
        line = SourceLine(self.line, text, begin, tuple(required))
        width = sum(map(len, self.prepare([line])[0][0].parts))
        return [_Ask(width, line)] * bool(width)
