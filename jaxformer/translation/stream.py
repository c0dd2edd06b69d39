"""Lines through the search of batches: a list of hypotheses for each, in order, window
by window.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from jaxformer.errors import LineError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.translation import batch as batch_search
from jaxformer.translation.batch import Sentence, Shape, most_tokens
from jaxformer.translation.codec import (
    Codec,
    Passage,
    find_nan,
    line_error,
    raise_first,
)
from jaxformer.translation.compiled import count_workers, in_order, search
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

Prepared: TypeAlias = tuple[list[Passage], list[Sentence]]
"""Lines, and the sentences that are their parts, in order, blank ones too."""

# Shapes that this process has searched in, by what else determines their programs.
_searched: dict[Any, set[Shape]] = {}

# How many times as large a shape of before may be, and how many batches repay the
# compilation of a smaller one anyway.
_WASTE, _REPAID = 4, 64

# A phrase of each kind in an error.
_NAMES = {"prefixes": "prefix", "required": "required phrase"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSearch:
    """The search of a call, the same for all of its windows: :meth:`prepare`,
    :meth:`search` in batches, and :meth:`join`.

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
        pause: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[Hypothesis]]:
        """Translate texts window by window; see :meth:`Translator.stream`.

        Args:
            texts: the lines.
            stop: called between batches; True ends the search.
            progress: called with the number of lines that a batch has completed.
            notice: called at the end if lines were longer than in training.
            pause: see :meth:`Translator.stream`.
        """
        long = Counter[str]()
        lines = number_lines(texts, self.prefixes, self.required)
        for window in windows(lines, self.window, pause):
            yield from self._translate_lines(window, stop, progress, long)
        if long:
            notice(LongSources(self.codec.longest, **long))

    def _translate_lines(
        self,
        lines: Sequence[SourceLine],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
        long: Counter[str],
    ) -> Iterator[list[Hypothesis]]:
        """Translate a window of lines; count in ``long`` those that are too long."""
        passages, sentences = self.prepare(lines)
        self._count(passages, long)
        yield from self._translate(passages, sentences, stop, progress)

    def _count(self, passages: Sequence[Passage], long: Counter[str]) -> None:
        limit = self.codec.longest
        for each in passages:
            if each.longest > limit:
                long["whole" if max(map(len, each.parts)) > limit else "cut"] += 1

    def prepare(self, lines: Sequence[SourceLine]) -> Prepared:
        """Encode lines, and check what each asks for: the first step of a search, which
        computes nothing on a device.

        Args:
            lines: numbered from that of the first on.

        Raises:
            LineError: a line is too long, or its prefix or a required phrase cannot be
                written or is longer than the translation may be.
        """
        passages = self.codec.passages(
            [line.text for line in lines],
            self.decoding,
            paragraphs=self.paragraphs,
            before=lines[0].place,
        )
        return passages, self._sentences(lines, passages)

    def _translate(
        self,
        passages: Sequence[Passage],
        sentences: Sequence[Sentence],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
    ) -> Iterator[list[Hypothesis]]:
        """Translate batch by batch, or several at a time; yield each line when it and
        all before it are complete.
        """
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        lines = [line for line, passage in enumerate(passages) for _ in passage.parts]
        missing = [sum(map(bool, passage.parts)) for passage in passages]
        starts = np.cumsum([0, *(len(passage.parts) for passage in passages)]).tolist()

        def joined(line: int) -> list[Hypothesis]:
            own = range(starts[line], starts[line + 1])
            parts = [found[index] for index in own if sentences[index].ids]
            return self.join(passages[line], parts)

        workers = count_workers(self.models.devices)
        plan = self._plan(sentences, workers)
        workers = min(workers, len(plan))

        def run(planned: tuple[list[int], Shape]) -> list[list[Hypothesis] | LineError]:
            batch = [sentences[index] for index in planned[0]]
            translated = self.search(batch, planned[1], concurrent=workers > 1)
            raise_first(translated)
            return translated

        given = 0
        progress(missing.count(0))
        todo = itertools.takewhile(lambda _: not stop(), plan)
        done = in_order(run, todo, workers)
        for (indices, _), translated in zip(plan, done, strict=False):
            for index, hypotheses in zip(indices, translated, strict=True):
                found[index] = cast(list[Hypothesis], hypotheses)
                missing[lines[index]] -= 1
            progress(sum(not missing[line] for line in {lines[i] for i in indices}))
            while given < len(passages) and not missing[given]:
                yield joined(given)
                given += 1
        # Only blank lines, or what was stopped.
        yield from map(joined, range(given, len(passages)))

    def _plan(
        self, sentences: Sequence[Sentence], workers: int
    ) -> list[tuple[list[int], Shape]]:
        """Group sentences, each group with its shape. A larger shape of before, whose
        program is compiled, takes the place of one that too few batches would have.

        Many samples of a sentence take the room of as many hypotheses, and each device
        has room for a batch.
        """
        room = min(self.decoding.beam_size, self.n_best) * self.models.devices
        most, tokens = (
            max(1, limit * room // self.n_best)
            for limit in (self.decoding.batch_size, self.decoding.tokens_per_batch)
        )
        lengths, limit = [len(each.ids) for each in sentences], self.codec.positions
        width = batch_search.search_width
        groups = [*batch_search.batches(lengths, most, tokens, limit, width, workers)]
        plan = []
        for indices, rows in groups:
            batch = [sentences[index] for index in indices]
            how = self.decoding, self.n_best, self._forced, rows
            least = batch_search.fit(self.models, batch, *how)
            key = self.models.models, *how[:2], workers > 1 < len(groups), least[2:]
            known = _searched.setdefault(key, set())
            few = len(groups) - len(plan) < _REPAID
            most = math.prod(least[:2]) * (_WASTE if few else 1)
            found = [
                each
                for each in known
                if each.rows >= least.rows
                and each.width >= least.width
                and math.prod(each[:2]) <= most
            ]
            shape = min(found, key=lambda each: math.prod(each[:2]), default=least)
            known.add(shape)
            plan.append((indices, shape))
        return plan

    @property
    def _forced(self) -> bool:
        """Whether the sentences of any batch may have prefixes."""
        return self.prefixes is not None or bool(self.codec.frame.target_before)

    def search(
        self,
        sentences: Sequence[Sentence],
        shape: Shape,
        *,
        concurrent: bool = False,
    ) -> list[list[Hypothesis] | LineError]:
        """Translate a batch: the second step of a search.

        Args:
            sentences: of :meth:`prepare`, each with tokens.
            shape: that holds them.
            concurrent: as of :func:`~jaxformer.translation.compiled.search`.

        Returns:
            The translations of each sentence, or its error: its scores are NaN.
        """
        frame = self.codec.frame
        found = batch_search.search_batch(
            self.models,
            sentences,
            self.decoding,
            eos_id=frame.end,
            n_best=self.n_best,
            banned=self.banned,
            forced=self._forced,
            given=len(frame.target_before),
            shortlist=self.shortlist,
            shape=shape,
            run=functools.partial(search, concurrent=concurrent),
        )
        places = [each.place[0] for each in sentences]
        errors = find_nan(np.asarray(found.scores), places)
        read = [self.codec.hypotheses(found, row) for row in range(len(sentences))]
        if self.layer is not None:
            read = self._align(sentences, read, shape)
        return [
            error or [hypothesis for _, hypothesis in each]
            for error, each in zip(errors, read, strict=True)
        ]

    def _align(
        self,
        sentences: Sequence[Sentence],
        read: list[list[tuple[list[int], Hypothesis]]],
        shape: Shape,
    ) -> list[list[tuple[list[int], Hypothesis]]]:
        """Add their alignments to the translations of sentences."""
        from jaxformer.translation.pairs import align

        pairs = [
            (sentence.ids, ids)
            for sentence, each in zip(sentences, read, strict=True)
            for ids, _ in each
        ]
        layer = cast(int, self.layer)
        found = iter(align(self.aligner, self.codec, pairs, layer, shape.rows))
        return [
            [
                (ids, dataclasses.replace(own, alignment=next(found)))
                for ids, own in each
            ]
            for each in read
        ]

    def join(
        self, passage: Passage, parts: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        """Return the translations of a line: the last step of a search.

        Args:
            passage: the line, of :meth:`prepare`.
            parts: translations of those of its parts that are not blank.
        """
        empty = [blank(aligned=self.layer is not None)]
        if len(passage.parts) == 1:
            return parts[0] if passage.parts[0] else empty
        from jaxformer.translation.paragraphs import join

        # The one translation of a blank part goes with all of the others.
        rest = iter(parts)
        own = [next(rest) if ids else empty * self.n_best for ids in passage.parts]
        return join(own, passage.spaces)

    def _sentences(
        self, lines: Sequence[SourceLine], passages: Sequence[Passage]
    ) -> list[Sentence]:
        """Return the parts of all lines; the first part has the constraints of its
        line.
        """
        sentences, frame = [], self.codec.frame.target_before
        begin = [[*frame]] if frame else []
        for line, passage in zip(lines, passages, strict=True):
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
            if kind == "required" and self._is_forbidden(ids):
                fault = (
                    f"has the {_NAMES[kind]} {text!r}, which --ban or no_repeat_ngram"
                    " forbids: leave one of them out"
                )
                raise line_error(kind, line.place + 1, fault)
        return encoded

    def _is_forbidden(self, ids: list[int]) -> bool:
        """Return whether a phrase has a banned one in it, or an n-gram twice."""

        def ngrams(n: int) -> list[tuple[int, ...]]:
            return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]

        rows, size = self.banned.banned_phrases, self.decoding.no_repeat_ngram
        for row in () if rows is None else rows.tolist():
            phrase = tuple(token for token in row if token >= 0)
            if phrase and phrase in ngrams(len(phrase)):
                return True
        return size > 0 and len(set(ngrams(size))) < len(ngrams(size))

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
