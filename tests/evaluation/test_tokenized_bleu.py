"""The papers' own BLEU: compounds split and n-grams counted as by their scripts,
never under sacreBLEU's name.
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
from jaxformer.evaluation.metrics import bleu
from jaxformer.evaluation.tokenized_bleu import (
    compound_split_bleu,
    split_compounds,
    tokenized_bleu,
)

WORDS = ["a", "b", "c", "Ost-West-Achse", "x-y", "-", "ü-ß", ",", "der", "die"]


@pytest.fixture(autouse=True)
def _forget_tokenizers():
    yield
    module._tokenizer.cache_clear()


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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_arithmetic(seed):
    """The score is that of the definition, and of sacreBLEU told to leave tokens
    alone, for one reference and two.
    """
    hypotheses, references = corpus(seed)
    others = corpus(seed + 10)[1]
    ours = tokenized_bleu(hypotheses, references).value
    theirs = sacrebleu.BLEU(
        tokenize="none", smooth_method="none", force=True
    ).corpus_score(hypotheses, [references])
    assert ours == pytest.approx(theirs.score, rel=1e-12)
    assert ours == pytest.approx(
        slow_bleu(hypotheses, [[line] for line in references]), rel=1e-12
    )
    both = tokenized_bleu(hypotheses, references, others).value
    assert both == pytest.approx(
        slow_bleu(hypotheses, list(zip(references, others, strict=True))), rel=1e-12
    )


@pytest.mark.parametrize("seed", [4, 5])
def test_both_sides_are_split(seed):
    """Compound-split BLEU is BLEU of both sides after splitting; it is another score
    than without.
    """
    hypotheses, references = corpus(seed)
    split = [
        [split_compounds(line) for line in lines] for lines in (hypotheses, references)
    ]
    ours = compound_split_bleu(hypotheses, references).value
    assert ours == pytest.approx(
        slow_bleu(split[0], [[line] for line in split[1]]), rel=1e-12
    )
    assert ours != pytest.approx(tokenized_bleu(hypotheses, references).value, abs=0.1)


def test_by_hand():
    """``a-b c d e`` for ``a-b c d f`` has 3 of 4 words, 2 of 3, 1 of 2 and no fourth
    order: 0; split it has 5 of 6.
    """
    assert tokenized_bleu(["a-b c d e"], ["a-b c d f"]).value == 0
    assert tokenized_bleu(["a-b c d e"], ["a-b c d e"]).value == pytest.approx(100)
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert compound_split_bleu(["a-b c d e"], ["a-b c d f"]).value == pytest.approx(
        expected
    )


def test_names_and_signatures_of_their_own():
    """Nothing of it can be taken for a sacreBLEU score."""
    sentences = ["a b c d"]
    for score, compounds in ((tokenized_bleu, "whole"), (compound_split_bleu, "split")):
        found = score(sentences, sentences, sentences)
        assert found.name == score.__name__
        assert found.signature.startswith(
            f"{score.__name__}|nrefs:2|case:mixed|tok:none|compounds:{compounds}|smooth:none|"
        )
        assert found.signature != bleu(sentences, sentences, sentences).signature
        assert "sacrebleu" not in found.signature


def test_white_space_is_that_of_the_scripts():
    """Words end at ASCII white space alone: a no-break space is within one, as for
    scripts that read bytes.
    """
    assert tokenized_bleu(["a\u00a0b c d e"], ["a b c d e"]).value < 100
    assert tokenized_bleu(["a \t b c  d"], ["a b c d"]).value == pytest.approx(100)


def test_raw_text_is_tokenised(monkeypatch):
    """With a language both sides go through Moses' tokenizer for it, and the
    signature says so.
    """
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
    found = compound_split_bleu(
        ["das Haus-Tor da."], ["das Haus-Tor da ."], language="de"
    )
    assert found.value == pytest.approx(100)
    assert "|tok:moses-de|" in found.signature
    assert Counter(seen) == Counter(["das Haus-Tor da.", "das Haus-Tor da ."])


def test_missing_tokenizer(monkeypatch):
    """Without the package the error names the extra."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(
        InputError, match=r"needs the package sacremoses.*jaxformer\[moses\]"
    ):
        tokenized_bleu(["a"], ["a"], language="de")


@pytest.mark.parametrize("score", [tokenized_bleu, compound_split_bleu])
def test_what_is_no_list_of_sentences(score):
    """The same is refused as for every score."""
    with pytest.raises(InputError, match="one flat list"):
        score(["a"], [["a"]])
    with pytest.raises(InputError, match="1 hypotheses and 2 references"):
        score(["a"], ["a", "b"])
    assert score(["", ""], ["a b", "c"]).value == 0
