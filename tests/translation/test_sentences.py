"""Paragraphs are cut where sentences end, and nowhere else."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.translation import paragraphs as sentences
from jaxformer.translation.paragraphs import ABBREVIATIONS, split_sentences

PARTS = st.sampled_from(
    [
        "Mr.",
        "z. B.",
        "A.",
        "12.",
        "3.5",
        "word",
        "Word",
        "...",
        "…",
        "!",
        "?",
        ".",
        "。",
        "」",
        '"',
        "(",
        ")",
        " ",
        "  ",
    ]
    + ["\u2028", "\t", "\u3000", "他", "e.g.", "\x00", "🙂"]
)


@given(
    text=st.lists(PARTS, max_size=40).map("".join),
    language=st.sampled_from(["", "en", "de", "ja", "xx"]),
)
def test_the_sentences_are_the_paragraph(text, language):
    """End to end, with their white space, nothing is lost or added, and none but
    that of a blank text is blank.
    """
    found = split_sentences(text, language)
    assert "".join(space + sentence for space, sentence in found) == text.strip()
    assert all(sentence.strip() == sentence for _, sentence in found)
    assert all(sentence for _, sentence in found) or (
        not text.strip() and len(found) == 1
    )
    assert not any(space.strip() for space, _ in found)
    assert found[0][0] == ""


# Sentences are separated by "|", which stands for the white space or, at its place, for
# none.
CASES = [
    ("en", "It rains.| It pours."),
    ("en", "Mr. Smith met Dr. Jones and Prof. Hill.| They talked."),
    ("en", "J. S. Bach and J. K. Rowling never met.| Pity."),
    ("en", "It costs 3.50 dollars.| That is 1,000.25 yen."),
    ("en", "See Fig. 3 and No. 5 on pp. 7 f. of it.| Done."),
    ("en", "He answered No.| She left."),
    ("en", "Use a tool, e.g. Vim or i.e. Emacs.| Both work."),
    ("en", "Bring apples, pears, etc.| Then go home."),
    ("en", '"Stop!" he cried.| "Why?" she asked.| Nobody knew.'),
    ("en", "He said: “Stop.”| Then he left.| (It was late.)| So what?"),
    ("en", "Really?!| Yes!!!| Well...| Maybe…| No."),
    ("en", "Well... perhaps not… or so. and small letters go on."),
    ("en", "1. First item.| 2. Second item."),
    ("en", "Write to a.b@example.com or see example.org/a.b now.| Thanks."),
    ("en", "Version 2.0.1 is out.| 3 people noticed."),
    ("en", "The U.S. Army and the Ph.D. student met.| Fine."),
    ("en", "One sentence without an end"),
    ("en", "A line\u2028Another line"),
    ("de", "Das gilt z. B. für Dr. Maier bzw. Frau Huber.| Aber z.B. nicht für mich."),
    ("de", "Am 3. Oktober 1990.| Dann kam der 2. Weltkrieg nicht."),
    ("de", "Im Jahr 1990.| Danach kam nichts."),
    ("de", "Ludwig XIV. Bourbon herrschte lange.| Er starb."),
    ("de", "„Halt!“, rief er.| „Warum?“| »Darum.«| Ende."),
    ("fr", "M. Dupont et Mme. Curie arrivent.| «\u00a0Bonjour\u00a0!\u00a0»| Il part."),
    ("es", "¿Qué?| ¡Nada!| El Sr. García vino.| ¿Y tú?"),
    ("zh", "你好。|我们走吧！|好吗？| 好。"),
    ("zh", "他说：“你好。”然后走了。|再见。"),
    ("ja", "「行こう。」と言った。|本当？|はい。"),
    ("ja", "円周率は3.14です。|終わり"),
    ("hi", "यह एक वाक्य है।| यह दूसरा है।"),
    ("ar", "هل أنت هنا؟| نعم."),
    ("ru", "А. С. Пушкин родился.| Он умер."),
    ("", "Am 3. Mai. B. kam."),
]


@pytest.mark.parametrize(("language", "marked"), CASES)
def test_hard_cases(language, marked):
    """Abbreviations, initials, ordinals, items, decimals, ellipses, quotes, brackets
    and other scripts.
    """
    whole = marked.replace("|", "")
    expected = [part.strip() for part in marked.split("|")]
    if "\u2028" in marked:
        expected = marked.split("\u2028")
    if language == "":
        expected = ["Am 3.", "Mai.", "B. kam."]
    assert [sentence for _, sentence in split_sentences(whole, language)] == expected


@pytest.mark.parametrize("code", ["de-AT", "de_DE", "DE"])
def test_codes_of_regions(code):
    """A code with a region means its language."""
    assert len(split_sentences("Am 3. Oktober. Heute.", code)) == 2
    assert len(split_sentences("Am 3. Oktober. Heute.", "")) == 3


@pytest.mark.parametrize("language", ABBREVIATIONS)
def test_no_sentence_ends_with_an_abbreviation(language):
    for word in ABBREVIATIONS[language]:
        assert split_sentences(f"Ab {word}. Cd.", language) == [("", f"Ab {word}. Cd.")]


def test_a_long_paragraph_is_cut_everywhere():
    """What is found does not depend on what stands far before it."""
    found = split_sentences("Mr. Hill came. " * 20_000, "en")
    assert found[1:] == [(" ", "Mr. Hill came.")] * 19_999


@pytest.mark.parametrize(
    "unit", [".", " ", '."', "1. ", "!? ", "。", "\u2028", ". (", "a ", ".\u00a0»"]
)
def test_odd_paragraphs_take_no_longer(unit):
    """Whatever a line repeats, its length decides how long it takes, not the square
    of it.
    """
    text = f"a{unit * 100_000}b"
    assert (
        "".join(space + sentence for space, sentence in split_sentences(text, "de"))
        == text
    )


def test_the_examples_run():
    assert doctest.testmod(sentences).attempted
    assert not doctest.testmod(sentences).failed
