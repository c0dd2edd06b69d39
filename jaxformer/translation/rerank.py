"""Reranking: n-best lists in the order of a weighted sum of scores, of which the
search's own is one.

Others see what the search did not: a model of the opposite direction, how probable it
holds the source once the translation is known; a language model, how good the
translation is as text (the noisy channel of Yee et al. 2019, section 2). Whatever takes
sources and translations and gives numbers may join them.

Lists are lists of translations, one for each sentence; scores of a kind are lists of
numbers of the same lengths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.files import parse_json
from jaxformer.translation.translator import Translator
from jaxformer.typing import Float

Utility: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""``utility(texts) -> Float[n n]``: in row i, how good text i is where text j is the
truth.
"""

_ORDER, _BETA = 6, 2
_COLUMNS = 1 << 14
# Sums of the same utilities in another order differ by rounding.
_ROUNDING = 1e-9


def choose(texts: Sequence[str], utility: Utility | None = None) -> int:
    """Return the number of the text with the highest expected utility; of equally good
    ones the first.

    Args:
        texts: translations of one sentence, samples or an n-best list, at least one.
            Each counts once: what was drawn several times counts so often.
        utility: of some texts against each other; by default :func:`chrf`.
            :func:`pairwise` makes one of another metric.

    Example:
        >>> choose(["Das ist ein Haus.", "Das ist das Haus.", "Ein Haus ist das.", "Guten Tag."])
        1
    """
    values = expected_utilities(texts, utility)
    return int(
        np.argmax(values >= values.max() - _ROUNDING * max(1.0, abs(values.max())))
    )


def expected_utilities(
    texts: Sequence[str], utility: Utility | None = None
) -> Float[np.ndarray, " n"]:
    """Return the mean utility of each text against all the others; 0 for one that is
    alone.

    Args:
        texts: translations of one sentence.
        utility: as for :func:`choose`; it gets each different text once.
    """
    counts = Counter(texts)
    place = {text: number for number, text in enumerate(counts)}
    matrix = np.asarray((utility or chrf)(list(counts)), np.float64)
    # A text is compared with the others, its repetitions among them, and not with
    # itself.
    sums = matrix @ np.array(list(counts.values()), np.float64) - np.diag(matrix)
    return sums[[place[text] for text in texts]] / max(len(texts) - 1, 1)


def chrf(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Return the chrF2 of each text against each as the reference, from 0 to 100
    (Popović 2015).

    The numbers are those of sacreBLEU's sentence scores in its default settings. The
    n-grams of each text are counted once; what two texts share is then one product of
    matrices for each order.
    """
    precision = np.zeros((len(texts), len(texts)))
    recall, orders = precision.copy(), precision.copy()
    plain = ["".join(text.split()) for text in texts]
    for order in range(1, _ORDER + 1):
        totals = np.array([max(len(text) - order + 1, 0) for text in plain], np.float64)
        matches = _matches(plain, order)
        # An order counts where both texts are long enough for it.
        both = (totals[:, None] > 0) & (totals[None, :] > 0)
        precision += np.where(both, matches / np.maximum(totals[:, None], 1), 0)
        recall += np.where(both, matches / np.maximum(totals[None, :], 1), 0)
        orders += both
    precision, recall = (
        precision / np.maximum(orders, 1),
        recall / np.maximum(orders, 1),
    )
    weighted = _BETA**2 * precision + recall
    return (
        100 * (1 + _BETA**2) * precision * recall / np.where(weighted > 0, weighted, 1)
    )


def pairwise(
    score: Callable[[Sequence[str], Sequence[str]], Sequence[float]],
) -> Utility:
    """Turn a metric of sentences into a utility; it is called once, for all n * n
    pairs.

    Args:
        score: ``score(hypotheses, references)`` gives a number for each pair, more
            where it is better.
    """

    def utility(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
        hypotheses = [text for text in texts for _ in texts]
        values = score(hypotheses, list(texts) * len(texts))
        return np.asarray(values, np.float64).reshape(len(texts), len(texts))

    return utility


def _matches(texts: Sequence[str], order: int) -> Float[np.ndarray, "n n"]:
    """Count the n-grams that each two texts share.

    The k-th time that an n-gram comes in a text is a feature of its own: two texts
    share min(a, b) of an n-gram that comes a and b times.
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
    if not places:
        return matches
    rows, features = np.array(places).T
    # many long texts have more features than fit at once
    for first in range(0, len(columns), _COLUMNS):
        inside = (features >= first) & (features < first + _COLUMNS)
        has = np.zeros((len(texts), min(_COLUMNS, len(columns) - first)), np.float32)
        has[rows[inside], features[inside] - first] = 1
        matches += has @ has.T
    return matches


Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], Sequence[float]]
"""``scorer(sources, translations) -> scores``: a number for each pair, more where it
is better.
"""

