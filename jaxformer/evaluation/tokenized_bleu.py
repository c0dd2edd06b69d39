"""BLEU of tokenised text, as the paper reports it, optionally with compounds split.

"Attention Is All You Need" and the papers that it compares with tokenise both sides by
``tokenizer.perl`` of Moses, split words at hyphens (Luong et al. 2015; tensor2tensor's
``get_ende_bleu.sh``), and count by ``multi-bleu.perl``. Such scores compare with no
sacreBLEU score, so they have another name and signature.
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
from jaxformer.evaluation.sentences import check_sentences
from jaxformer.evaluation.statistics import (
    Score,
    SentenceStatistics,
    count_ngrams,
)
from jaxformer.typing import Float

_ORDER = 4
# The papers' scripts read bytes: a no-break space is part of a word, and a letter of
# two bytes can be next to two hyphens.
_COMPOUND = re.compile(rb"(\S)-(\S)")
_WORD = re.compile(r"\S+", re.ASCII)


def split_compounds(text: str) -> str:
    """Split tokenised text at hyphens within words, ``a-b-c`` only at the first.

    The papers' expression consumes the bytes on both sides of a hyphen, so the byte
    after one hyphen cannot precede the next.

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
    """BLEU of ``multi-bleu.perl``: cased, without smoothing; see
    :class:`jaxformer.evaluation.statistics.Metric`.

    Attributes:
        language: code of the language for Moses' tokenizer, such as ``de``; None for
            text that is already tokenised.
        compounds: whether words are split at hyphens on both sides.
        higher_is_better: always.

    References:
        Vaswani et al., "Attention Is All You Need", 2017, section 6.1; Luong et al.,
        "Effective Approaches to Attention-based Neural Machine Translation", 2015.
    """

    language: str | None
    compounds: bool
    higher_is_better: bool = True

    @property
    def key(self) -> str:
        """Return the name in options and records."""
        return "compound_split_bleu" if self.compounds else "tokenized_bleu"

    def prepare(self, references: int) -> None:
        """Load the tokenizer.

        Raises:
            InputError: it is not installed.
        """
        _load_tokenizer(self.language)

    def statistics(
        self,
        hypotheses: Sequence[str],
        *references: Sequence[str],
        sources: Sequence[str] | None = None,
    ) -> SentenceStatistics:
        """Count words and n-grams of each sentence.

        Raises:
            InputError: see :func:`jaxformer.evaluation.sentences.check_sentences`; or
                the tokenizer is not installed.
        """
        check_sentences(hypotheses, references, sources)
        tokenize = _load_tokenizer(self.language)

        def words(text: str) -> list[str]:
            tokenized = tokenize(text)
            return _WORD.findall(
                split_compounds(tokenized) if self.compounds else tokenized
            )

        rows = [
            _count(words(hypothesis), [words(line) for line in lines])
            for hypothesis, *lines in zip(hypotheses, *references, strict=True)
        ]
        tokenizer = f"moses-{self.language}" if self.language else "none"
        signature = (
            f"{self.key}|nrefs:{len(references)}|case:mixed|tok:{tokenizer}"
            f"|compounds:{'split' if self.compounds else 'whole'}|smooth:none"
            f"|jaxformer:{__version__}"
        )
        return SentenceStatistics(np.asarray(rows, np.float64), signature)

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``: 0 where an order of n-grams
        has no match.
        """
        length, reference_length = total[:2]
        matches, counts = total[2 : 2 + _ORDER], total[2 + _ORDER :]
        value = 0.0
        if np.all(matches > 0):
            brevity = min(0.0, 1.0 - reference_length / length)
            value = 100.0 * math.exp(brevity + float(np.mean(np.log(matches / counts))))
        return Score(self.key, value, signature)


def _count(words: list[str], references: list[list[str]]) -> list[int]:
    """Count words, words of the reference nearest in length, then matching and all
    n-grams of each order.
    """
    nearest = min(
        (abs(len(reference) - len(words)), len(reference)) for reference in references
    )[1]
    matches, counts = [], []
    for order in range(1, _ORDER + 1):
        found = count_ngrams(words, order)
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= count_ngrams(reference, order)
        matches.append((found & most).total())
        counts.append(found.total())
    return [len(words), nearest, *matches, *counts]


@functools.cache
def _load_tokenizer(language: str | None) -> Callable[[str], str]:
    """Return the function that tokenises a line."""
    if language is None:
        return str
    moses = require("sacremoses", "data").MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(line, return_str=True)
