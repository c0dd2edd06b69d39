"""A text becomes sentences, searches, and a text again."""

import dataclasses
import itertools

import pytest
from serving.asgi import translate
from serving.fake_engine import FakeEngine

from jaxformer.serving.programs import PLAIN, TERMS
from jaxformer.serving.texts import Query, best_rows
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.text.glossary import Glossary

PARTS = ["a b c d e f g h", "i j k l m n o p", "q"]  # of at most eight words
LONG = " ".join(PARTS)
HTML = '<p id="1">One <b>two</b>.</p>\n<code>x</code> <i>Three</i>'
CAPITALS = '<p id="1">ONE <b>TWO</b>.</p>\n<code>x</code> <i>THREE</i>'
# The text, its alternatives, unmet phrases, and number of sentences.
TEXTS = {
    "a prefix is of the first sentence": (
        Query("One two. Three.", prefix="EIN"),
        ("EIN TWO. THREE.", [], [], 2),
    ),
    "phrases that are missing are named": (
        Query("one", required=("EINS", "impossible")),
        ("ONE EINS", [], ["impossible"], 1),
    ),
    "phrases are not required of each text between placeholders": (
        Query("forget {name} now", required=("ja",)),
        ("FORGET {name} NOW", [], ["ja"], 1),
    ),
    "HTML keeps its tags": (Query(HTML, format="html"), (CAPITALS, [], [], 2)),
    "a long sentence is joined from its parts": (
        Query(LONG, n_best=2),
        (LONG.upper(), ["! ".join([*PARTS, ""]).upper().strip()], [], 1),
    ),
    "a sentence without tokens stays empty": (
        Query("One.\nnothing\nTwo."),
        ("ONE.\n\nTWO.", [], [], 3),
    ),
    "a rank costs a sentence as much as it has words": (
        Query("One two. Three.", n_best=2),
        ("ONE TWO. THREE.", ["ONE TWO. THREE.!"], [], 2),
    ),
    **{
        f"{text!r} has no words": (Query(text, n_best=2), (text, [], [], 0))
        for text in ("", " \n ", "***", "🙂")
    },
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_becomes_a_translation(name):
    query, expected = TEXTS[name]
    (done,) = translate(query)
    found = done.text, done.alternatives, done.unmet, len(done.sentences)
    assert found == expected


def test_a_text_keeps_its_layout():
    (done,) = translate(Query("  One two. Three?\r\n\r\n- four"))
    assert done.text == "  ONE TWO. THREE?\r\n\r\n- FOUR"
    assert [each.source for each in done.sentences] == ["One two.", "Three?", "- four"]
    assert [each.span for each in done.sentences] == [(2, 10), (11, 17), (21, 27)]
    assert (done.alternatives, done.unmet, done.source) == ([], [], "en")


def test_texts_of_html_in_a_request_give_what_each_gives_alone():
    """Also broken ones, and those with the same objects and placeholders."""
    texts = [
        "<p>One <b>two</p>",
        "</b> {x} <code>y</code>",
        "<i>{x}</i> <code>z</code>",
    ]
    queries = [Query(text, format="html") for text in texts]
    alone = [translate(query)[0].text for query in queries]
    assert [done.text for done in translate(*queries)] == alone
    assert alone[1:] == texts[1:]


def test_terms_of_a_glossary_are_required_or_named():
    glossary = Glossary({"one": "EINS", "two": "impossible", "six": "unwritable"})
    engine = FakeEngine()
    query = Query("One two. Three. Six.")
    (done,) = translate(query, engine=engine, glossary=glossary)
    assert done.text == "ONE TWO. EINS THREE. SIX."
    assert done.unmet == ["impossible", "unwritable"]
    assert {kind for kind, _ in engine.batches} == {TERMS, PLAIN}


def test_a_text_is_translated_around_placeholders_that_a_model_forgets():
    engine, told = FakeEngine(), []
    (done,) = translate(
        Query("forget {name} now. Done."),
        engine=engine,
        sentence=lambda text, index, own: told.append(own.hypotheses[0].text),
    )
    assert done.text == "FORGET {name} NOW. DONE."
    assert told == ["DONE.", "FORGET {name} NOW."]
    assert engine.batches[2:] == [(PLAIN, ["forget", "now."])]


class RepeatingEngine(FakeEngine):
    """Its second translation has the text of the first."""

    def _hypothesis(self, words, made, rank, is_aligned):
        found = super()._hypothesis(words, made, rank, is_aligned)
        return dataclasses.replace(found, text=found.text.removesuffix("!"))


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        (Query("one", n_best=2), ["ONE", "ONE!"]),
        (Query("one", n_best=3), ["ONE", "ONE!"]),
        (Query("<b>one</b>", format="html", n_best=2), ["<b>ONE</b>", "<b>ONE</b>!"]),
    ],
)
def test_no_text_is_an_alternative_twice(query, texts):
    """The next one of the beam takes its place."""
    (done,) = translate(query, engine=RepeatingEngine())
    assert [done.text, *done.alternatives] == texts
    found = [each.text for each in done.sentences[0].hypotheses]
    assert found == ["ONE", "ONE!"]


def test_sentences_of_html_show_what_was_copied():
    query = Query("<p>One <code>a b</code>. Two.</p>", format="html")
    (done,) = translate(query)
    assert [own.source for own in done.sentences] == ["One <code>a b</code>.", "Two."]
    assert done.sentences[0].hypotheses[0].text == "ONE <code>a b</code>."


def test_the_best_rows_are_those_of_all_combinations():
    choices = [
        [Hypothesis(f"{s}", s, s, [], finished=True) for s in own]
        for own in ([-1.0, -1.5, -4.0], [-2.0, -2.25], [0.0, -0.5, -0.625])
    ]
    rows = best_rows(choices, 5)
    sums = sorted(-sum(h.score for h in row) for row in itertools.product(*choices))
    assert [-sum(each.score for each in row) for row in rows] == sums[:5]
