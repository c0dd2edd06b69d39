"""Requests that programs should not send, in each protocol, and what every answer to
them has in common.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


class Bad(NamedTuple):
    """A request, and the statuses that it may have."""

    name: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = JSON
    method: str = "POST"
    allowed: tuple[int, ...] = (400,)


class Protocol(NamedTuple):
    """How a protocol names its fields."""

    path: str
    text: str
    source: str
    target: str
    count: str | None
    form: str

    def body(self, **changes):
        fields = {self.text: "a", self.source: "en", self.target: "de"}
        named = {getattr(self, name): value for name, value in changes.items()}
        return json.dumps(fields | named).encode()


LIBRETRANSLATE = Protocol(
    "/translate", "q", "source", "target", "alternatives", "format"
)
DEEPL = Protocol(
    "/v2/translate", "text", "source_lang", "target_lang", None, "tag_handling"
)
NATIVE = Protocol("/v1/translate", "texts", "source", "target", "n_best", "format")

# Texts of which each is answered: none is wrong.
TEXTS = {
    "surrogate": "a \ud800 b",
    "NUL": "a\x00b",
    "emoji": "👩‍👩‍👧🇩🇪",
    "spaces": " \t  ",
    "long dots": "." * 900,
    "combining": "e" + "\u0301" * 400,
    "format": "%s %(a)s {0} {a.b} ${x} \\",
    "controls": "".join(map(chr, range(32))),
}
HTML = {
    "broken": "<p <b>>a</i <c",
    "script": "<script>alert(1)</script>a",
    "deep": "<b>" * 700 + "a" + "</b>" * 700,
    "entities": "&amp;&#0;&#xD800;&#1114112;&nosuch; &",
    "comment": "<!-- a <b> --",
    "only tags": "<br><img src=x>",
}
VALUES = {
    "null": None,
    "list in a list": [["a"]],
    "number in a list": ["a", 7],
    "51 texts": ["a"] * 51,
    "100,000 letters": "x" * 100_000,
    "5,000 tags": "<b>" * 5_000,
}


def part(name, text, more=""):
    disposition = f"Content-Disposition: form-data; {name}{more}"
    return f"--b\r\n{disposition}\r\n\r\n{text}\r\n".encode()


def bad_requests(protocol):
    """Yield the requests of a protocol."""
    for name, change in {
        "texts": TEXTS,
        "tags": HTML,
        "values": VALUES,
    }.items():
        for case, value in change.items():
            changes = {"text": value}
            if protocol is NATIVE and isinstance(value, str):
                changes["text"] = [value]
            if name == "tags":
                changes["form"] = "html"
            yield Bad(
                f"{name}, {case}",
                protocol.path,
                protocol.body(**changes),
                allowed=(400,) if name == "values" else (200, 422),
            )
    yield from _bad_bodies(protocol)
    yield from _bad_fields(protocol)
    yield from _bad_forms(protocol)
    if protocol is NATIVE:
        yield from _bad_native()


def _bad_bodies(protocol):
    good = protocol.body()
    rows = {
        "empty": (b"", 400),
        "half": (b"{", 400),
        "text": (b'"a"', 400),
        "NaN": (good.replace(b'"a"', b"NaN"), 400),
        "deep list": (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
        "20,000 keys": (
            b"{" + b",".join(b'"%d":1' % i for i in range(20_000)) + b"}",
            400,
        ),
        "a million keys": (b"{" + b'"a":1,' * 1_000_000, 413),
        "UTF-16, half": (b"\xff\xfe{" + good, 400),
        "latin-1": (good.replace(b'"a"', b'"\xe4"'), 400),
        "large exponent": (good.replace(b'"a"', b"1e9999"), 400),
    }
    for name, (body, status) in rows.items():
        yield Bad(f"body, {name}", protocol.path, body, allowed=(status,))
    yield Bad(
        "body, compressed",
        protocol.path,
        gzip.compress(good),
        JSON | {"Content-Encoding": "gzip"},
        allowed=(415,),
    )
    yield Bad("body, no type", protocol.path, good, {}, "POST", (415,))
    fine = {
        "byte order mark": b"\xef\xbb\xbf" + good,
        "UTF-16": good.decode().encode("utf-16"),
        "equal keys": good[:-1] + b"," + good[1:],
    }
    for name, body in fine.items():
        yield Bad(f"body, {name}", protocol.path, body, allowed=(200,))


def _bad_fields(protocol):
    rows = [
        ("source", {"unknown": "zz", "number": 7, "long": "z" * 4_000, "list": ["en"]}),
        ("target", {"unknown": "zz", "null": None, "empty": "", "NUL": "d\x00e"}),
        ("form", {"XML": "docx", "number": 7, "list": ["html"]}),
        ("count", {"word": "two", "half": 1.5, "true": True, "infinite": 1e309}),
    ]
    for field, values in rows:
        if getattr(protocol, field) is None:
            continue
        for name, value in values.items():
            body = protocol.body(**{field: value})
            # Our own protocol needs no languages where only one is possible.
            is_optional = protocol is NATIVE and value in (None, "")
            allowed = (200, 400) if is_optional else (400,)
            yield Bad(f"{field}, {name}", protocol.path, body, allowed=allowed)
    unknown = json.dumps(json.loads(protocol.body()) | {"apiKey": "k"}).encode()
    status = 400 if protocol is NATIVE else 200  # whose clients send such
    yield Bad("unknown field", protocol.path, unknown, allowed=(status,))
    auto = (200,) if protocol is LIBRETRANSLATE else (400,)
    for field, value, allowed in (
        ("source", "EN", (200,)),
        ("source", "auto", auto),
        ("target", "DE", (200,)),
        ("target", "en", (400,) if protocol is NATIVE else (200,)),
    ):
        body = protocol.body(**{field: value})
        yield Bad(f"{field}, {value}", protocol.path, body, allowed=allowed)
    if protocol.count:
        for value in (-1, 10**9, 2**70, 0):
            body = protocol.body(count=value)
            yield Bad(f"count, {value}", protocol.path, body, allowed=(200, 400))


def _bad_forms(protocol):
    text = protocol.text
    pair = {protocol.source: "en", protocol.target: "de"}
    twice = urlencode({text: ["a", "b"], **pair}, doseq=True)
    parts = b"".join(part(f'name="{name}"', value) for name, value in pair.items())
    rows = {
        "a text twice": (twice.encode(), FORM, 200),
        "not UTF-8": (f"{text}=%E4&{urlencode(pair)}".encode(), FORM, 400),
        "2,000 fields": (b"&a=1" * 2_000, FORM, 400),
        "2,000 parts": (part('name="a"', "") * 2_000 + b"--b--", MULTIPART, 400),
        "a part that is not UTF-8": (
            parts + part(f'name="{text}"', "ä").replace(b"\xc3", b"") + b"--b--",
            MULTIPART,
            200,  # it is read as Latin-1
        ),
        "a file": (
            parts + part(f'name="{text}"', "a", '; filename="f"') + b"--b--",
            MULTIPART,
            400,
        ),
        "no end": (parts, MULTIPART, 400),
    }
    for name, (body, headers, status) in rows.items():
        yield Bad(f"form, {name}", protocol.path, body, headers, allowed=(status,))


def _bad_native():
    """Yield what only our own protocol has."""
    # Some are only refused by an engine with a model.
    refused, either = (400, 422), (200, 400, 422)
    unwritable = "\u4e2d\x00\ud800"
    rows = [
        ("translate", {}, refused),
        ("translate", {"text": "a", "texts": ["a"]}, refused),
        ("translate", {"text": "a", "prefix": "p" * 6_000}, refused),
        ("translate", {"text": "a", "prefix": unwritable}, either),
        ("translate", {"text": "a", "required": [[unwritable]]}, either),
        ("translate", {"text": "a", "n_best": 101}, refused),
        ("translate/stream", {"text": None}, refused),
        ("attention", {"text": "a", "k": 9}, refused),
        ("attention", {"text": "a", "translation": "a " * 500}, either),
        ("attention", {"text": unwritable, "translation": unwritable}, either),
        ("alternatives", {"text": "a", "prefix": "", "k": 0}, refused),
        ("alternatives", {"text": "a", "prefix": unwritable}, either),
        ("score", {"pairs": [7]}, refused),
        ("score", {"pairs": [{"text": "a" * 400, "translation": "\n"}]}, either),
    ]
    for name, fields, allowed in rows:
        body = json.dumps(fields).encode()
        yield Bad(f"{name}, {body[:60]!r}", f"/v1/{name}", body, allowed=allowed)


# What is wrong with the lines of HTTP itself, for the path of a protocol.
_GET = b"GET /languages HTTP/1.1\r\nHost: a\r\n"
_POST = b"POST PATH HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
RAW = {
    "no HTTP": b"hello\r\n\r\n",
    "unknown method": b"BREW PATH HTTP/1.1\r\nHost: a\r\n\r\n",
    "length and chunks": (
        _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n"
    ),
    "100 kB of header": _GET + b"X-A: " + b"a" * 100_000 + b"\r\n\r\n",
    "expect": _POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
    "half escaped path": b"GET /%zz%2e%2e/%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "query that is no UTF-8": b"GET /v2/usage?%E4 HTTP/1.1\r\nHost: a\r\n\r\n",
    "full URL": b"GET http://other/languages HTTP/1.1\r\nHost: a\r\n\r\n",
}

WRONG_PLACES = (
    *(
        (method, path, status)
        for own in (LIBRETRANSLATE.path, DEEPL.path, NATIVE.path)
        for method, path, status in (
            ("POST", f"/{own}", 404),
            ("PUT", own, 405),
        )
    ),
    ("GET", "/translate", 405),
    ("POST", "/health", 405),
    ("GET", "/v2/document", 404),
    ("GET", "/v1/", 404),
    ("GET", "/static/%2e%2e/config.json", 404),
    ("GET", "/nothing<script>", 404),
)


def send(url, method, path, body=b"", headers=JSON):
    """Return the status and the JSON of an answer: none may be anything else."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        assert response.getheader("content-type") == "application/json", text[:200]
        return response.status, json.loads(text)
    finally:
        connection.close()


def check_error(path, found):
    """Check that an error has the form of its protocol."""
    first = path.split("/")[1]
    if first == "v2":
        assert isinstance(found["message"], str)
    elif first in ("translate", "detect", "languages"):
        assert isinstance(found["error"], str)
    else:
        assert {"code", "message"} <= found["error"].keys()


def raw(name, path):
    """Return the bytes of a request that is no HTTP."""
    return RAW[name].replace(b"PATH", path.encode())


def exchange(url, data, seconds=30):
    """Send bytes and return the answer until the server pauses or closes."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), seconds) as sent:
        sent.sendall(data)
        found = sent.recv(65_536)
        sent.settimeout(0.2)
        while True:
            try:
                more = sent.recv(65_536)
            except TimeoutError:
                return found
            if not more:
                return found
            found += more
