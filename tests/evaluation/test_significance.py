"""The tests find differences that are there, and none where there are none; they
agree with sacreBLEU's own.
"""

import itertools
import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from jaxformer.evaluation.metrics import BLEU, CHRF, TER
from jaxformer.evaluation.significance import (
    bootstrap_scores,
    compare_bootstraps,
    randomize,
    summarize,
)
from jaxformer.evaluation.statistics import score_rows

WORDS = [f"w{number}" for number in range(30)]


def damage(rng, line, share):
    return " ".join(
        word if rng.random() > share else rng.choice(WORDS) for word in line.split()
    )


def statistics(metric, seed, *shares, size=150):
    """Return the statistics of systems that have so many words wrong, one system for
    each share.
    """
    rng = random.Random(seed)
    references = [
        " ".join(rng.choices(WORDS, k=rng.randint(5, 20))) for _ in range(size)
    ]
    systems = [[damage(rng, line, share) for line in references] for share in shares]
    return (
        [metric.statistics(system, references) for system in systems],
        systems,
        references,
    )


@pytest.mark.parametrize("metric", [BLEU, TER], ids=lambda metric: metric.key)
def test_a_difference_that_is_there(metric):
    """A system that is much better wins nearly always, with small p-values and an
    interval without zero.
    """
    (baseline, system), _, _ = statistics(metric, 1, 0.4, 0.2)
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


@pytest.mark.parametrize("metric", [BLEU, CHRF, TER], ids=lambda metric: metric.key)
def test_a_system_and_itself(metric):
    """Equal systems differ by nothing, which is no significant difference: p is 1
    and neither ever wins.
    """
    (one, *_), _, _ = statistics(metric, 2, 0.3, size=40)
    drawn = bootstrap_scores(metric, one, 100, 5)
    found = compare_bootstraps(metric, drawn, drawn)
    assert (found.wins, found.p_value) == (0.0, 1.0)
    assert (found.interval.mean, found.interval.low, found.interval.high) == (
        0.0,
        0.0,
        0.0,
    )
    assert randomize(metric, one, one, 100, 5) == 1.0


def test_chance_is_called_chance():
    """Of pairs of systems that are equally good a test at 5 % finds about 5 %
    different, and no fewer than none.
    """
    found = []
    for seed in range(80):
        (one, other), _, _ = statistics(BLEU, seed, 0.3, 0.3, size=60)
        drawn = [bootstrap_scores(BLEU, part, 100, seed) for part in (one, other)]
        found.append(
            (
                randomize(BLEU, one, other, 100, seed),
                compare_bootstraps(BLEU, *drawn).p_value,
            )
        )
    for p_values in np.asarray(found).T:
        assert np.mean(p_values < 0.05) < 0.15
        assert 0.35 < np.mean(p_values) < 0.65


def test_randomisation_by_hand():
    """On few sentences the p-value comes near that of all ways to exchange them."""
    (baseline, system), _, _ = statistics(BLEU, 4, 0.3, 0.2, size=8)
    rows = np.stack([baseline.rows, system.rows])
    places = np.arange(8)

    def distance(choice):
        one, other = (
            rows[choice, places].sum(0),
            rows[1 - np.asarray(choice), places].sum(0),
        )
        return abs(BLEU.score(one, "").value - BLEU.score(other, "").value)

    distances = [distance(choice) for choice in itertools.product((0, 1), repeat=8)]
    exact = np.mean(np.asarray(distances) >= distance((0,) * 8) - 1e-9)
    assert 0.05 < exact < 0.95
    assert randomize(BLEU, system, baseline, 4000, 9) == pytest.approx(exact, abs=0.035)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [(BLEU, sacrebleu.BLEU), (CHRF, sacrebleu.CHRF)],
    ids=["bleu", "chrf"],
)
def test_like_sacrebleu(metric, kind):
    """Intervals and randomisation agree with sacreBLEU's, up to the luck of the
    draw, where no draws are equal.
    """
    (baseline, system), texts, references = statistics(metric, 3, 0.31, 0.29)
    named = list(zip(("baseline", "system"), texts, strict=True))
    _, theirs = PairedTest(
        named,
        {"x": kind()},
        [references],
        test_type="ar",
        n_samples=4000,
        n_ar_confidence=1000,
    )()
    results = next(value for key, value in theirs.items() if key != "System")
    assert randomize(metric, system, baseline, 4000, 12345) == pytest.approx(
        results[1].p_value, abs=0.04
    )
    assert 0.02 < results[1].p_value < 0.98
    for found, expected in zip((baseline, system), results, strict=True):
        interval = summarize(bootstrap_scores(metric, found, 1000, 12345))
        assert interval.mean == pytest.approx(expected.mean, abs=0.15)
        assert (interval.high - interval.low) / 2 == pytest.approx(
            expected.ci, rel=0.12
        )
        assert score_rows(metric, found).value == pytest.approx(expected.score)


def test_seeds():
    """A seed fixes every draw, whatever the number before it; another seed draws
    others.
    """
    (one, other), _, _ = statistics(CHRF, 8, 0.3, 0.3, size=30)
    first = bootstrap_scores(CHRF, one, 150, 1)
    np.testing.assert_array_equal(first, bootstrap_scores(CHRF, one, 150, 1))
    assert not np.array_equal(first, bootstrap_scores(CHRF, one, 150, 2))
    assert randomize(CHRF, one, other, 150, 1) == randomize(CHRF, one, other, 150, 1)
    drawn = bootstrap_scores(CHRF, other, 150, 1)
    assert (
        np.corrcoef(first, drawn)[0, 1]
        > 0.3
        > abs(np.corrcoef(first, bootstrap_scores(CHRF, other, 150, 2))[0, 1])
    )
