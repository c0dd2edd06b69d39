"""Vocabulary shortlists: the few target tokens that a sentence is likely to need, found
from its source tokens.

A search that multiplies with their rows of the output table alone saves most of that
product (Jean et al. 2015, section 4.2; Mi et al. 2016). Each sentence has a list of its
own; a batch is multiplied with the union of its sentences' lists, and what is not on a
sentence's own list never comes in it, so that no sentence depends on its neighbours.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from jaxformer.errors import InputError
from jaxformer.files import open_whole
from jaxformer.search.constraints import Constraints
from jaxformer.typing import Array, Bool, Float, Int

_LINKS = 1 << 21
"""Links between source and target tokens that are in memory at once."""


class Side(NamedTuple):
    """Sentences of one language, end to end."""

    tokens: Int[np.ndarray, " M"]
    offsets: Int[np.ndarray, " N+1"]
    """Sentence i is ``tokens[offsets[i]:offsets[i + 1]]``."""
    size: int
    """Of the vocabulary: every token is below it."""


class Translations(NamedTuple):
    """What a source token may become, the most probable first; ties by the lower
    token.
    """

    tokens: Int[np.ndarray, " k"]
    probabilities: Float[np.ndarray, " k"]


class _Index(NamedTuple):
    """Where each source token stands; one more than the vocabulary has stands in
    every sentence: the null word.
    """

    sentences: np.ndarray
    """Of the first token, then of the second, ..."""
    counts: np.ndarray
    """How often it comes there."""
    starts: np.ndarray
    """Where each token's begin."""


def learn_translations(
    source: Side, target: Side, *, iterations: int = 4, candidates: int = 256
) -> list[Translations]:
    """Estimate t(target token | source token) by expectation maximisation, from uniform
    probabilities on.

    Each target token comes from a source token of its pair or from the null word, all
    alike probable before t is known. The first iteration counts all tokens that come in
    pairs together; after it and each later one, a source token keeps its most probable
    candidates alone, so that memory is that of the text and of ``candidates`` numbers a
    token, whatever the number of different pairs of tokens is.

    Args:
        source: sentences.
        target: their translations, as many.
        iterations: at least 1; a few are enough for a ranking.
        candidates: target tokens that a source token keeps. The null word keeps all.

    Returns:
        Translations of each source token; none for one that does not come.
    """
    index = _index(source)
    # Before t is known, every source token of the pair and the null word is as likely
    # as any other.
    totals = np.repeat(np.diff(source.offsets) + 1, np.diff(target.offsets)).astype(
        np.float64
    )
    table: list[Translations | None] = [None] * (source.size + 1)
    for _ in range(max(iterations, 1)):
        following = np.zeros_like(totals)
        for token in range(source.size + 1):
            known = table[token]
            row = np.ones(target.size) if known is None else _row(known, target.size)
            counts = _expected_counts(index, token, target, row, totals)
            found = table[token] = _best(
                counts, target.size if token == source.size else candidates
            )
            row = _row(found, target.size)
            for places, times in _links(index, token, target):
                following[places] += times * row[target.tokens[places]]
        totals = following
    return [each for each in table[:-1] if each is not None]


def _index(source: Side) -> _Index:
    sentences = len(source.offsets) - 1
    owners = np.repeat(np.arange(sentences, dtype=np.int64), np.diff(source.offsets))
    found, counts = np.unique(
        source.tokens.astype(np.int64) * sentences + owners, return_counts=True
    )
    starts = np.searchsorted(
        found, np.arange(source.size + 1, dtype=np.int64) * sentences
    )
    everywhere = np.arange(sentences, dtype=np.int64)
    return _Index(
        np.concatenate([found % max(sentences, 1), everywhere]),
        np.concatenate([counts, np.ones_like(everywhere)]),
        np.append(starts, len(found) + sentences),
    )


