"""Compared systems as text: tables for a terminal."""

from __future__ import annotations

import dataclasses
import itertools
import string
from collections.abc import Iterator, Mapping, Sequence

from jaxformer.evaluation.breakdown import Difference
from jaxformer.evaluation.comparison import Comparison, Result
from jaxformer.table import align

DIGITS = 2
"""Decimals that a score is shown with."""


@dataclasses.dataclass(frozen=True)
class BucketScores:
    """A row of a breakdown.

    Attributes:
        label: its ends, by :func:`format_range`.
        count: of its sentences or words.
        values: of each system.
    """

    label: str
    count: int
    values: list[float]


def length_buckets(comparison: Comparison, key: str) -> list[BucketScores]:
    """Return the scores of a metric by length of the sentence."""
    return [
        BucketScores(
            format_range(bucket.least, bucket.most),
            bucket.sentences,
            [scores[key] for scores in bucket.scores],
        )
        for bucket in comparison.lengths
    ]


def word_buckets(comparison: Comparison) -> list[BucketScores]:
    """Return the F1 of words by frequency."""
    return [
        BucketScores(
            format_range(bucket.least, bucket.most), bucket.words, list(bucket.f1)
        )
        for bucket in comparison.words
    ]


def format_range(least: int, most: int | None) -> str:
    """Write the ends of a bucket: ``10-19``, ``60+`` or, where they are the same,
    ``0``.
    """
    if most is None:
        return f"{least}+"
    return str(least) if least == most else f"{least}-{most}"


def write_table(comparison: Comparison, longest: int = 24) -> Iterator[str]:
    """Write the lines of a report: scores and tests of each metric, breakdowns, and
    the sentences that differ most. Letters stand for names of more than ``longest``
    characters.
    """
    config, systems = comparison.config, comparison.systems
    names = {name: name for name in systems}
    if max(map(len, systems)) > longest:
        for place, name in enumerate(systems):
            names[name] = string.ascii_uppercase[place % 26] + str(place // 26 or "")
            yield f"{names[name]} = {name}"
    yield (
        f"{comparison.sentences} sentences, seed {config.seed}: {config.resamples}"
        f" bootstrap resamples, {config.trials} randomisation trials"
    )
    baseline, *others = names.values()
    if others:
        yield f"differences, wins and p-values are against {baseline}"
        yield (
            "p-values count draws that differ as much as observed (sacreBLEU: only"
            " those that differ more)"
        )
    for _, found in itertools.groupby(comparison.results, lambda each: each.metric):
        yield from ("", *_metric(list(found), names, longest))
    first = comparison.results[0]
    yield from ("", f"{first.score.name} by length of the {config.lengths} in words")
    rows = length_buckets(comparison, first.metric)
    yield from _breakdown(["words", "sentences", *names.values()], rows, DIGITS)
    yield from ("", f"F1 of words by their frequency in {comparison.word_source}")
    rows = word_buckets(comparison)
    yield from _breakdown(["frequency", "words", *names.values()], rows, 1)
    for name, (better, worse) in comparison.differences.items():
        pair = baseline, names[name]
        yield from _sentences(f"{pair[1]} is better than {baseline}", better, pair)
        yield from _sentences(f"{baseline} is better than {pair[1]}", worse, pair)


def _metric(
    results: Sequence[Result], names: Mapping[str, str], longest: int
) -> Iterator[str]:
    score = results[0].score
    yield f"{score.name}  {score.signature}"
    head = ["", "score", "95 % interval"]
    if len(results) > 1:
        head += ["difference", head[-1], "wins"]
        head += [each[:longest] for each in ("p bootstrap", "p randomisation")]
    rows = [head]
    for result in results:
        low, high = result.interval.low, result.interval.high
        row = [names[result.system], f"{result.score.value:.{DIGITS}f}"]
        row.append(f"{low:.{DIGITS}f} to {high:.{DIGITS}f}")
        if result.bootstrap is not None:
            low, high = result.bootstrap.interval.low, result.bootstrap.interval.high
            row.append(f"{result.score.value - score.value:+.{DIGITS}f}")
            row.append(f"{low:+.{DIGITS}f} to {high:+.{DIGITS}f}")
            row += [f"{result.bootstrap.wins:.1%}", f"{result.bootstrap.p_value:.4f}"]
        if result.randomization is not None:
            row.append(f"{result.randomization:.4f}")
        rows.append(row)
    yield from align(rows)


def _breakdown(
    head: list[str], buckets: Sequence[BucketScores], digits: int
) -> Iterator[str]:
    rows = [
        [row.label, str(row.count), *(f"{value:.{digits}f}" for value in row.values)]
        for row in buckets
    ]
    yield from align([head, *rows])


def _sentences(
    title: str, differences: Sequence[Difference], names: tuple[str, str]
) -> Iterator[str]:
    if not differences:
        return
    yield from ("", f"where {title}, by sentence chrF")
    width = max(len("reference"), *(len(name) + 6 for name in names))
    for difference in differences:
        yield f"sentence {difference.number}, {difference.gain:+.1f}"
        if difference.source is not None:
            yield f"  {'source':{width}}  {difference.source}"
        for line in difference.references:
            yield f"  {'reference':{width}}  {line}"
        for name, text, chrf in zip(
            names, difference.translations, difference.chrf, strict=True
        ):
            yield f"  {f'{name} {chrf:5.1f}':{width}}  {text}"
