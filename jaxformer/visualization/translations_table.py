"""Compared systems as text: tables for a terminal."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence

from jaxformer.evaluation.breakdown import Difference
from jaxformer.evaluation.comparison import Comparison, Result
from jaxformer.table import align

DIGITS = 2
"""Decimals that a score is shown with."""

_LONGEST_NAME = 24  # tables abbreviate longer names by letters


def write_table(comparison: Comparison) -> Iterator[str]:
    """Write the lines of a report: scores and tests of each metric, breakdowns, and
    the sentences that differ most.
    """
    config, names = comparison.config, comparison.systems
    if max(map(len, names)) > _LONGEST_NAME:
        letters = [
            string.ascii_uppercase[place % 26] + str(place // 26 or "")
            for place in range(len(names))
        ]
        yield from (
            f"{letter} = {name}" for letter, name in zip(letters, names, strict=True)
        )
        comparison = _rename(comparison, dict(zip(names, letters, strict=True)))
    yield (
        f"{comparison.sentences} sentences, seed {config.seed}: {config.resamples}"
        f" bootstrap resamples, {config.trials} randomisation trials"
    )
    baseline, *others = comparison.systems
    if others:
        yield f"differences, wins and p-values are against {baseline}"
        yield (
            "p-values count draws that differ as much as observed (sacreBLEU: only"
            " those that differ more)"
        )
    keys = list(dict.fromkeys(result.metric for result in comparison.results))
    for key in keys:
        yield from (
            "",
            *_metric([result for result in comparison.results if result.metric == key]),
        )
    yield from ("", *_lengths(comparison, keys[0]))
    yield from ("", *_words(comparison))
    for name, (better, worse) in comparison.differences.items():
        yield from _sentences(
            f"{name} is better than {baseline}", better, (baseline, name)
        )
        yield from _sentences(
            f"{baseline} is better than {name}", worse, (baseline, name)
        )


def format_range(least: int, most: int | None) -> str:
    """Write the ends of a bucket: ``10-19``, ``60+`` or, where they are the same,
    ``0``.
    """
    if most is None:
        return f"{least}+"
    return str(least) if least == most else f"{least}-{most}"


def _rename(comparison: Comparison, names: Mapping[str, str]) -> Comparison:
    """Call systems otherwise."""
    return dataclasses.replace(
        comparison,
        systems=tuple(names.values()),
        results=tuple(
            dataclasses.replace(result, system=names[result.system])
            for result in comparison.results
        ),
        differences={
            names[name]: found for name, found in comparison.differences.items()
        },
    )


def _metric(results: Sequence[Result]) -> Iterator[str]:
    score = results[0].score
    yield f"{score.name}  {score.signature}"
    head = [
        "",
        "score",
        "95 % interval",
        "difference",
        "95 % interval",
        "wins",
        "p bootstrap",
        "p randomisation",
    ]
    digits = DIGITS
    rows = [head if len(results) > 1 else head[:3]]
    for result in results:
        row = [result.system, f"{result.score.value:.{digits}f}"]
        row.append(
            f"{result.interval.low:.{digits}f} to {result.interval.high:.{digits}f}"
        )
        if result.bootstrap is not None:
            interval = result.bootstrap.interval
            row.append(f"{result.score.value - score.value:+.{digits}f}")
            row.append(f"{interval.low:+.{digits}f} to {interval.high:+.{digits}f}")
            row += [f"{result.bootstrap.wins:.1%}", f"{result.bootstrap.p_value:.4f}"]
            row.append(
                "" if result.randomization is None else f"{result.randomization:.4f}"
            )
        rows.append(row)
    yield from align(rows)


def _lengths(comparison: Comparison, key: str) -> Iterator[str]:
    title = next(
        result.score.name for result in comparison.results if result.metric == key
    )
    yield f"{title} by length of the {comparison.config.lengths} in words"
    rows = [["words", "sentences", *comparison.systems]]
    for bucket in comparison.lengths:
        scores = [f"{scores[key]:.{DIGITS}f}" for scores in bucket.scores]
        rows.append(
            [format_range(bucket.least, bucket.most), str(bucket.sentences), *scores]
        )
    yield from align(rows)


def _words(comparison: Comparison) -> Iterator[str]:
    yield f"F1 of words by their frequency in {comparison.word_source}"
    rows = [["frequency", "words", *comparison.systems]]
    for bucket in comparison.words:
        rows.append(
            [
                format_range(bucket.least, bucket.most),
                str(bucket.words),
                *(f"{f1:.1f}" for f1 in bucket.f1),
            ]
        )
    yield from align(rows)


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
