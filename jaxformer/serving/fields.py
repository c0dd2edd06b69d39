"""The fields of a request, from JSON, a form, a multipart form or the query; and the
JSON of an answer.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from python_multipart import parse_form
from starlette.requests import Request
from starlette.responses import Response

from jaxformer.errors import first_line
from jaxformer.serving.call import current
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError

# Its warnings show bytes of bodies, which no log may have.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

_MOST_FIELDS = 1000  # of a form or query
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# What UTF-8 cannot write, and what some clients take for the end of an event's line.
_ESCAPED = re.compile(r"[\ud800-\udfff\x85\u2028\u2029]")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_ABSENT: Any = object()


class Fields:
    """The fields of a request, or of an object in one. None is absent.

    Texts have no lone surrogates: each becomes U+FFFD.
    """

    def __init__(
        self, values: Mapping[str, Any], config: ServingConfig, path: str = ""
    ) -> None:
        """Keep the values.

        Args:
            values: of JSON, or texts and lists of texts.
            config: for the most characters of a text and the most texts of a list.
            path: before a name in errors, such as ``pairs[0].``.
        """
        self.values, self.config, self.path = values, config, path

    def has(self, name: str) -> bool:
        """Return whether a field exists and is not null."""
        return self.values.get(name) is not None

    def is_list(self, name: str) -> bool:
        """Return whether a field is a list: of JSON, or given several times."""
        return isinstance(self.values.get(name), list)

    def text(self, name: str, default: str = _ABSENT) -> str:
        """Return a text of at most ``max_characters``."""
        return self._text(name, self._value(name, default))

    def texts(self, name: str, *, default: list[str] = _ABSENT) -> list[str]:
        """Return the texts of a list, or the one text; at most ``max_texts``."""
        value = self._value(name, default)
        if isinstance(value, str):
            return [self._text(name, value)]
        if not isinstance(value, list):
            raise self._wrong_type(name, "a text or a list", value)
        return self._texts(name, value)

    def text_lists(self, name: str, *, default: list[list[str]]) -> list[list[str]]:
        """Return lists of texts, at most ``max_texts`` of each."""
        lists = self._list(name, self._value(name, default))
        return [self._texts(f"{name}[{i}]", texts) for i, texts in enumerate(lists)]

    def objects(self, name: str) -> list[Fields]:
        """Return the fields of each object of a list, at most ``max_texts``."""
        found = []
        for i, value in enumerate(self._list(name, self._value(name, _ABSENT))):
            if not isinstance(value, dict):
                raise self._wrong_type(f"{name}[{i}]", "an object", value)
            found.append(Fields(value, self.config, f"{self.path}{name}[{i}]."))
        return found

    def whole(
        self,
        name: str,
        *,
        least: int | None = 0,
        most: int | None = None,
        default: int = _ABSENT,
    ) -> int:
        """Return a whole number from ``least`` to ``most``; a form has it as digits."""
        value = self._value(name, default)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(name, "a whole number", value)
        if least is not None and value < least:
            rule = f"at least {least}"
            raise self._wrong(name, "out_of_range", rule, value, least)
        if most is not None and value > most:
            raise self._wrong(name, "out_of_range", f"at most {most}", value, most)
        return value

    def choice(
        self,
        name: str,
        choices: Collection[str],
        *,
        default: str = _ABSENT,
        code: str = "out_of_range",
    ) -> str:
        """Return one of the choices. An empty text is the default."""
        value = self._value(name, default)
        if value == "" and default is not _ABSENT:
            value = default
        if type(value) is int:
            value = str(value)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, code, f"one of {', '.join(choices)}", value)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false; a form has it as such a word, 1 or 0."""
        value = self._value(name, default)
        if isinstance(value, str | int) and str(value).lower() in _FLAGS:
            return _FLAGS[str(value).lower()]
        raise self._wrong_type(name, "true or false", value)

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _ABSENT:
            raise missing(self.path + name)
        return default

    def _text(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self._wrong_type(name, "a text", value)
        most = self.config.max_characters or len(value)
        if len(value) > most:
            rule = f"a text of at most {most:,} characters"
            raise self._wrong(name, "text_too_long", rule, value, most, len(value))
        return _SURROGATES.sub("\ufffd", value)

    def _texts(self, name: str, values: Any) -> list[str]:
        texts = self._list(name, values)
        return [self._text(f"{name}[{i}]", text) for i, text in enumerate(texts)]

    def _list(self, name: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self._wrong_type(name, "a list", value)
        most = self.config.max_texts
        if len(value) > most:
            rule = f"a list of at most {most:,}"
            raise self._wrong(name, "too_many_texts", rule, value, most, len(value))
        return value

    def _wrong_type(self, name: str, rule: str, value: Any) -> ServingError:
        return self._wrong(name, "wrong_type", rule, value)

    def _wrong(
        self,
        name: str,
        code: str,
        rule: str,
        value: Any,
        limit: int | None = None,
        given: Any = None,
    ) -> ServingError:
        return ServingError(
            400,
            code,
            f"{self.path}{name} must be {rule}, not {_shown(value)}",
            field=self.path + name,
            limit=limit,
            given=_given(value) if given is None else given,
        )


async def read_fields(request: Request, config: ServingConfig) -> Fields:
    """Read the query and the body of a request, and check its key.

    A field that several forms or the query have is a list; JSON comes before the query.
    The guard bounds the size of a body and the time that it takes.

    Raises:
        ServingError: 400, 403 or 415.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ServingError(
            415,
            "unsupported_encoding",
            f"Content-Encoding must be absent, not {encoding[:40]!r}: send the body"
            " uncompressed",
        )
    content_type = request.headers.get("content-type", "")
    pairs = _form(request.scope["query_string"], "the query")
    values = _read_values(await request.body(), content_type, pairs)
    current().authorize(values)
    return Fields(values, config)


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
            raise ServingError(
                400,
                "bad_form",
                "the form is JSON: send it with Content-Type: application/json",
            )
        return _collect(query + _form(body, "the form"))
    if media_type == "multipart/form-data":
        return _collect(query + _multipart(body, content_type))
    raise ServingError(
        415,
        "unsupported_media_type",
        f"Content-Type must be application/json, not {media_type[:40] or 'absent'!r};"
        " forms, urlencoded or multipart, are read too",
    )


def missing(field: str) -> ServingError:
    """Return the error of a field that must be there."""
    return ServingError(
        400, "missing", f"{field} is missing: send this field", field=field
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
    retry = error.retry_after
    return answer(
        error.status, data, None if retry is None else {"Retry-After": str(retry)}
    )


def _json(body: bytes) -> dict[str, Any]:
    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_int=_integer, parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        raise _not_unicode("the body", error) from None
    except RecursionError:
        fault = "it is nested too deeply"
    except ValueError as error:
        fault = first_line(error)
    else:
        if isinstance(value, dict):
            return value
        fault = f"an object is needed, not {_shown(value)}"
    raise ServingError(400, "bad_json", f"the body must be a JSON object: {fault}")


def _integer(digits: str) -> int | float:
    # Python refuses to read integers of more than 4,300 digits.
    return int(digits) if len(digits) < 400 else math.inf


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
        raise ServingError(
            400, "bad_form", f"the body is no multipart form: {error}"
        ) from None
    if files:
        raise ServingError(
            400,
            "wrong_type",
            f"{files[0]} must be a text, not a file: send what the file contains",
            field=files[0],
        )
    if len(fields) > _MOST_FIELDS:
        raise _too_many_fields("the form")
    try:
        return [(name.decode(), value.decode()) for name, value in fields]
    except UnicodeDecodeError as error:
        raise _not_unicode("the form", error) from None


def _not_unicode(place: str, error: UnicodeDecodeError) -> ServingError:
    return ServingError(
        400,
        "not_unicode",
        f"{place} must be UTF-8, and byte {error.start} is not: encode it as UTF-8",
    )


def _too_many_fields(place: str) -> ServingError:
    return ServingError(
        400,
        "bad_form",
        f"{place} has more than {_MOST_FIELDS} fields: leave out what is not needed",
        limit=_MOST_FIELDS,
    )


def _collect(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    # A field that comes once is its text, one that comes several times a list.
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        found.setdefault(name, []).append(text)
    return {name: texts if texts[1:] else texts[0] for name, texts in found.items()}


def _given(value: Any) -> str | int | float | None:
    # Only what is short and can be written as JSON.
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value[:100])
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _shown(value: Any) -> str:
    match value:
        case None | True | False:
            return json.dumps(value)
        case str() if len(value) > 40:
            return f"a text of {len(value):,} characters"
        case str():
            return repr(_SURROGATES.sub("\ufffd", value))
        case int() | float() if _given(value) is not None:
            return f"{value}"
        case int() | float():
            return "a number out of range"
        case list():
            return f"a list of {len(value):,}"
        case _:
            return "an object"
