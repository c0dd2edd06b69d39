"""Reranking by other scores, against sums written out."""

from __future__ import annotations

import copy
import itertools
import json
import math

import numpy as np
import pytest
import sacrebleu
from translation.translators import random_translator

import runs
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.evaluation.reranking_weights import tune
from jaxformer.translation import rerank as reranking


def make(source: str, *texts: str) -> dict:
    return {
        "source": source,
        "translations": [{"text": text, "score": 0.0} for text in texts],
    }


def draw(
    generator: np.random.Generator, sentences: int
) -> tuple[list[dict], dict[str, list[float]], list[str]]:
    """Return n-best lists of different lengths, three kinds of scores, some of them
    impossible, and references.
    """
    references = [pair.target for pair in runs.pairs()[:sentences]]
    records = []
    for line in references:
        texts = [
            " ".join(word for word in line.split() if generator.random() < 0.8)
            for _ in range(int(generator.integers(1, 6)))
        ]
        records.append(make(line, *texts))
    count = len(reranking.texts_of(records))
    names = ("search", "reverse", "lm")
    scores = {name: generator.normal(size=count).tolist() for name in names}
    for place in range(count):
        if generator.random() < 0.1:
            scores["lm"][place] = -math.inf
    return records, scores, references


def totals_by_hand(records: list, scores: dict, weights: dict) -> list[list[float]]:
    columns = zip(*scores.values(), strict=True)
    totals = []
    for record in records:
        totals.append([])
        for _ in record["translations"]:
            own = dict(zip(scores, next(columns), strict=True))
            possible = all(value > -math.inf for value in own.values())
            total = sum(weights[name] * value for name, value in own.items())
            totals[-1].append(total if possible else -math.inf)
    return totals


def test_order_of_a_weighted_sum():
    """The highest sum is first, impossible ones are last, and ties keep their order."""
    records, scores, _ = draw(np.random.default_rng(1), 40)
    for weights in (
        {"search": 1, "reverse": 0.5, "lm": 0.0},
        {"search": 0.0, "reverse": -2.0, "lm": 1.0},
    ):
        found = reranking.rerank(records, scores, weights)
        totals = totals_by_hand(records, scores, weights)
        for record, before, own in zip(found, records, totals, strict=True):
            order = sorted(range(len(own)), key=lambda place: -own[place])
            texts = [before["translations"][place]["text"] for place in order]
            assert reranking.texts_of([record]) == texts
            assert [each["total"] for each in record["translations"]] == [
                None if own[place] == -math.inf else own[place] for place in order
            ]
    (tied,) = reranking.rerank(
        [make("a", "1", "2", "3", "4")],
        {"search": [1.0, -math.inf, 1.0, 2.0]},
        {"search": 1.0},
    )
    assert reranking.texts_of([tied]) == ["4", "1", "3", "2"]
    with pytest.raises(InputError, match="scores search and weights for search, lm"):
        reranking.rerank(records, {"search": []}, {"search": 1, "lm": 2})


def test_scorers_see_each_pair_once():
    """A scorer is called once with all pairs of text, in order; blank ones get minus
    infinity.
    """
    seen = []

    def scorer(sources, translations):
        seen.append(list(zip(sources, translations, strict=True)))
        return [float(len(text)) for text in translations]

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


def test_models_score_by_the_token():
    """The reverse model reads the translation and scores the source; the language model
    reads neither.
    """
    translator, pairs = random_translator(), runs.pairs()[:4]
    sources, targets = [list(side) for side in zip(*pairs, strict=True)]
    reverse = reranking.reverse_scorer(translator)(sources, targets)
    language_model = reranking.language_model_scorer(translator)(sources, targets)
    for pair, back, free in zip(pairs, reverse, language_model, strict=True):
        (expected,) = translator.score([Pair(pair.target, pair.source)])
        assert expected.tokens == len(runs.vocabulary().encode(pair.source)) + 1
        mean = expected.log_probability / expected.tokens
        assert back == pytest.approx(mean, rel=1e-5)
        (expected,) = translator.score([Pair(".", pair.target)])
        mean = expected.log_probability / expected.tokens
        assert free == pytest.approx(mean, rel=1e-5)


def test_pairs_that_do_not_fit_have_no_score():
    """Minus infinity for a side with one token too many; the others keep their
    scores.
    """
    translator = random_translator()
    longest = next(
        n for n in range(400) if len(runs.vocabulary().encode("a " * (n + 1))) + 1 > 128
    )
    fits, long = "a " * longest, "a " * (longest + 1)
    sources, targets = ["a", long, "b", fits], [long, "a", "c", fits]
    assert translator.codec.fit(sources, targets) == [False, False, True, True]
    scorer = reranking.reverse_scorer(translator)
    found, expected = scorer(sources, targets), scorer(sources[2:], targets[2:])
    assert found == [-math.inf, -math.inf, *expected]
    assert all(map(math.isfinite, expected))
    for source, target in zip(sources[:2], targets[:2], strict=True):
        with pytest.raises(InputError, match="sentence 1 has 129 tokens"):
            translator.score([Pair(source, target)])
    free = reranking.language_model_scorer(translator)(sources, targets)
    assert [value == -math.inf for value in free] == [True, False, False, False]
    records = [make("a", "", long, "b"), make(long, "b"), make(" ", "c")]
    assert reranking.score(records, scorer)[1] == 2


