"""The values of a request, from JSON, a form, a multipart form or the query; and the
JSON of an answer.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from python_multipart import parse_form
from starlette.requests import Request
from starlette.responses import Response

from jaxformer.errors import first_line
from jaxformer.serving.call import current
from jaxformer.serving.errors import ServingError

# Its warnings show bytes of bodies, which no log may have.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

_MOST_FIELDS = 1000  # of a form or query
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# What UTF-8 cannot write, and what some clients take for the end of an event's line.
_ESCAPED = re.compile(r"[\ud800-\udfff\x85\u2028\u2029]")


async def read_values(request: Request) -> dict[str, Any]:
    """Read the query and the body of a request, and check its key.

    A field that several forms or the query have is a list; JSON comes before the query.
    The guard bounds the size of a body and the time that it takes.

    Raises:
        ServingError: 400, 403 or 415.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        rule = f"Content-Encoding must be absent, not {encoding[:40]!r}: send the body"
        raise ServingError(415, "unsupported_encoding", f"{rule} uncompressed")
    content_type = request.headers.get("content-type", "")
    pairs = _form(request.scope["query_string"], "the query")
    values = _read_values(await request.body(), content_type, pairs)
    current().authorize(values)
    return values


def _read_values(
    body: bytes, content_type: str, query: list[tuple[str, str]]
) -> dict[str, Any]:
    media_type = content_type.partition(";")[0].strip().lower()
    if not body:
        return _collect(query)
    if media_type == "application/json" or media_type.endswith("+json"):
        return _collect(query) | _json(body)
    if media_type == "application/x-www-form-urlencoded":
        if body.lstrip().startswith(b'{"'):  # as curl -d sends it
            raise _bad("the form is JSON: send it with Content-Type: application/json")
        return _collect(query + _form(body, "the form"))
    if media_type == "multipart/form-data":
        return _collect(query + _multipart(body, content_type))
    raise ServingError(
        415,
        "unsupported_media_type",
        f"Content-Type must be application/json, not {media_type[:40] or 'absent'!r};"
        " forms, urlencoded or multipart, are read too",
    )


def write_json(data: Any) -> str:
    """Write JSON on one line that UTF-8 can encode, without NaN."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def answer(
    status: int, data: Any, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON."""
    return Response(write_json(data), status, headers, media_type="application/json")


def refuse(error: ServingError, data: Any) -> Response:
    """Write an error in the form of a protocol, with the headers that it needs."""
    after = error.retry_after
    headers = {} if after is None else {"Retry-After": str(after)}
    return answer(error.status, data, headers)


def _json(body: bytes) -> dict[str, Any]:
    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise _not_unicode("the body", error) from None
    except (ValueError, RecursionError) as error:
        fault = first_line(error)
    else:
        if isinstance(value, dict):
            return value
        fault = f"an object is needed, not {show(value)}"
    raise ServingError(400, "bad_json", f"the body must be a JSON object: {fault}")


def _form(data: bytes, place: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            data.decode(),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except UnicodeDecodeError as error:
        raise _not_unicode(place, error) from None
    except ValueError:
        raise _too_many_fields(place) from None


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str]]:
    fields: list[tuple[bytes, bytes]] = []
    files: list[str] = []

    def keep(field: Any) -> None:
        fields.append((field.field_name, field.value or b""))

    def refuse_file(file: Any) -> None:
        file.close()
        files.append((file.field_name or b"").decode(errors="replace"))

    headers = {"Content-Type": content_type.encode("latin-1")}
    try:
        parse_form(headers, io.BytesIO(body), keep, refuse_file)
    except ValueError as error:
        raise _bad(f"the body is no multipart form: {error}") from None
    if files:
        rule = f"{files[0]} must be a text, not a file: send what the file contains"
        raise ServingError(400, "wrong_type", rule, field=files[0])
    if len(fields) > _MOST_FIELDS:
        raise _too_many_fields("the form")
    try:
        return [(name.decode(), value.decode()) for name, value in fields]
    except UnicodeDecodeError as error:
        raise _not_unicode("the form", error) from None


def _not_unicode(place: str, error: UnicodeDecodeError) -> ServingError:
    rule = f"{place} must be UTF-8, and byte {error.start} is not: encode it as UTF-8"
    return ServingError(400, "not_unicode", rule)


def _bad(fault: str) -> ServingError:
    return ServingError(400, "bad_form", fault)


def _too_many_fields(place: str) -> ServingError:
    return _bad(
        f"{place} has more than {_MOST_FIELDS} fields: leave out what is not needed"
    )


def _collect(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    # A field that comes once is its text, one that comes several times a list.
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        found.setdefault(name, []).append(text)
    return {name: texts if texts[1:] else texts[0] for name, texts in found.items()}


def replace_surrogates(text: str) -> str:
    """Return a text with U+FFFD in place of each lone surrogate."""
    return _SURROGATES.sub("\ufffd", text)


def printable(value: Any) -> str | int | float | None:
    """Return a value that is short and can be written as JSON; None: it is not."""
    if isinstance(value, str):
        return replace_surrogates(value[:100])
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def show(value: Any) -> str:
    """Return the words for a value in an error."""
    match value:
        case None | True | False:
            return json.dumps(value)
        case str() if len(value) > 40:
            return f"a text of {len(value):,} characters"
        case str():
            return repr(replace_surrogates(value))
        case int() | float() if printable(value) is not None:
            return f"{value}"
        case int() | float():
            return "a number out of range"
        case list():
            return f"a list of {len(value):,}"
        case _:
            return "an object"
