"""Raw text becomes usable token ids, a chunk of pairs at a time, in this process or in
several.

What comes out depends on the text and the settings alone: not on the number of
processes, nor on their speed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data import interruption
from jaxformer.data.cleaning import Cleaning, Counts, clean
from jaxformer.data.duplicates import Duplicates
from jaxformer.data.records import Pair
from jaxformer.data.transforms import Encoded, encode
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError

CHUNK = 4096
"""Pairs that are cleaned and tokenised together."""

# A process of our own takes a second or two to start: fewer chunks than this are done
# sooner here.
_FEWEST_CHUNKS = 32
_FEWEST_CORES = 4


class Sampling(NamedTuple):
    """Subword regularisation: each epoch reads its own random segmentation of the text.

    With a unigram vocabulary a segmentation is drawn from all, by its probability to
    the power of ``alpha`` (Kudo 2018, section 3.3); with BPE each merge is left out
    with probability ``alpha`` (Provilkov et al. 2020, section 3.1).
    """

    alpha: float
    seed: int
    epoch: int
    longest: tuple[int, int] | None = None
    """Most tokens of a source and of a target; None: the tokenizer's ``max_length``
    for both.
    """


class Chunk(NamedTuple):
    """Consecutive pairs of a corpus, from pair ``first`` on."""

    first: int
    pairs: list[Pair]


class Piece(NamedTuple):
    """What is usable of a chunk, and what was dropped from it."""

    pairs: Encoded
    counts: Counts
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    """For n = 0, 1, 2, ... how many source and how many target sentences have n
    tokens, those too long among them.
    """


@dataclass(frozen=True)
class Tokenizer:
    """Turns chunks of one data set into pieces; small enough to send to every process.

    Attributes:
        vocabularies: of source and target.
        cleaning: steps that come before.
        languages: codes of source and target.
        source_eos: whether sources end with the end-of-sentence token; targets always
            do.
        max_length: most tokens on a side, the added ones included; longer pairs are
            dropped and counted, never cut.
        tagged: whether each source begins with the tag of the target language.
        duplicates: which pairs repeat earlier ones, if ``cleaning`` asks.
        sampling: the segmentation of an epoch; None: the best one. Which pairs are kept
            never depends on it: where a drawn segmentation is too long, the best one
            stands.
        threads: of SentencePiece.
    """

    vocabularies: Vocabularies
    cleaning: Cleaning
    languages: tuple[str, str]
    source_eos: bool
    max_length: int
    tagged: bool = False
    duplicates: Duplicates | None = None
    sampling: Sampling | None = None
    threads: int = -1

    def __call__(self, chunk: Chunk) -> Piece:
        """Clean and tokenise the pairs of a chunk."""
        counts = Counts()
        pairs = list(
            clean(
                chunk.pairs,
                self.cleaning,
                counts,
                languages=self.languages,
                duplicates=self.duplicates,
                first=chunk.first,
            )
        )
        encoded = self._encode(pairs, None)
        sources, targets = encoded.source_lengths, encoded.target_lengths
        # A text that is not empty may be so to the vocabulary, which drops control
        # characters.
        empty = (sources == self.source_eos + self.tagged) | (targets == 1)
        too_long = ((sources > self.max_length) | (targets > self.max_length)) & ~empty
        counts.dropped["empty"] = counts.dropped.get("empty", 0) + int(empty.sum())
        counts.dropped["max_length"] = int(too_long.sum())
        kept = np.flatnonzero(~empty & ~too_long)
        encoded = encoded.take(kept)
        if self.sampling is not None and len(kept):
            encoded = self._sampled(
                [pairs[index] for index in kept], encoded, chunk.first, self.sampling
            )
        return Piece(
            encoded,
            counts,
            (np.bincount(sources[~empty]), np.bincount(targets[~empty])),
        )

    def _encode(self, pairs: list[Pair], seed: int | None) -> Encoded:
        return encode(
            pairs,
            self.vocabularies,
            source_eos=self.source_eos,
            tag=self.languages[1] if self.tagged else None,
            alpha=(
                None if self.sampling is None or seed is None else self.sampling.alpha
            ),
            seed=seed or 0,
            threads=self.threads,
        )

    def _sampled(
        self, pairs: list[Pair], best: Encoded, first: int, sampling: Sampling
    ) -> Encoded:
        """Draw the segmentations of the pairs; ``best`` stands where the drawn one
        is too long.
        """
        seed = np.random.default_rng([sampling.seed, sampling.epoch, first]).integers(
            1 << 31
        )
        drawn = self._encode(pairs, int(seed))
        source, target = sampling.longest or (self.max_length, self.max_length)
        return best.with_replaced(
            drawn, (drawn.source_lengths <= source) & (drawn.target_lengths <= target)
        )


def chunks(pairs: Iterable[Pair], size: int = CHUNK) -> Iterator[Chunk]:
    """Cut a corpus into chunks, read as they are asked for."""
    iterator, first = iter(pairs), 0
    while piece := list(itertools.islice(iterator, size)):
        interruption.check()
        yield Chunk(first, piece)
        first += len(piece)


def tokenize(
    pairs: Iterable[Pair], tokenizer: Tokenizer, *, workers: int | None = None
) -> Iterator[Piece]:
    """Clean and tokenise a corpus; the pieces come in its order.

    Args:
        pairs: the corpus, read lazily: a few chunks a process are in memory.
        tokenizer: what to do.
        workers: processes to use for a large corpus; with 1 all is done here, where
            SentencePiece has threads of its own. None: one a core if there are at least
            four: with fewer, handing results over costs what they gain.

    Raises:
        InputError: the text cannot be read, or a process was killed.
    """
    if workers is None:
        workers = cores() if cores() >= _FEWEST_CORES else 1
    remaining = chunks(pairs)
    head = list(itertools.islice(remaining, _FEWEST_CHUNKS if workers > 1 else 0))
    if workers <= 1 or len(head) < _FEWEST_CHUNKS:
        return map(tokenizer, itertools.chain(head, remaining))
    return _in_processes(
        itertools.chain(head, remaining), replace(tokenizer, threads=1), workers
    )


def cores() -> int:
    """Count the cores that this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def _in_processes(
    todo: Iterable[Chunk], tokenizer: Tokenizer, workers: int
) -> Iterator[Piece]:
    # Forked processes of one that runs JAX may hang: its threads hold locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers, context, initializer=_install, initargs=(tokenizer,)
    )
    try:
        waiting = deque()
        for chunk in todo:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a process that tokenises was killed, perhaps for want of memory, or could"
            " not start: set data.workers=1, and in a script of your own call jaxformer"
            ' under `if __name__ == "__main__":`'
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_installed: Callable[[Chunk], Piece] | None = None


def _install(tokenizer: Tokenizer) -> None:
    global _installed
    _installed = tokenizer
    # Ctrl-C reaches every process of a terminal; the one that started us tells us when
    # to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(chunk: Chunk) -> Piece:
    assert _installed is not None
    return _installed(chunk)
