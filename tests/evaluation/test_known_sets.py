"""Names of data sets that mean a published test set, and names that only look so."""

import pytest

from jaxformer.evaluation.known_sets import find_known


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("sacrebleu:wmt14/full", "newstest2014"),
        ("sacrebleu:wmt13", "newstest2013"),
        ("tfds:wmt14_translate/de-en/test", "newstest2014"),
        ("tfds:wmt14_translate/de-en/validation", "newstest2013"),
        ("hf:wmt14#de-en/test", "newstest2014"),
        ("text:wmt14/valid.newstest2013.en,x/valid.newstest2013.de", "newstest2013"),
        ("text:newstest2014-deen-src.en,newstest2014-deen-ref.de", "newstest2014"),
        ("text:newstest13.en,newstest13.de", "newstest2013"),
        ("tsv:data/wmt14/newstest2015.tsv", "newstest2015"),
        ("text:ptb/section-23.txt,wsj23.trees", "section 23"),
        # words within words, folders, other languages, and sides that disagree
        ("text:dev2023.text,dev2023.trees", None),
        ("text:newstest2014/mine.en,newstest2014/mine.de", None),
        ("text:newstest2013.en,newstest2014.de", None),
        ("text:newstest2014-hien-src.hi,newstest2014-hien-ref.en", None),
        ("tfds:wmt14_translate/hi-en/test", None),
        ("tfds:wmt14_translate/de-en/train", None),
        ("sacrebleu:wmt14x", None),
        ("text:a.23.en,a.23.de", None),
    ],
)
def test_names_of_published_sets(name, known):
    """The name of a package, or of the files, has the set and its year."""
    assert find_known(name) == known
