"""Tokenised BLEU: compounds and n-grams are those of the papers' scripts, under a name
and signature of their own.
"""

import functools
import math
import random
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import sacrebleu

from jaxformer.errors import InputError
from jaxformer.evaluation import tokenized_bleu as module
from jaxformer.evaluation.metrics import BLEU, score
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu, split_compounds

PLAIN, SPLIT = (TokenizedBleu(None, compounds=split) for split in (False, True))
WORDS = ["a", "b", "c", "Ost-West-Achse", "x-y", "-", "ü-ß", ",", "der", "die"]


@pytest.fixture(autouse=True)
def _forget_tokenizers():
    yield
    module._load_tokenizer.cache_clear()


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


def corpus(seed, size=50):
    rng = random.Random(seed)
    references = [rng.choices(WORDS, k=rng.randint(5, 20)) for _ in range(size)]
    hypotheses = [
        " ".join(w if rng.random() < 0.85 else rng.choice(WORDS) for w in words)
        for words in references
    ]
    hypotheses = [line[: rng.randint(len(line) // 2, len(line))] for line in hypotheses]
    return hypotheses, [" ".join(words) for words in references]


def slow_bleu(hypotheses, *references):
    """Count as Papineni et al. (2002) write it: clipped precisions, geometric mean,
    brevity penalty.
    """

    def grams(line, order):
        words = line.split()
        return [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]

    logarithms, every = [], list(zip(hypotheses, *references, strict=True))
    for order in (1, 2, 3, 4):
        right = total = 0
        for hypothesis, *lines in every:
            given = grams(hypothesis, order)
            total += len(given)
            for gram in set(given):
                most = max(grams(line, order).count(gram) for line in lines)
                right += min(given.count(gram), most)
        logarithms.append(math.log(right / total))
    length = closest = 0
    for hypothesis, *lines in every:
        own, others = len(hypothesis.split()), [len(line.split()) for line in lines]
        length += own
        closest += min(others, key=lambda other: (abs(other - own), other))
    brevity = 1.0 if length > closest else math.exp(1 - closest / length)
    return 100 * brevity * math.exp(sum(logarithms) / 4)


def test_arithmetic():
    """The score is that of the definition, and of sacreBLEU without a tokenizer, for
    one reference and two; compounds are split on both sides before.
    """
    hypotheses, references = corpus(1)
    others, near = corpus(11)[1], functools.partial(pytest.approx, rel=1e-12)
    ours = score(PLAIN, hypotheses, references).value
    theirs = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    assert ours == near(theirs.corpus_score(hypotheses, [references]).score)
    assert ours == near(slow_bleu(hypotheses, references))
    both = score(PLAIN, hypotheses, references, others).value
    assert both == near(slow_bleu(hypotheses, references, others))
    split = ([split_compounds(line) for line in side] for side in corpus(1))
    found = score(SPLIT, hypotheses, references).value
    assert found == near(slow_bleu(*split))
    assert found != pytest.approx(ours, abs=0.1)


def test_an_order_without_a_match_scores_0():
    """There is no smoothing; the compound of the second line has more words."""
    assert score(PLAIN, ["a-b c d e"], ["a-b c d f"]).value == 0
    assert score(SPLIT, ["a-b c d e"], ["a-b c d f"]).value > 0


def test_names_and_signatures_of_their_own():
    """Name and signature cannot be taken for those of sacreBLEU."""
    sentences = ["a b c d"]
    for metric, compounds in ((PLAIN, "whole"), (SPLIT, "split")):
        found = score(metric, sentences, sentences, sentences)
        assert found.name == metric.key
        assert found.signature.startswith(
            f"{metric.key}|nrefs:2|case:mixed|tok:none|compounds:{compounds}|smooth:none|"
        )
        assert found.signature != score(BLEU, sentences, sentences).signature
        assert "sacrebleu" not in found.signature


def test_words_end_at_ascii_white_space():
    """A no-break space is part of a word, as for scripts that read bytes."""
    assert score(PLAIN, ["a\u00a0b c d e"], ["a b c d e"]).value < 100
    assert score(PLAIN, ["a \t b c  d"], ["a b c d"]).value == pytest.approx(100)


def test_raw_text_is_tokenised(monkeypatch):
    """With a language Moses' tokenizer splits both sides; the signature has it."""
    seen = []

    class MosesTokenizer:
        def __init__(self, lang):
            self.lang = lang

        def tokenize(self, text, return_str=False):
            assert return_str
            seen.append(text)
            return text.replace(".", " .")

    monkeypatch.setitem(
        sys.modules, "sacremoses", SimpleNamespace(MosesTokenizer=MosesTokenizer)
    )
    metric = TokenizedBleu("de", compounds=True)
    found = score(metric, ["das Haus-Tor da."], ["das Haus-Tor da ."])
    assert found.value == pytest.approx(100)
    assert "|tok:moses-de|" in found.signature
    assert Counter(seen) == Counter(["das Haus-Tor da.", "das Haus-Tor da ."])


def test_missing_tokenizer(monkeypatch):
    """Without the package the error names the extra."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(
        InputError, match=r"needs the package sacremoses.*jaxformer\[moses\]"
    ):
        score(TokenizedBleu("de", compounds=False), ["a"], ["a"])
