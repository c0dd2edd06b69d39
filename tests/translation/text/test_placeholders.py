"""Placeholders of programs are restored in any output of a model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.translation.results import Alignment, Hypothesis
from jaxformer.translation.text.layout import Layout
from jaxformer.translation.text.placeholders import hide

PLACEHOLDERS = ["{name}", "%.2f", '<x id="1"/>', "&nbsp;", "me@example.org", "\ue000"]


def translation(text, *, source=None, words=None):
    """Make a translation; with a source, aligned word for word."""
    alignment = None
    if source is not None:
        count = len(source.split())
        numbers = list(range(count))
        weights = np.eye(count, dtype=np.float32)
        alignment = Alignment(source.split(), weights, numbers, words or numbers)
    tokens = text.split()
    values = [-2.0 / len(tokens) for _ in tokens]
    return Hypothesis(text, -1.0, -2.0, tokens, True, alignment, values)


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
@pytest.mark.parametrize("around", ["Delete {} now", "{}: done.", "Is it ({})?", "{}"])
def test_a_placeholder_is_hidden_and_restored(placeholder, around):
    """In any surroundings, and as the only text."""
    text = around.replace("{}", placeholder)
    hidden = hide(text)
    assert hidden.text == around.replace("{}", "F1")
    assert hidden.restore([translation("Jetzt F1.")])[0].text == f"Jetzt {placeholder}."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Great 🎉 news ❤️.", "Great F1 news F2."),
        ("👩🏽‍💻🇺🇦 and 1️⃣", "F1 and F2"),
        ("a → b ≥ c ☐", "a F1 b F2 c F3"),
        ("© LibreOffice ½ • №", "F1 LibreOffice F2 F3 F4"),
        ("Press 1 – or *", None),
    ],
)
def test_symbols_that_a_model_cannot_write_are_hidden(text, shown):
    """Each sequence of joined characters is one; others stay."""
    hidden = hide(text, lambda symbols: False)
    assert (hidden and hidden.text) == shown
    assert hide(text, lambda symbols: True) is None


@pytest.mark.parametrize(
    "text", ["Nichts", "F1 und F1", "F11", "TextF1", "F1s", "f1", ""]
)
def test_a_translation_without_the_mark_once_is_not_used(text):
    assert hide("Delete {name}").restore([translation(text)]) == []


@pytest.mark.parametrize(
    ("text", "other", "is_kept"),
    [
        ("See {x} for it.", "Siehe1 F1 dafür.", False),
        ("See {x} for it.", "FSiehe F1 dafür.", False),
        ("See {x} for it.", "СмF1 F1.", False),
        ("See {x} for it.", "FAHR ZU F1, FAQ und PDF.", True),
        ("Cells {x} 5 and rows", "Zellen F1 und Zeilen", False),
        ("Cells {x} 5 and rows", "Zellen F1 ٥ und Zeilen", True),
        ("Pay 1,250.00 for {x}", "Zahle 1.250,00 für F1", True),
        ("F1 or {x}", "F2 oder F1", True),
        ("F1 or {x}", "F2 oder F", False),
        ("<b>{x}</b> 7", "F1F2F3 7", False),
    ],
)
def test_a_translation_with_a_part_of_a_mark_is_not_used(text, other, is_kept):
    """It has the digits of the text, and no letter of a mark more than the text."""
    assert bool(hide(text).restore([translation(other)])) == is_kept


def test_digits_of_given_phrases_may_be_added():
    found = [translation("Tabelle 2 mit F1"), translation("Tabelle 3 mit F1")]
    kept = hide("Sheet with {x}").restore(found, ["Tabelle 2"])
    assert [each.text for each in kept] == ["Tabelle 2 mit {x}"]


def test_fragments_end_with_their_vowel_signs():
    """In Indic scripts they are no letters."""
    hidden = hide("कृपया {name} देखी: ขอ{n}ครู่")
    assert hidden.fragments == ["कृपया", "देखी: ขอ", "ครู่"]


@pytest.mark.parametrize(
    ("text", "other", "kept"),
    [
        ("Open <b>{x}</b> now", "F2 F1 F3", "{x} <b> </b>"),
        ("Open <b>it</b> now", "F2 F1", None),
        ('Open <b id="1">it</b> now', "F1 F2", '<b id="1"> </b>'),
        ('<x id="1"/> and <x id="2"/>', "F2 F1", '<x id="2"/> <x id="1"/>'),
    ],
)
def test_tags_keep_their_order(text, other, kept):
    """An element's end is not before its start; one tag alone may move."""
    found = hide(text).restore([translation(other)])
    assert [each.text for each in found] == ([kept] if kept else [])


