"""Compare systems on one test set: scores, significance, and where they differ."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxformer.errors import InputError, UsageError
from jaxformer.evaluation import breakdown, significance
from jaxformer.evaluation.breakdown import Difference, LengthBucket, WordBucket
from jaxformer.evaluation.significance import Bootstrap, Interval
from jaxformer.evaluation.statistics import (
    Metric,
    Score,
    SentenceStatistics,
    score_rows,
)


@dataclass(frozen=True)
class ComparisonConfig:
    """How systems are compared.

    Raises:
        InputError: a value out of range.
    """

    # Resamples of the paired bootstrap.
    resamples: int = 1000
    # Trials of approximate randomisation; 0 skips it.
    trials: int = 10_000
    # Seed of both tests.
    seed: int = 12345
    # Sentences shown that the system translates better, and that the baseline does.
    examples: int = 10
    # The side whose words are the length of a sentence.
    lengths: Literal["reference", "source"] = "reference"

    def __post_init__(self) -> None:
        """Check every value."""
        bounds = {"resamples": 10**6, "trials": 10**7, "examples": 10**6}
        bounds["seed"] = 2**63 - 1
        for name in bounds:
            value, least = getattr(self, name), 100 if name == "resamples" else 0
            if not least <= value <= bounds[name]:
                raise InputError(
                    f"comparison.{name} must be from {least} to {bounds[name]:,},"
                    f" not {value}"
                )


@dataclass(frozen=True)
class Result:
    """Hold the score of one system by one metric.

    Attributes:
        system: its name.
        metric: key of the metric.
        score: of the whole test set.
        interval: 95 % of the bootstrap's resamples.
        bootstrap: against the baseline; None for the baseline.
        randomization: p-value of approximate randomisation against the baseline; None
            for the baseline, or if it was skipped.
    """

    system: str
    metric: str
    score: Score
    interval: Interval
    bootstrap: Bootstrap | None
    randomization: float | None


@dataclass(frozen=True)
class Comparison:
    """Hold the result of :func:`compare`.

    Attributes:
        systems: names; the first is the baseline.
        sentences: of the test set.
        config: of the comparison.
        results: by metric, then by system.
        lengths: scores by sentence length.
        words: F1 by word frequency.
        word_source: text in which frequencies were counted.
        differences: for each system but the baseline, the sentences that it translates
            better, and those that the baseline does.
    """

    systems: tuple[str, ...]
    sentences: int
    config: ComparisonConfig
    results: tuple[Result, ...]
    lengths: tuple[LengthBucket, ...]
    words: tuple[WordBucket, ...]
    word_source: str
    differences: Mapping[str, tuple[list[Difference], list[Difference]]]

    def to_record(self) -> dict[str, Any]:
        """Return plain dicts and lists, for JSON."""
        record = dataclasses.asdict(self)
        for name, (better, worse) in record["differences"].items():
            record["differences"][name] = {"better": better, "worse": worse}
        return record


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    metrics: Sequence[Metric],
    config: ComparisonConfig,
    *,
    sources: Sequence[str] | None = None,
    frequencies: Mapping[str, int] | None = None,
    frequencies_name: str = "references",
) -> Comparison:
    """Compare translations of one test set.

    Args:
        systems: translations by the system's name, one for each sentence. The first is
            the baseline; a single system is only scored.
        references: flat lists, each with one reference for each sentence.
        metrics: the metrics to compute.
        config: of the comparison.
        sources: the text that was translated.
        frequencies: of words, such as those of a training text; by default those of the
            references.
        frequencies_name: the text in which they were counted.

    Raises:
        UsageError: ``config.lengths`` is ``source`` and there are no sources.
        InputError: see :func:`jaxformer.evaluation.sentences.check_sentences`.
    """
    if config.lengths == "source" and sources is None:
        raise UsageError("lengths of sources need the sources: give --source")
    baseline, *others = systems
    statistics = {
        metric: {
            name: metric.statistics(translations, *references, sources=sources)
            for name, translations in systems.items()
        }
        for metric in metrics
    }
    results = [_test(metric, found, config) for metric, found in statistics.items()]
    if frequencies is None:
        frequencies = breakdown.count_words(itertools.chain.from_iterable(references))
    measured = references[0] if config.lengths == "reference" else sources or ()
    outputs = list(systems.values())
    return Comparison(
        tuple(systems),
        len(references[0]),
        config,
        tuple(itertools.chain.from_iterable(results)),
        tuple(breakdown.score_by_length(statistics, measured)),
        tuple(breakdown.score_by_frequency(outputs, references[0], frequencies)),
        frequencies_name,
        {
            name: breakdown.find_differences(
                systems[baseline], systems[name], references, sources, config.examples
            )
            for name in others
        },
    )


def _test(
    metric: Metric, systems: Mapping[str, SentenceStatistics], config: ComparisonConfig
) -> list[Result]:
    """Score all systems by one metric and test each against the first."""
    drawn = {
        name: significance.bootstrap_scores(
            metric, found, config.resamples, config.seed
        )
        for name, found in systems.items()
    }
    baseline, *_ = systems
    results = []
    for name, found in systems.items():
        bootstrap = randomization = None
        if name != baseline:
            bootstrap = significance.compare_bootstraps(
                metric, drawn[name], drawn[baseline]
            )
            if config.trials:
                randomization = significance.randomize(
                    metric, found, systems[baseline], config.trials, config.seed
                )
        interval, score = significance.summarize(drawn[name]), score_rows(metric, found)
        results.append(
            Result(name, metric.key, score, interval, bootstrap, randomization)
        )
    return results
