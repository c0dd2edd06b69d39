"""Single checks of ``jaxformer doctor``, and what they count."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace as Seen

import numpy as np
import pytest

from jaxformer.data.records import Pair
from jaxformer.diagnosis import lines, survey
from jaxformer.diagnosis.alignment import Misfit, find_misfits, lengths
from jaxformer.diagnosis.checks import learning, recipe, results, text
from jaxformer.diagnosis.findings import grade, worst
from jaxformer.evaluation.choice import choose_metrics
from jaxformer.evaluation.metrics import score
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig


def configured(source: str, target: str) -> RunConfig:
    """Return the default configuration between two languages."""
    data = {"source_language": source, "target_language": target}
    return configuration.parse(
        {**configuration.default_config().to_dict(), "data": data}
    )


def test_text_sorted_by_length_is_no_fault():
    """Within a block the lengths hardly differ, and how they go together tells
    nothing.
    """
    rng = np.random.default_rng(0)
    source = np.sort(rng.integers(10, 200, 50_000))
    target = np.round(source * rng.uniform(0.9, 1.2, 50_000)).astype(np.int32)
    assert find_misfits(np.stack([source.astype(np.int32), target], axis=1)) == []


@pytest.mark.parametrize(
    ("language", "scores", "verdict", "said"),
    [
        ("de", {"bleu": "13a"}, "ok", ""),
        ("de", {"bleu": "13a", "bleu:intl": "intl"}, "ok", ""),
        ("de", {"bleu:intl": "intl"}, "look", "--metrics=bleu"),
        ("de", {"chrf": None}, "look", "--metrics=bleu,chrf"),
        ("zh", {"bleu": "13a"}, "look", "--metrics=bleu:zh"),
        ("zh-Hans", {"bleu": "13a", "bleu:zh": "zh"}, "ok", ""),
        ("zho_Hant", {"bleu:flores200": "flores200"}, "ok", ""),
        ("ja", {"bleu:ja-mecab": "ja-mecab-0.996-IPA"}, "ok", ""),
        ("ja", {"bleu:zh": "zh"}, "look", "--metrics=bleu:ja-mecab"),
        ("ko", {"bleu": "13a"}, "ok", ""),
        ("ko", {"bleu:ko-mecab": "ko-mecab-0.996/ko-0.9.2-KO"}, "ok", ""),
        ("th", {"bleu": "13a"}, "look", "--metrics=bleu:flores200"),
        ("th", {"bleu:char": "char"}, "ok", ""),
    ],
)
def test_the_tokenizer_goes_with_the_language(language, scores, verdict, said):
    """13a splits at blanks: where words have none another is right, under whatever
    key it stands.
    """
    config = configured("en", language)
    record = {}
    for key, tokenizer in scores.items():
        record |= {
            key: 20.0,
            f"{key}_signature": (
                f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}|smooth:exp|version:2.6.0"
            ),
        }
    found = results.check_signature(Seen(config=config, record=record))
    assert found.verdict == verdict, found
    assert found.cure.endswith(said)
    other = dataclasses.replace(
        config, data=dataclasses.replace(config.data, target_language="fr")
    )
    assert (
        results.check_signature(
            Seen(config=other, record={**record, "target_language": language})
        )
        == found
    )


def test_keys_of_metrics_are_those_of_evaluate():
    """What is looked for are the keys and the signatures that the metrics themselves
    have.
    """
    config = configured("en", "zh")
    for name, verdict in (
        ("bleu:zh", "ok"),
        ("bleu:char", "ok"),
        ("bleu", "look"),
        ("tokenized_bleu", "look"),
    ):
        (metric,) = choose_metrics([name])
        signature = score(metric, ["他 在 看 书 。"], ["他 在 看 报 。"]).signature
        record = {metric.key: 20.0, f"{metric.key}_signature": signature}
        assert (
            results.check_signature(Seen(config=config, record=record)).verdict
            == verdict
        ), signature


@pytest.mark.parametrize(
    ("name", "count", "languages", "verdict"),
    [
        ("sacrebleu:wmt14/full", 3003, "en de", "ok"),
        ("sacrebleu:wmt14", 2737, "en de", "look"),
        ("sacrebleu:wmt14", 2737, "de en", "wrong"),
        ("text:data/newstest2014.en,data/newstest2014.fr", 3003, "en fr", "ok"),
        ("text:newstest2014.en,newstest2014.de", 3002, "en de", "wrong"),
        ("tfds:wmt14_translate/de-en/test", 3003, "en de", "ok"),
        ("tfds:wmt14_translate/de-en/validation", 3000, "en de", "ok"),
        ("text:newstest2013.en,newstest2013.de", 3003, "en de", "wrong"),
        ("text:newstest2013.en,newstest2013.de", 2737, "en de", "wrong"),
        (
            "text:data/wmt14/newstest2013.en,data/wmt14/newstest2013.de",
            3000,
            "en de",
            "ok",
        ),
        (
            "text:data/wmt14/newstest2015.en,data/wmt14/newstest2015.de",
            2169,
            "en de",
            "ok",
        ),
        ("text:data/wmt14/latest.en,data/wmt14/latest.de", 500, "en de", "ok"),
        ("text:mine.en,mine.de", 7, "en de", "ok"),
    ],
)
def test_sizes_of_published_sets(name, count, languages, verdict):
    """newstest2014 has 3,003 sentences or 2,737, newstest2013 3,000."""
    base = configured(*languages.split())
    found = results.check_test_set(
        Seen(config=base, record={"dataset": name, "sentences": count})
    )
    assert found.verdict == verdict
    assert ("filtered" in found.expected) == (
        "2014" in found.expected and languages == "en de"
    )


def test_the_parsers_warm_up_is_the_papers_within_twice():
    """Four times the warm-up is half the rate, within rounding; the cure names all
    that makes the paper's peak.
    """
    values = configuration.default_config().to_dict()
    for width, warmup, verdict in (
        (1024, 16_000, "ok"),
        (512, 1_000, "ok"),
        (1024, 20_000, "look"),
    ):
        values["model"]["d_model"], values["training"]["warmup_steps"] = width, warmup
        found = recipe.check_peak_rate(Seen(config=configuration.parse(values)))
        assert found.verdict == verdict, found
        assert verdict == "ok" or "--config.training.warmup_steps=4000" in found.cure


def test_a_log_that_begins_at_step_0():
    """Steps skipped in the only line, which is of step 0, are a share of one."""
    assert (
        learning.check_skipped(Seen(curves={"train/skipped": [(0, 1.0)]})).verdict
        == "wrong"
    )


def test_what_still_falls_is_measured_near_the_end():
    """Of few evaluations the nearest to 80 % of training counts, and not one of long
    before.
    """
    for points, verdict in (
        ([(100, 5.0), (850, 2.02), (1000, 2.0)], "ok"),
        ([(100, 5.0), (500, 2.1), (1000, 2.0)], "look"),
    ):
        found = learning.check_still_falling(Seen(curves={"valid/nll": points}))
        assert found.verdict == verdict
        assert f"from step {points[1][0]} to 1,000" in found.found


def test_the_papers_table_3_averages_nothing():
    """Where the set that validates is the one that tests, the last checkpoint alone
    is what the paper scores.
    """
    values = configuration.default_config().to_dict()
    record = {"dataset": "text:a,b", "checkpoint": 600}
    for test, verdict in (("text:a,b", "ok"), ("text:c,d", "look")):
        values["data"]["valid"], values["data"]["test"] = "text:a,b", test
        run = Seen(
            config=configuration.parse(values),
            results={"x": record},
            record=record,
            averages=[],
        )
        assert results.check_averaging(run).verdict == verdict


def test_quotes_have_the_names_of_their_languages():
    """“ opens in English and closes in German: the line tells which."""
    assert lines.quotes(["He said “yes”."] * 5) == "high"
    assert lines.quotes(["Er sagte „ja“."] * 5) == "low"
    assert lines.quotes(["Il dit « oui »."] * 5) == "guillemets"
    assert lines.quotes(['He said "yes".'] * 5) == "plain"
    assert lines.quotes(["He said “yes”.", 'He said "no".'] * 5) == "mixed"
    assert lines.quotes(["“yes”"]) is None


def test_capitals_of_scripts_without_case():
    """A few Latin letters among others tell nothing of the case of a text."""
    assert lines.capitals(["他在 IBM 看书。这是一个测试句子"]) is None
    assert (
        text.judge_case(
            ["他在 IBM 看书。这是一个测试"], ["他在看 xml 书。这是一个测试"]
        ).verdict
        == "ok"
    )
    assert lines.capitals(["Der Hund"] * 200) == pytest.approx(2 / 7)


def test_a_few_words_tell_nothing_of_their_case():
    """Three fragments in small letters are no lowercased test set."""
    assert lines.capitals(["Der Hund"]) is None
    assert (
        text.judge_case(
            ["Der Hund bellt."] * 500, ["just some small words here", "and some more"]
        ).verdict
        == "ok"
    )


@pytest.mark.parametrize("shift", [-3, -1, 1, 2, 5])
def test_a_shift_is_measured(shift):
    """Lines that were moved are found by as many lines, wherever that begins."""
    generator = np.random.default_rng(7)
    sources = ["x" * int(n) for n in generator.integers(5, 120, size=2000)]
    targets = [line + "y" * int(generator.integers(0, 9)) for line in sources]
    assert find_misfits(lengths(zip(sources, targets, strict=True))) == []
    moved = targets[:1000] + list(np.roll(np.asarray(targets[1000:], object), shift))
    assert find_misfits(lengths(zip(sources, moved, strict=True))) == [
        Misfit(1001, shift),
        Misfit(1501, shift),
    ]
    mixed = [targets[i] for i in generator.permutation(2000)]
    assert {
        misfit.shift
        for misfit in find_misfits(lengths(zip(sources, mixed, strict=True)))
    } == {0}
    assert find_misfits(lengths([("ab", "cd")] * 500)) == []


def test_the_survey_is_a_fair_sample():
    """Every pair is as likely to be kept; lengths and test sentences are those of
    all pairs, up to the limit.
    """
    corpus = [Pair(f"{number} a", f"{number} b c") for number in range(4000)]
    found = survey.survey_text(
        corpus, [corpus[7], Pair("8 a", "other"), Pair("no", "no")], sample=400
    )
    numbers = [int(pair.source.split()[0]) for pair in found.sample]
    assert len(set(numbers)) == 400
    assert abs(np.mean(numbers) - 2000) < 200
    assert found.characters.tolist() == [
        [len(pair.source), len(pair.target)] for pair in corpus
    ]
    assert (found.sources, found.pairs) == ({"7 a", "8 a"}, {corpus[7]})
    assert (found.read, found.whole) == (4000, True)
    assert survey.survey_text(corpus, [], sample=400).sample == found.sample
    cut = survey.survey_text(corpus, [], sample=10, most=50)
    assert (cut.read, cut.whole, len(cut.sample)) == (50, False, 10)


def test_grades():
    """A value on the limit is still within it, and of several verdicts the worst
    counts.
    """
    assert [grade(value, 0.1, 0.5) for value in (0.0, 0.1, 0.11, 0.5, 0.51)] == [
        "ok",
        "ok",
        "look",
        "look",
        "wrong",
    ]
    assert worst("ok", "look", "unseen") == "look"
    assert worst("look", "wrong") == "wrong"


def test_a_checkpoint_between_two_lines_of_the_log():
    """One that a signal left is no sign of lost lines; one that is a whole interval
    further is.
    """
    config = configuration.parse(configuration.default_config().to_dict())
    every, steps = config.training.log_every, config.training.steps
    curves = {"train/nll": [(every, 5.0), (2 * every, 4.0)]}
    for saved, said in (
        ([3 * every - 1], f"of {steps:,}"),
        ([every, 3 * every], f"checkpoint of step {3 * every:,}"),
    ):
        run = Seen(config=config, curves=curves, saved=saved)
        found = learning.check_finished(run)
        assert (found.verdict, found.found.endswith(said)) == ("look", True), found
    curves = {"train/nll": [(steps, 2.0)]}
    run = Seen(config=config, curves=curves, saved=[steps - every, steps])
    assert learning.check_finished(run).verdict == "ok"


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [([5.0, 9.0, 8.0, 9.0], "ok"), ([5.0, 6.0, 9.0, 8.0], "look"), ([], "look")],
)
def test_patience_ends_a_run_after_so_many_evaluations(scores, verdict):
    """A run that ended earlier has finished if no evaluation was better than the one
    of so many before.
    """
    base = configuration.parse(configuration.default_config().to_dict())
    config = dataclasses.replace(
        base, training=dataclasses.replace(base.training, patience=2)
    )
    curves = {
        "train/nll": [(400, 5.0)],
        "valid/bleu": [(100 * (i + 1), score) for i, score in enumerate(scores)],
    }
    assert (
        learning.check_finished(Seen(config=config, curves=curves, saved=[])).verdict
        == verdict
    )