def test_a_mark_is_not_a_word_of_the_text():
    assert hide("F1 and {x} and {y}").text == "F1 and F2 and F3"
    assert hide("F2: {x}, {y}, {z}").text == "F2: F1, F3, F4"
    assert hide("F12 and {x}").text == "F12 and F1"
    assert hide("F1 F2 F3 F4 F5 {x} {y} {z} {a}").marks == []


def test_a_mark_may_be_next_to_letters_of_a_script_without_spaces():
    assert hide("删除{x}文件").restore([translation("削除F1。")])[0].text == "削除{x}。"


def test_too_many_placeholders_are_not_hidden():
    hidden = hide("a {1} b {2} c {3} d {4} e {5}")
    assert (hidden.text, hidden.marks) == ("", [])
    assert hidden.fragments == ["a", "b", "c", "d", "e"]


def test_fragments_are_joined_with_the_white_space_of_the_text():
    hidden = hide("Delete  {file} ({n}), and go?")
    assert hidden.fragments == ["Delete", "and go?"]
    (joined,) = hidden.join([[translation("Lösche")], [translation("und geh? ")]])
    assert joined.text == "Lösche  {file} ({n}), und geh?"
    assert joined.score == -2
    assert joined.log_probability == -4
    assert sum(joined.token_log_probabilities) == -4
    assert len(joined.token_log_probabilities) == len(joined.tokens)


def test_words_of_fragments_and_placeholders_are_aligned():
    hidden = hide("the file ({{ a b }}) here")
    found = [
        [translation("die Datei", source="the file")],
        [translation("hier", source="here")],
    ]
    (joined,) = hidden.join(found)
    assert joined.text == "die Datei ({{ a b }}) hier"
    links = joined.alignment.word_links()
    assert links == [(number, number) for number in range(7)]
    assert joined.alignment.weights.shape == (len(joined.tokens), 9)


def test_words_of_a_restored_placeholder_are_counted():
    hidden = hide("see {{ a b }} now")
    source = translation("nun F1 sehen", source="see F1 now", words=[2, 1, 0])
    (restored,) = hidden.restore([source])
    assert restored.text == "nun {{ a b }} sehen"
    assert restored.alignment.source_words == [0, 1, 5]
    assert restored.alignment.target_words == [5, 1, 0]


def test_the_beginning_of_a_translation_gets_the_marks():
    assert hide("Delete {x} and {y}").hide("{y} und {x}") == "F2 und F1"


TEXTS = st.lists(
    st.one_of(st.sampled_from(PLACEHOLDERS), st.sampled_from(["one", "two.", "("]))
).map(" ".join)


MARKED = st.lists(st.sampled_from(["F1", "F2", "(F3)", "F4.", "é", "F"]), max_size=6)


@given(TEXTS, MARKED.map(" ".join))
@settings(deadline=None)
def test_every_placeholder_survives_any_translation(text, other):
    hidden = hide(text)
    if hidden is None:
        return
    found = hidden.restore([translation(other)]) if hidden.marks else []
    found += hidden.join([[translation(other)] for _ in hidden.fragments])
    for each in found:
        for placeholder in PLACEHOLDERS:
            assert each.text.count(placeholder) >= text.count(placeholder)
    same = [[translation(fragment)] for fragment in hidden.fragments]
    assert hidden.join(same)[0].text == text


# A time that grows with the square of the length would take minutes.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        *[
            "a",
            "{",
            "%1",
            "www.",
            "http://.",
            "a@",
            "{{",
            "%(a",
            "http://(a",
            "a@b.-",
            "🎉",
            "http://a(b)",
            "1️",
        ],
        *["<a", "{%", "%L", "#", "<a=", "{a,plural,b{", "}b{", "{}"],
    ],
)
def test_long_texts_take_no_more_than_their_length(text):
    for start in ("", "%", "%1$", "%(a)", "%.", "{", "<a"):
        hide(start + text * 30_000)
        hide(start + "0" * 30_000)
        hide(start + " " * 30_000)
    Layout(text * 30_000, "")
