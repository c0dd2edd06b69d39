"""Encode text pairs as token ids: clean, tokenise, drop what is too long.

Large corpora are encoded in worker processes. The result depends only on the text and
the settings, not on the number of processes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxformer import signals
from jaxformer.data.cleaning import Counts, clean
from jaxformer.data.config import WITH_LABELS, DataConfig
from jaxformer.data.duplicates import Duplicates
from jaxformer.data.frame import Frame, make_frame
from jaxformer.data.records import Pair
from jaxformer.data.store import Encoded, Sentences, concatenate
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

Work: TypeAlias = Callable[[list[Pair], int], Result]
"""Gets consecutive pairs and the number of the first."""

CHUNK = 4096
"""Pairs that are cleaned and tokenised together."""

# A worker process takes a second or two to start: fewer chunks than this are faster
# without.
_FEWEST_CHUNKS = 32
_FEWEST_CORES = 4


def encode(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    *,
    source_eos: bool,
    tag: str | None = None,
    languages: tuple[str, str] = ("", ""),
    alpha: float | None = None,
    seed: int = 0,
    threads: int = -1,
) -> Encoded:
    """Encode every pair; nothing is dropped or cut.

    Args:
        pairs: raw text.
        vocabularies: of source and target.
        source_eos: whether sources end with the end-of-sentence token; targets always
            do.
        tag: the target language whose tag begins each source; None: no tag.
        languages: codes of source and target, for the frame of an imported model.
        alpha: draw random segmentations, see :meth:`Vocabulary.sample_batch`; None:
            the best ones.
        seed: of the random segmentations.
        threads: of SentencePiece; -1: all cores.

    Raises:
        InputError: the source vocabulary has no such tag, or the model no such
            language.
    """
    source, target = vocabularies.source, vocabularies.target
    frame = make_frame(vocabularies, languages, source_eos=source_eos, tag=tag)
    texts = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if alpha is None:
        sources = source.encode_batch(texts[0], threads=threads)
        targets = target.encode_batch(texts[1], threads=threads)
    else:
        sources = source.sample_batch(texts[0], alpha=alpha, seed=2 * seed)
        targets = target.sample_batch(texts[1], alpha=alpha, seed=2 * seed + 1)
    return Encoded(
        Sentences.from_lists(
            sources,
            source.pad_id,
            first=frame.source_before,
            last=frame.source_after,
        ),
        Sentences.from_lists(
            targets, target.pad_id, first=frame.target_before, last=frame.end
        ),
    )


def encode_evaluation(
    pairs: Sequence[Pair],
    vocabularies: Vocabularies,
    *,
    source_eos: bool,
    tag: str | None = None,
    languages: tuple[str, str] = ("", ""),
    max_length: int | None = None,
) -> Encoded:
    """Encode every pair, for a loss that counts each pair once.

    ``max_length`` is the limit of the model's positions on each side, not that of
    training pairs; None: no limit.

    Raises:
        InputError: a sentence has more tokens than ``max_length``.
    """
    encoded = encode(
        pairs, vocabularies, source_eos=source_eos, tag=tag, languages=languages
    )
    if max_length is None:
        return encoded
    for side, sentences in (("source", encoded.source), ("target", encoded.target)):
        too_long = np.flatnonzero(sentences.lengths > max_length)
        if too_long.size:
            raise InputError(
                f"the {side} of pair {too_long[0] + 1} has"
                f" {sentences.lengths[too_long[0]]} tokens and the model takes"
                f" {max_length} ({too_long.size} such): shorten it, leave it out, or"
                " train a model with a larger model.max_length"
            )
    return encoded


class SubwordSampling(NamedTuple):
    """Subword regularisation: each epoch has its own random segmentation of the text.

    With a unigram vocabulary a segmentation is drawn by its probability to the power
    of ``alpha`` (Kudo 2018, section 3.3). With BPE each merge is left out with
    probability ``alpha`` (Provilkov et al. 2020, section 3.1).
    """

    alpha: float
    seed: int
    epoch: int
    longest: tuple[int, int]
    """Most tokens of a source and of a target."""


class Piece(NamedTuple):
    """The usable pairs of a chunk of text, and what was dropped from it."""

    pairs: Encoded
    counts: Counts
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Entry n is the number of source (target) sentences of n tokens, including those
    that are too long.
    """


