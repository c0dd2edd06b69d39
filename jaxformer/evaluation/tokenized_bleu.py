"""BLEU of tokenised text, as the paper reports it, optionally with compounds split.

"Attention Is All You Need" and the papers that it compares with tokenise both sides by
``tokenizer.perl`` of Moses, split words at hyphens (Luong et al. 2015; tensor2tensor's
``get_ende_bleu.sh``), and count by ``multi-bleu.perl``, as sacreBLEU does without a
tokenizer and smoothing. Such scores compare with no other of sacreBLEU, so they have
another name and signature.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer import __version__
from jaxformer.errors import require
from jaxformer.evaluation.metrics import SacreMetric
from jaxformer.evaluation.sentences import check_sentences
from jaxformer.evaluation.statistics import Score, SentenceStatistics
from jaxformer.typing import Float

_PLAIN = (("tokenize", "none"), ("smooth_method", "none"))
_BLEU = SacreMetric("bleu", "BLEU", _PLAIN)
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

        def words(text: str) -> str:
            text = tokenize(text)
            found = _WORD.findall(split_compounds(text) if self.compounds else text)
            # In ASCII: sacreBLEU ends words at any white space.
            return " ".join(each.encode("unicode_escape").decode() for each in found)

        sides = ([*map(words, lines)] for lines in (hypotheses, *references))
        rows = _BLEU.statistics(*sides).rows
        tokenizer = f"moses-{self.language}" if self.language else "none"
        signature = (
            f"{self.key}|nrefs:{len(references)}|case:mixed|tok:{tokenizer}"
            f"|compounds:{'split' if self.compounds else 'whole'}|smooth:none"
            f"|jaxformer:{__version__}"
        )
        return SentenceStatistics(rows, signature)

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Score the sentences whose rows sum to ``total``: 0 where an order of n-grams
        has no match.
        """
        return Score(self.key, _BLEU.score(total, signature).value, signature)


@functools.cache
def _load_tokenizer(language: str | None) -> Callable[[str], str]:
    """Return the function that tokenises a line."""
    if language is None:
        return str
    moses = require("sacremoses", "data").MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(line, return_str=True)
