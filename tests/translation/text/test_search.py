"""Placeholders, terms and tags through a model, whose translations mean nothing."""

import re

import pytest

import runs
from jaxformer.errors import InputError

HTML = (
    "<ul>\n<li>Open <b>the {0}</b> file.<li>12:30</ul>\n<p>Insert it, <i>now</i>. Why?"
)
TEXTS = ["Delete {name} and %s", "", "12:30", *runs.sentences(3, longest=9)]


@pytest.mark.parametrize("changes", [{}, {"beam_size": 1}, {"sample": True}])
def test_placeholders_come_back_once(changes):
    translator = runs.translator(**changes)
    found = translator.translate(TEXTS, placeholders=True)
    assert re.findall(r"\{name\}|%s", found[0]) in (["{name}", "%s"], ["%s", "{name}"])
    assert found[1:3] == ["", "12:30"]
    if not changes:
        assert found[3:] == translator.translate(TEXTS[3:])


def test_terms_are_in_the_translations():
    source, *others = runs.sentences(3, longest=9)
    terms = {source.split()[0]: "Tabelle", "none of them": "Datei"}
    search = runs.translator().line_search(glossary=terms, n_best=2)
    first, *rest = search.stream([source, *others])
    assert len(first) == 2
    assert all("Tabelle" in each.text for each in first)
    assert [own[0].text for own in rest] == runs.translator().translate(others)
    assert not search.unmet


def test_a_document_keeps_its_tags():
    translator = runs.translator()
    (found,) = translator.search([HTML], format="html")
    tags = re.compile(r"<[^>]*>|\{0\}|12:30")
    assert sorted(tags.findall(found[0].text)) == sorted(tags.findall(HTML))
    assert translator.translate(["<hr>12:30"], format="html") == ["<hr>12:30"]


def test_what_contradicts_is_refused():
    translator = runs.translator()
    with pytest.raises(InputError, match="beam_size of at least 2"):
        translator.translate(TEXTS, glossary={"a": "b"}, beam_size=1)
    given = [[], ["a", "b"], [], [], [], []]
    with pytest.raises(InputError, match="sentence 2 has several prefixes"):
        translator.translate(TEXTS, placeholders=True, prefixes=given)