@dataclass(frozen=True)
class Tokenizer:
    """Clean and encode chunks of one data set. Every worker process gets a copy.

    Attributes:
        vocabularies: of source and target.
        config: how pairs are cleaned and encoded. Pairs of more than ``max_length``
            tokens are dropped and counted, never cut.
        languages: codes of source and target.
        duplicates: which pairs repeat earlier ones, if ``config`` drops them.
        sampling: the segmentation of an epoch; None: the best one. It does not change
            which pairs are kept: a pair whose drawn segmentation is too long keeps the
            best one.
        threads: of SentencePiece.
    """

    vocabularies: Vocabularies
    config: DataConfig
    languages: tuple[str, str]
    duplicates: Duplicates | None = None
    sampling: SubwordSampling | None = None
    threads: int = -1

    def __call__(self, pairs: Iterable[Pair], first: int = 0) -> Piece:
        """Clean and encode consecutive pairs; ``first`` is the number of the first."""
        options = {"languages": self.languages, "duplicates": self.duplicates}
        kept, counts = keep(pairs, first, config=self.config, **options)
        if self.config.kind != "pairs":
            return self._encode_examples(kept, counts)
        config, encoded = self.config, self._encode(kept)
        sources, targets = encoded.source_lengths, encoded.target_lengths
        # SentencePiece drops control characters: text may become empty only here.
        frame = self.frame
        empty = (sources == frame.added) | (targets == len(frame.target_before) + 1)
        too_long = (np.maximum(sources, targets) > config.max_length) & ~empty
        counts.dropped["empty"] = counts.dropped.get("empty", 0) + int(empty.sum())
        counts.dropped["max_length"] = int(too_long.sum())
        usable = np.flatnonzero(~empty & ~too_long)
        encoded = encoded.take(usable)
        if self.sampling is not None and len(usable):
            encoded = self._sample([kept[i] for i in usable], encoded, first)
        lengths = np.bincount(sources[~empty]), np.bincount(targets[~empty])
        return Piece(encoded, counts, lengths)

    def _encode_examples(self, kept: list[Pair], counts: Counts) -> Piece:
        """Encode examples of another kind than pairs."""
        from jaxformer.data.examples import encode_examples

        config = self.config
        found = encode_examples(kept, self.vocabularies, config, threads=self.threads)
        encoded = found.pairs
        lengths = (
            np.bincount(encoded.source_lengths),
            np.bincount(encoded.target_lengths),
        )
        empty = len(kept) - len(np.unique(found.origins))
        counts.dropped["empty"] = counts.dropped.get("empty", 0) + empty
        if config.kind == "text" and config.window is None:
            fits = encoded.source_lengths <= config.max_length
            counts.dropped["max_length"] = int((~fits).sum())
            encoded = encoded.take(np.flatnonzero(fits))
        elif config.kind in WITH_LABELS:
            counts.changed["cut"] = found.cut
        return Piece(encoded, counts, lengths)

    @property
    def frame(self) -> Frame:
        """The tokens around the text of each pair."""
        return make_frame(
            self.vocabularies,
            self.languages,
            source_eos=self.config.source_eos,
            tag=self._tag,
        )

    @property
    def _tag(self) -> str | None:
        return self.languages[1] if self.config.language_tags else None

    def _encode(
        self, pairs: list[Pair], alpha: float | None = None, seed: int = 0
    ) -> Encoded:
        return encode(
            pairs,
            self.vocabularies,
            source_eos=self.config.source_eos,
            tag=self._tag,
            languages=self.languages,
            alpha=alpha,
            seed=seed,
            threads=self.threads,
        )

    def _sample(self, pairs: list[Pair], best: Encoded, first: int) -> Encoded:
        """Draw segmentations; keep the best one where the drawn one is too long."""
        assert self.sampling is not None
        alpha, seed, epoch, longest = self.sampling
        generator = np.random.default_rng([seed, epoch, first])
        drawn = self._encode(pairs, alpha, int(generator.integers(1 << 31)))
        fits = (drawn.source_lengths <= longest[0]) & (
            drawn.target_lengths <= longest[1]
        )
        return concatenate([best, drawn]).take(np.arange(len(best)) + len(best) * fits)


