"""The scores of a translation: BLEU and chrF of a whole test set, by sacreBLEU, each with its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxformer.errors import InputError, require


@dataclass(frozen=True)
class Score:
    """Hold one score of a whole test set.

    Attributes:
        name: the name of the metric, ``BLEU`` or ``chrF2``.
        value: the score in points, from 0 to 100.
        signature: what must agree before two scores may be compared: number of references, case, tokenizer, smoothing
            and version, as sacreBLEU writes them.
    """

    name: str
    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Score translations by BLEU: cased, tokenizer 13a, exponential smoothing.

    Both sides are detokenised text. The references are the raw lines of the test set, never text that went through a
    vocabulary, whose normalisation would change them. A hypothesis may be empty: it counts as a translation without
    words.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        references: one raw reference for each sentence, in one flat list.

    Raises:
        InputError: a list is empty, nested or a bare string; the two differ in length; something in them is no string
            or holds a line break.

    References:
        Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", 2002; Post, "A Call for
        Clarity in Reporting BLEU Scores", 2018.

    >>> bleu(["Ein neues Haus steht hier."], ["Ein neues Haus steht hier."]).value
    100.0...
    """
    sacrebleu = require("sacrebleu", "train")
    metric = sacrebleu.BLEU(lowercase=False, tokenize="13a", smooth_method="exp", effective_order=False)
    return _score(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Score translations by chrF2: F-score, recall twice as important, of character n-grams up to six characters.

    Args:
        hypotheses: one translation for each sentence, in the order of the references.
        references: one raw reference for each sentence, in one flat list.

    Raises:
        InputError: as :func:`bleu`.

    References:
        Popović, "chrF: character n-gram F-score for automatic MT evaluation", 2015.

    >>> chrf(["Haus"], ["Haus"]).value
    100.0
    """
    sacrebleu = require("sacrebleu", "train")
    metric = sacrebleu.CHRF(char_order=6, word_order=0, beta=2, lowercase=False, whitespace=False)
    return _score(metric, hypotheses, references)


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check_sentences(hypotheses, "hypotheses")
    _check_sentences(references, "references")
    if len(hypotheses) != len(references):
        raise InputError(
            f"each sentence needs one hypothesis and one reference, but there are {len(hypotheses)} hypotheses and "
            f"{len(references)} references: score the whole test set, in its order"
        )
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.name, float(result.score), metric.get_signature().format())


def _check_sentences(sentences: Sequence[str], role: str) -> None:
    # sacreBLEU itself takes a list of lists of references. It reads a wrongly nested one as a shorter test set, and a
    # string as a list of its letters, and scores what is left without a word.
    if isinstance(sentences, str):
        raise InputError(f"{role} must be a list of sentences, not one string: put it in a list, [{sentences[:20]!r}]")
    if len(sentences) == 0:
        raise InputError(f"{role} must hold at least one sentence, and there are none")
    for number, sentence in enumerate(sentences, start=1):
        if isinstance(sentence, (list, tuple)):
            raise InputError(f"{role} must be one flat list of strings, but item {number} is a list: flatten it")
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise InputError(f"{role} must be strings, but item {number} is of type {kind}: give text, not ids")
        if "\n" in sentence:
            raise InputError(
                f"{role} must be one line each, but item {number} holds a line break: replace it by a space"
            )
