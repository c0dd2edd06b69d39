"""Compared systems as page and as tables: every number and sentence is there, and
text is only ever text.
"""

import json
import re

import pytest

from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.visualization.translations import write_html
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


def read_page(path):
    """Return the data that a page holds."""
    (data,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>',
        path.read_text("utf-8"),
        re.DOTALL,
    )
    return json.loads(data)


def test_a_page_holds_every_number(tmp_path):
    """Scores, intervals, p-values, buckets and sentences of the comparison are on
    the page.
    """
    found = comparison()
    data = read_page(write_html(found, tmp_path / "deep" / "page.html"))
    assert data["systems"] == ["base", "other", "third"]
    assert [metric["title"] for metric in data["metrics"]] == ["BLEU", "chrF2"]
    shown = [result for metric in data["metrics"] for result in metric["results"]]
    for given, result in zip(shown, found.results, strict=True):
        assert given["system"] == result.system
        assert given["score"]["value"] == pytest.approx(result.score.value, rel=1e-5)
        assert given["score"]["signature"] == result.score.signature
        assert given["interval"]["low"] == pytest.approx(result.interval.low, rel=1e-5)
        if result.bootstrap is not None:
            assert given["bootstrap"]["p_value"] == pytest.approx(
                result.bootstrap.p_value, rel=1e-5
            )
            assert given["randomization"] == pytest.approx(
                result.randomization, rel=1e-5
            )
    for key, buckets in zip(("bleu", "chrf"), data["lengths"], strict=True):
        for shown, bucket in zip(buckets, found.lengths, strict=True):
            assert shown["count"] == bucket.sentences
            assert shown["values"] == pytest.approx(
                [scores[key] for scores in bucket.scores], rel=1e-5
            )
    assert [bucket["count"] for bucket in data["words"]] == [
        bucket.words for bucket in found.words
    ]
    for name, (better, worse) in found.differences.items():
        for kind, differences in (("better", better), ("worse", worse)):
            assert [d["number"] for d in data["differences"][name][kind]] == [
                d.number for d in differences
            ]
            assert [
                tuple(d["translations"]) for d in data["differences"][name][kind]
            ] == [d.translations for d in differences]


def test_text_is_only_text(tmp_path):
    """Whatever a system is called or says, the page stays whole and can load
    nothing.
    """
    path = write_html(comparison(names=HOSTILE), tmp_path / "page.html")
    page = path.read_text("utf-8")
    assert read_page(path)["systems"] == HOSTILE
    assert page.count("<script") == page.count("</script>") == 2
    assert set(re.findall(r"https?://[^\s\"']*", page)) == {
        "http://www.w3.org/2000/svg"
    }
    assert "default-src 'none'" in page
    assert "innerHTML" not in page
    assert "prefers-color-scheme: dark" in page


def test_tables():
    """The report prints seed, scores with signature, tests against the first,
    buckets, and sentences both ways.
    """
    found = comparison()
    lines = list(write_table(found))
    assert lines[0].startswith("6 sentences, seed 12345, 100 resamples")
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
