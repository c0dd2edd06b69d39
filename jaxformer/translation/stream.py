"""Lines through the search of batches: one list of hypotheses for each, in order,
window by window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.errors import LineError
from jaxformer.models.seq2seq import Transformer
from jaxformer.search.config import DecodingConfig
from jaxformer.translation import batch as batch_search
from jaxformer.translation.batch import Banned, Sentence, most_tokens
from jaxformer.translation.codec import Codec, Passage, not_a_number
from jaxformer.translation.models import Models
from jaxformer.translation.options import Prefixes, Required, check_phrases, check_text
from jaxformer.translation.pairs import align
from jaxformer.translation.paragraphs import join
from jaxformer.translation.results import Hypothesis, LongSources, blank
from jaxformer.translation.shortlist import Shortlist
from jaxformer.typing import PyTree

# What an error calls the lists that go beside the lines.
_NAMES = {"prefixes": "prefixes", "required": "lists of required phrases"}
_END = object()

# A window ends with the line that brings it to so many characters: endless lines do not
# fill the memory.
_CHARACTERS = 1 << 22


class Line(NamedTuple):
    """A line to translate."""

    place: int
    """How many lines came before it."""
    text: str
    prefixes: tuple[str, ...] = ()
    """With one of which its translation begins; none: it begins as it will."""
    required: tuple[str, ...] = ()
    """What its translation holds."""


class Numbering:
    """Numbers lines and puts each beside its prefixes and the phrases that it
    requires.
    """

    def __init__(self, prefixes: Prefixes, required: Required) -> None:
        """Begin; None: no line has any."""
        given = {"prefixes": prefixes, "required": required}
        self._lists = {
            kind: iter(lists) for kind, lists in given.items() if lists is not None
        }
        self._count = 0

    def line(self, text: str) -> Line:
        """Give the next line.

        Raises:
            InputError: there are fewer prefixes or required phrases than lines, or
                something is no string.
        """
        check_text(f"texts[{self._count}]", text)
        given = {}
        for kind, lists in self._lists.items():
            found = next(lists, _END)
            if found is _END:
                rule = f"there are {self._count} {_NAMES[kind]} and more sentences"
                cure = "give one for each, empty where nothing is asked for"
                fault = f"is missing: {rule}; {cure}"
                raise LineError(
                    f"{rule}: {cure}", kind=kind, number=self._count + 1, fault=fault
                )
            given[kind] = check_phrases(f"{kind}[{self._count}]", found)
        self._count += 1
        return Line(self._count - 1, text, **given)

    def finish(self) -> None:
        """Check that nothing is left.

        Raises:
            InputError: there are more prefixes or required phrases than lines.
        """
        for kind, lists in self._lists.items():
            if next(lists, _END) is not _END:
                rule = (
                    f"there are more {_NAMES[kind]} than the {self._count} sentences:"
                    " give one for each"
                )
                raise LineError(
                    rule,
                    kind=kind,
                    number=self._count + 1,
                    fault=f"is one too many: {rule}",
                )


def number_lines(
    texts: Iterable[str], prefixes: Prefixes, required: Required = None
) -> Iterator[Line]:
    """Number lines as they are asked for.

    Raises:
        InputError: there are more prefixes or required phrases than lines, or fewer, or
            something is no string.
    """
    numbering = Numbering(prefixes, required)
    for text in texts:
        yield numbering.line(text)
    numbering.finish()


def windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Gather lines into windows of at most ``size``, each when the one before is
    done with.
    """
    window: list[Line] = []
    characters = 0
    for line in lines:
        window.append(line)
        characters += len(line.text)
        if len(window) == size or characters >= _CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSearch:
    """A search that is asked for, checked, and the same for all windows of a call.

    Attributes:
        models: that translate, prepared for it.
        codec: of the models.
        reader: the model, with its parameters, whose attention aligns.
        shortlist: of the target tokens that may come; None: all may.
        decoding: how to search.
        n_best: translations of each line.
        banned: what no translation holds.
        forced: whether a line may have a prefix; the compiled search is the same for
            all lines.
        layer: whose attention aligns, counted from 1; None: no alignment.
        paragraphs: whether lines are cut into sentences.
        window: most lines that are read at a time.
        stop: asked between batches whether to end.
        progress: told how many lines each batch has made whole.
        notice: told at the end of the lines which of them were longer than training
            saw, if any.
    """

    models: Models
    codec: Codec
    reader: tuple[Transformer, PyTree]
    shortlist: Shortlist | None
    decoding: DecodingConfig
    n_best: int
    banned: Banned
    forced: bool
    layer: int | None
    paragraphs: bool
    window: int
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    notice: Callable[[LongSources], None] = LongSources.warn

    def stream(
        self, texts: Iterable[str], prefixes: Prefixes, required: Required = None
    ) -> Iterator[list[Hypothesis]]:
        """Translate texts window by window; see :meth:`Translator.stream`."""
        long = LongSources(self.codec.longest)
        for window in windows(number_lines(texts, prefixes, required), self.window):
            passages = self._passages(window)
            long = self._count(long, passages)
            for found in self._translate(window, passages):
                yield from found
        self._notify(long)

    def check(
        self, texts: Iterable[str], prefixes: Prefixes, required: Required = None
    ) -> int:
        """Read texts and translate nothing; see :meth:`Translator.check`."""
        count = 0
        for window in windows(number_lines(texts, prefixes, required), self.window):
            self._sentences(window, self._passages(window))
            count += len(window)
        return count

    def _count(self, long: LongSources, passages: Sequence[Passage]) -> LongSources:
        """Add the lines of a window that are longer than training saw."""
        whole = [
            max(map(len, each.parts)) > long.limit
            for each in passages
            if each.longest > long.limit
        ]
        return dataclasses.replace(
            long, whole=long.whole + sum(whole), cut=long.cut + len(whole) - sum(whole)
        )

    def _notify(self, long: LongSources) -> None:
        if long.cut or long.whole:
            self.notice(long)

    def _translate(
        self, window: Sequence[Line], passages: Sequence[Passage]
    ) -> Iterator[list[list[Hypothesis]]]:
        """Translate batch by batch; after each, give what is whole up to the first
        line that is not.
        """
        sentences = self._sentences(window, passages)
        found: list[list[Hypothesis]] = [
            [] if each.ids else [blank(aligned=self.layer is not None)]
            for each in sentences
        ]
        lines = [line for line, passage in enumerate(passages) for _ in passage.parts]
        missing = [sum(map(bool, passage.parts)) for passage in passages]
        begins = np.cumsum([0, *(len(passage.parts) for passage in passages)]).tolist()

        def give(start: int, stop: int) -> list[list[Hypothesis]]:
            return [
                self._join(passages[line], found[begins[line] : begins[line + 1]])
                for line in range(start, stop)
            ]

        given, whole = 0, 0
        self.progress(missing.count(0))
        for indices, rows in self._batches([len(each.ids) for each in sentences]):
            if self.stop():
                break
            for index, hypotheses in zip(
                indices,
                self._search([sentences[i] for i in indices], rows),
                strict=True,
            ):
                found[index] = hypotheses
                missing[lines[index]] -= 1
            self.progress(
                sum(not missing[line] for line in {lines[index] for index in indices})
            )
            while whole < len(window) and not missing[whole]:
                whole += 1
            if whole > given:
                yield give(given, whole)
                given = whole
        if given < len(window):  # blank lines alone, or what was stopped
            yield give(given, len(window))

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        # Many samples of a sentence take the room of as many hypotheses; each device
        # has room of its own.
        room, taken = (
            min(self.decoding.beam_size, self.n_best) * self.models.devices,
            self.n_best,
        )
        most, tokens = (
            max(1, x * room // taken)
            for x in (self.decoding.batch_size, self.decoding.tokens_per_batch)
        )
        return batch_search.batches(lengths, most, tokens, self.codec.positions)

    def _search(
        self, sentences: Sequence[Sentence], rows: int
    ) -> list[list[Hypothesis]]:
        """Translate a batch whose shape has room for so many rows."""
        found = batch_search.search_batch(
            self.models,
            sentences,
            dataclasses.replace(self.decoding, batch_size=rows),
            eos_id=self.codec.vocabularies.target.eos_id,
            n_best=self.n_best,
            banned=self.banned,
            forced=self.forced,
            shortlist=self.shortlist,
        )
        broken = [
            each.place[0]
            for each, scores in zip(sentences, found.scores, strict=False)
            if np.isnan(scores).any()
        ]
        if broken:
            raise not_a_number("source", min(broken) + 1)
        read = [self.codec.hypotheses(found, row) for row in range(len(sentences))]
        if self.layer is None:
            return [[hypothesis for _, hypothesis in each] for each in read]
        pairs = [
            (sentence.ids, ids)
            for sentence, each in zip(sentences, read, strict=True)
            for ids, _ in each
        ]
        aligned = iter(
            align(*self.reader, self.codec, pairs, layer=self.layer, rows=rows)
        )
        return [
            [dataclasses.replace(one, alignment=next(aligned)) for _, one in each]
            for each in read
        ]

    def _passages(self, window: Sequence[Line]) -> list[Passage]:
        texts, before = [line.text for line in window], window[0].place
        return self.codec.passages(
            texts, self.decoding, paragraphs=self.paragraphs, before=before
        )

    def _sentences(
        self, window: Sequence[Line], passages: Sequence[Passage]
    ) -> list[Sentence]:
        """Put together what the search must know of each part of each line.

        Raises:
            LineError: a prefix or a required phrase cannot be written, or is longer
                than the translation may be.
        """
        encode = self.codec.vocabularies.target.encode_batch
        sentences = []
        for line, passage in zip(window, passages, strict=True):
            prefixes, required = (
                encode(list(texts)) for texts in (line.prefixes, line.required)
            )
            # one that is blank leaves everything free
            prefixes = [] if not all(prefixes) else prefixes
            required = [ids for ids in required if ids]
            self._check_known(line, prefixes, required)
            for part, ids in enumerate(passage.parts):
                words = max(len(ids) - self.codec.added, 0)
                most = most_tokens(self.decoding, words, self.codec.positions)
                if part or not ids:
                    sentences.append(Sentence(ids, words, [], (line.place, part)))
                    continue
                self._check_room(line, most, prefixes, required)
                sentences.append(
                    Sentence(ids, words, prefixes, (line.place, part), required)
                )
        return sentences

    def _check_room(
        self,
        line: Line,
        most: int,
        prefixes: Sequence[list[int]],
        required: Sequence[list[int]],
    ) -> None:
        """Refuse what is longer than the translation of a line may be.

        Raises:
            LineError: a prefix or a required phrase is.
        """
        for kind, what, phrases in (
            ("prefixes", "prefix", prefixes),
            ("required", "a required phrase", required),
        ):
            asked = max(map(len, phrases), default=0)
            if asked >= most:
                number = line.place + 1
                fault = (
                    f"has {asked} tokens, and its translation has at most {most} with"
                    " its end: shorten it, or raise the limit (max_extra_length,"
                    " max_target_length, max_length_ratio)"
                )
                raise LineError(
                    f"{what} of sentence {number} {fault}",
                    kind=kind,
                    number=number,
                    fault=fault,
                )

    def _check_known(
        self, line: Line, prefixes: Sequence[list[int]], required: Sequence[list[int]]
    ) -> None:
        """Refuse what the vocabulary cannot write: the unknown token would stand for
        it.

        Raises:
            LineError: a prefix or a required phrase has an unknown token.
        """
        unknown = self.codec.vocabularies.target.unk_id
        given = (
            ("prefixes", "prefix", line.prefixes, prefixes),
            ("required", "required phrase", line.required, required),
        )
        for kind, what, texts, phrases in given:
            for text, ids in zip(
                (text for text in texts if text.strip()), phrases, strict=False
            ):
                if unknown in ids:
                    number, cure = (
                        line.place + 1,
                        "leave it out, or write it in letters of the training text",
                    )
                    raise LineError(
                        f"the vocabulary cannot write the {what} {text!r} of sentence"
                        f" {number}: {cure}",
                        kind=kind,
                        number=number,
                        fault=(
                            f"has the {what} {text!r}, which the vocabulary cannot"
                            f" write: {cure}"
                        ),
                    )

    def _join(
        self, passage: Passage, parts: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        # A blank part has one translation, which stands beside all of the others.
        whole = [
            each * self.n_best if len(parts) > 1 and not ids else each
            for ids, each in zip(passage.parts, parts, strict=True)
        ]
        return join(whole, passage.spaces)
