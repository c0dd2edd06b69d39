"""Single checks of ``jaxformer doctor``, and what they count."""

from __future__ import annotations

from types import SimpleNamespace as Seen
from typing import Any

import numpy as np
import pytest

from jaxformer.data.records import Pair
from jaxformer.diagnosis import survey
from jaxformer.diagnosis.alignment import Misfit, find_misfits, lengths
from jaxformer.diagnosis.checks import learning, recipe, results
from jaxformer.diagnosis.evidence import UnseenError
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig


def configured(**changes: Any) -> RunConfig:
    """Return the default configuration with some keys changed: ``section__key``."""
    values = configuration.default_config().to_dict()
    for key, value in changes.items():
        section, name = key.split("__")
        values[section][name] = value
    return configuration.parse(values)


@pytest.mark.parametrize(
    ("language", "scores", "said"),
    [
        ("de", {"bleu": "13a"}, None),
        ("de", {"bleu:intl": "intl"}, "--metrics=bleu"),
        ("de", {"chrf": None}, "--metrics=bleu,chrf"),
        ("ja", {"bleu:ja-mecab": "ja-mecab-0.996-IPA"}, None),
        ("ko", {"bleu": "13a"}, None),
        ("th", {"bleu": "13a"}, "--metrics=bleu"),
    ],
)
def test_the_tokenizer_goes_with_the_language(language, scores, said):
    """13a splits at blanks: where words have none another is right, under any key."""
    record = {}
    for key, tokenizer in scores.items():
        signature = f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}|smooth:exp|version:2"
        record |= {key: 20.0, f"{key}_signature": signature}
    config = configured(data__target_language=language)
    seen = {"record": record, "references": []}
    found = results.check_signature(Seen(config=config, **seen))
    assert found.verdict == ("look" if said else "ok"), found
    assert found.cure.endswith(said or "")
    record["target_language"] = language
    other = configured(data__target_language="fr")
    assert results.check_signature(Seen(config=other, **seen)) == found


def test_no_smoothing_is_advised_that_would_be_refused():
    training = Seen(objective="regression", label_smoothing=0.0)
    config = Seen(training=training, model=Seen(dropout_rate=0.1))
    with pytest.raises(UnseenError, match="takes no label smoothing"):
        recipe.check_regularization(Seen(config=config))


@pytest.mark.parametrize(
    ("objective", "nll", "verdict"),
    [
        ("classification", 0.69, "wrong"),
        ("classification", 0.4, "ok"),
        ("translation", 6.0, "wrong"),
        ("regression", 9.0, None),
        ("span", 9.0, None),
    ],
)
def test_a_run_at_chance_level(objective, nll, verdict):
    """Two labels at chance have the loss ln 2 after the warm-up; squares of errors, and
    places in texts of any length, have no such level.
    """
    size = 2 if objective == "classification" else 8_000
    training = Seen(objective=objective, warmup_steps=10)
    config = Seen(training=training, model=Seen(vocabulary_size=size))
    steps = 20 if objective == "classification" else 600
    run = Seen(config=config, curves={"train/nll": [(steps, nll)]}, gaps={})
    if verdict is None:
        with pytest.raises(UnseenError, match="has no such loss"):
            learning.check_stalled(run)
    else:
        assert learning.check_stalled(run).verdict == verdict


@pytest.mark.parametrize(
    ("name", "count", "target", "verdict"),
    [
        ("sacrebleu:wmt14/full", 3003, "de", "ok"),
        ("sacrebleu:wmt14", 2737, "de", "look"),
        ("sacrebleu:wmt14", 2737, "fr", "wrong"),
        ("text:newstest2014.en,newstest2014.de", 3002, "de", "wrong"),
        ("text:mine.en,mine.de", 7, "de", "ok"),
    ],
)
def test_sizes_of_published_sets(name, count, target, verdict):
    """newstest2014 has 3,003 sentences or 2,737, newstest2013 3,000."""
    record = {"dataset": name, "sentences": count}
    config = configured(data__source_language="en", data__target_language=target)
    found = results.check_test_set(Seen(config=config, record=record))
    assert found.verdict == verdict
    is_german = "2014" in found.expected and target == "de"
    assert ("filtered" in found.expected) == is_german


@pytest.mark.parametrize("shift", [-3, 1, 5])
def test_a_shift_is_measured(shift):
    """Lines that were moved are found, with their shift and where it begins."""
    generator = np.random.default_rng(7)
    first = generator.integers(5, 120, size=2000)
    second = first + generator.integers(0, 9, size=2000)

    def find(*sides):
        return find_misfits(np.stack(sides, axis=1).astype(np.int32))

    assert find(first, second) == []
    moved = np.concatenate([second[:1000], np.roll(second[1000:], shift)])
    assert find(first, moved) == [Misfit(1001, shift), Misfit(1501, shift)]
    mixed = find(first, generator.permutation(second))
    assert {misfit.shift for misfit in mixed} == {0}
    assert find_misfits(lengths([("ab", "cd")] * 500)) == []
    # Within a block of text sorted by length the lengths hardly differ.
    first = np.sort(generator.integers(10, 200, 50_000))
    assert find(first, first * generator.uniform(0.9, 1.2, 50_000)) == []


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
    assert found.characters.tolist() == [[*map(len, pair)] for pair in corpus]
    assert (found.sources, found.pairs) == ({"7 a", "8 a"}, {corpus[7]})
    assert (len(found.characters), found.whole) == (4000, True)
    assert survey.survey_text(corpus, [], sample=400).sample == found.sample
    cut = survey.survey_text(corpus, [], sample=10, most=50)
    assert (len(cut.characters), cut.whole, len(cut.sample)) == (50, False, 10)


def test_a_checkpoint_between_two_lines_of_the_log():
    """One that a signal left is no sign of lost lines; one that is a whole interval
    further is.
    """
    config = configured()
    every, steps = config.training.log_every, config.training.steps
    for last, saved, verdict, said in (
        (2 * every, 3 * every - 1, "look", f"of {steps:,}"),
        (2 * every, 3 * every, "look", f"checkpoint of step {3 * every:,}"),
        (steps, steps, "ok", f"of {steps:,}"),
    ):
        curves = {"train/nll": [(every, 5.0), (last, 4.0)]}
        run = Seen(config=config, curves=curves, saved=[every, saved])
        found = learning.check_finished(run)
        assert (found.verdict, found.found.endswith(said)) == (verdict, True), found


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [([5.0, 9.0, 8.0, 9.0], "ok"), ([5.0, 6.0, 9.0, 8.0], "look"), ([], "look")],
)
def test_patience_ends_a_run_after_so_many_evaluations(scores, verdict):
    """A run that ended earlier has finished if no evaluation was better than the one
    of so many before.
    """
    points = [(100 * (i + 1), score) for i, score in enumerate(scores)]
    curves = {"train/nll": [(400, 5.0)], "valid/bleu": points}
    run = Seen(config=configured(training__patience=2), curves=curves, saved=[])
    assert learning.check_finished(run).verdict == verdict