def keep(
    pairs: Iterable[Pair],
    first: int,
    *,
    config: DataConfig,
    languages: tuple[str, str],
    duplicates: Duplicates | None,
) -> tuple[list[Pair], Counts]:
    """Clean consecutive pairs; ``first`` is the number of the first."""
    counts = Counts()
    options: dict[str, Any] = {"languages": languages, "duplicates": duplicates}
    return [*clean(pairs, config, counts, first=first, **options)], counts


def tokenize(
    pairs: Iterable[Pair], tokenizer: Tokenizer, *, workers: int | None = None
) -> Iterator[Piece]:
    """Clean and encode a corpus; the pieces come in its order.

    Args:
        pairs: the corpus, read lazily: memory holds a few chunks a process.
        tokenizer: cleans and encodes a chunk.
        workers: processes for a large corpus; with 1, threads of SentencePiece in this
            process. None: one a core from four cores on; with fewer, sending the
            results costs what the processes gain.

    Raises:
        InputError: the text cannot be read, or a process was killed.
    """
    return map_chunks(pairs, tokenizer, replace(tokenizer, threads=1), workers)


def map_chunks(
    pairs: Iterable[Pair],
    function: Work[Result],
    alone: Work[Result],
    workers: int | None,
) -> Iterator[Result]:
    """Apply a function to the chunks of a corpus, in this process or in workers.

    Args:
        pairs: the corpus, read lazily.
        function: gets the pairs of a chunk and the number of the first.
        alone: does the same in a worker, on one core.
        workers: as of :func:`tokenize`.

    Raises:
        InputError: as :func:`tokenize`.
    """
    if workers is None:
        workers = cores() if cores() >= _FEWEST_CORES else 1
    remaining = _chunks(pairs)
    head = list(itertools.islice(remaining, _FEWEST_CHUNKS if workers > 1 else 0))
    chunks = itertools.chain(head, remaining)
    if workers <= 1 or len(head) < _FEWEST_CHUNKS:
        return itertools.starmap(function, chunks)
    return _in_processes(chunks, alone, workers)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _chunks(pairs: Iterable[Pair]) -> Iterator[tuple[list[Pair], int]]:
    """Split a corpus into chunks, read on demand, each with its first pair's number."""
    iterator, first = iter(pairs), 0
    while chunk := list(itertools.islice(iterator, CHUNK)):
        signals.check()
        yield chunk, first
        first += len(chunk)


def _in_processes(
    chunks: Iterable[tuple[list[Pair], int]], function: Work[Result], workers: int
) -> Iterator[Result]:
    # A forked child of a process that runs JAX may hang: JAX's threads hold locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers, context, initializer=_install, initargs=(function,)
    )
    try:
        yield from map_ahead(pool, _work, chunks, 2 * workers)
    except BrokenProcessPool:
        raise InputError(
            "a worker process of the tokeniser was killed, perhaps for lack of memory,"
            " or could not start: set data.workers=1, and in a script of your own call"
            ' jaxformer under `if __name__ == "__main__":`'
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def map_ahead(
    pool: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    ahead: int,
) -> Iterator[Result]:
    """Apply a function to items in a pool, at most ``ahead`` items before they are
    needed; yield the results in order.
    """
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_installed: Work[Any] | None = None


def _install(function: Work[Any]) -> None:
    global _installed
    _installed = function
    # Ctrl-C reaches every process of a terminal; the parent ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signals.end(1)


def _work(chunk: tuple[list[Pair], int]) -> Any:
    assert _installed is not None
    return _installed(*chunk)
