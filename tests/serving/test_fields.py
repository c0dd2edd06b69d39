"""The fields of a request: what is read, and the errors of what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from jaxformer.serving.access import Keys
from jaxformer.serving.call import CALL, Call
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import Fields, answer, read_fields, refuse

CONFIG = ServingConfig(max_characters=100, max_texts=3)
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"


def request(body=b"", content_type="", query=b"", **headers):
    """Build a request whose body arrives in two parts."""
    if content_type:
        headers["content-type"] = content_type
    parts = [body[:7], body[7:]]

    async def receive():
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    raw = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in headers.items()
    ]
    scope = {"type": "http", "method": "POST", "headers": raw, "query_string": query}
    return Request(scope, receive)


def read(*arguments, config=CONFIG, **named):
    return asyncio.run(read_fields(request(*arguments, **named), config))


def fault(*arguments, **named):
    with pytest.raises(ServingError) as caught:
        read(*arguments, **named)
    return caught.value


def part(name, text, more=""):
    disposition = f'Content-Disposition: form-data; name="{name}"{more}'
    return f"--b\r\n{disposition}\r\n\r\n{text}\r\n".encode()


@pytest.mark.parametrize(
    ("body", "content_type", "query"),
    [
        (b'{"q": "a \xc3\xa4", "n": "2"}', JSON, b""),
        (b'{"q": "x", "q": "a \\u00e4", "n": "2"}', JSON, b""),
        (b'\xef\xbb\xbf{"q": "a \xc3\xa4", "n": "2"}', JSON, b""),
        ('{"q": "a ä", "n": "2"}'.encode("utf-16"), JSON, b""),
        (b'{"q": "a \xc3\xa4"}', "application/json; charset=utf-8", b"n=2"),
        (b'{"q": "a \xc3\xa4"}', JSON, b"n=2&q=other"),
        (b"q=a+%C3%A4&n=2", FORM, b""),
        (b"q=a%20\xc3\xa4", FORM, b"n=2"),
        (part("q", "a ä") + part("n", "2") + b"--b--\r\n", MULTIPART, b""),
        (b"", "", b"q=a%20%C3%A4&n=2"),
        (b"", JSON, b"q=a%20%C3%A4&n=2"),
        (b"", FORM, b"q=a%20\xc3\xa4&n=2"),
    ],
)
def test_json_forms_and_query_become_the_same_fields(body, content_type, query):
    """JSON takes precedence over the query, and the last of two equal keys wins."""
    assert read(body, content_type, query).values == {"q": "a ä", "n": "2"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"q=a&q=b", FORM), (part("q", "a") + part("q", "b") + b"--b--", MULTIPART)],
)
def test_a_field_of_a_form_that_comes_twice_is_a_list(body, content_type):
    """In the query too, and no text is dropped."""
    fields = read(body, content_type, b"q=c")
    assert fields.texts("q") == ["c", "a", "b"]
    with pytest.raises(ServingError, match="q must be a text, not a list of 3"):
        fields.text("q")


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", "bad_json", "Expecting property name"),
        (b"[]", "bad_json", "an object is needed, not a list of 0"),
        (b"null", "bad_json", "not null"),
        (b'"q"', "bad_json", "not 'q'"),
        (b"7", "bad_json", "not 7"),
        (b'{"q": NaN}', "bad_json", "NaN"),
        (b'{"q": -Infinity}', "bad_json", "Infinity"),
        (b'{"q": "a"} b', "bad_json", "Extra data"),
        (b'{"q": "a\nb"}', "bad_json", "Invalid control character"),
        (b"[" * 10_000, "bad_json", "nested too deeply"),
        (b'{"a":' * 3_000 + b"1" + b"}" * 3_000, "bad_json", "nested too deeply"),
        (b'{"q": "\xe4"}', "not_unicode", "byte 7 is not"),
        (b'\xff\xfe{"q" ', "not_unicode", "UTF-8"),
    ],
)
def test_what_is_no_json_object_is_refused(body, code, words):
    """The error is one line."""
    error = fault(body, JSON)
    assert (error.status, error.code) == (400, code)
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("body", "content_type", "query", "code", "words"),
    [
        (b"q=%E4", FORM, b"", "not_unicode", "the form must be UTF-8"),
        (b"q=\xe4", FORM, b"", "not_unicode", "the form must be UTF-8"),
        (b"", "", b"q=%E4", "not_unicode", "the query must be UTF-8"),
        (b"&a" * 2000, FORM, b"", "bad_form", "more than 1000 fields"),
        (b' {"q": "a"}', FORM, b"", "bad_form", "Content-Type: application/json"),
        (
            part("a", "") * 1001 + b"--b--",
            MULTIPART,
            b"",
            "bad_form",
            "than 1000 fields",
        ),
        (b"--b--", "multipart/form-data", b"", "bad_form", "oundary"),
        (b"nothing", MULTIPART, b"", "bad_form", "no multipart form"),
        (part("q", "a").replace(b"name", b"none"), MULTIPART, b"", "bad_form", ""),
        (
            part("q", "a", '; filename="f.txt"') + b"--b--",
            MULTIPART,
            b"",
            "wrong_type",
            "q must be a text, not a file",
        ),
        (
            part("q", "\xe4").replace(b"\xc3", b"") + b"--b--",
            MULTIPART,
            b"",
            "not_unicode",
            "the form must be UTF-8",
        ),
    ],
)
def test_what_is_no_form_is_refused(body, content_type, query, code, words):
    """Never by another error."""
    error = fault(body, content_type, query)
    assert (error.status, error.code) == (400, code)
    assert words in error.message


def test_no_body_raises_another_error():
    """With any type and any bytes."""

    @settings(max_examples=100, deadline=None)
    @given(
        st.one_of(
            st.binary(max_size=60),
            st.text(alphabet='{}[]":,\\u d8naN1e9.-', max_size=40).map(str.encode),
            st.lists(
                st.sampled_from(
                    [
                        b"--b",
                        b"--",
                        b"\r\n",
                        b"\r\n\r\n",
                        b'Content-Disposition: form-data; name="q"',
                        b'; filename="f"',
                        b"Content-Transfer-Encoding: base64",
                        b"Content-Transfer-Encoding: quoted-printable",
                        b"x",
                        b"=",
                        b":",
                    ]
                )
            ).map(b"".join),
        ),
        st.sampled_from([JSON, FORM, MULTIPART, "text/plain"]),
        st.binary(max_size=20),
    )
    def check(body, content_type, query):
        with contextlib.suppress(ServingError):
            assert isinstance(read(body, content_type, query).values, dict)

    check()


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/xml"])
def test_a_body_of_another_type_gets_415(content_type):
    """A body without a type too."""
    error = fault(b'{"q": "a"}', content_type)
    assert (error.status, error.code) == (415, "unsupported_media_type")


def test_a_compressed_body_gets_415():
    """It is not unpacked, so a small one cannot become a large one."""
    error = fault(b"\x1f\x8b", JSON, content_encoding="gzip")
    assert (error.status, error.code) == (415, "unsupported_encoding")


def test_the_key_of_a_request_is_checked():
    """In the header, or in a field of any kind of body."""
    keys = Keys({"name": hashlib.sha256(b"secret").hexdigest()})
    token = CALL.set(Call(keys=keys))
    try:
        assert fault(b"{}", JSON).status == 403
        assert fault(b'{"api_key": 7}', JSON).code == "key"
        assert read(b"", "", b"auth_key=secret").has("auth_key")
        assert read(b"api_key=secret", FORM).has("api_key")
        CALL.get().authorization = "DeepL-Auth-Key secret"
        assert read(b"{}", JSON).values == {}
    finally:
        CALL.reset(token)


@pytest.mark.parametrize(
    ("getter", "value", "code", "words"),
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
    ],
)
def test_an_error_names_the_field_the_rule_and_the_value(getter, value, code, words):
    """It can be written as JSON for any value."""
    fields = Fields({"q": value}, CONFIG)
    get = {
        "text": lambda: fields.text("q"),
        "texts": lambda: fields.texts("q"),
        "whole": lambda: fields.whole("q", most=3),
        "flag": lambda: fields.flag("q"),
        "choice": lambda: fields.choice("q", ("text", "html"), code="bad_format"),
        "objects": lambda: [each.text("a") for each in fields.objects("q")],
        "text_lists": lambda: fields.text_lists("q", default=[]),
    }[getter]
    with pytest.raises(ServingError, match=f"^{words}") as caught:
        get()
    assert (caught.value.status, caught.value.code) == (400, code)
    assert caught.value.field.startswith("q")
    written = json.loads(answer(400, caught.value.to_json()).body)
    assert written["message"] == caught.value.message


@pytest.mark.parametrize(
    ("value", "limit", "given"), [("é" * 101, 100, 101), (["a"] * 4, 3, 4)]
)
def test_what_is_too_long_says_limit_and_length(value, limit, given):
    """As numbers, in characters and in texts, for the page to show."""
    fields = Fields({"q": value}, CONFIG)
    with pytest.raises(ServingError) as caught:
        fields.texts("q")
    written = caught.value.to_json()
    assert (written["limit"], written["given"]) == (limit, given)


def test_values_that_keep_to_the_rules_are_returned():
    """Null is the default, numbers and flags may be texts, surrogates are replaced."""
    values = {
        "q": "a\ud800\x00\u2028",
        "list": ["a", "b"],
        "n": "2",
        "float": 3.0,
        "on": "TRUE",
        "off": 0,
        "null": None,
        "empty": "",
        "pairs": [{"text": "a"}],
        "required": [["a"], []],
    }
    fields = Fields(json.loads(json.dumps(values)), CONFIG)
    assert fields.text("q") == "a\ufffd\x00\u2028"
    assert fields.texts("q") == [fields.text("q")]
    assert fields.texts("list") == ["a", "b"]
    assert (fields.is_list("list"), fields.is_list("q")) == (True, False)
    assert (
        fields.whole("n"),
        fields.whole("float"),
        fields.whole("none", default=5),
    ) == (
        2,
        3,
        5,
    )
    assert (fields.flag("on"), fields.flag("off", default=True)) == (True, False)
    assert fields.flag("none", default=True)
    assert not fields.has("null")
    assert read(b'{"q": ' + b"1" * 10_000 + b"}", JSON).has("q")
    assert fields.text("null", default="d") == "d"
    assert fields.choice("empty", ("text", "html"), default="text") == "text"
    assert fields.objects("pairs")[0].text("text") == "a"
    assert fields.text_lists("required", default=[]) == [["a"], []]
    assert Fields({"q": "a" * 9000}, ServingConfig(max_characters=0)).text("q")


def test_answers_are_utf_8_on_one_line_and_have_no_nan():
    """No text can fail to be encoded, or end a line where a client splits an event."""
    text = 'ä 一 😀 \ud800 \udfff\ud800 \x85\u2028\u2029\n\x0b\x1c"'
    response = answer(200, {"text": text, "\ud800": 1}, {"X-Other": "1"})
    written = bytes(response.body).decode()
    assert "ä 一 😀" in written
    assert len(written.splitlines()) == 1
    assert json.loads(written) == {"text": text, "\ud800": 1}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-other"] == "1"
    with pytest.raises(ValueError, match="JSON compliant"):
        answer(200, {"score": -math.inf})


def test_a_refusal_says_when_to_try_again():
    """By the header that programs read."""
    error = ServingError(503, "queue", "no room", retry_after=7)
    response = refuse(error, {"error": error.message})
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert json.loads(response.body) == {"error": "no room"}
