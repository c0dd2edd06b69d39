"""Compared systems as tables: every number and sentence is there."""

import re

from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.visualization.translations_table import align, format_range, write_table

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- {{data}} &amp;",
    '"quoted" ünï 東京 \u2028 end',
]
CONFIG = ComparisonConfig(resamples=100, trials=20, examples=2)
REFERENCES = [
    "the cat sat on the mat",
    "a house",
    "an old tree is green . " * 3,
    *HOSTILE,
]


def comparison(names=("base", "other", "third")):
    """Compare three systems, of which the second is better in some sentences and
    worse in others.
    """
    texts = [
        ["the cat sat on a mat", "the house", "an old tree was green", *HOSTILE],
        ["a cat sat on the mat", "a house", "an old tree", "nothing", *HOSTILE[1:]],
        [*REFERENCES],
    ]
    sources = [f"source {number} <b>" for number in range(len(REFERENCES))]
    return compare(
        dict(zip(names, texts, strict=True)),
        [REFERENCES],
        [BLEU, CHRF],
        CONFIG,
        sources=sources,
    )


def test_tables():
    """The report prints seed, scores with signature, tests against the first,
    buckets, and sentences both ways.
    """
    found = comparison()
    lines = list(write_table(found))
    assert lines[0].startswith("6 sentences, seed 12345: 100 bootstrap resamples")
    assert lines[1].endswith("are against base")
    assert f"BLEU  {found.results[0].score.signature}" in lines
    rows = {
        line.split()[0]: line.split()
        for line in reversed(lines)
        if line and line.split()[0] in found.systems
    }
    for result in found.results[:3]:
        row = rows[result.system]
        assert row[1] == f"{result.score.value:.2f}"
        if result.bootstrap is not None:
            assert row[-3:] == [
                f"{result.bootstrap.wins:.1%}",
                f"{result.bootstrap.p_value:.4f}",
                f"{result.randomization:.4f}",
            ]
    text = "\n".join(lines)
    for title in (
        "BLEU by length of the reference in words",
        "F1 of words by their frequency in references",
    ):
        assert title in text
    assert "where other is better than base" in text
    assert "where base is better than other" in text
    assert "where base is better than third" not in text
    assert re.search(r"^  source +source 3 <b>$", text, re.MULTILINE)


def test_long_names_are_told_once():
    """Names that would widen every table stand in them as letters."""
    names = ("a/very/long/path/of/a/file.de", "b", "c")
    lines = list(write_table(comparison(names)))
    assert lines[:3] == [
        f"{letter} = {name}" for letter, name in zip("ABC", names, strict=True)
    ]
    assert not any(names[0] in line for line in lines[3:])
    assert any(line.startswith("where B is better than A") for line in lines)


def test_columns_and_ranges():
    """Names stand to the left and numbers to the right; a range of one number is
    that number.
    """
    assert list(align([["", "score"], ["long name", "1.5"], ["b"]])) == [
        "           score",
        "long name    1.5",
        "b",
    ]
    assert [format_range(0, 0), format_range(2, 4), format_range(60, None)] == [
        "0",
        "2-4",
        "60+",
    ]
