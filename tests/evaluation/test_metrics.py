"""The scores are those of sacreBLEU, and what would make them wrong without a word
is refused.
"""

import json
import math
import random
import re
import subprocess
import sys
import unicodedata

import pytest
import sacrebleu

from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import bleu, chrf, chrf_plus_plus, ter
from jaxformer.evaluation.statistics import Score

TEXT = (
    "Das Haus , die Tür und ein Fenster sind heute sehr alt ; es regnet nicht immer ."
    " (klein) 3,5 % „neu“ - a-b"
)
WORDS = TEXT.split()


def corpus(seed, size=60):
    """Draw references of words and hypotheses that keep most of them; a few
    hypotheses are empty.
    """
    rng = random.Random(seed)
    references = [
        " ".join(rng.choices(WORDS, k=rng.randint(1, 25))) for _ in range(size)
    ]
    hypotheses = []
    for reference in references:
        words = [
            word if rng.random() < 0.8 else rng.choice(WORDS)
            for word in reference.split()
        ]
        hypotheses.append(
            "" if rng.random() < 0.05 else " ".join(words[: rng.randint(1, 30)])
        )
    return hypotheses, references


OPTIONS = {
    bleu: ["--metrics=bleu"],
    chrf: ["--metrics=chrf"],
    chrf_plus_plus: ["--metrics=chrf", "--chrf-word-order=2"],
    ter: ["--metrics=ter"],
}
ALL = list(OPTIONS)


def command_line(tmp_path, score, hypotheses, *references):
    """Score written files by sacreBLEU's own command."""
    files = {"hypotheses": hypotheses} | {
        f"references{place}": lines for place, lines in enumerate(references)
    }
    for name, lines in files.items():
        (tmp_path / name).write_text(
            "".join(line + "\n" for line in lines), encoding="utf-8"
        )
    names = [name for name in files if name != "hypotheses"]
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *names,
        "--input=hypotheses",
        "--width=10",
        *OPTIONS[score],
    ]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize("seed", [1, 2])
def test_equals_the_sacrebleu_command(tmp_path, score, seed):
    """A score equals that of the sacreBLEU command on the written files, signature
    and all.
    """
    hypotheses, references = corpus(seed)
    ours = score(hypotheses, references)
    theirs = command_line(tmp_path, score, hypotheses, references)
    assert ours.value == pytest.approx(theirs["score"], abs=1e-9)
    assert 5 < ours.value < 95
    assert ours.name == theirs["name"]
    assert ours.signature == theirs["signature"]


