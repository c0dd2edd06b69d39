"""Systems compared: each number is the one that a direct computation gives."""

import dataclasses
import json
from collections import Counter

import pytest
import sacrebleu
from evaluation.damaged import draw

from jaxformer.errors import InputError
from jaxformer.evaluation import breakdown, metrics
from jaxformer.evaluation.choice import METRICS, choose_metrics
from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu

WORDS = ["the", "a", "cat", "house", "old", "tree", "is", "sees", "green", "."]
CONFIG = ComparisonConfig(resamples=100, trials=50, examples=4)


def systems(seed):
    """Draw three systems and their references."""
    weights = [9, 8, 3, 3, 2, 1, 5, 2, 1, 9]
    drawn, references = draw(seed, WORDS, 0.3, 0.2, 0.5, size=40, weights=weights)
    return dict(zip(("first", "second", "third"), drawn, strict=True)), references


def test_results():
    """Every system has its score of every metric, and all but the baseline a test
    against it. A single system is only scored, and no trials give no p-value.
    """
    given, references = systems(1)
    found = compare(given, [references], [BLEU, CHRF], CONFIG)
    assert [(result.metric, result.system) for result in found.results] == [
        (key, name) for key in ("bleu", "chrf") for name in given
    ]
    for result in found.results:
        (metric,) = choose_metrics([result.metric])
        assert result.score == metrics.score(metric, given[result.system], references)
        assert result.interval.low < result.interval.mean < result.interval.high
        is_first = result.system == "first"
        assert (result.bootstrap is None) == (result.randomization is None) == is_first
    assert found.sentences == 40
    json.dumps(found.to_record())
    first, config = given["first"], dataclasses.replace(CONFIG, trials=0)
    found = compare({"one": first}, [references, references], [BLEU], CONFIG)
    assert [result.bootstrap for result in found.results] == [None]
    assert found.differences == {}
    found = compare(given, [references], [BLEU], config)
    assert [result.randomization for result in found.results] == [None] * 3


@pytest.mark.parametrize("side", ["reference", "source"])
def test_lengths(side):
    """A bucket has the score of the sentences of its lengths."""
    given, references = systems(4)
    sources = [line[: len(line) // 2] for line in references]
    lines = references if side == "reference" else sources
    config = dataclasses.replace(CONFIG, lengths=side)
    found = compare(given, [references], [BLEU, CHRF], config, sources=sources)
    assert sum(bucket.sentences for bucket in found.lengths) == 40
    assert len(found.lengths) == (3 if side == "reference" else 2)
    for bucket in found.lengths:
        within = range(bucket.least, (bucket.most or 999) + 1)
        lengths = [max(1, len(line.split())) for line in lines]
        chosen = [n for n, length in enumerate(lengths) if length in within]
        assert len(chosen) == bucket.sentences
        for scores, texts in zip(bucket.scores, given.values(), strict=True):
            some, wanted = [texts[n] for n in chosen], [references[n] for n in chosen]
            assert scores == {
                metric.key: metrics.score(metric, some, wanted).value
                for metric in (BLEU, CHRF)
            }


@pytest.mark.parametrize("own", [True, False])
def test_words(own):
    """F1 of a frequency counts each word of it as often as both sides of its
    sentence have it.
    """
    given, references = systems(5)
    training = Counter({"the": 2000, "a": 100, "cat": 5, "tree": 1})
    every = " ".join(references).split()
    frequencies = Counter(every) if own else training
    words = {"frequencies": None if own else training, "frequencies_name": "it"}
    found = compare(given, [references], [BLEU], CONFIG, **words)
    assert found.word_source == "it"
    assert sum(bucket.words for bucket in found.words) == len(every)
    for bucket in found.words:
        within = range(bucket.least, (bucket.most or 10**9 * bucket.least) + 1)
        chosen = [word for word in WORDS if frequencies[word] in within]
        for f1, texts in zip(bucket.f1, given.values(), strict=True):
            counts = [
                (text.split().count(word), line.split().count(word))
                for text, line in zip(texts, references, strict=True)
                for word in chosen
            ]
            produced, wanted = map(sum, zip(*counts, strict=True))
            right = sum(map(min, counts))
            assert f1 == pytest.approx(100 * 2 * right / (produced + wanted))
            assert wanted == bucket.words


def test_differences():
    """The sentences shown are those whose chrF differs most, each way, the most
    first, and never equal ones.
    """
    given, references = systems(6)
    given["third"][:20] = given["first"][:20]
    sources = [f"source {n}" for n in range(1, 41)]
    found = compare(given, [references], [BLEU], CONFIG, sources=sources)
    gains = {
        n + 1: metrics.score(CHRF, [given["third"][n]], [line]).value
        - metrics.score(CHRF, [given["first"][n]], [line]).value
        for n, line in enumerate(references)
    }
    better, worse = found.differences["third"]
    order = sorted(gains, key=lambda number: gains[number])
    assert [d.number for d in worse] == order[:4]
    assert [d.gain for d in better] == pytest.approx(
        [gains[number] for number in reversed(order[-4:])]
    )
    for difference in (*better, *worse):
        number, place = difference.number, difference.number - 1
        assert number > 20
        assert difference.source == f"source {number}"
        texts = given["first"][place], given["third"][place]
        assert difference.translations == texts
        assert difference.references == (references[place],)
    same = breakdown.find_differences(texts, texts, [texts], None, 5)
    assert same == ([], [])


def test_metrics_by_name():
    """Every name has its metric, once."""
    assert [metric.key for metric in choose_metrics(METRICS)] == list(METRICS)
    chosen = choose_metrics(["ter", "bleu", "ter"])
    assert [metric.key for metric in chosen] == ["ter", "bleu"]
    split = choose_metrics(["compound_split_bleu"], language="de")
    assert split == [TokenizedBleu("de", compounds=True)]


def test_tokenizers_by_name(monkeypatch):
    """``bleu:TOKENIZER`` is sacreBLEU's BLEU with it, and its signature has it; an
    unknown one, or one without its package, is refused in one line.
    """
    text, other = ["我喜欢小猫和小狗。"], ["我喜欢小猫和大狗。"]
    (metric,) = choose_metrics(["bleu:zh"])
    found = metrics.score(metric, text, other)
    assert metric.key == "bleu:zh"
    theirs = sacrebleu.BLEU(tokenize="zh").corpus_score(text, [other])
    assert found.value == theirs.score
    assert "|tok:zh|" in found.signature
    said = r"no tokenizer 'klingon'; it has 13a, char, .*zh"
    with pytest.raises(InputError, match=said):
        choose_metrics(["bleu:klingon"])

    def fail(*_, **__):
        raise RuntimeError("Please install\nthe package")

    monkeypatch.setattr("sacrebleu.metrics.bleu._get_tokenizer", fail)
    metrics._build.cache_clear()
    said = r"^sacreBLEU's tokenizer zh cannot be used: Please install the package$"
    with pytest.raises(InputError, match=said):
        choose_metrics(["bleu:zh"])
