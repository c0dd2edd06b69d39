"""Names of data sets that mean a published test set, and names that only look so."""

import pytest

from jaxformer.evaluation.known_sets import SENTENCES, find_known
from jaxformer.paper import TABLES


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("sacrebleu:wmt14", "newstest2014"),
        ("sacrebleu:wmt14/full", "newstest2014"),
        ("sacrebleu:wmt13", "newstest2013"),
        ("tfds:wmt14_translate/de-en/test", "newstest2014"),
        ("tfds:wmt14_translate/de-en/validation", "newstest2013"),
        ("hf:wmt14#de-en/test", "newstest2014"),
        (
            "text:data/wmt14/test.newstest2014.en,data/wmt14/test.newstest2014.de",
            "newstest2014",
        ),
        (
            "text:data/wmt14/valid.newstest2013.en,data/wmt14/valid.newstest2013.de",
            "newstest2013",
        ),
        ("text:newstest2014-deen-src.en,newstest2014-deen-ref.de", "newstest2014"),
        ("text:newstest13.en,newstest13.de", "newstest2013"),
        ("tsv:data/newstest2015.tsv", "newstest2015"),
        ("text:wsj23.txt,wsj23.trees", "section 23"),
        ("text:ptb/section-23.txt,ptb/section-23.trees", "section 23"),
        ("text:ptb/23.txt,ptb/23.trees", "section 23"),
    ],
)
def test_names_of_published_sets(name, known):
    """The name of a package, or of the files, tells the set and its year."""
    assert find_known(name) == known


@pytest.mark.parametrize(
    "name",
    [
        "text:/data/validation.en,/data/validation.de",
        "text:dev2023.text,dev2023.trees",
        "text:data/wmt14/latest.en,data/wmt14/latest.de",
        "text:newstest2014/mine.en,newstest2014/mine.de",
        "text:newstest2013.en,newstest2014.de",
        "text:newstest2014-hien-src.hi,newstest2014-hien-ref.en",
        "tfds:wmt14_translate/hi-en/test",
        "tfds:wmt14_translate/de-en/train",
        "sacrebleu:wmt14x",
        "bundled:en-de/test",
        "text:a.23.en,a.23.de",
    ],
)
def test_names_that_only_look_so(name):
    """Words within words, folders, other languages and sides that disagree tell
    nothing.
    """
    assert find_known(name) is None


def test_another_year_is_no_set_of_the_paper():
    """A file in a folder of WMT 2014 is what its own name says."""
    assert (
        find_known("text:data/wmt14/newstest2017.en,data/wmt14/newstest2017.de")
        == "newstest2017"
    )
    assert "newstest2017" not in SENTENCES


def test_sets_of_the_tables():
    """Each table is scored on a set whose size is known."""
    assert {number: table.sentences for number, table in TABLES.items()} == {
        2: 3003,
        3: 3000,
        4: 2416,
    }