LANGUAGE_MODEL_SOURCE = "."
"""What every source is in the training data of a run that is to serve as a language
model.
"""

SEARCH = "search"
"""The name of the search's own score."""

SOURCE_LANGUAGE, TARGET_LANGUAGE = "source_language", "target_language"
"""Keys of a record that say what it was translated from and into, if they are there."""


def reverse_scorer(translator: Translator) -> Scorer:
    """Return the scorer of a model of the opposite direction: log p(source |
    translation) for each source token.

    A pair for which the model has too few positions gets minus infinity, and so comes
    last.

    Args:
        translator: from the language of the translations to that of the sources.
    """

    def score(sources: Sequence[str], translations: Sequence[str]) -> list[float]:
        return _per_token(translator, translations, sources)

    return score


def check_reverse(
    translator: Translator, records: Sequence[Mapping[str, Any]], name: str
) -> None:
    """Refuse a model that does not translate back, where its languages and those of the
    lists are known.

    Args:
        translator: that is to be the reverse model.
        records: as :func:`read_records` gives them.
        name: what an error calls the model.

    Raises:
        InputError: it has another direction.
    """
    own = translator.languages
    for forward in dict.fromkeys(
        (record.get(SOURCE_LANGUAGE), record.get(TARGET_LANGUAGE)) for record in records
    ):
        if all(own) and all(forward) and own != forward[::-1]:
            here, there, back = (
                f"{first} into {last}" for first, last in (own, forward, forward[::-1])
            )
            raise InputError(
                f"{name} translates from {here}, and the lists are from {there}: give a"
                f" run from {back}, or to one of several languages"
                f" --reverse_language={forward[0]}"
            )


def language_model_scorer(translator: Translator) -> Scorer:
    """Return the scorer of a language model: log p(translation) for each of its tokens.

    The model is a run that was trained on pairs whose source is always
    :data:`LANGUAGE_MODEL_SOURCE`. What it attends to is then the same for every
    sentence, and its p(target | source) is p(target).

    Args:
        translator: of such a run, whose targets are of the language of the
            translations.
    """

    def score(sources: Sequence[str], translations: Sequence[str]) -> list[float]:
        return _per_token(
            translator, [LANGUAGE_MODEL_SOURCE] * len(sources), translations
        )

    return score


