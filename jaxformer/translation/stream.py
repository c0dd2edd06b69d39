"""Lines through the search of batches: a list of hypotheses for each, in order, window
by window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.translation import batch as batch_search
from jaxformer.translation.batch import Sentence, most_tokens
from jaxformer.translation.codec import Codec, Passage, check_numbers, line_error
from jaxformer.translation.models import Models
from jaxformer.translation.options import (
    Prefixes,
    Required,
    SourceLine,
    number_lines,
    windows,
)
from jaxformer.translation.results import Hypothesis, LongSources, blank

if TYPE_CHECKING:
    from jaxformer.translation.shortlist import Shortlist

# A phrase of each kind in an error.
_NAMES = {"prefixes": "prefix", "required": "required phrase"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSearch:
    """The search of a call, the same for all of its windows.

    Attributes:
        models: that translate, in the precision of the search.
        aligner: the models as they were loaded; the attention of the first aligns.
        codec: of the models.
        shortlist: of the target tokens; None: the whole vocabulary.
        decoding: how to search.
        n_best: translations of each line.
        banned: the constraints of all lines.
        prefixes: of each line; None: no line has any.
        required: phrases of each line; None: no line has any.
        layer: the decoder layer that aligns, counted from 1; None: no alignment.
        paragraphs: whether lines are cut into sentences.
        window: most lines that are read at a time.
    """

    models: Models
    aligner: Models
    codec: Codec
    shortlist: Shortlist | None
    decoding: DecodingConfig
    n_best: int
    banned: Constraints
    prefixes: Prefixes
    required: Required
    layer: int | None
    paragraphs: bool
    window: int

    def stream(
        self,
        texts: Iterable[str],
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
        notice: Callable[[LongSources], None] = LongSources.warn,
    ) -> Iterator[list[Hypothesis]]:
        """Translate texts window by window; see :meth:`Translator.stream`.

        Args:
            texts: the lines.
            stop: called between batches; True ends the search.
            progress: called with the number of lines that a batch has completed.
            notice: called at the end if lines were longer than in training.
        """
        limit, cut, whole = self.codec.longest, 0, 0
        for window, passages in self._read(texts):
            for each in passages:
                is_whole = max(map(len, each.parts)) > limit
                whole += each.longest > limit and is_whole
                cut += each.longest > limit and not is_whole
            yield from self._translate(window, passages, stop, progress)
        if cut or whole:
            notice(LongSources(limit, cut=cut, whole=whole))

    def check(self, texts: Iterable[str]) -> int:
        """Read texts and translate nothing; see :meth:`Translator.check`."""
        count = 0
        for window, passages in self._read(texts):
            self._sentences(window, passages)
            count += len(window)
        return count

    def _read(
        self, texts: Iterable[str]
    ) -> Iterator[tuple[list[SourceLine], list[Passage]]]:
        """Yield windows of lines with their tokens."""
        lines = number_lines(texts, self.prefixes, self.required)
        for window in windows(lines, self.window):
            yield (
                window,
                self.codec.passages(
                    [line.text for line in window],
                    self.decoding,
                    paragraphs=self.paragraphs,
                    before=window[0].place,
                ),
            )

    def _translate(
        self,
        window: Sequence[SourceLine],
        passages: Sequence[Passage],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
    ) -> Iterator[list[Hypothesis]]:
        """Translate batch by batch; yield each line when it and all before it are
        complete.
        """
        sentences = self._sentences(window, passages)
        found: list[list[Hypothesis]] = [
            [] if each.ids else [blank(aligned=self.layer is not None)]
            for each in sentences
        ]
        lines = [line for line, passage in enumerate(passages) for _ in passage.parts]
        missing = [sum(map(bool, passage.parts)) for passage in passages]
        starts = np.cumsum([0, *(len(passage.parts) for passage in passages)]).tolist()

        def joined(line: int) -> list[Hypothesis]:
            parts, own = passages[line].parts, found[starts[line] : starts[line + 1]]
            if len(parts) == 1:
                return own[0]
            from jaxformer.translation.paragraphs import join

            # The one translation of a blank part goes with all of the others.
            own = [
                each if ids else each * self.n_best
                for ids, each in zip(parts, own, strict=True)
            ]
            return join(own, passages[line].spaces)

        given = 0
        progress(missing.count(0))
        for indices, rows in self._batches([len(each.ids) for each in sentences]):
            if stop():
                break
            translated = self._search([sentences[index] for index in indices], rows)
            for index, hypotheses in zip(indices, translated, strict=True):
                found[index] = hypotheses
                missing[lines[index]] -= 1
            progress(sum(not missing[line] for line in {lines[i] for i in indices}))
            while given < len(window) and not missing[given]:
                yield joined(given)
                given += 1
        # Only blank lines, or what was stopped.
        yield from map(joined, range(given, len(window)))

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """Group sentences. Many samples of a sentence take the room of as many
        hypotheses, and each device has room for a batch.
        """
        room = min(self.decoding.beam_size, self.n_best) * self.models.devices
        most, tokens = (
            max(1, limit * room // self.n_best)
            for limit in (self.decoding.batch_size, self.decoding.tokens_per_batch)
        )
        return batch_search.batches(lengths, most, tokens, self.codec.positions)

    def _search(
        self, sentences: Sequence[Sentence], rows: int
    ) -> list[list[Hypothesis]]:
        """Translate a batch of at most ``rows``."""
        frame = self.codec.frame
        found = batch_search.search_batch(
            self.models,
            sentences,
            dataclasses.replace(self.decoding, batch_size=rows),
            eos_id=frame.end,
            n_best=self.n_best,
            banned=self.banned,
            forced=self.prefixes is not None or bool(frame.target_before),
            given=len(frame.target_before),
            shortlist=self.shortlist,
        )
        places = [each.place[0] for each in sentences]
        check_numbers(np.asarray(found.scores), places)
        read = [self.codec.hypotheses(found, row) for row in range(len(sentences))]
        if self.layer is None:
            return [[hypothesis for _, hypothesis in each] for each in read]
        from jaxformer.translation.pairs import align

        pairs = [
            (sentence.ids, ids)
            for sentence, each in zip(sentences, read, strict=True)
            for ids, _ in each
        ]
        aligned = iter(align(self.aligner, self.codec, pairs, self.layer, rows))
        return [
            [dataclasses.replace(one, alignment=next(aligned)) for _, one in each]
            for each in read
        ]

    def _sentences(
        self, window: Sequence[SourceLine], passages: Sequence[Passage]
    ) -> list[Sentence]:
        """Return the parts of all lines; the first part has the constraints of its
        line.

        Raises:
            LineError: a prefix or a required phrase cannot be written, or is longer
                than the translation may be.
        """
        sentences, frame = [], self.codec.frame.target_before
        begin = [[*frame]] if frame else []
        for line, passage in zip(window, passages, strict=True):
            prefixes = self._encode(line, "prefixes", line.prefixes)
            required = self._encode(line, "required", line.required)
            # A blank prefix allows everything.
            prefixes = prefixes if all(prefixes) else []
            prefixes = [[*frame, *ids] for ids in prefixes] or begin
            required = [ids for ids in required if ids]
            for part, ids in enumerate(passage.parts):
                words = max(len(ids) - self.codec.frame.added, 0)
                sentence = Sentence(ids, words, (line.place, part), begin)
                if ids and not part:
                    self._check_room(line, words, "prefixes", prefixes)
                    self._check_room(line, words, "required", required)
                    sentence = sentence._replace(prefixes=prefixes, required=required)
                sentences.append(sentence)
        return sentences

    def _encode(
        self, line: SourceLine, kind: str, texts: Sequence[str]
    ) -> list[list[int]]:
        """Encode the phrases of a line.

        Raises:
            LineError: a phrase has an unknown token.
        """
        vocabulary = self.codec.vocabularies.target
        encoded = vocabulary.encode_batch(list(texts))
        for text, ids in zip(texts, encoded, strict=True):
            if vocabulary.unk_id in ids:
                fault = (
                    f"has the {_NAMES[kind]} {text!r}, which the vocabulary cannot"
                    " write: leave it out"
                )
                raise line_error(kind, line.place + 1, fault)
        return encoded

    def _check_room(
        self, line: SourceLine, words: int, kind: str, phrases: list[list[int]]
    ) -> None:
        """Check that the phrases of a line fit into its translation.

        Raises:
            LineError: a phrase is too long.
        """
        most = most_tokens(self.decoding, words, self.codec.positions)
        longest = max(map(len, phrases), default=0)
        if longest >= most:
            fault = (
                f"has a {_NAMES[kind]} of {longest} tokens, and its translation has at"
                f" most {most} with its end: shorten it, or raise the limit"
                " (max_extra_length, max_target_length, max_length_ratio)"
            )
            raise line_error(kind, line.place + 1, fault)
