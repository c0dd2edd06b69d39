"""The protocol of DeepL: fields, answers and errors."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from serving.bad_input import FORM, send
from serving.fake_service import FakeService, served


def post(url, **fields):
    return send(url, "POST", "/v2/translate", json.dumps(fields).encode())


def test_texts_in_json_a_form_and_the_query(url):
    """A form and a query repeat the field."""
    found = [
        {"detected_source_language": "EN", "text": "A", "billed_characters": 1},
        {"detected_source_language": "EN", "text": "BB", "billed_characters": 2},
    ]
    answer = 200, {"translations": found}
    fields = {"text": ["a", "bb"], "source_lang": "EN", "target_lang": "DE"}
    form = urlencode(fields, doseq=True)
    assert post(url, **fields) == answer
    assert send(url, "POST", "/v2/translate", form.encode(), FORM) == answer
    assert send(url, "GET", f"/v2/translate?{form}&auth_key=k", b"", {}) == answer
    single = {"text": "a", "target_lang": "de"}
    assert post(url, **single) == (200, {"translations": found[:1]})


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ("text", True, True)),
        ({"split_sentences": "0"}, ("text", False, True)),
        ({"split_sentences": 1}, ("text", True, True)),
        ({"split_sentences": "nonewlines"}, ("text", True, False)),
        ({"tag_handling": "xml", "ignore_tags": ["x"]}, ("html", True, True)),
        ({"formality": "prefer_less", "context": "c"}, ("text", True, True)),
        ({"model_type": "quality_optimized", "unknown": {}}, ("text", True, True)),
    ],
)
def test_options_become_those_of_a_query(url, service, options, found):
    """What has no effect here is passed over."""
    assert post(url, text=["a"], target_lang="PT-BR", **options)[0] == 200
    query = service.asked[-1][0]
    assert (query.format, query.sentences, query.split_newlines) == found
    assert (query.source, query.target) == ("en", "pt_BR")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": None}, "text is missing"),
        ({"text": []}, "text is missing"),
        ({"text": ["a"] * 51}, "text must be a list of at most 50"),
        ({"target_lang": None}, "target_lang is missing"),
        ({"target_lang": "XX"}, "target_lang must be one of DE, EN, PT-BR, not 'XX'"),
        ({"source_lang": "XX"}, "source_lang must be one of DE, EN, not 'XX'"),
        ({"source_lang": "PT"}, "German (de) is not available as a target language"),
        ({"tag_handling": "md"}, "tag_handling must be one of"),
        ({"split_sentences": 2}, "split_sentences must be one of"),
        ({"formality": "more"}, "formality must be one of"),
        ({"glossary_id": "g"}, "glossary_id must be absent"),
    ],
)
def test_errors_are_messages(url, changes, words):
    """With status 400."""
    status, found = post(url, **{"text": ["a"], "target_lang": "DE"} | changes)
    assert status == 400
    assert found["message"].startswith(words)


@pytest.mark.parametrize("split", ["0", "1", "nonewlines"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_line_breaks_between_sentences_are_kept(url, split, end):
    """Also where sentences are not split."""
    text = f"One. Two.{end}Three.{end}"
    found = post(url, text=[text], target_lang="DE", split_sentences=split)[1]
    assert found["translations"][0]["text"] == text.upper()


def test_languages_of_both_sides(url):
    """The side is in the query or in the body of a GET; sources have no regions."""
    german = {"language": "DE", "name": "German", "supports_formality": False}
    status, found = send(url, "GET", "/v2/languages?type=target", b"", {})
    assert (status, found[0]) == (200, german)
    assert [own["language"] for own in found] == ["DE", "EN", "PT-BR"]
    assert send(url, "GET", "/v2/languages", b"type=target", FORM)[1] == found
    assert send(url, "GET", "/v2/languages", b"", {})[1] == found[:2]
    assert send(url, "GET", "/v2/languages?type=all", b"", {})[0] == 400


def test_usage_counts_characters():
    """From the beginning of the server."""
    with served(FakeService()) as url:
        post(url, text=["abc", "ä"], target_lang="DE")
        assert send(url, "GET", "/v2/usage", b"", {}) == (
            200,
            {"character_count": 4, "character_limit": 10**12},
        )
