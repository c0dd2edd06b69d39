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


def draw(
    generator: np.random.Generator, sentences: int
) -> tuple[list[list[str]], dict, list[str]]:
    """Draw lists of translations of different lengths, some of them impossible,
    scores of three kinds, references.
    """
    references = [pair.target for pair in runs.pairs()[:sentences]]
    lists = []
    for line in references:
        words = line.split()
        size = int(generator.integers(1, 6))
        lists.append(
            [
                " ".join(w for w in words if generator.random() < 0.8)
                for _ in range(size)
            ]
        )
    scores = {
        name: [generator.normal(size=len(texts)).tolist() for texts in lists]
        for name in ("search", "reverse", "lm")
    }
    for row in scores["lm"]:
        if generator.random() < 0.3:
            row[int(generator.integers(len(row)))] = -math.inf
    return lists, scores, references


def first_by_hand(scores: dict, weights: dict, sentence: int) -> int:
    best, place = None, 0
    for number in range(len(scores["search"][sentence])):
        own = {name: scores[name][sentence][number] for name in scores}
        total = -math.inf
        if all(value > -math.inf for value in own.values()):
            total = sum(weights[name] * value for name, value in own.items())
        if best is None or total > best:
            best, place = total, number
    return place


def test_order_of_a_weighted_sum():
    """The first is that of the highest sum, impossible ones come last, and ties stay
    in their order.
    """
    generator = np.random.default_rng(1)
    lists, scores, _ = draw(generator, 40)
    for weights in (
        {"search": 1, "reverse": 0.5, "lm": 0.0},
        {"search": 0.0, "reverse": -2.0, "lm": 1.0},
    ):
        sums = reranking.weighted_sum(scores, weights)
        for number, totals in enumerate(sums):
            places = reranking.order(totals)
            assert sorted(places) == list(range(len(lists[number])))
            assert places[0] == first_by_hand(scores, weights, number)
            assert [totals[place] for place in places] == sorted(totals, reverse=True)
    assert reranking.order([1.0, -math.inf, 1.0, 2.0]) == [3, 0, 2, 1]


def test_scorers_see_each_pair_once():
    """A scorer is called once with all pairs of text, in order; blank ones get minus
    infinity.
    """
    seen = []

    def scorer(sources, translations):
        seen.append(list(zip(sources, translations, strict=True)))
        return [float(len(text)) for text in translations]

    found = reranking.score_lists(
        scorer, ["a", " ", "b"], [["xx", "", "y"], [""], ["zzz"]]
    )
    assert seen == [[("a", "xx"), ("a", "y"), ("b", "zzz")]]
    assert found == [[2.0, -math.inf, 1.0], [-math.inf], [3.0]]
    assert reranking.score_lists(scorer, [" "], [[""]]) == [[-math.inf]]
    with pytest.raises(InputError, match="gave 0 scores for 1"):
        reranking.score_lists(lambda sources, translations: [], ["a"], [["b"]])


def test_models_score_by_the_token():
    """The reverse model reads the translation and scores the source; the language
    model reads nothing of either.
    """
    translator, pairs = random_translator(), runs.pairs()[:4]
    sources, targets = [list(side) for side in zip(*pairs, strict=True)]
    reverse = reranking.reverse_scorer(translator)(sources, targets)
    language_model = reranking.language_model_scorer(translator)(sources, targets)
    for pair, back, free in zip(pairs, reverse, language_model, strict=True):
        (expected,) = translator.score([Pair(pair.target, pair.source)])
        assert expected.tokens == len(runs.vocabulary().encode(pair.source)) + 1
        assert back == pytest.approx(
            expected.log_probability / expected.tokens, rel=1e-5
        )
        (expected,) = translator.score([Pair(".", pair.target)])
        assert free == pytest.approx(
            expected.log_probability / expected.tokens, rel=1e-5
        )


