"""Clients of other people speak to the routes over a socket, unchanged."""

from __future__ import annotations

import contextlib

import deep_translator
import deepl
import pytest
from deep_translator import constants
from libretranslatepy import LibreTranslateAPI


def test_libretranslatepy(url):
    """Texts, alternatives through its request, detection and languages."""
    client = LibreTranslateAPI(url, api_key="k")
    assert client.translate("Hi, ü + ä & 100%!", "en", "de") == "HI, Ü + Ä & 100%!"
    assert client.translate("Tür", "auto", "en") == "TÜR"
    assert client.detect("Tür") == [
        {"confidence": 90.0, "language": "de"},
        {"confidence": 10.0, "language": "en"},
        {"confidence": 0.0, "language": "pt-BR"},
    ]
    assert client.languages()[1] == {
        "code": "en",
        "name": "English",
        "targets": ["de", "en", "pt-BR"],
    }


def test_deep_translator_speaks_libretranslate(url):
    """It puts everything into the query of a POST without a body."""
    client = deep_translator.LibreTranslator(
        source="en", target="de", api_key="k", custom_url=f"{url}/"
    )
    assert client.translate("Hi, ü & 100%") == "HI, Ü & 100%"
    assert client.translate_batch(["a", "b"]) == ["A", "B"]


def test_deep_translator_speaks_deepl(url, monkeypatch):
    """It sends a GET with its key in the query."""
    monkeypatch.setitem(constants.BASE_URLS, "DEEPL_FREE", url + "/{version}/")
    client = deep_translator.DeeplTranslator(api_key="k", source="en", target="de")
    assert client.translate("Hi, ü & 100%") == "HI, Ü & 100%"


def test_deepl_for_python(url, service):
    """Lists, whose texts share batches, tags, languages from the body of a GET, usage,
    and codes with regions.
    """
    with contextlib.closing(deepl.DeepLClient("k", server_url=url)) as client:
        done = client.translate_text(
            ["Hi", "<b>ü</b>"],
            source_lang="EN",
            target_lang="DE",
            tag_handling="html",
            split_sentences="nonewlines",
        )
        assert [each.text for each in done] == ["HI", "<b>Ü</b>"]
        assert [each.billed_characters for each in done] == [2, 8]
        query = service.asked[-1][1]
        assert (query.format, query.split_newlines, query.sentences) == (
            "html",
            False,
            True,
        )
        found = client.translate_text("Tür", target_lang="EN-US")
        assert (found.text, found.detected_source_lang) == ("TÜR", "DE")
        assert client.translate_text("Hi", target_lang="PT-BR").text == "HI"
        sources = [(own.code, own.name) for own in client.get_source_languages()]
        assert sources == [("DE", "German"), ("EN", "English")]
        targets = [(own.code, own.name) for own in client.get_target_languages()]
        assert targets == [
            ("DE", "German"),
            ("EN-GB", "English"),
            ("EN-US", "English"),
            ("PT-BR", "Portuguese (Brazil)"),
        ]
        assert client.get_usage().character.count >= 10
        with pytest.raises(deepl.DeepLException, match="'target_lang' not supp"):
            client.translate_text("Hi", target_lang="XX")
        with pytest.raises(deepl.DeepLException, match="formality must be"):
            client.translate_text("Hi", target_lang="DE", formality="more")
