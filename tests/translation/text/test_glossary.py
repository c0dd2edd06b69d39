"""Which translations a glossary asks for, and which were not met."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.translation.text.glossary import Glossary, load_glossaries, read_terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the text box", ["Textfeld"]),
        ("the text\n box, (text)", ["Textfeld", "Text"]),
        ("textbox, contexts", []),
        ("Text", ["Text"]),
        ("Writer writer", ["Writer"]),
        ("text text box text", ["Text", "Textfeld"]),
        ("C++, C", ["C++"]),
        ("新しい表を開く", ["Tabelle"]),
        ("បើកតារាងថ្មី", ["table"]),
        ("ｱﾀﾗｼｲﾋｮｳｦﾋﾗｸ", ["Tabelle"]),
        ("ꦄꦧꦕ", ["table"]),
        ("नई तालिका, हिन्दी", ["table"]),
        ("", []),
        ("box", []),
    ],
)
def test_terms_are_whole_words_the_longest_first(text, expected):
    glossary = Glossary(
        {
            "text": "Text",
            "text box": "Textfeld",
            "Writer": "Writer",
            "C++": "C++",
            "表": "Tabelle",
            "ﾋｮｳ": "Tabelle",
            "ꦧ": "table",
            "តារាង": "table",
            "तालिका": "table",
            "हिन": "none",
            "तालि": "none",
        }
    )
    assert glossary.terms_in(text) == expected


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("Das Textfeld und die Tabelle", []),
        ("Das  Textfeld, (Tabelle)", []),
        ("Textfelder der Tabelle", ["Textfeld"]),
        ("textfeld", ["Textfeld", "Tabelle"]),
    ],
)
def test_the_answer_says_which_terms_are_unmet(translation, expected):
    """A term of the text whose target the translation lacks."""
    glossary = Glossary({"text box": "Textfeld", "table": "Tabelle"})
    assert glossary.unmet("A text box and a table", translation) == expected


WORDS = st.text("ab ", min_size=1, max_size=5).map(str.split).filter(bool)


@given(st.dictionaries(WORDS.map(" ".join), WORDS.map(" ".join), min_size=1))
@settings(deadline=None)
def test_a_term_between_other_words_is_found_and_its_translation_too(terms):
    glossary = Glossary(terms)
    for term, translation in terms.items():
        assert glossary.terms_in(f"x {term}, x") == [translation]
        assert glossary.unmet(term, f"x ({translation}) x") == []
        assert glossary.unmet(term, f"x{translation}x") == [translation]


def test_a_file_is_read(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes(
        "# English\tGerman\ntext box\tTextfeld \n\n Öl\tÖlfarbe\r\n".encode()
    )
    assert read_terms(path) == {"text box": "Textfeld", "Öl": "Ölfarbe"}


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("one", "line 1 must be a term, a tab, and its translation, not 'one'"),
        ("a\tb\n\nc\t", "line 3 must be a term"),
        ("a\tb\tc", "line 1 must be a term"),
        ("a\tb\na\tc", "line 2 has the term 'a' of an earlier line"),
        ("# a\tb\n", "has no terms: add one"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, rule):
    path = tmp_path / "terms.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match=rule):
        read_terms(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.tsv"):
        read_terms(tmp_path / "none.tsv")


def test_a_glossary_belongs_to_a_pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, target in (("de:x", "Haus"), ("fr", "maison")):
        Path(name).write_text(f"house\t{target}")
    found = load_glossaries(["en-de:de:x", "en-pt-BR:./fr", "fr"])
    assert {pair: own.terms_in("house") for pair, own in found.items()} == {
        "en-de": ["Haus"],
        "en-pt-BR": ["maison"],
        "": ["maison"],
    }
    with pytest.raises(InputError, match="one file for each pair, and en-de:fr is"):
        load_glossaries(["en-de:de:x", "en-de:fr"])
