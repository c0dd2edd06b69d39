"""The tests find differences that are there, and none where there are none; they
agree with sacreBLEU's own.
"""

import itertools

import numpy as np
import pytest
import sacrebleu
from evaluation.damaged import draw
from sacrebleu.significance import PairedTest

from jaxformer.evaluation.metrics import BLEU, CHRF, TER
from jaxformer.evaluation.significance import (
    Interval,
    bootstrap_scores,
    compare_bootstraps,
    randomize,
    summarize,
)
from jaxformer.evaluation.statistics import score_rows

WORDS = [f"w{number}" for number in range(30)]


def statistics(metric, seed, *shares, size):
    """Return the statistics of systems, their texts, and the references."""
    systems, lines = draw(seed, WORDS, *shares, size=size, lengths=(5, 20))
    return [metric.statistics(system, lines) for system in systems], systems, lines


@pytest.mark.parametrize("metric", [BLEU, TER], ids=lambda metric: metric.key)
def test_a_difference_that_is_there(metric):
    """A system that is much better wins nearly always, with small p-values and an
    interval without zero.
    """
    (baseline, system), _, _ = statistics(metric, 1, 0.4, 0.2, size=60)
    drawn = [bootstrap_scores(metric, found, 300, 5) for found in (baseline, system)]
    found = compare_bootstraps(metric, drawn[1], drawn[0])
    assert found.wins == 1.0
    assert found.p_value == pytest.approx(2 / 301)
    assert randomize(metric, system, baseline, 300, 5) == pytest.approx(1 / 301)
    sign = 1 if metric.higher_is_better else -1
    assert sign * found.interval.low > 0
    assert sign * found.interval.high > 0
    other = compare_bootstraps(metric, drawn[0], drawn[1])
    assert other.wins == 0.0
    assert other.p_value == found.p_value


def test_a_system_and_itself():
    """Equal systems differ by nothing, which is no significant difference: p is 1
    and neither ever wins. A seed fixes every draw, the same sentences for every system.
    """
    (one, other), _, _ = statistics(CHRF, 8, 0.3, 0.3, size=30)
    drawn, same = (bootstrap_scores(CHRF, x, 150, 1) for x in (one, other))
    found = compare_bootstraps(CHRF, drawn, bootstrap_scores(CHRF, one, 150, 1))
    assert (found.wins, found.p_value) == (0.0, 1.0)
    assert found.interval == Interval(0.0, 0.0, 0.0)
    assert randomize(CHRF, one, one, 100, 5) == 1.0
    assert randomize(CHRF, one, other, 150, 1) == randomize(CHRF, one, other, 150, 1)
    assert np.corrcoef(drawn, same)[0, 1] > 0.3
    another = bootstrap_scores(CHRF, other, 150, 2)
    assert abs(np.corrcoef(drawn, another)[0, 1]) < 0.3


def test_chance_is_called_chance():
    """Of pairs of systems that are equally good a test at 5 % finds about 5 %
    different, and no fewer than none.
    """
    found = []
    for seed in range(40):
        (one, other), _, _ = statistics(BLEU, seed, 0.3, 0.3, size=30)
        drawn = [bootstrap_scores(BLEU, part, 100, seed) for part in (one, other)]
        p_value = compare_bootstraps(BLEU, *drawn).p_value
        found.append((randomize(BLEU, one, other, 100, seed), p_value))
    for p_values in np.asarray(found).T:
        assert np.mean(p_values < 0.05) < 0.15
        assert 0.35 < np.mean(p_values) < 0.65


def test_randomisation_by_hand():
    """On few sentences the p-value comes near that of all ways to exchange them."""
    (baseline, system), _, _ = statistics(BLEU, 4, 0.3, 0.2, size=8)
    rows = np.stack([baseline.rows, system.rows])
    places = np.arange(8)

    def distance(choice):
        one = rows[choice, places].sum(0)
        other = rows[1 - np.asarray(choice), places].sum(0)
        return abs(BLEU.score(one, "").value - BLEU.score(other, "").value)

    distances = [distance(choice) for choice in itertools.product((0, 1), repeat=8)]
    exact = np.mean(np.asarray(distances) >= distance((0,) * 8) - 1e-9)
    assert 0.05 < exact < 0.95
    assert randomize(BLEU, system, baseline, 4000, 9) == pytest.approx(exact, abs=0.035)


def test_like_sacrebleu():
    """Intervals and randomisation agree with sacreBLEU's, up to the luck of the
    draw, where no draws are equal.
    """
    (baseline, system), texts, references = statistics(BLEU, 3, 0.31, 0.29, size=150)
    named = list(zip(("baseline", "system"), texts, strict=True))
    options = {"test_type": "ar", "n_samples": 4000, "n_ar_confidence": 1000}
    test = PairedTest(named, {"x": sacrebleu.BLEU()}, [references], **options)
    results = next(value for key, value in test()[1].items() if key != "System")
    p_value = randomize(BLEU, system, baseline, 4000, 12345)
    assert p_value == pytest.approx(results[1].p_value, abs=0.04)
    assert 0.02 < results[1].p_value < 0.98
    for found, expected in zip((baseline, system), results, strict=True):
        interval = summarize(bootstrap_scores(BLEU, found, 1000, 12345))
        assert interval.mean == pytest.approx(expected.mean, abs=0.15)
        width = (interval.high - interval.low) / 2
        assert width == pytest.approx(expected.ci, rel=0.12)
        assert score_rows(BLEU, found).value == pytest.approx(expected.score)