@pytest.mark.parametrize("score", ALL)
def test_several_references(tmp_path, score):
    """With several references a score equals that of the sacreBLEU command, and the
    signature counts them.
    """
    hypotheses, references = corpus(5)
    others = (
        [" ".join(reversed(line.split())) for line in references],
        [line[: len(line) // 2] for line in references],
    )
    ours = score(hypotheses, references, *others)
    theirs = command_line(tmp_path, score, hypotheses, references, *others)
    assert ours.value == pytest.approx(theirs["score"], abs=1e-9)
    assert ours.signature == theirs["signature"]
    assert ours.signature.startswith("nrefs:3|")
    better = score(hypotheses, references).value
    assert ours.value != better


def test_signature_of_bleu():
    """The signature carries references, case, tokenizer, smoothing and version."""
    signature = bleu(["a b c d"], ["a b c d"]).signature
    assert (
        signature
        == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )


def test_signature_of_chrf():
    """The signature carries the orders of characters and words."""
    signature = chrf(["a b c d"], ["a b c d"]).signature
    assert (
        signature
        == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    )


def test_signatures_of_the_others():
    """chrF++ names its orders of words, TER its normalisation."""
    version = f"version:{sacrebleu.__version__}"
    assert (
        chrf_plus_plus(["a"], ["a"]).signature
        == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:2|space:no|{version}"
    )
    assert (
        ter(["a"], ["a"]).signature
        == f"nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|{version}"
    )


def test_edits_by_hand():
    """TER counts a changed, a missing, an added word and a phrase that moved as one
    edit each, for a hundred words.
    """
    reference = ["one two three four five six seven eight"]
    for hypothesis, edits in (
        ("one two three four five six seven eight", 0),
        ("one two three four five six seven nine", 1),
        ("one two three four five six seven", 1),
        ("one two three four and five six seven eight", 1),
        ("five six seven eight one two three four", 1),
        ("", 8),
    ):
        assert ter([hypothesis], reference).value == pytest.approx(100 * edits / 8), (
            hypothesis
        )


def test_values_by_hand():
    """BLEU is the geometric mean of the precisions times the brevity penalty, on
    sentences counted by hand.

    ``the cat sat on a mat`` against ``the cat sat on the mat``: 5/6, 3/5, 2/4 and 1/3
    of the n-grams match, and the brevity penalty is 1; without the last two words 4/4,
    3/3, 2/2 and 1/1 match, and it is exp(1 - 6/4).
    """
    reference = ["the cat sat on the mat"]
    precisions = 5 / 6 * 3 / 5 * 2 / 4 * 1 / 3
    assert bleu(["the cat sat on a mat"], reference).value == pytest.approx(
        100 * precisions**0.25
    )
    assert bleu(["the cat sat on"], reference).value == pytest.approx(
        100 * math.exp(1 - 6 / 4)
    )
    assert bleu(reference, reference).value == pytest.approx(100)
    assert chrf(reference, reference) == Score(
        "chrF2", 100.0, chrf(reference, reference).signature
    )


def test_smoothing_by_hand():
    """Exponential smoothing halves the precision once more for each order without a
    match.

    ``a b x y`` against ``a b c d``: 2/4, 1/3, then 1/(2*2) and 1/(4*1).
    """
    assert bleu(["a b x y"], ["a b c d"]).value == pytest.approx(
        100 * (2 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25
    )


def test_case_and_punctuation_count():
    """BLEU is cased, and 13a splits punctuation from words."""
    assert bleu(["The old house is here."], ["the old house is here."]).value < 100
    assert bleu(
        ["the old house is here ."], ["the old house is here."]
    ).value == pytest.approx(100)


def test_raw_references_count_as_they_are():
    """A normalised reference scores differently, so that raw text it must be."""
    # the digit two, full width, which NFKC makes an ordinary one
    raw = "Die Fläche ist \uff12 Meter lang."
    assert bleu([unicodedata.normalize("NFKC", raw)], [raw]).value < 100


@pytest.mark.parametrize("score", [bleu, chrf])
def test_order_of_sentences_matters(score):
    """Hypotheses are compared line by line with the references."""
    hypotheses, references = corpus(3)
    assert (
        score(hypotheses[::-1], references).value < score(hypotheses, references).value
    )
    together = score(hypotheses[::-1], references[::-1]).value
    assert together == pytest.approx(score(hypotheses, references).value)


@pytest.mark.parametrize("score", [bleu, chrf])
def test_empty_hypotheses_are_scored(score):
    """An empty hypothesis is a bad translation, not an error, even when all are
    empty.
    """
    hypotheses, references = corpus(4)
    assert (
        score(["", *hypotheses[1:]], references).value
        < score([references[0], *hypotheses[1:]], references).value
    )
    assert score(["", ""], ["a b", "c"]).value == 0


@pytest.mark.parametrize("score", ALL)
def test_unequal_counts(score):
    """Unequal counts are refused, and both are named."""
    with pytest.raises(InputError, match=r"2 hypotheses and 3 references"):
        score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(InputError, match=r"3 hypotheses and 2 references"):
        score(["a", "b", "c"], ["a", "b"])


@pytest.mark.parametrize("score", ALL)
def test_further_references_are_checked_too(score):
    """Each reference translation is one flat list of its own, as long as the others."""
    with pytest.raises(InputError, match="2 hypotheses and 1 references"):
        score(["a", "b"], ["a", "b"], ["a"])
    with pytest.raises(
        InputError,
        match="references must be one flat list of strings, but item 1 is a list",
    ):
        score(["a", "b"], ["a", "b"], [["a"], ["b"]])
    with pytest.raises(InputError, match="at least one reference"):
        score(["a", "b"])


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (
            ["a", "b"],
            [["a", "b"]],
            "references must be one flat list of strings, but item 1 is a list",
        ),
        (["a", "b"], [["a"], ["b"]], "references must be one flat list"),
        (
            ["a"],
            ["a", ("b",)],
            "references must be one flat list of strings, but item 2",
        ),
        (["a"], "a", "references must be a list of sentences, not one string"),
        (
            "abc",
            ["a", "b", "c"],
            "hypotheses must be a list of sentences, not one string",
        ),
        ([["a"]], ["a"], "hypotheses must be one flat list"),
        ([], [], "hypotheses must hold at least one sentence"),
        (["a"], [], "references must hold at least one sentence"),
        (["a", 7], ["a", "b"], "hypotheses must be strings, but item 2 is of type int"),
        (["a"], [None], "references must be strings, but item 1 is of type NoneType"),
        (
            ["a", "b\nc"],
            ["a", "b"],
            "hypotheses must be one line each, but item 2 holds a line break",
        ),
        (["a"], ["a\n"], "references must be one line each"),
    ],
)
def test_what_is_no_list_of_sentences(score, hypotheses, references, message):
    """Mis-nested lists, which sacreBLEU would score, and other things that are no
    sentences.
    """
    with pytest.raises(InputError, match=f"^{re.escape(message)}") as caught:
        score(hypotheses, references)
    assert "\n" not in str(caught.value)
