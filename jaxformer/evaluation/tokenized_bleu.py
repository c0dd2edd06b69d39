"""The papers' own BLEU: of text that is tokenised first, with compounds split, which
sacreBLEU's never is.

"Attention Is All You Need" and the papers that it compares itself with tokenise both
sides by ``tokenizer.perl`` of Moses, split words at hyphens (Luong et al. 2015;
tensor2tensor's ``get_ende_bleu.sh``), and count by ``multi-bleu.perl``. Such scores are
comparable with theirs, and with no sacreBLEU score: they bear another name and another
signature, and have their own arithmetic here.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer import __version__
from jaxformer.errors import require
from jaxformer.evaluation import sentences
from jaxformer.evaluation.statistics import Score, Statistics, score_rows
from jaxformer.typing import Float

_ORDER = 4
# The papers' scripts read bytes: a no-break space is part of a word, and of a letter of
# two bytes the first may stand behind one hyphen and the second before the next.
_COMPOUND = re.compile(rb"(\S)-(\S)")
_WORD = re.compile(r"\S+", re.ASCII)


def split_compounds(text: str) -> str:
    """Split tokenised text at hyphens within words, ``a-b-c`` at the first alone.

    The papers' expression takes the bytes on both sides together with the hyphen, so
    that the one behind a hyphen is not free to stand before the next.

    >>> split_compounds("rich-text format")
    'rich ##AT##-##AT## text format'
    >>> split_compounds("a-b-c")
    'a ##AT##-##AT## b-c'
    """
    content = text.encode("utf-8", "surrogatepass")
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", content).decode(
        "utf-8", "surrogatepass"
    )


@dataclass(frozen=True)
class TokenizedBleu:
    """BLEU as ``multi-bleu.perl`` has it; see
    :class:`jaxformer.evaluation.statistics.Metric`.

    Attributes:
        language: what Moses' tokenizer takes the text for, a code such as ``de``; None
            for text that is tokenised.
        compounds: whether words are split at hyphens, on both sides.
        higher_is_better: always.
        digits: decimals that a record keeps.
    """

    language: str | None
    compounds: bool
    higher_is_better: bool = True
    digits: int = 2

    @property
    def key(self) -> str:
        """Return the name in options and records."""
        return "compound_split_bleu" if self.compounds else "tokenized_bleu"

    def prepare(self, references: int) -> None:
        """Load the tokenizer.

        Raises:
            InputError: it is not installed.
        """
        _tokenizer(self.language)

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> Statistics:
        """Count words and n-grams in each sentence.

        Raises:
            InputError: as :func:`jaxformer.evaluation.sentences.check`; or the
                tokenizer is not installed.
        """
        sentences.check(hypotheses, references, sources)
        tokenize = _tokenizer(self.language)

        def words(text: str) -> list[str]:
            tokenized = tokenize(text)
            return _WORD.findall(
                split_compounds(tokenized) if self.compounds else tokenized
            )

        rows = [
            _count(words(hypothesis), [words(line) for line in lines])
            for hypothesis, *lines in zip(hypotheses, *references, strict=True)
        ]
        return Statistics(
            np.asarray(rows, np.float64), self._signature(len(references))
        )

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows were summed to ``total``: 0 where an order
        of n-grams has no match at all.
        """
        length, reference_length = total[:2]
        matches, counts = total[2 : 2 + _ORDER], total[2 + _ORDER :]
        value = 0.0
        if np.all(matches > 0):
            brevity = min(0.0, 1.0 - reference_length / length)
            value = 100.0 * math.exp(brevity + float(np.mean(np.log(matches / counts))))
        return Score(self.key, value, signature)

    def _signature(self, references: int) -> str:
        parts = {
            "nrefs": references,
            "case": "mixed",
            "tok": f"moses-{self.language}" if self.language else "none",
            "compounds": "split" if self.compounds else "whole",
            "smooth": "none",
            "jaxformer": __version__,
        }
        return "|".join(
            [self.key, *(f"{name}:{value}" for name, value in parts.items())]
        )


def tokenized_bleu(
    hypotheses: Sequence[str], *references: Sequence[str], language: str | None = None
) -> Score:
    """Score translations by BLEU of tokenised text, cased, without smoothing, as
    ``multi-bleu.perl`` does.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        *references: one reference for each sentence, in one flat list; several such
            lists for several translations.
        language: what Moses' tokenizer takes both sides for; None if they are
            tokenised, words between spaces.

    Raises:
        InputError: as :func:`jaxformer.evaluation.metrics.bleu`; or the tokenizer is
            not installed.

    >>> tokenized_bleu(["the cat sat on a-b"], ["the cat sat on a-b"]).value
    100.0
    """
    metric = TokenizedBleu(language, compounds=False)
    return score_rows(metric, metric.statistics(hypotheses, *references))


def compound_split_bleu(
    hypotheses: Sequence[str], *references: Sequence[str], language: str | None = None
) -> Score:
    """Score translations as :func:`tokenized_bleu` does, both sides split at hyphens
    first: the paper's Table 2.

    Args:
        hypotheses: as for :func:`tokenized_bleu`.
        *references: likewise.
        language: likewise; the paper's is ``de``.

    Raises:
        InputError: as :func:`tokenized_bleu`.

    References:
        Vaswani et al., "Attention Is All You Need", 2017, section 6.1; Luong et al.,
        "Effective Approaches to Attention-based Neural Machine Translation", 2015.
    """
    metric = TokenizedBleu(language, compounds=True)
    return score_rows(metric, metric.statistics(hypotheses, *references))


def _count(words: list[str], references: list[list[str]]) -> list[int]:
    """Count: words, words of the reference nearest in length, then matches and
    n-grams of each order.
    """
    nearest = min(
        (abs(len(reference) - len(words)), len(reference)) for reference in references
    )[1]
    matches, counts = [], []
    for order in range(1, _ORDER + 1):
        found = _ngrams(words, order)
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= _ngrams(reference, order)
        matches.append((found & most).total())
        counts.append(found.total())
    return [len(words), nearest, *matches, *counts]


def _ngrams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


@functools.cache
def _tokenizer(language: str | None) -> Callable[[str], str]:
    """Return what tokenises a line."""
    if language is None:
        return str
    moses = require("sacremoses", "moses").MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(line, return_str=True)