def _links(
    index: _Index, token: int, target: Side
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return the places in the target text that a source token may have made, each
    once, and how often it comes there.
    """
    inside = slice(index.starts[token], index.starts[token + 1])
    sentences, counts = index.sentences[inside], index.counts[inside]
    ends = np.cumsum(target.offsets[sentences + 1] - target.offsets[sentences])
    first = 0
    while first < len(sentences):
        before = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, before + _LINKS, side="right")), first + 1)
        part = sentences[first:last]
        starts, lengths = (
            target.offsets[part],
            target.offsets[part + 1] - target.offsets[part],
        )
        shifts = np.repeat(starts - (ends[first:last] - lengths - before), lengths)
        yield np.arange(len(shifts)) + shifts, np.repeat(counts[first:last], lengths)
        first = last


def _expected_counts(
    index: _Index,
    token: int,
    target: Side,
    row: Float[np.ndarray, " V"],
    totals: Float[np.ndarray, " M"],
) -> Float[np.ndarray, " V"]:
    """Count how often a source token became each target token, as the probabilities
    of this iteration expect it.
    """
    expected = np.zeros(target.size)
    for places, counts in _links(index, token, target):
        words = target.tokens[places]
        total = totals[places]
        shares = np.divide(
            counts * row[words], total, out=np.zeros(len(places)), where=total > 0
        )
        expected += np.bincount(words, shares, minlength=target.size)
    return expected


def _row(translations: Translations, size: int) -> Float[np.ndarray, " V"]:
    """Give each target token its probability."""
    row = np.zeros(size)
    row[translations.tokens] = translations.probabilities
    return row


def _best(counts: Float[np.ndarray, " V"], keep: int) -> Translations:
    """Make probabilities of the highest counts."""
    tokens = np.flatnonzero(counts)
    tokens = tokens[np.argsort(-counts[tokens], kind="stable")][:keep]
    return Translations(
        tokens.astype(np.int32),
        counts[tokens] / max(counts[tokens].sum(), np.finfo(float).tiny),
    )


FILE = "shortlist.npz"
"""Its name in the directory of a run."""

SPECIAL = (0, 1, 2, 3)
"""Ids of padding, unknown token, begin and end of sentence: on every list, so that
they keep their numbers.
"""

_SMALLEST, _MOST_TOKENS = 256, 10_000


class Within(NamedTuple):
    """The part of a vocabulary that a batch is searched in. Token i of the search is
    ``tokens[i]`` of the model.
    """

    tokens: Int[Array, " L"]
    """Ascending; behind the union of the lists the last one comes again, up to one
    of few sizes.
    """
    allowed: Bool[Array, "B L"]
    """True at what is on the list of each sentence, and everywhere in rows without a
    sentence.
    """

    def numbers(self, tokens: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Return the places of tokens here; -1 where one is not here, or is
        negative.
        """
        own = np.asarray(self.tokens)
        places = np.minimum(np.searchsorted(own, tokens), len(own) - 1)
        return np.where(own[places] == tokens, places, -1).astype(np.int32)

    def constraints(self, constraints: Constraints) -> Constraints:
        """Translate constraints on tokens of the model into such on tokens of the
        search.

        A phrase that the search cannot write bans nothing. Prefixes and required
        phrases must be on their sentences' lists.
        """
        banned, phrases = constraints.banned_tokens, constraints.banned_phrases
        if banned is not None:
            banned = np.asarray(banned)[np.asarray(self.tokens)]
        if phrases is not None:
            known = np.asarray(phrases)
            found = self.numbers(known)
            lost = np.any((known >= 0) & (found < 0), axis=1, keepdims=True)
            phrases = np.where(lost, -1, found)
        prefixes, required = (
            None if tokens is None else self.numbers(np.asarray(tokens))
            for tokens in (constraints.prefixes, constraints.required)
        )
        changed: dict[str, Any] = {
            "banned_tokens": banned,
            "banned_phrases": phrases,
            "prefixes": prefixes,
            "required": required,
        }
        return constraints._replace(**changed)


class Shortlist(NamedTuple):
    """What may come in any sentence, and what each source token may become."""

    first: Int[np.ndarray, " F"]
    """The most frequent target tokens, the special ones among them."""
    best: Int[np.ndarray, "S k"]
    """The most probable translations of each source token, then -1."""
    vocabulary: str
    """The hash of the run's vocabularies."""

    @classmethod
    def learn(
        cls,
        source: Side,
        target: Side,
        vocabulary: str,
        *,
        first: int = 50,
        best: int = 50,
    ) -> Shortlist:
        """Learn from training pairs; the translations by
        :func:`~jaxformer.translation.shortlist.learn_translations`.

        Args:
            source: sentences, with all tokens that a search adds to them.
            target: their translations, as many.
            vocabulary: the hash of the vocabularies.
            first: most frequent target tokens.
            best: translations of each source token.

        Raises:
            InputError: a number below 1 or above 10,000.
        """
        if first < 1 or best < 1:
            raise InputError(
                f"a shortlist needs at least 1 token of each kind: first is {first},"
                f" best {best}"
            )
        if max(first, best) > _MOST_TOKENS:
            raise InputError(
                f"a shortlist has at most {_MOST_TOKENS:,} tokens of each kind: first"
                f" is {first}, best {best}"
            )
        found = learn_translations(source, target, candidates=max(256, 4 * best))
        counts = np.bincount(target.tokens, minlength=target.size)
        frequent = np.argsort(-counts, kind="stable")[:first]
        return cls(
            np.union1d(frequent, SPECIAL).astype(np.int32),
            _table(found, best),
            vocabulary,
        )

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        with open_whole(path) as file:
            np.savez_compressed(
                file,
                first=self.first,
                best=self.best,
                vocabulary=np.array(self.vocabulary),
            )

    @classmethod
    def load(
        cls, path: str | Path, vocabulary: str, sizes: tuple[int, int] | None = None
    ) -> Shortlist:
        """Read what :meth:`save` wrote.

        Args:
            path: of the file.
            vocabulary: the hash of the run's vocabularies.
            sizes: tokens of the source and of the target vocabulary, which the file
                must fit; None: not checked.

        Raises:
            InputError: there is no such file, it is damaged, or it was made with other
                vocabularies than this hash.
        """
        path = Path(path)
        make = f"make one: jaxformer shortlist --workdir={path.parent}"
        if not path.exists():
            raise InputError(f"{path.parent} has no shortlist yet; {make}")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                found = cls(parts["first"], parts["best"], str(parts["vocabulary"]))
        except (
            ValueError,
            KeyError,
            EOFError,
            NotImplementedError,
            zipfile.BadZipFile,
            zlib.error,
        ):
            raise InputError(f"{path} is damaged; {make}") from None
        if not found.fits(sizes):
            raise InputError(
                f"{path} is damaged: its tables have other shapes than the vocabularies"
                f" need; {make}"
            )
        if found.vocabulary != vocabulary:
            raise InputError(
                f"{path} was made with another vocabulary (hash"
                f" {found.vocabulary[:12]}) than the run's ({vocabulary[:12]}); {make}"
            )
        return found

    def fits(self, sizes: tuple[int, int] | None = None) -> bool:
        """Check shapes, integer types and the range of the token ids; see
        :meth:`load`.
        """
        rows, columns = (
            (len(self.best) if self.best.ndim else 0, 2**31) if sizes is None else sizes
        )
        return (
            (self.first.ndim, self.best.ndim) == (1, 2)
            and len(self.best) == rows
            and all(
                np.issubdtype(part.dtype, np.integer)
                for part in (self.first, self.best)
            )
            and set(SPECIAL) <= set(self.first.tolist())
            and all(
                least <= part.min(initial=0) and part.max(initial=0) < columns
                for least, part in ((0, self.first), (-1, self.best))
            )
        )

    def tokens_of(
        self, source: Sequence[int] | np.ndarray, needed: Sequence[int] = ()
    ) -> Int[np.ndarray, " L"]:
        """Return the list of a sentence, ascending.

        Args:
            source: its tokens [S].
            needed: target tokens that are to be on it, such as those of a prefix.
        """
        found = np.unique(self.best[np.unique(np.asarray(source, np.int64))])
        parts = (self.first, found[found >= 0], np.asarray(needed, np.int64))
        return np.unique(np.concatenate(parts)).astype(np.int32)


def within(
    lists: Sequence[Int[np.ndarray, " L"]],
    rows: int,
    columns: int,
    *,
    whole: bool = False,
) -> Within:
    """Put the lists of a batch together, in one of few sizes.

    Args:
        lists: of each sentence; see :meth:`Shortlist.tokens_of`.
        rows: of the batch, those that fill it among them.
        columns: of the model's output. Where the union comes near, it is the whole
            output.
        whole: whether it is the whole output in any case, as drawing at random needs
            it: what is drawn depends on the place of each token, which must not depend
            on a sentence's neighbours.
    """
    union = np.unique(np.concatenate(lists))
    size = columns if whole else static_size(len(union))
    union = np.arange(columns, dtype=np.int32) if size >= columns else union
    allowed = np.ones((rows, min(size, columns)), bool)
    for row, tokens in zip(allowed, lists, strict=False):
        row[:] = False
        row[np.searchsorted(union, tokens)] = True
    padded = np.pad(union, (0, allowed.shape[1] - len(union)), mode="edge")
    return Within(cast(Any, padded), cast(Any, allowed))


def static_size(count: int) -> int:
    """Round a number of tokens up to one of few, each of which compiles the search
    anew: 256, 512, 1024, ...

    Example:
        >>> [static_size(count) for count in (3, 256, 257, 1025)]
        [256, 256, 512, 2048]
    """
    return max(_SMALLEST, 1 << (count - 1).bit_length())


def _table(found: Sequence[Translations], best: int) -> Int[np.ndarray, "S k"]:
    table = np.full((len(found), best), -1, np.int32)
    for row, translations in zip(table, found, strict=True):
        tokens = translations.tokens[:best]
        row[: len(tokens)] = tokens
    return table
