"""Requests are read by the schemas that document them."""

from __future__ import annotations

import json

import pytest

from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import answer
from jaxformer.serving.schema import (
    FORMAT,
    closed,
    describe,
    limited,
    read,
    record,
    several,
    whole,
)

CONFIG = ServingConfig(max_characters=100, max_texts=3)
TEXT = limited(CONFIG)
TEXTS = several(CONFIG, TEXT)
KINDS = {
    "text": TEXT,
    "word": limited(CONFIG, least=1),
    "texts": describe((TEXT, TEXTS)),
    "whole": whole(0, 3, default=0),
    "flag": {"type": "boolean"},
    "choice": FORMAT,
    "objects": several(CONFIG, closed({"a": TEXT, "b?": TEXT})),
    "text_lists": several(CONFIG, several(CONFIG, TEXT, least=0)),
    "absent": {"not": {}, "description": "absent, as there are none"},
    "soft": describe((bool, {"enum": ["soft"]})),
    "either": describe((closed({"a": str}), closed({"b": str, "c?": str}))),
}


@pytest.mark.parametrize(
    ("kind", "value", "code", "words"),
    [
        ("text", None, "missing", "q is missing"),
        ("text", 7, "wrong_type", "q must be a text, not 7"),
        ("text", True, "wrong_type", "q must be a text, not true"),
        ("text", {"a": "b"}, "wrong_type", "q must be a text, not an object"),
        ("text", float("inf"), "wrong_type", "q must be a text, not a number out of"),
        ("text", 10**300, "wrong_type", "q must be a text, not a number out of range"),
        (
            "text",
            "a" * 101,
            "text_too_long",
            "q must be a text of at most 100 characters, not a",
        ),
        ("texts", None, "missing", "q is missing"),
        ("texts", ["a", 7], "wrong_type", r"q\[1\] must be a text, not 7"),
        ("texts", [["a"]], "wrong_type", r"q\[0\] must be a text, not a list of 1"),
        (
            "texts",
            ["a"] * 4,
            "too_many_texts",
            "q must be a list of at most 3, not a list of 4",
        ),
        (
            "texts",
            {"a": "b"},
            "wrong_type",
            "q must be a text or a list, not an",
        ),
        ("whole", "two", "wrong_type", "q must be a whole number, not 'two'"),
        ("whole", 1.5, "wrong_type", "q must be a whole number, not 1.5"),
        ("whole", "1.5", "wrong_type", "q must be a whole number, not '1.5'"),
        ("whole", float("inf"), "wrong_type", "q must be a whole number, not a number"),
        ("whole", True, "wrong_type", "q must be a whole number, not true"),
        ("whole", "", "wrong_type", "q must be a whole number, not ''"),
        ("whole", [1], "wrong_type", "q must be a whole number, not a list of 1"),
        ("whole", -1, "out_of_range", "q must be at least 0, not -1"),
        ("whole", 1e9, "out_of_range", "q must be at most 3, not 1000000000"),
        ("whole", "9" * 18, "out_of_range", "q must be at most 3, not a number"),
        ("flag", "yes", "wrong_type", "q must be true or false, not 'yes'"),
        ("flag", 2, "wrong_type", "q must be true or false, not 2"),
        ("choice", "xml", "bad_format", "q must be one of text, html, not 'xml'"),
        ("choice", "z" * 99, "bad_format", "q must be one of text, html, not a text"),
        ("choice", ["text"], "bad_format", "q must be one of text, html, not a list"),
        ("objects", ["a"], "wrong_type", r"q\[0\] must be an object, not 'a'"),
        ("objects", [{"a": 7}], "wrong_type", r"q\[0\]\.a must be a text, not 7"),
        ("text_lists", ["a"], "wrong_type", r"q\[0\] must be a list, not 'a'"),
        ("text_lists", [["a", 7]], "wrong_type", r"q\[0\]\[1\] must be a text, not 7"),
        ("word", "", "missing", "q is missing"),
        ("texts", [], "missing", "q is missing"),
        ("choice", None, "missing", "q is missing"),
        ("choice", "", "missing", "q is missing"),
        ("absent", "g", "out_of_range", "q must be absent, as there are none, not 'g'"),
        ("soft", "hard", "wrong_type", "q must be true or false or one of soft, not"),
        (
            "objects",
            [{"a": "", "x": 1}],
            "unknown_field",
            r"q\[0\]\.x must be absent",
        ),
        ("either", {"a": "", "b": ""}, "wrong_type", "send a or b, not both"),
        ("either", {"a": "", "c": ""}, "unknown_field", r"q\.c must be absent"),
        ("either", {"d\n": ""}, "unknown_field", r"q\.'d\\n' must be absent: .* b, c$"),
        ("either", {}, "missing", r"q\.b is missing"),
    ],
)
def test_an_error_names_the_field_the_rule_and_the_value(kind, value, code, words):
    """It can be written as JSON for any value."""
    with pytest.raises(ServingError, match=f"^{words}") as caught:
        read(record({"q": KINDS[kind]}), {"q": value})
    assert (caught.value.status, caught.value.code) == (400, code)
    assert caught.value.field.startswith(("q", "b"))
    written = json.loads(answer(400, caught.value.to_json()).body)
    assert written["message"] == caught.value.message


@pytest.mark.parametrize(
    ("value", "limit", "given"), [("é" * 101, 100, 101), (["a"] * 4, 3, 4)]
)
def test_what_is_too_long_says_limit_and_length(value, limit, given):
    """As numbers, in characters and in texts, for the page to show."""
    with pytest.raises(ServingError) as caught:
        read(KINDS["texts"], value, "q")
    written = caught.value.to_json()
    assert (written["limit"], written["given"]) == (limit, given)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("text", "a\ud800\x00\u2028", "a\ufffd\x00\u2028"),
        ("texts", "a", "a"),
        ("texts", ["a", ""], ["a", ""]),
        ("whole", " 2 ", 2),
        ("whole", 3.0, 3),
        ("whole", 0, 0),
        ("flag", "TRUE", True),
        ("flag", 0, False),
        ("soft", "soft", "soft"),
        ("soft", "1", True),
        ("choice", "html", "html"),
        ("objects", [{"a": "b"}], [{"a": "b", "b": None}]),
        ("objects", [{"a": "b", "x": None}], [{"a": "b", "b": None}]),
        ("text_lists", [["a"], []], [["a"], []]),
        ("either", {"a": "b"}, {"a": "b"}),
        ("either", {"b": "", "a": None}, {"b": "", "c": None}),
    ],
)
def test_values_that_keep_to_the_rules_are_returned(kind, value, found):
    """A form has numbers and flags as texts; surrogates are replaced."""
    assert read(KINDS[kind], value) == found


def test_what_is_absent_has_its_default():
    """Null too, and an empty text in place of one of some words."""
    fields = record({"format?": FORMAT, "n?": whole(0, 3, default=2), "text?": TEXT})
    for values in ({}, {"format": None, "n": None}, {"format": ""}):
        assert read(fields, values) == {"format": "text", "n": 2, "text": None}


def test_keys_are_in_no_list_of_unknown_fields():
    """They are read before the fields are."""
    values = {"a": "", "api_key": 7, "auth_key": ""}
    assert read(closed({"a": str}), values) == {"a": ""}
    assert read(record({"a": str, "api_key?": str}), values) == {"a": ""}


def test_a_text_of_any_length_may_be_allowed():
    assert read(limited(ServingConfig(max_characters=0)), "a" * 9000)
