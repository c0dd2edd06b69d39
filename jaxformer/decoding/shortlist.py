"""Vocabulary shortlists: the few target tokens that a sentence is likely to need, found from its source tokens.

A search that multiplies with their rows of the output table alone saves most of that product (Jean et al. 2015, section
4.2; Mi et al. 2016). Each sentence has a list of its own; a batch is multiplied with the union of its sentences' lists,
and what is not on a sentence's own list never comes in it, so that no sentence depends on its neighbours.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from jaxformer.decoding.constraints import Constraints
from jaxformer.decoding.lexicon import Side, Translations, learn_translations
from jaxformer.errors import InputError
from jaxformer.typing import Array, Bool, Int

FILE = "shortlist.npz"
"""Its name in the directory of a run."""

SPECIAL = (0, 1, 2, 3)
"""Ids of padding, unknown token, begin and end of sentence: on every list, so that they keep their numbers."""

_SMALLEST = 256


class Within(NamedTuple):
    """The part of a vocabulary that a batch is searched in. Token i of the search is ``tokens[i]`` of the model."""

    tokens: Int[Array, " L"]
    """Ascending; behind the union of the lists the last one comes again, up to one of few sizes."""
    allowed: Bool[Array, "B L"]
    """True at what is on the list of each sentence, and everywhere in rows without a sentence."""

    def numbers(self, tokens: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Give the places of tokens here; -1 where one is not here, or is negative."""
        own = np.asarray(self.tokens)
        places = np.minimum(np.searchsorted(own, tokens), len(own) - 1)
        return np.where(own[places] == tokens, places, -1).astype(np.int32)

    def constraints(self, constraints: Constraints) -> Constraints:
        """Translate constraints on tokens of the model into such on tokens of the search.

        A phrase that the search cannot write bans nothing. Prefixes and required phrases must be on their sentences'
        lists.
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
    def learn(cls, source: Side, target: Side, vocabulary: str, *, first: int = 50, best: int = 50) -> Shortlist:
        """Learn from training pairs; the translations by :func:`~jaxformer.decoding.lexicon.learn_translations`.

        Args:
            source: sentences, with all tokens that a search adds to them.
            target: their translations, as many.
            vocabulary: the hash of the vocabularies.
            first: most frequent target tokens.
            best: translations of each source token.

        Raises:
            InputError: a number below 1.
        """
        if first < 1 or best < 1:
            raise InputError(f"a shortlist needs at least 1 token of each kind: first is {first}, best {best}")
        found = learn_translations(source, target, candidates=max(256, 4 * best))
        counts = np.bincount(target.tokens, minlength=target.size)
        frequent = np.argsort(-counts, kind="stable")[:first]
        return cls(np.union1d(frequent, SPECIAL).astype(np.int32), _table(found, best), vocabulary)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(file, first=self.first, best=self.best, vocabulary=np.array(self.vocabulary))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, vocabulary: str) -> Shortlist:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: there is no such file, it is damaged, or it was made with other vocabularies than this hash.
        """
        path = Path(path)
        make = f"make one: jaxformer shortlist --workdir={path.parent}"
        if not path.exists():
            raise InputError(f"{path.parent} has no shortlist yet; {make}")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                found = cls(parts["first"], parts["best"], str(parts["vocabulary"]))
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise InputError(f"{path} is damaged; {make}") from None
        if found.vocabulary != vocabulary:
            raise InputError(
                f"{path} was made with another vocabulary (hash {found.vocabulary[:12]}) than the run's "
                f"({vocabulary[:12]}); {make}"
            )
        return found

    def tokens_of(self, source: Sequence[int] | np.ndarray, needed: Sequence[int] = ()) -> Int[np.ndarray, " L"]:
        """Give the list of a sentence, ascending.

        Args:
            source: its tokens [S].
            needed: target tokens that are to be on it, such as those of a prefix.
        """
        found = np.unique(self.best[np.unique(np.asarray(source, np.int64))])
        parts = (self.first, found[found >= 0], np.asarray(needed, np.int64))
        return np.unique(np.concatenate(parts)).astype(np.int32)


def within(lists: Sequence[Int[np.ndarray, " L"]], rows: int, columns: int, *, whole: bool = False) -> Within:
    """Put the lists of a batch together, in one of few sizes.

    Args:
        lists: of each sentence; see :meth:`Shortlist.tokens_of`.
        rows: of the batch, those that fill it among them.
        columns: of the model's output. Where the union comes near, it is the whole output.
        whole: whether it is the whole output in any case, as drawing at random needs it: what is drawn depends on the
            place of each token, which must not depend on a sentence's neighbours.
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
    """Round a number of tokens up to one of few, each of which compiles the search anew: 256, 512, 1024, ...

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
