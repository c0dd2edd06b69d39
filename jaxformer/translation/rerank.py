"""Choosing among translations of a sentence: minimum Bayes risk decoding, and reranking
of n-best lists by a weighted sum of scores.

A reranking adds what the search did not see to its own score: the probability of the
source given the translation, by a model of the opposite direction, and that of the
translation as text, by a language model (the noisy channel of Yee et al. 2019,
section 2).

An n-best list is a record of ``translate --format=jsonl``: the source and its
translations, each with its text and score. Scores of one kind are a flat list of
numbers, one for each translation of all records in order.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from jaxformer.data.language_codes import same_language
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.files import finite, parse_json
from jaxformer.typing import Float

if TYPE_CHECKING:
    from jaxformer.translation.translator import Translator

Record: TypeAlias = dict[str, Any]

Utility: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""``utility(texts) -> Float[n n]``: element i, j is the score of text i with text j as
the reference.
"""

_ORDER, _BETA = 6, 2
_COLUMNS = 1 << 14
# Sums of the same utilities in another order differ by rounding.
_ROUNDING = 1e-9


def choose(texts: Sequence[str], utility: Utility | None = None) -> int:
    """Return the index of the text with the highest expected utility, the first in a
    tie: minimum Bayes risk decoding (Kumar and Byrne 2004).

    Args:
        texts: translations of one sentence, samples or an n-best list, at least one. A
            text that was drawn several times counts as often.
        utility: of texts against each other; by default :func:`chrf`.

    Example:
        >>> choose(["Ja.", "Das ist ein Haus.", "Das ist das Haus.", "Ein Haus."])
        1
    """
    values = expected_utilities(texts, utility)
    return int(
        np.argmax(values >= values.max() - _ROUNDING * max(1.0, abs(values.max())))
    )


def expected_utilities(
    texts: Sequence[str], utility: Utility | None = None
) -> Float[np.ndarray, " n"]:
    """Return the mean utility of each text against all others; 0 for a single text.

    Args:
        texts: translations of one sentence.
        utility: as for :func:`choose`; it is called with each distinct text once.
    """
    counts = Counter(texts)
    place = {text: number for number, text in enumerate(counts)}
    matrix = np.asarray((utility or chrf)(list(counts)), np.float64)
    # A text is compared with its repetitions, but not with itself.
    sums = matrix @ np.array(list(counts.values()), np.float64) - np.diag(matrix)
    return sums[[place[text] for text in texts]] / max(len(texts) - 1, 1)


def chrf(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Return the chrF2 of each text against each as the reference, from 0 to 100
    (Popović 2015).

    The values are those of sacreBLEU's sentence scores with default settings. The
    n-grams of each text are counted once; the matches of all pairs are then one matmul
    for each order.
    """
    precision, orders = np.zeros((2, len(texts), len(texts)))
    plain = ["".join(text.split()) for text in texts]
    for order in range(1, _ORDER + 1):
        totals = np.array([max(len(text) - order + 1, 0) for text in plain])
        precision += _matches(plain, order) / np.maximum(totals, 1)[:, None]
        # An order counts where both texts are long enough for it.
        orders += np.outer(totals > 0, totals > 0)
    precision /= np.maximum(orders, 1)
    recall = precision.T
    weighted = _BETA**2 * precision + recall
    return (
        100 * (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)
    )


def _matches(texts: Sequence[str], order: int) -> Float[np.ndarray, "n n"]:
    """Count the n-grams that each pair of texts shares.

    The k-th occurrence of an n-gram in a text is a feature of its own: two texts with a
    and b occurrences share min(a, b).
    """
    columns: dict[tuple[str, int], int] = {}
    places: list[tuple[int, int]] = []
    for row, text in enumerate(texts):
        seen: Counter[str] = Counter()
        for start in range(len(text) - order + 1):
            gram = text[start : start + order]
            seen[gram] += 1
            places.append((row, columns.setdefault((gram, seen[gram]), len(columns))))
    matches = np.zeros((len(texts), len(texts)))
    rows, features = np.array(places, int).reshape(-1, 2).T
    # the features of many long texts do not fit into memory at once
    for first in range(0, len(columns), _COLUMNS):
        inside = (features >= first) & (features < first + _COLUMNS)
        has = np.zeros((len(texts), min(_COLUMNS, len(columns) - first)), np.float32)
        has[rows[inside], features[inside] - first] = 1
        matches += has @ has.T
    return matches


Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[float]]
"""``scorer(sources, translations)``: a number for each pair, higher for a better
one.
"""

SEARCH = "search"
"""The name of the search's own score."""

LANGUAGE_MODEL_SOURCE = "."
"""The source of every pair in the training data of a language model."""


def reverse_scorer(translator: Translator) -> Scorer:
    """Return the scorer log p(source | translation) per source token, by a model of the
    opposite direction.

    A pair that is too long for the model's positions gets minus infinity.
    """
    return lambda sources, texts: _per_token(translator, texts, sources)


def language_model_scorer(translator: Translator) -> Scorer:
    """Return the scorer log p(translation) per token, by a language model.

    The model is a run that was trained on pairs whose source is always
    :data:`LANGUAGE_MODEL_SOURCE`: its p(target | source) is p(target).
    """
    return lambda sources, texts: _per_token(
        translator, [LANGUAGE_MODEL_SOURCE] * len(sources), texts
    )


def check_reverse(translator: Translator, records: Sequence[Record], name: str) -> None:
    """Check that a model translates back, if its languages and those of the records are
    known.

    Args:
        translator: the reverse model.
        records: n-best lists.
        name: of the model, for an error.

    Raises:
        InputError: the model has another direction.
    """
    own = translator.languages
    for record in records:
        forward = [record.get(f"{side}_language", "") for side in ("source", "target")]
        if not (all(own) and all(forward)):
            continue
        if not all(map(same_language, own, forward[::-1])):
            here, there, back = (
                f"{first} into {last}" for first, last in (own, forward, forward[::-1])
            )
            raise InputError(
                f"{name} translates from {here}, and the lists are from {there}: give a"
                f" run from {back}, or to one of several languages"
                f" --reverse_language={forward[0]}"
            )


def read_records(lines: Sequence[str], name: str = "input") -> list[Record]:
    """Read n-best lists. A score of null, of a search without any result, becomes minus
    infinity.

    Raises:
        InputError: a line of the file ``name`` is not a record.
    """
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(line))
        except (ValueError, TypeError, KeyError, OverflowError):
            raise InputError(
                f"{name}, line {number} is no object with source and translations: give"
                " what translate --format=jsonl wrote"
            ) from None
    return records


