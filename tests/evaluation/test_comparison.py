"""Systems compared: each number is the one that a direct computation gives."""

import dataclasses
import json
import random
from collections import Counter

import pytest
import sacrebleu

from jaxformer.errors import InputError
from jaxformer.evaluation import breakdown, metrics
from jaxformer.evaluation.choice import METRICS, choose_metrics
from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu

WORDS = ["the", "a", "cat", "house", "old", "tree", "is", "sees", "green", "."]
CONFIG = ComparisonConfig(resamples=100, trials=50, examples=4)


def systems(seed, size=60):
    rng = random.Random(seed)
    references = [
        " ".join(
            rng.choices(WORDS, [9, 8, 3, 3, 2, 1, 5, 2, 1, 9], k=rng.randint(1, 25))
        )
        for _ in range(size)
    ]
    texts = [
        [
            " ".join(
                word if rng.random() > share else rng.choice(WORDS)
                for word in line.split()
            )
            for line in references
        ]
        for share in (0.3, 0.2, 0.5)
    ]
    return dict(zip(("first", "second", "third"), texts, strict=True)), references


def test_results():
    """Every system has its score of every metric, and all but the baseline a test
    against it.
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
        assert (
            (result.bootstrap is None)
            == (result.randomization is None)
            == (result.system == "first")
        )
    assert found.sentences == 60
    json.dumps(found.to_record())


def test_same_seed_same_numbers():
    """The same call gives the same numbers; another seed other ones; the order of
    systems changes no score.
    """
    given, references = systems(2)
    found = compare(given, [references], [BLEU], CONFIG)
    assert found == compare(given, [references], [BLEU], CONFIG)
    other = compare(given, [references], [BLEU], dataclasses.replace(CONFIG, seed=1))
    assert other.results != found.results
    turned = compare(dict(reversed(given.items())), [references], [BLEU], CONFIG)
    assert {r.system: r.score for r in turned.results} == {
        r.system: r.score for r in found.results
    }
    assert {r.system: r.interval for r in turned.results} == {
        r.system: r.interval for r in found.results
    }


def test_what_is_not_compared():
    """A single system is only scored, and no trials give no p-value."""
    given, references = systems(3)
    found = compare({"first": given["first"]}, [references, references], [BLEU], CONFIG)
    assert len(found.results) == 1
    assert found.results[0].bootstrap is None
    assert found.differences == {}
    found = compare(given, [references], [BLEU], dataclasses.replace(CONFIG, trials=0))
    assert [result.randomization for result in found.results] == [None] * 3


@pytest.mark.parametrize("side", ["reference", "source"])
def test_lengths(side):
    """Each sentence is in the bucket of its length, and the bucket has the score of
    its sentences alone.
    """
    given, references = systems(4)
    sources = [line[: len(line) // 2] for line in references]
    lines = references if side == "reference" else sources
    found = compare(
        given,
        [references],
        [BLEU, CHRF],
        dataclasses.replace(CONFIG, lengths=side),
        sources=sources,
    )
    assert sum(bucket.sentences for bucket in found.lengths) == 60
    assert len(found.lengths) == (3 if side == "reference" else 2)
    for bucket in found.lengths:
        chosen = [
            n
            for n, line in enumerate(lines)
            if bucket.least <= max(1, len(line.split())) <= (bucket.most or 999)
        ]
        assert len(chosen) == bucket.sentences
        for scores, texts in zip(bucket.scores, given.values(), strict=True):
            some, wanted = [texts[n] for n in chosen], [references[n] for n in chosen]
            assert scores == {
                "bleu": metrics.score(metrics.BLEU, some, wanted).value,
                "chrf": metrics.score(metrics.CHRF, some, wanted).value,
            }


@pytest.mark.parametrize("own", [True, False])
def test_words(own):
    """F1 of a frequency counts each word of it as often as both sides of its
    sentence have it.
    """
    given, references = systems(5)
    training = Counter({"the": 2000, "a": 100, "cat": 5, "tree": 1})
    frequencies = Counter(" ".join(references).split()) if own else training
    found = compare(
        given,
        [references],
        [BLEU],
        CONFIG,
        frequencies=None if own else training,
        frequencies_name="it",
    )
    assert found.word_source == "it"
    assert sum(bucket.words for bucket in found.words) == len(
        " ".join(references).split()
    )
    for bucket in found.words:
        of_bucket = [
            w
            for w in WORDS
            if bucket.least
            <= frequencies[w]
            <= (10**9 if bucket.most is None else bucket.most)
        ]
        for f1, texts in zip(bucket.f1, given.values(), strict=True):
            right = wanted = produced = 0
            for text, reference in zip(texts, references, strict=True):
                for word in of_bucket:
                    counts = text.split().count(word), reference.split().count(word)
                    produced, wanted, right = (
                        produced + counts[0],
                        wanted + counts[1],
                        right + min(counts),
                    )
            assert f1 == pytest.approx(100 * 2 * right / (produced + wanted))
            assert wanted == bucket.words


def test_differences():
    """The sentences shown are those whose chrF differs most, each way, the most
    first, and never equal ones.
    """
    given, references = systems(6)
    given["third"][:20] = given["first"][:20]
    found = compare(
        given, [references], [BLEU], CONFIG, sources=[f"source {n}" for n in range(60)]
    )
    gains = {
        n + 1: (
            metrics.score(metrics.CHRF, [given["third"][n]], [references[n]]).value
            - metrics.score(metrics.CHRF, [given["first"][n]], [references[n]]).value
        )
        for n in range(60)
    }
    better, worse = found.differences["third"]
    order = sorted(gains, key=lambda number: gains[number])
    assert [d.number for d in worse] == order[:4]
    assert [d.gain for d in better] == pytest.approx(
        [gains[n] for n in reversed(order[-4:])]
    )
    for difference in (*better, *worse):
        assert difference.number > 20
        assert difference.gain == pytest.approx(gains[difference.number])
        assert difference.source == f"source {difference.number - 1}"
        assert difference.translations == tuple(
            given[name][difference.number - 1] for name in ("first", "third")
        )
        assert difference.references == (references[difference.number - 1],)
    assert breakdown.find_differences(
        given["first"], given["first"], [references], None, 5
    ) == ([], [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"resamples": 99}, "resamples must be at least 100, not 99"),
        ({"trials": -1}, "trials must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"examples": -2}, "examples must be at least 0, not -2"),
    ],
)
def test_wrong_numbers(values, message):
    """A value out of range is named."""
    with pytest.raises(InputError, match=message):
        ComparisonConfig(**values)


def test_what_does_not_belong_together():
    """Translations of another number, and lengths of sources that are not there, are
    refused.
    """
    given, references = systems(7)
    with pytest.raises(InputError, match="59 hypotheses and 60 references"):
        compare({**given, "short": given["first"][1:]}, [references], [BLEU], CONFIG)
    with pytest.raises(InputError, match="59 sources and 60 hypotheses"):
        compare(given, [references], [BLEU], CONFIG, sources=references[1:])
    with pytest.raises(InputError, match="give --source"):
        compare(
            given, [references], [BLEU], dataclasses.replace(CONFIG, lengths="source")
        )


def test_metrics_by_name():
    """Every name has its metric, once; another is an error that suggests one."""
    assert [metric.key for metric in choose_metrics(METRICS)] == list(METRICS)
    assert [metric.key for metric in choose_metrics(["ter", "bleu", "ter"])] == [
        "ter",
        "bleu",
    ]
    assert choose_metrics(["compound_split_bleu"], language="de") == [
        TokenizedBleu("de", compounds=True)
    ]
    with pytest.raises(
        InputError,
        match=(
            r"no metric 'chfr'; did you mean chrf\? All are bleu, chrf, chrf\+\+, ter"
        ),
    ):
        choose_metrics(["bleu", "chfr"])
    with pytest.raises(InputError, match="no metric is named"):
        choose_metrics([])


def test_tokenizers_by_name():
    """``bleu:TOKENIZER`` is sacreBLEU's BLEU with it, and says so; what it cannot
    have is one line.
    """
    text, other = ["我喜欢小猫和小狗。"], ["我喜欢小猫和大狗。"]
    (metric,) = choose_metrics(["bleu:zh"])
    found = metrics.score(metric, text, other)
    assert metric.key == "bleu:zh"
    assert found.value == pytest.approx(
        sacrebleu.BLEU(tokenize="zh").corpus_score(text, [other]).score
    )
    assert "|tok:zh|" in found.signature
    assert found.value > metrics.score(metrics.BLEU, text, other).value
    with pytest.raises(
        InputError, match=r"no tokenizer 'klingon'; it has 13a, char, .*zh"
    ):
        choose_metrics(["bleu:klingon"])


def test_tokenizer_that_is_not_installed(monkeypatch):
    """What a tokenizer of sacreBLEU's lacks is said in one line."""

    def fail(*_, **__):
        raise RuntimeError("Please install\nthe package")

    monkeypatch.setattr("sacrebleu.metrics.bleu._get_tokenizer", fail)
    metrics._build.cache_clear()
    with pytest.raises(
        InputError,
        match=r"^sacreBLEU's tokenizer zh cannot be used: Please install the package$",
    ):
        choose_metrics(["bleu:zh"])
