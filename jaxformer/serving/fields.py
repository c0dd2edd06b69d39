"""The fields of a request, from JSON, a form, a multipart form or the query, as a class
that documents them; and the JSON of an answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Response
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from jaxformer.errors import first_line
from jaxformer.serving.errors import ServingError, replace_surrogates
from jaxformer.serving.service import Client, Service

# Its warnings show bytes of bodies, which no log may have.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_KEYS = ("api_key", "auth_key")  # where a client may have its key, but for a header
_MOST = 1000  # fields of a form or query
# What UTF-8 cannot write, and what some clients take for the end of an event's line.
_ESCAPED = re.compile(r"[\ud800-\udfff\x85\u2028\u2029]")
_WORDS = {
    "missing": "is missing: send this field",
    "unsupported": "is not supported here: leave it out",
    "unknown_field": "is no field of this route: see /openapi.json",
}
_CODES = {
    "missing": "missing",
    "string_too_short": "missing",
    "too_short": "missing",
    "extra_forbidden": "unknown_field",
    "none_required": "unsupported",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
}
Model = TypeVar("Model", bound=BaseModel)


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a whole number")  # not 1
    return value


Whole = Annotated[int, BeforeValidator(_no_flag)]
Word = Annotated[
    str,
    BeforeValidator(
        lambda own: replace_surrogates(own) if isinstance(own, str) else own
    ),
]
"""A text, whose lone surrogates become U+FFFD."""
Words = Annotated[
    list[Word],
    BeforeValidator(
        lambda own: [own] if isinstance(own, str) else own,
        json_schema_input_type=str | list[str],
    ),
]
"""Texts, or one."""


def default(value: Any) -> BeforeValidator:
    """Return what has an empty text mean a value."""
    return BeforeValidator(lambda own: value if own == "" else own)


class Call(NamedTuple, Generic[Model]):
    """A request whose fields are read: what a route works with."""

    asked: Model
    service: Service
    client: Client
    request: Request


def fields(kind: type[Model]) -> Any:
    """Return the dependency that finds out whose request it is, waits until the runs
    are read, and reads fields of a kind.
    """

    async def read(request: Request) -> Call[Model]:
        values, service = await read_values(request), request.app.state.service
        scheme, _, header = request.headers.get("authorization", "").partition(" ")
        keys = [values.pop(name, None) for name in _KEYS]
        if scheme.lower() in ("bearer", "deepl-auth-key"):
            keys.append(header.strip())
        address = request.client.host if request.client else ""
        name = service.access.identify(keys, address)
        client = Client(name, request.scope["exchange"].facts)
        await service.wait(lambda: service.engines)
        try:
            return Call(kind.model_validate(values), service, client, request)
        except ValidationError as error:
            raise _describe(error) from None

    return Depends(read)


async def _find_service(request: Request) -> Service:
    service = request.app.state.service
    await service.wait(lambda: service.engines)
    return service


Served = Annotated[Service, Depends(_find_service)]
"""The service, once the runs are read."""


def _describe(error: ValidationError) -> ServingError:
    """Return the error of the first wrong field: one that is unknown, or another."""
    faults = error.errors(include_url=False)
    first = min(faults, key=lambda own: own["type"] != "extra_forbidden")
    facts, field = first.get("ctx", {}), ""
    for part in first["loc"]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not field or part.isidentifier():  # else a type that it may have
            field += f"{'.' * bool(field)}{part[:80]}"
    code = _CODES.get(first["type"], "wrong_type")
    if code in _WORDS:
        return ServingError(400, code, f"{field} {_WORDS[code]}", field=field)
    if field == "format":
        code = "bad_format"
    rule = first["msg"].removeprefix("Input should be ")
    return wrong(field, rule, first["input"], code, facts.get("ge", facts.get("le")))


def wrong(
    field: str,
    rule: str,
    value: Any,
    code: str = "wrong_type",
    limit: float | None = None,
    given: Any = None,
) -> ServingError:
    """Return the error of a field with a wrong value."""
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
    if given is None and isinstance(value, str | int):
        given = value[:100] if isinstance(value, str) else value
    fault = f"{field} must be {rule}, not {shown}"
    return ServingError(400, code, fault, field=field, limit=limit, given=given)


def check_texts(
    service: Service, field: str, texts: Sequence[str], *, listed: bool = True
) -> None:
    """Check that texts are few and short enough.

    Raises:
        ServingError: 400, they are not.
    """
    few, short = service.config.max_texts, service.config.max_characters
    if (count := len(texts)) > few:
        rule = f"a list of at most {few}"
        raise wrong(field, rule, texts, "too_many_texts", few, count)
    for place, text in enumerate(texts):
        if short and len(text) > short:
            where = f"{field}[{place}]" if listed else field
            rule, given = f"a text of at most {short:,} characters", len(text)
            raise wrong(where, rule, text, "text_too_long", short, given)


async def read_values(request: Request) -> dict[str, Any]:
    """Read the query and the body of a request.

    A field that several forms or the query have is a list; JSON comes before the query.

    Raises:
        ServingError: 400 or 415.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        rule = f"Content-Encoding must be absent, not {encoding[:40]!r}: send the body"
        raise ServingError(415, "unsupported_encoding", f"{rule} uncompressed")
    query = _form(request.scope["query_string"], "the query")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if not body:
        return _collect(query)
    if kind == JSON or kind.endswith("+json"):
        return _collect(query) | _json(body)
    if kind == FORM:
        if body.lstrip().startswith(b'{"'):  # as curl -d sends it
            raise _bad("the form is JSON: send it with Content-Type: application/json")
        return _collect(query + _form(body, "the form"))
    if kind == "multipart/form-data":
        # Starlette refuses a wrong one with 400, and files.
        form = await request.form(max_files=0, max_fields=_MOST, max_part_size=2**30)
        return _collect(query + form.multi_items())
    raise ServingError(
        415,
        "unsupported_media_type",
        f"Content-Type must be application/json, not {kind[:40] or 'absent'!r}; forms,"
        " urlencoded or multipart, are read too",
    )


