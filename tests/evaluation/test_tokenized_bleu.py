"""Tokenised BLEU: compounds and n-grams are those of the papers' scripts, under a name
and signature of their own.
"""

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
    references = [
        " ".join(rng.choices(WORDS, k=rng.randint(5, 20))) for _ in range(size)
    ]
    hypotheses = [
        " ".join(w if rng.random() < 0.85 else rng.choice(WORDS) for w in r.split())
        for r in references
    ]
    return [h[: rng.randint(len(h) // 2, len(h))] for h in hypotheses], references


def slow_bleu(hypotheses, references):
    """Count as Papineni et al. (2002) write it: clipped precisions, geometric mean,
    brevity penalty.
    """
    logarithms = []
    for order in (1, 2, 3, 4):
        right = total = 0
        for hypothesis, lines in zip(hypotheses, references, strict=True):
            words = hypothesis.split()
            grams = [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]
            total += len(grams)
            for gram in set(grams):
                there = [line.split() for line in lines]
                most = max(
                    [tuple(w[i : i + order]) for i in range(len(w) - order + 1)].count(
                        gram
                    )
                    for w in there
                )
                right += min(grams.count(gram), most)
        if not right:
            return 0.0
        logarithms.append(math.log(right / total))
    length = sum(len(hypothesis.split()) for hypothesis in hypotheses)
    closest = 0
    for hypothesis, lines in zip(hypotheses, references, strict=True):
        own = len(hypothesis.split())
        closest += sorted(
            (abs(len(line.split()) - own), len(line.split())) for line in lines
        )[0][1]
    brevity = 1.0 if length > closest else math.exp(1 - closest / length)
    return 100 * brevity * math.exp(sum(logarithms) / 4)


@pytest.mark.parametrize("seed", [1, 2])
def test_arithmetic(seed):
    """The score is that of the definition, and of sacreBLEU told to leave tokens
    alone, for one reference and two.
    """
    hypotheses, references = corpus(seed)
    others = corpus(seed + 10)[1]
    ours = score(PLAIN, hypotheses, references).value
    theirs = sacrebleu.BLEU(
        tokenize="none", smooth_method="none", force=True
    ).corpus_score(hypotheses, [references])
    assert ours == pytest.approx(theirs.score, rel=1e-12)
    assert ours == pytest.approx(
        slow_bleu(hypotheses, [[line] for line in references]), rel=1e-12
    )
    both = score(PLAIN, hypotheses, references, others).value
    assert both == pytest.approx(
        slow_bleu(hypotheses, list(zip(references, others, strict=True))), rel=1e-12
    )


def test_both_sides_are_split():
    """Compound-split BLEU is BLEU of both sides after splitting; it is another score
    than without.
    """
    hypotheses, references = corpus(4)
    split = [
        [split_compounds(line) for line in lines] for lines in (hypotheses, references)
    ]
    ours = score(SPLIT, hypotheses, references).value
    assert ours == pytest.approx(
        slow_bleu(split[0], [[line] for line in split[1]]), rel=1e-12
    )
    assert ours != pytest.approx(score(PLAIN, hypotheses, references).value, abs=0.1)


def test_by_hand():
    """``a-b c d e`` for ``a-b c d f`` has 3 of 4 words, 2 of 3, 1 of 2 and no fourth
    order: 0; split it has 5 of 6.
    """
    assert score(PLAIN, ["a-b c d e"], ["a-b c d f"]).value == 0
    assert score(PLAIN, ["a-b c d e"], ["a-b c d e"]).value == pytest.approx(100)
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert score(SPLIT, ["a-b c d e"], ["a-b c d f"]).value == pytest.approx(expected)


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
    """With a language Moses' tokenizer splits both sides, and the signature names it."""
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
