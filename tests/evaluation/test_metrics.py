"""Scores are those of sacreBLEU, and input that would be misread is refused."""

import math
import re
import unicodedata

import numpy as np
import pytest
import sacrebleu
from evaluation.damaged import draw

from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import (
    BLEU,
    CHRF,
    CHRF_PLUS_PLUS,
    TER,
    score,
    tokenizing_bleu,
)
from jaxformer.evaluation.statistics import Score
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu

TEXT = (
    "Das Haus , die Tür und ein Fenster sind heute sehr alt ; es regnet nicht immer ."
    ' (klein) 3,5 % „neu“ - a-b (x "y" z. ."'
)
WORDS = TEXT.split()
THEIRS = {
    BLEU: sacrebleu.BLEU(),
    CHRF: sacrebleu.CHRF(),
    CHRF_PLUS_PLUS: sacrebleu.CHRF(word_order=2),
    TER: sacrebleu.TER(),
}


def corpus(seed, size):
    """Draw hypotheses and references; one hypothesis is empty, others are short."""
    (system,), references = draw(seed, WORDS, 0.2, size=size)
    return ["", *(line[:90] for line in system[1:])], references


@pytest.mark.parametrize("metric", THEIRS, ids=lambda metric: metric.key)
def test_scores_equal_sacrebleus(metric):
    """Score, name and signature are sacreBLEU's to the last bit, with one reference
    and with three.
    """
    hypotheses, references = corpus(1, 12 if metric is TER else 40)
    others = (
        [" ".join(reversed(line.split())) for line in references],
        [line[: len(line) // 2] for line in references],
    )
    values = []
    for lists in ([references], [references, *others]):
        ours = score(metric, hypotheses, *lists)
        theirs = THEIRS[metric].corpus_score(hypotheses, lists)
        signature = THEIRS[metric].get_signature().format()
        assert ours == Score(theirs.name, theirs.score, signature)
        assert 5 < ours.value < 95
        assert ours.signature.startswith(f"nrefs:{len(lists)}|")
        values.append(ours.value)
    assert values[0] != values[1]


@pytest.mark.parametrize("metric", THEIRS, ids=lambda metric: metric.key)
def test_counts_of_parts_can_be_joined(metric):
    """Rows of parts are the rows of the whole."""
    hypotheses, references = corpus(3, 20)
    cuts = (slice(0, 5), slice(5, None))
    parts = [metric.statistics(hypotheses[cut], references[cut]) for cut in cuts]
    joined = np.concatenate([part.rows for part in parts])
    whole = metric.statistics(hypotheses, references)
    np.testing.assert_array_equal(joined, whole.rows)


def test_scores_by_hand():
    """BLEU is the geometric mean of precisions times the brevity penalty; case and
    the width of digits count. A moved phrase is one edit.
    """
    reference = ["the cat sat on the mat"]
    # 5/6, 3/5, 2/4 and 1/3 of the n-grams match; no brevity penalty
    found = score(BLEU, ["the cat sat on a mat"], reference).value
    assert found == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # all n-grams match; brevity penalty of 4 words for 6
    found = score(BLEU, ["the cat sat on"], reference).value
    assert found == pytest.approx(100 * math.exp(1 - 6 / 4))
    raw = "Die Fläche ist \uff12 Meter lang."
    for changed in (raw.lower(), unicodedata.normalize("NFKC", raw)):
        assert score(BLEU, [changed], [raw]).value < 100
    found = score(TER, ["on the mat the cat sat"], reference).value
    assert found == pytest.approx(100 / 6)
    for metric, given, wanted, value in (
        (TER, [""], [""], 0),
        (TER, ["a"], [""], 100),
        (BLEU, ["", ""], ["a b", "c"], 0),
        (CHRF, ["", ""], ["a b", "c"], 0),
    ):
        assert score(metric, given, wanted).value == value


METRICS = [*THEIRS, TokenizedBleu(None, compounds=False), tokenizing_bleu("zh")]


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], [["a", "b"], ["a"]], "2 hypotheses and 1 references"),
        (["a"], [["a"], [("b",)]], "references must be one flat list of strings, but"),
        ("abc", [["a", "b", "c"]], "hypotheses must be a list of sentences, not one"),
        ([], [[]], "hypotheses must hold at least one sentence"),
        (["a", 7], [["a", "b"]], "of strings, but item 2 is of type int"),
        (["a", "b\nc"], [["a", "b"]], "hypotheses must be one line each, but item 2"),
    ],
)
def test_what_is_no_list_of_sentences(hypotheses, references, message):
    """Every metric refuses unequal counts, wrongly nested lists and other items in one
    line.
    """
    for metric in METRICS:
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            score(metric, hypotheses, *references)
        assert "\n" not in str(caught.value)