def _json(body: bytes) -> dict[str, Any]:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise _not_unicode("the body", error) from None
    except (ValueError, RecursionError) as error:
        fault = first_line(error)
    else:
        if isinstance(value, dict):
            return {name: own for name, own in value.items() if own is not None}
        fault = "an object is needed"
    raise ServingError(400, "bad_json", f"the body must be a JSON object: {fault}")


def _form(data: bytes, place: str) -> list[tuple[str, Any]]:
    how: Any = {"keep_blank_values": True, "errors": "strict"}
    try:
        return [*parse_qsl(data.decode(), max_num_fields=_MOST, **how)]
    except UnicodeDecodeError as error:
        raise _not_unicode(place, error) from None
    except ValueError:
        rule = f"{place} has more than {_MOST} fields: leave out what is not needed"
        raise _bad(rule) from None


def _not_unicode(place: str, error: UnicodeDecodeError) -> ServingError:
    rule = f"{place} must be UTF-8, and byte {error.start} is not: encode it as UTF-8"
    return ServingError(400, "not_unicode", rule)


def _bad(fault: str) -> ServingError:
    return ServingError(400, "bad_form", fault)


def _collect(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    # A field that comes once is its text, one that comes several times a list.
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: own if own[1:] else own[0] for name, own in found.items()}


def document(kind: type[BaseModel], *types: str, query: bool = False) -> dict[str, Any]:
    """Return what the OpenAPI document says of a request with fields of a kind.

    Args:
        kind: of the fields.
        types: media types of the body; none: JSON and forms.
        query: whether they are parameters of the query.
    """
    schema = kind.model_json_schema()
    parts = schema.pop("$defs", {})  # the document has its own place for these
    schema = json.loads(
        json.dumps(schema),
        object_hook=lambda own: parts.get(own.get("$ref", "")[8:], own),
    )
    if query:
        needed = schema.get("required", [])
        parameters = [
            {"name": name, "in": "query", "required": name in needed, "schema": own}
            for name, own in schema["properties"].items()
        ]
        return {"parameters": parameters}
    content = {name: {"schema": schema} for name in types or (JSON, FORM)}
    return {"requestBody": {"required": True, "content": content}}


def write_json(data: Any) -> str:
    """Write JSON on one line that UTF-8 can encode, without NaN."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def answer(
    data: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON."""
    return Response(write_json(data), status, headers, media_type=JSON)