def test_pairs_that_do_not_fit_have_no_score():
    """Minus infinity, whichever side it is, up to the last token; the others keep
    their scores.
    """
    translator = random_translator()
    longest = next(
        n for n in range(400) if len(runs.vocabulary().encode("a " * (n + 1))) + 1 > 128
    )
    fits, long = "a " * longest, "a " * (longest + 1)
    sources, targets = ["a", long, "b", fits], [long, "a", "c", fits]
    assert translator.codec.fit(sources, targets) == [False, False, True, True]
    found = reranking.reverse_scorer(translator)(sources, targets)
    expected = reranking.reverse_scorer(translator)(sources[2:], targets[2:])
    assert found == [-math.inf, -math.inf, *expected]
    assert all(map(math.isfinite, expected))
    for source, target in zip(sources[:2], targets[:2], strict=True):
        with pytest.raises(InputError, match="sentence 1 has 129 tokens"):
            translator.score([Pair(source, target)])
    free = reranking.language_model_scorer(translator)(sources, targets)
    assert [value == -math.inf for value in free] == [True, False, False, False]
    scores = reranking.score_lists(
        reranking.reverse_scorer(translator),
        ["a", long, " "],
        [["", long, "b"], ["b"], ["c"]],
    )
    assert (
        reranking.count_unscored(
            ["a", long, " "], [["", long, "b"], ["b"], ["c"]], scores
        )
        == 2
    )


def test_the_direction_of_a_reverse_model():
    """It must mirror that of the lists, where both are known."""
    translator, record = (
        copy.copy(random_translator()),
        {"source": "a", "translations": []},
    )
    lists = {
        pair: {
            **record,
            **dict(
                zip(
                    (reranking.SOURCE_LANGUAGE, reranking.TARGET_LANGUAGE),
                    pair,
                    strict=True,
                )
            ),
        }
        for pair in (("en", "de"), ("de", "en"), ("fr", "de"))
    }
    for own, right, wrong in (
        (("de", "en"), [("en", "de")], [("de", "en"), ("fr", "de")]),
        (("", "en"), list(lists), []),
        (("", ""), list(lists), []),
    ):
        translator.languages = own
        reranking.check_reverse(
            translator, [record, *(lists[pair] for pair in right)], "run"
        )
        for pair in wrong:
            with pytest.raises(
                InputError,
                match=(
                    f"run translates from de into en, .* from {pair[1]} into"
                    f" {pair[0]}, or"
                ),
            ):
                reranking.check_reverse(
                    translator, [record, lists["en", "de"], lists[pair]], "run"
                )


def test_tuning_tries_all_weights():
    """The weights found are those of the highest BLEU by sacreBLEU over all
    combinations, the smallest of the best.
    """
    generator = np.random.default_rng(7)
    lists, scores, references = draw(generator, 30)
    grid = (0.0, 0.5, 2.0)
    found = tune(lists, scores, references, grid=grid)
    judged = []
    for reverse, lm in itertools.product(grid, grid):
        weights = {"search": 1.0, "reverse": reverse, "lm": lm}
        texts = [
            texts[first_by_hand(scores, weights, number)]
            for number, texts in enumerate(lists)
        ]
        judged.append(
            (sacrebleu.BLEU().corpus_score(texts, [references]).score, weights)
        )
    highest = max(score for score, _ in judged)
    assert found.after.value == pytest.approx(highest)
    smallest = min(
        sum(weights.values()) for score, weights in judged if score > highest - 1e-9
    )
    assert sum(found.weights.values()) == smallest
    assert any(
        weights == found.weights and score == pytest.approx(highest)
        for score, weights in judged
    )
    first = sacrebleu.BLEU().corpus_score([texts[0] for texts in lists], [references])
    assert found.before.value == pytest.approx(first.score)
    assert min(score for score, _ in judged) < highest
    with pytest.raises(InputError, match="30 lists of translations and 29 references"):
        tune(lists, scores, references[:-1])


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
    assert reranking.read_scores(["1", "-2e3", "0"], [["a", "b"], ["c"]], "file") == [
        [1.0, -2000.0],
        [0.0],
    ]
    with pytest.raises(InputError, match="file has 1 lines for 2 translations"):
        reranking.read_scores(["1"], [["a", "b"]], "file")
    for bad in ("x", "nan", "-inf", ""):
        with pytest.raises(InputError, match="file, line 2: '"):
            reranking.read_scores(["1", bad], [["a", "b"]], "file")


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


def test_scores_and_weights_belong_together():
    """A score without a weight, or a weight without a score, is no sum."""
    with pytest.raises(InputError, match="scores search and weights for search, lm"):
        reranking.weighted_sum({"search": [[1.0]]}, {"search": 1, "lm": 2})


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_scores_that_order_nothing_are_refused(wrong):
    """A scorer's NaN would leave the order to chance, and infinity would always win."""
    with pytest.raises(InputError, match="a score that is no number below infinity"):
        reranking.score_lists(
            lambda sources, texts: [-1.0, wrong], ["a source"], [["one", "two"]]
        )
