"""Minimum Bayes risk, against all pairs scored one by one, and reranking by other
scores, against sums written out.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import sacrebleu

import runs
from jaxformer.errors import InputError
from jaxformer.evaluation.reranking_weights import tune
from jaxformer.translation import rerank as reranking
from jaxformer.translation.rerank import choose, chrf, expected_utilities

METRIC = sacrebleu.CHRF()


def draw_texts(rng: np.random.Generator) -> list[str]:
    """Draw texts that resemble, repeat, are short, blank or in other scripts."""
    base = list(runs.pairs()[rng.integers(400)].target)
    texts = ["", " ", "a", "🙂🎉", "aaaaaaaaaaaa", "界"]
    for _ in range(10):
        drawn = rng.choice(list("abc äß\u3000界🙂"), len(base))
        changed = np.where(rng.random(len(base)) < 0.3, drawn, base)
        texts.append("".join(changed)[: rng.integers(1, 80)])
    return rng.choice(texts, rng.integers(2, 24)).tolist()


def test_expected_utility_is_the_mean_over_the_others(monkeypatch):
    """Each pair has sacreBLEU's sentence score, whether all n-grams are multiplied at
    once or not. Repetitions count, a text does not count for itself, and the first of
    the best is chosen.
    """
    rng, chosen = np.random.default_rng(2), set()
    for trial in range(20):
        monkeypatch.setattr(reranking, "_COLUMNS", 7 if trial % 4 else 1 << 14)
        texts = draw_texts(rng)
        table = np.array(
            [[METRIC.sentence_score(x, [y]).score for y in texts] for x in texts]
        )
        np.testing.assert_allclose(chrf(texts), table, rtol=1e-12, atol=1e-12)
        means = (table.sum(1) - table.diagonal()) / (len(texts) - 1)
        found = expected_utilities(texts)
        np.testing.assert_allclose(found, means, rtol=1e-9, atol=1e-9)
        number = choose(texts)
        assert means[number] >= means.max() - 1e-7
        assert all(value < means.max() - 1e-9 for value in means[:number])
        chosen.add(number)
    assert len(chosen) > 5
    assert choose(["a"]) == choose(["", ""]) == choose(["ab", "ba"]) == 0


def test_another_utility_serves():
    """It is asked once, for all pairs of different texts."""
    lengths = lambda texts: [[len(x) - 2 * len(y) for y in texts] for x in texts]  # noqa: E731
    texts = ["aa", "b", "aa", "cccc"]
    found = expected_utilities(texts, lengths)
    np.testing.assert_allclose(found, [2 - 14 / 3, 1 - 16 / 3, 2 - 14 / 3, 4 - 10 / 3])
    assert choose(texts, lengths) == 3


def make(source: str, *texts: str) -> dict:
    translations = [{"text": text, "score": 0.0} for text in texts]
    return {"source": source, "translations": translations}


def draw(
    seed: int, sentences: int
) -> tuple[list[dict], dict[str, list[float]], list[str]]:
    """Return n-best lists of different lengths, three kinds of scores, some of them
    impossible, and references.
    """
    rng = np.random.default_rng(seed)
    references = [pair.target for pair in runs.pairs()[:sentences]]

    def shorten(line: str) -> str:
        return " ".join(word for word in line.split() if rng.random() < 0.8)

    records = [
        make(line, *(shorten(line) for _ in range(rng.integers(1, 6))))
        for line in references
    ]
    scores = rng.normal(size=(3, len(reranking.texts_of(records))))
    scores[2, rng.random(scores.shape[1]) < 0.1] = -math.inf
    named = dict(zip(("search", "reverse", "lm"), scores.tolist(), strict=True))
    return records, named, references


def totals_by_hand(records: list, scores: dict, weights: dict) -> list[list[float]]:
    columns = zip(*scores.values(), strict=True)
    totals = []
    for record in records:
        own = [
            dict(zip(scores, next(columns), strict=True))
            for _ in record["translations"]
        ]
        sums = [sum(weights[k] * value for k, value in each.items()) for each in own]
        possible = [min(each.values()) > -math.inf for each in own]
        totals.append(np.where(possible, sums, -math.inf).tolist())
    return totals


def test_order_of_a_weighted_sum():
    """The highest sum is first, impossible ones are last, and ties keep their order."""
    records, scores, _ = draw(1, 40)
    for weights in (
        {"search": 1, "reverse": 0.5, "lm": 0.5},
        {"search": 0.0, "reverse": -2.0, "lm": 1.0},
    ):
        found = reranking.rerank(records, scores, weights)
        totals = totals_by_hand(records, scores, weights)
        for record, before, own in zip(found, records, totals, strict=True):
            order = sorted(range(len(own)), key=lambda place, own=own: -own[place])
            texts = [before["translations"][place]["text"] for place in order]
            assert reranking.texts_of([record]) == texts
            assert [each["total"] for each in record["translations"]] == [
                None if own[place] == -math.inf else own[place] for place in order
            ]
    tied = {"search": [1.0, -math.inf, 1.0, 2.0]}
    found = reranking.rerank([make("a", *"1234")], tied, {"search": 1.0})
    assert reranking.texts_of(found) == list("4132")
    with pytest.raises(InputError, match="scores search and weights for search, lm"):
        reranking.rerank(records, {"search": []}, {"search": 1, "lm": 2})


def test_scorers_see_each_pair_once():
    """A scorer is called once with all pairs of text, in order; blank ones get minus
    infinity.
    """
    seen = []

    def scorer(*pairs):
        seen.append(list(zip(*pairs, strict=True)))
        return [float(len(text)) for text in pairs[1]]

    records = [make("a", "xx", "", "y"), make(" ", ""), make("b", "zzz")]
    found = reranking.score(records, scorer)
    assert seen == [[("a", "xx"), ("a", "y"), ("b", "zzz")]]
    assert found == ([2.0, -math.inf, 1.0, -math.inf, 3.0], 0)
    assert reranking.score([make(" ", "")], scorer) == ([-math.inf], 0)
    for wrong, rule in (
        ([], "gave 0 scores for 2"),
        ([-1.0, math.nan], "a score that is no number below infinity"),
        ([-1.0, math.inf], "a score that is no number below infinity"),
    ):
        with pytest.raises(InputError, match=rule):
            reranking.score([make("a", "b", "c")], lambda *_, wrong=wrong: wrong)


def test_tuning_tries_all_weights():
    """The weights have the highest BLEU by sacreBLEU over all combinations, and are the
    smallest of the best.
    """
    records, scores, references = draw(7, 30)
    grid, judged = (0.0, 0.5, 2.0), []
    found = tune(records, scores, references, grid=grid)

    def bleu(places: list[int]) -> float:
        pairs = zip(records, places, strict=True)
        texts = [record["translations"][place]["text"] for record, place in pairs]
        return sacrebleu.BLEU().corpus_score(texts, [references]).score

    for reverse, lm in itertools.product(grid, grid):
        weights = {"search": 1.0, "reverse": reverse, "lm": lm}
        totals = totals_by_hand(records, scores, weights)
        judged.append((bleu([int(np.argmax(own)) for own in totals]), weights))
    highest = max(score for score, _ in judged)
    assert found.after.value == pytest.approx(highest)
    best = [weights for score, weights in judged if score > highest - 1e-9]
    assert found.weights in best
    assert sum(found.weights.values()) == min(sum(each.values()) for each in best)
    assert found.before.value == pytest.approx(bleu([0] * 30))
    assert min(score for score, _ in judged) < highest
    with pytest.raises(InputError, match="30 lists of translations and 29 references"):
        tune(records, scores, references[:-1])


ONE = '{"source": "a", "translations": [{"text": "a", "score": 1}]}'


@pytest.mark.parametrize(
    "bad",
    [
        *("{", "[]", "{}"),
        ONE.replace('"source": "a"', '"source": 1'),
        ONE.replace("{", '{"source_language": 1,', 1),
        ONE.replace('{"text": "a", "score": 1}', ""),
        ONE.replace(', "score": 1', ""),
    ],
    ids=range(7),
)
def test_lists_that_cannot_be_read_are_refused(bad):
    """The line is named; a translation that does not exist has no score."""
    good = ONE.replace("1}", "null}")
    assert json.loads(good)
    assert reranking.read_records([good])[0]["translations"][0]["score"] == -math.inf
    rule = "^input, line 2 is no object with source and translations: give what"
    with pytest.raises(InputError, match=rule):
        reranking.read_records([good, bad])


def test_scores_that_cannot_be_read_are_refused():
    assert reranking.read_scores(["1", "-2e3", "0"], 3, "file") == [1.0, -2000.0, 0.0]
    with pytest.raises(InputError, match="file has 1 lines for 2 translations"):
        reranking.read_scores(["1"], 2, "file")
    for bad in ("x", "nan", "-inf", ""):
        with pytest.raises(InputError, match="file, line 2: '"):
            reranking.read_scores(["1", bad], 2, "file")