def test_the_direction_of_a_reverse_model():
    """It must mirror that of the lists, if both are known."""
    translator, record = copy.copy(random_translator()), make("a")
    lists = {
        pair: {**record, "source_language": pair[0], "target_language": pair[1]}
        for pair in (("en", "de"), ("de", "en"), ("fr", "de"))
    }
    for own, right, wrong in (
        (("de", "en"), [("en", "de")], [("de", "en"), ("fr", "de")]),
        (("", "en"), list(lists), []),
        (("", ""), list(lists), []),
    ):
        translator.languages = own
        known = [record, *(lists[pair] for pair in right)]
        reranking.check_reverse(translator, known, "run")
        for first, last in wrong:
            rule = rf"run translates from de into en, .* from {last} into {first}, or"
            with pytest.raises(InputError, match=rule):
                reranking.check_reverse(
                    translator, [record, lists["en", "de"], lists[first, last]], "run"
                )


def test_tuning_tries_all_weights():
    """The weights are those of the highest BLEU by sacreBLEU over all combinations, the
    smallest of the best.
    """
    records, scores, references = draw(np.random.default_rng(7), 30)
    grid = (0.0, 0.5, 2.0)
    found = tune(records, scores, references, grid=grid)
    judged = []
    for reverse, lm in itertools.product(grid, grid):
        weights = {"search": 1.0, "reverse": reverse, "lm": lm}
        totals = totals_by_hand(records, scores, weights)
        texts = [
            record["translations"][int(np.argmax(own))]["text"]
            for record, own in zip(records, totals, strict=True)
        ]
        bleu = sacrebleu.BLEU().corpus_score(texts, [references]).score
        judged.append((bleu, weights))
    highest = max(score for score, _ in judged)
    assert found.after.value == pytest.approx(highest)
    best = [weights for score, weights in judged if score > highest - 1e-9]
    assert found.weights in best
    assert sum(found.weights.values()) == min(sum(each.values()) for each in best)
    firsts = [record["translations"][0]["text"] for record in records]
    first = sacrebleu.BLEU().corpus_score(firsts, [references])
    assert found.before.value == pytest.approx(first.score)
    assert min(score for score, _ in judged) < highest
    with pytest.raises(InputError, match="30 lists of translations and 29 references"):
        tune(records, scores, references[:-1])


def test_lists_that_cannot_be_read_are_refused():
    """The line is named; a translation that does not exist has no score."""
    good = json.dumps({"source": "a", "translations": [{"text": "", "score": None}]})
    assert reranking.read_records([good])[0]["translations"][0]["score"] == -math.inf
    for bad in (
        "{",
        "[]",
        "{}",
        (
            '{"source": "a", "source_language": 1, "translations": [{"text": "a",'
            ' "score": 1}]}'
        ),
        '{"source": 1, "translations": [{"text": "a", "score": 1}]}',
        "7",
    ):
        with pytest.raises(InputError, match="line 2 is no object"):
            reranking.read_records([good, bad])
    for bad in (
        '{"source": "a", "translations": []}',
        '{"source": "a", "translations": [{"text": "a"}]}',
    ):
        with pytest.raises(InputError, match="line 1 is no object"):
            reranking.read_records([bad])
    assert reranking.read_scores(["1", "-2e3", "0"], 3, "file") == [1.0, -2000.0, 0.0]
    with pytest.raises(InputError, match="file has 1 lines for 2 translations"):
        reranking.read_scores(["1"], 2, "file")
    for bad in ("x", "nan", "-inf", ""):
        with pytest.raises(InputError, match="file, line 2: '"):
            reranking.read_scores(["1", bad], 2, "file")


@pytest.mark.parametrize(
    "bad",
    [
        *(
            '{"source": "a", "translations": [{"text": "a", "score":'
            f" {sign}1{'0' * 400}}}]}}"
            for sign in ("", "-")
        ),
        *("[" * 100_000, '{"a":' * 100_000),
    ],
    ids=["large", "small", "deep list", "deep object"],
)
def test_lists_beyond_what_python_reads_are_refused(bad):
    """A score that no float holds, and brackets without end, are named by their line
    as other faults are.
    """
    with pytest.raises(
        InputError,
        match=r"^input, line 1 is no object with source and translations: give what",
    ):
        reranking.read_records([bad])
