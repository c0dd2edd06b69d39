"""A text becomes sentences, searches, and a text again, whatever the model is."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from jaxformer.errors import InputError, LineError
from jaxformer.translation.results import Alignment, Hypothesis
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import Query, Text, best_rows

CASES = Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()
PARTS = ["a b c d e f g h", "i j k l m n o p", "q"]  # of at most eight words
LONG = " ".join(PARTS)


class Asked(NamedTuple):
    width: int
    words: list[str]
    prefix: str
    required: list[str]
    n_best: int


class Capitals:
    """A model that writes capitals, and what is required at the end."""

    languages = "en", "de"

    def __init__(self, rank="!"):
        self.rank, self.seen = rank, []

    def writes(self, text):
        return "🎉" not in text

    def encode(self, text, *, prefix, required, n_best, aligned, place):
        if "unwritable" in required:
            raise LineError("", kind="required", number=1, fault="has no tokens")
        self.seen.append(text)
        words = [word for word in text.split() if word != "nothing"]
        runs = [words[start : start + 8] for start in range(0, len(words), 8)]
        return [Asked(len(run), run, prefix, required, n_best) for run in runs]

    def search(self, asked):
        made, begin = [word.upper() for word in asked.words], asked.prefix.split()
        made, required = [*begin, *made[len(begin) :]], asked.required
        if "forget" in asked.words:
            made, required = [word for word in made if word.strip(".") != "F1"], []
        seen = {"impossible", *made}
        made += [word for word in required if word not in seen]
        numbers, words = [*range(len(made))], [*range(len(asked.words))]
        weights = np.eye(len(made), len(words), dtype=np.float32)
        alignment = Alignment(asked.words, weights, words, numbers)
        return [
            Hypothesis(
                " ".join(made) + self.rank * rank,
                score := -1.0 * (1 + rank) * len(made),
                score,
                made,
                finished=True,
                alignment=alignment,
            )
            for rank in range(asked.n_best)
        ]

    def join(self, encoded, parts):
        return [
            dataclasses.replace(row[0], text=" ".join(each.text for each in row))
            for row in zip(*parts, strict=True)
        ]


def translate(query, engine=None, glossary=None):
    engine = engine or Capitals()
    text = Text(query, engine, glossary)
    text.encode()
    results = []
    for segment in text.segments:
        while True:
            found = [[engine.search(each) for each in unit] for unit in segment.units]
            if (result := text.complete(segment, found)) is not None:
                break
            text.encode_fragments(segment)
        results.append(result)
    return text.finish(results)


@pytest.mark.parametrize("case", [json.loads(line) for line in CASES])
def test_what_is_kept_is_hidden_from_the_model(case):
    """All else is translated, into capitals."""
    expected, rest = "", case["text"]
    for part in case["kept"]:
        before, rest = rest.split(part, 1)
        expected += before.upper() + part
    engine, how = Capitals(), (case.get("format", "text"), case.get("tags", {}))
    query = Query(case["text"], format=how[0], tags=how[1])
    assert translate(query, engine).text == expected + rest.upper()
    seen = " ".join(engine.seen)
    assert not [part for part in case.get("hidden", case["kept"]) if part in seen]


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
    "an alternative in other tags is another one": (
        Query("<b>one</b>", format="html", n_best=2),
        ("<b>ONE</b>", ["<b>ONE</b>!"], [], 1),
    ),
    "a text without words stays": (Query(" \n***", n_best=2), (" \n***", [], [], 0)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_becomes_a_translation(name):
    query, expected = TEXTS[name]
    done = translate(query)
    found = done.text, done.alternatives, done.unmet, len(done.sentences)
    assert found == expected
    assert [each.text for each in done.hypotheses] == [done.text, *done.alternatives]


def test_a_text_keeps_its_layout():
    done = translate(Query("  One two. Three?\r\n\r\n- four"))
    assert done.text == "  ONE TWO. THREE?\r\n\r\n- FOUR"
    assert [each.source for each in done.sentences] == ["One two.", "Three?", "- four"]
    assert [each.span for each in done.sentences] == [(2, 10), (11, 17), (21, 27)]


def test_terms_of_a_glossary_are_required_or_named():
    glossary = Glossary({"one": "EINS", "two": "impossible", "six": "unwritable"})
    done = translate(Query("One two. Three. Six."), glossary=glossary)
    assert done.text == "ONE TWO. EINS THREE. SIX."
    assert done.unmet == ["impossible", "unwritable"]


def test_a_text_is_translated_around_placeholders_that_a_model_forgets():
    engine = Capitals()
    done = translate(Query("forget {name} now. Done."), engine)
    assert done.text == "FORGET {name} NOW. DONE."
    assert engine.seen[2:] == ["forget", "now."]


def test_no_text_is_an_alternative_twice():
    done = translate(Query("one", n_best=3), Capitals(rank=""))
    assert ([done.text], done.alternatives) == (["ONE"], [])


def test_required_phrases_are_of_one_sentence():
    with pytest.raises(InputError, match="need a text of one sentence"):
        Text(Query("One. Two.", required=("x",)), Capitals())


def test_sentences_of_html_show_what_was_copied():
    query = Query("<p>One <code>a b</code>. Two.</p>", format="html")
    done = translate(query)
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
