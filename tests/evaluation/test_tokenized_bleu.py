"""Tokenised BLEU: compounds and n-grams are those of the papers' scripts, under a name
and signature of their own.
"""

import sys
from types import SimpleNamespace

import pytest
import sacrebleu
from evaluation.damaged import draw

from jaxformer.errors import InputError
from jaxformer.evaluation import tokenized_bleu as module
from jaxformer.evaluation.metrics import score
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu, split_compounds

PLAIN, SPLIT = (TokenizedBleu(None, compounds=split) for split in (False, True))
WORDS = ["a", "b", "c", "Ost-West-Achse", "x-y", "-", "ü-ß", ",", "der", "die"]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Ost-West-Achse", "Ost ##AT##-##AT## West ##AT##-##AT## Achse"),
        ("x-y-z--w", "x ##AT##-##AT## y-z ##AT##-##AT## -w"),
        ("- a -b c- d - e", "- a -b c- d - e"),
        ("a-ß-c", "a ##AT##-##AT## ß ##AT##-##AT## c"),
        ("x\u00a0-y", "x\u00a0 ##AT##-##AT## y"),
        ("", ""),
    ],
)
def test_compounds(text, split):
    """Hyphens are split as Perl does it to bytes, no byte in two splits (taken from
    perl -ple).
    """
    assert split_compounds(text) == split


def test_arithmetic():
    """The score is that of sacreBLEU without a tokenizer, for one reference and two;
    compounds are split on both sides before.
    """
    (system, other), references = draw(1, WORDS, 0.15, 0.4, size=50, lengths=(5, 20))
    hypotheses = [line[: 60 - place] for place, line in enumerate(system)]
    theirs = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    values = []
    for metric, split in ((PLAIN, str), (SPLIT, split_compounds)):
        for lists in ([references], [references, other]):
            ours = score(metric, hypotheses, *lists).value
            given, *wanted = ([*map(split, lines)] for lines in (hypotheses, *lists))
            expected = theirs.corpus_score(given, wanted).score
            assert ours == pytest.approx(expected, rel=1e-12)
            values.append(round(ours, 1))
    assert len(set(values)) == 4


def test_words_and_orders():
    """There is no smoothing: an order without a match scores 0. Words end at ASCII
    white space: a no-break space is part of a word, as for scripts that read bytes.
    """
    for metric, given, wanted, low, high in (
        (PLAIN, "a-b c d e", "a-b c d f", 0, 0),
        (SPLIT, "a-b c d e", "a-b c d f", 1, 99),  # the compound has more words
        (PLAIN, "a\u00a0b c d e", "a b c d e", 0, 99),
        (PLAIN, "a \t b c  d", "a b c d", 99.9, 100.1),
    ):
        assert low <= score(metric, [given], [wanted]).value <= high


def test_names_and_signatures_of_their_own():
    """Name and signature cannot be taken for those of sacreBLEU."""
    sentences = ["a b c d"]
    for metric, compounds in ((PLAIN, "whole"), (SPLIT, "split")):
        found = score(metric, sentences, sentences, sentences)
        assert found.name == metric.key
        assert found.signature.startswith(
            f"{metric.key}|nrefs:2|case:mixed|tok:none|compounds:{compounds}|smooth:none|"
        )
        assert "sacrebleu" not in found.signature


def test_raw_text_is_tokenised(monkeypatch):
    """With a language Moses' tokenizer splits both sides; the signature has it. Without
    the package the error names the extra.
    """
    seen, uncached = [], module._load_tokenizer.__wrapped__
    monkeypatch.setattr(module, "_load_tokenizer", uncached)

    def tokenize(text, return_str):
        seen.append(text)
        return text.replace(".", " .")

    moses = lambda lang: SimpleNamespace(tokenize=tokenize)  # noqa: E731
    package = SimpleNamespace(MosesTokenizer=moses)
    monkeypatch.setitem(sys.modules, "sacremoses", package)
    metric = TokenizedBleu("de", compounds=True)
    found = score(metric, ["das Haus-Tor da."], ["das Haus-Tor da ."])
    assert found.value == pytest.approx(100)
    assert "|tok:moses-de|" in found.signature
    assert sorted(seen) == ["das Haus-Tor da .", "das Haus-Tor da."]
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    said = r"needs the package sacremoses.*jaxformer\[data\]"
    with pytest.raises(InputError, match=said):
        score(metric, ["a"], ["a"])