def score_lists(
    scorer: Scorer, sources: Sequence[str], lists: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Score all translations of all sentences, by one call of the scorer.

    Blank translations, and those of blank sentences, are not scored: they get minus
    infinity, and so come last.

    Args:
        scorer: of pairs.
        sources: sentences.
        lists: translations of each.

    Raises:
        InputError: the scorer gives another number of scores.
    """
    pairs = [
        (number, place, source, text)
        for number, (source, texts) in enumerate(zip(sources, lists, strict=True))
        for place, text in enumerate(texts)
        if source.strip() and text.strip()
    ]
    found = (
        list(scorer([source for *_, source, _ in pairs], [text for *_, text in pairs]))
        if pairs
        else []
    )
    if len(found) != len(pairs):
        raise InputError(
            f"a scorer gave {len(found)} scores for {len(pairs)} translations: it must"
            " give one for each"
        )
    if any(math.isnan(value) or value == math.inf for value in found):
        raise InputError(
            "a scorer gave a score that is no number below infinity: nothing can be"
            " ordered by it"
        )
    scores = [[-math.inf] * len(texts) for texts in lists]
    for (number, place, *_), value in zip(pairs, found, strict=True):
        scores[number][place] = float(value)
    return scores


def count_unscored(
    sources: Sequence[str],
    lists: Sequence[Sequence[str]],
    scores: Sequence[Sequence[float]],
) -> int:
    """Count the translations that :func:`score_lists` has asked for a score and that
    have got minus infinity.
    """
    return sum(
        bool(source.strip() and text.strip()) and score == -math.inf
        for source, texts, row in zip(sources, lists, scores, strict=True)
        for text, score in zip(texts, row, strict=True)
    )


def weighted_sum(
    scores: Mapping[str, Sequence[Sequence[float]]], weights: Mapping[str, float]
) -> list[list[float]]:
    """Add up the scores of each translation, each times its weight.

    Args:
        scores: by name. Minus infinity in any of them makes the sum minus infinity,
            whatever the weights.
        weights: by the same names; they may be 0 or negative.

    Raises:
        InputError: a score has no weight, or a weight no score.
    """
    if scores.keys() != weights.keys():
        raise InputError(
            f"there are scores {', '.join(scores)} and weights for"
            f" {', '.join(weights)}: give each both"
        )
    sums = []
    for rows in zip(*scores.values(), strict=True):
        columns = zip(*rows, strict=True)
        sums.append(
            [_sum(values, [weights[name] for name in scores]) for values in columns]
        )
    return sums


def order(sums: Sequence[float]) -> list[int]:
    """Return the numbers of translations, the best first; equally good ones stay in
    their order.

    Example:
        >>> order([-2.0, -1.0, -2.0])
        [1, 0, 2]
    """
    return sorted(range(len(sums)), key=lambda place: -sums[place])


def read_records(lines: Sequence[str], name: str = "input") -> list[dict[str, Any]]:
    """Read what ``translate --format=jsonl`` wrote: `source`, and `translations` of
    which each has `text` and `score`.

    A score of null, where the options of the search left no translation, becomes minus
    infinity.

    Args:
        lines: of the file.
        name: what an error calls the file.

    Raises:
        InputError: a line is something else; it is named.
    """
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(line))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise InputError(
                f"{name}, line {number} is no object with source and translations: give"
                " what translate --format=jsonl wrote"
            ) from None
    return records


def texts_of(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the lists of translations of records as :func:`read_records` gives
    them.
    """
    return [[each["text"] for each in record["translations"]] for record in records]


def write_record(
    record: Mapping[str, Any],
    scores: Mapping[str, Sequence[float]],
    sums: Sequence[float],
) -> dict[str, Any]:
    """Return a record as JSON has it: its translations in their :func:`order`, each
    with its scores and their sum.

    Minus infinity, for which JSON has no number, becomes null.

    Args:
        record: as :func:`read_records` gives it.
        scores: of its translations, by name.
        sums: of its translations, as :func:`weighted_sum` gives them.
    """
    translations = []
    for place in order(sums):
        own = {name: _or_none(row[place]) for name, row in scores.items()}
        kept = {**record["translations"][place], "score": own[SEARCH]}
        translations.append({**kept, "scores": own, "total": _or_none(sums[place])})
    return {**record, "translations": translations}


def read_scores(
    lines: Sequence[str], lists: Sequence[Sequence[str]], name: str
) -> list[list[float]]:
    """Read a number for each translation, one a line, in the order of the lists.

    Args:
        lines: of the file.
        lists: translations of each sentence.
        name: what an error calls the file.

    Raises:
        InputError: their number is not that of the translations, or one is no finite
            number.
    """
    count = sum(map(len, lists))
    if len(lines) != count:
        raise InputError(
            f"{name} has {len(lines)} lines for {count} translations: give one number"
            " for each"
        )
    values = iter(
        [
            _number(line, f"{name}, line {number}")
            for number, line in enumerate(lines, start=1)
        ]
    )
    return [[next(values) for _ in texts] for texts in lists]


def _record(line: str) -> dict[str, Any]:
    """Read one record; raise what :func:`read_records` catches where it is none."""
    record = parse_json(line)
    translations = record["translations"]
    for each in translations:
        each["score"] = -math.inf if each["score"] is None else float(each["score"])
        if math.isnan(each["score"]) or each["score"] == math.inf:
            raise ValueError
    languages = (record.get(key, "") for key in (SOURCE_LANGUAGE, TARGET_LANGUAGE))
    texts = [record["source"], *(each["text"] for each in translations), *languages]
    if not translations or not all(isinstance(text, str) for text in texts):
        raise TypeError
    for text in texts:
        text.encode("utf-8")  # a ValueError for half of a surrogate pair
    return record


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {text[:30]!r} is no finite number")
    return value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sum(values: Sequence[float], weights: Sequence[float]) -> float:
    if min(values) == -math.inf:
        return -math.inf
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _per_token(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[float]:
    """Return the mean log-probability of the tokens of each target, its end of sentence
    among them.

    It is minus infinity where a side has more tokens than the model has positions: one
    such translation among many is no reason to end the work on all of them.
    """
    fits = translator.codec.fit(sources, targets)
    pairs = [
        Pair(*pair)
        for *pair, fitting in zip(sources, targets, fits, strict=True)
        if fitting
    ]
    found = iter(
        [score.log_probability / score.tokens for score in translator.score(pairs)]
    )
    return [next(found) if fitting else -math.inf for fitting in fits]