def _record(line: str) -> Record:
    """Read one record; raise what :func:`read_records` catches if it is not one."""
    record = parse_json(line)
    for each in record["translations"]:
        each["score"] = -math.inf if each["score"] is None else float(each["score"])
        if not each["score"] < math.inf:
            raise ValueError
    codes = [record.get(key, "") for key in ("source_language", "target_language")]
    # TypeError if one is no string, ValueError for half of a surrogate pair
    "".join([record["source"], *codes, *texts_of([record])]).encode()
    if not record["translations"]:
        raise ValueError
    return record


def texts_of(records: Sequence[Record]) -> list[str]:
    """Return all translations."""
    return [each["text"] for record in records for each in record["translations"]]


def read_scores(lines: Sequence[str], count: int, name: str) -> list[float]:
    """Read a number for each translation, one a line.

    Raises:
        InputError: the file ``name`` does not have ``count`` finite numbers.
    """
    if len(lines) != count:
        raise InputError(
            f"{name} has {len(lines)} lines for {count} translations: give one number"
            " for each"
        )
    scores = []
    for number, line in enumerate(lines, start=1):
        try:
            scores.append(float(line))
        except ValueError:
            scores.append(math.nan)
        if not math.isfinite(scores[-1]):
            raise InputError(
                f"{name}, line {number}: {line[:30]!r} is no finite number"
            )
    return scores


def score(records: Sequence[Record], scorer: Scorer) -> tuple[list[float], int]:
    """Score all translations by one call of a scorer.

    Blank translations, and those of blank sources, are not scored: they get minus
    infinity.

    Returns:
        The scores, and how many of the others got minus infinity.

    Raises:
        InputError: the scorer returns another number of scores, NaN or infinity.
    """
    pairs = [
        (record["source"], each["text"])
        for record in records
        for each in record["translations"]
    ]
    asked = [bool(source.strip() and text.strip()) for source, text in pairs]
    kept = list(itertools.compress(pairs, asked))
    found = list(scorer(*zip(*kept, strict=True))) if kept else []
    if len(found) != len(kept):
        raise InputError(
            f"a scorer gave {len(found)} scores for {len(kept)} translations: it must"
            " give one for each"
        )
    if any(math.isnan(value) or value == math.inf for value in found):
        raise InputError(
            "a scorer gave a score that is no number below infinity: nothing can be"
            " ordered by it"
        )
    return _spread(found, asked), found.count(-math.inf)


def _spread(scores: Sequence[float], asked: Sequence[bool]) -> list[float]:
    """Return the scores of those asked for, and minus infinity for the others."""
    values = iter(scores)
    return [float(next(values)) if wanted else -math.inf for wanted in asked]


def rerank(
    records: Sequence[Record],
    scores: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
) -> list[Record]:
    """Sort the translations of each record by a weighted sum of their scores, the best
    first; ties keep their order.

    Args:
        records: n-best lists.
        scores: of the translations, by name. Minus infinity in one of them makes the
            sum minus infinity, with any weights.
        weights: by the same names; they may be 0 or negative.

    Returns:
        The records with ``scores`` and ``total`` of each translation. Minus infinity is
        None, as in JSON.

    Raises:
        InputError: a score has no weight, or a weight has no score.
    """
    if scores.keys() != weights.keys():
        raise InputError(
            f"there are scores {', '.join(scores)} and weights for"
            f" {', '.join(weights)}: give each both"
        )
    columns = zip(*scores.values(), strict=True)
    reranked = []
    for record in records:
        ranked = []
        for translation, values in zip(record["translations"], columns, strict=False):
            own = dict(zip(scores, values, strict=True))
            total = (
                -math.inf
                if -math.inf in values
                else sum(weights[name] * value for name, value in own.items())
            )
            ranked.append(
                {**translation, "score": own[SEARCH], "scores": own, "total": total}
            )
        ranked.sort(key=lambda each: each["total"], reverse=True)
        reranked.append(finite({**record, "translations": ranked}))
    return reranked


def _per_token(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[float]:
    """Return the mean log-probability of the tokens of each target, its end of sentence
    included.

    It is minus infinity if a side has more tokens than the model has positions: one
    such translation must not end the work on all others.
    """
    fits = translator.codec.fit(sources, targets)
    pairs = list(itertools.compress(map(Pair, sources, targets), fits))
    means = [each.log_probability / each.tokens for each in translator.score(pairs)]
    return _spread(means, fits)
