"""The values of a request, from each kind of body, and the JSON of an answer."""

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
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import answer, read_values, refuse

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


def read(*arguments, **named):
    return asyncio.run(read_values(request(*arguments, **named)))


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
    assert read(body, content_type, query) == {"q": "a ä", "n": "2"}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"q=a&q=b", FORM), (part("q", "a") + part("q", "b") + b"--b--", MULTIPART)],
)
def test_a_field_of_a_form_that_comes_twice_is_a_list(body, content_type):
    """In the query too, and no text is dropped."""
    assert read(body, content_type, b"q=c") == {"q": ["c", "a", "b"]}


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
        (b"[" * 100_000, "bad_json", "recursion"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "bad_json", "recursion"),
        (b'{"q": ' + b"1" * 10_000 + b"}", "bad_json", "digits"),
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
            assert isinstance(read(body, content_type, query), dict)

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
        assert "auth_key" in read(b"", "", b"auth_key=secret")
        assert "api_key" in read(b"api_key=secret", FORM)
        CALL.get().authorization = "DeepL-Auth-Key secret"
        assert read(b"{}", JSON) == {}
    finally:
        CALL.reset(token)


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
