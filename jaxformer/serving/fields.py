"""The fields of a request, from JSON, a form, a multipart form or the query, as a class
that documents them; and the JSON of an answer.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request, Response
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ValidationError,
    ValidationInfo,
)

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


def _limit(value: Any, info: ValidationInfo) -> Any:
    """Return a text or texts of a request that are few and short enough.

    Raises:
        ServingError: 400, they are not.
    """
    config: Any = info.context
    field, is_list = info.field_name or "", isinstance(value, list)
    texts = value if is_list else [value]
    few, short = config.max_texts, config.max_characters
    if (count := len(texts)) > few:
        rule = f"a list of at most {few}"
        raise wrong(field, rule, value, "too_many_texts", few, count)
    for place, text in enumerate(texts):
        if short and isinstance(text, str) and len(text) > short:
            where = f"{field}[{place}]" if is_list else field
            rule, given = f"a text of at most {short:,} characters", len(text)
            raise wrong(where, rule, text, "text_too_long", short, given)
    return value


_Text = Annotated[
    str,
    BeforeValidator(
        lambda own: replace_surrogates(own) if isinstance(own, str) else own
    ),
]
Limited = AfterValidator(_limit)
"""What is not too much of a text or texts."""
Word = Annotated[_Text, Limited]
"""A text, whose lone surrogates become U+FFFD."""
Names = Annotated[
    list[_Text],
    BeforeValidator(
        lambda own: [own] if isinstance(own, str) else own,
        json_schema_input_type=str | list[str],
    ),
]
"""Strings, or one."""
Words = Annotated[Names, Limited]
"""Texts, or one."""
Whole = Annotated[
    int,
    BeforeValidator(
        lambda own: f"{own}" if isinstance(own, bool) else 0 if own == "" else own
    ),
]
"""A whole number, which ``true`` is not; an empty text is 0."""


class Call(NamedTuple, Generic[Model]):
    """A request whose fields are read: what a route works with."""

    asked: Model
    service: Service
    client: Client
    request: Request


async def _find_service(request: Request) -> Service:
    service = request.app.state.service
    await service.wait(lambda: service.engines)
    return service


Served = Annotated[Service, Depends(_find_service)]
"""The service, once the runs are read."""


def fields(kind: type[Model]) -> Any:
    """Return the dependency that waits until the runs are read, finds out whose request
    it is, and reads fields of a kind.
    """

    async def read(request: Request, service: Served) -> Call[Model]:
        values = await read_values(request)
        scheme, _, header = request.headers.get("authorization", "").partition(" ")
        keys = [values.pop(name, None) for name in _KEYS]
        if scheme.lower() in ("bearer", "deepl-auth-key"):
            keys.append(header.strip())
        address = request.client.host if request.client else ""
        name = service.access.identify(keys, address)
        client = Client(name, request.scope["exchange"].facts)
        try:
            asked = kind.model_validate(values, context=service.config)
        except ValidationError as error:
            raise _describe(error) from None
        return Call(asked, service, client, request)

    return Depends(read)


def _describe(error: ValidationError) -> ServingError:
    """Return the error of the first wrong field: one that is unknown, or another."""
    faults = error.errors(include_url=False)
    first = min(faults, key=lambda own: own["type"] != "extra_forbidden")
    facts, field = first.get("ctx", {}), ""
    for part in first["loc"]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif not field:
            field = part[:80]
        elif field.endswith("]"):  # else a type that the field may have
            field += f".{part[:80]}"
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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body, values = await request.body(), dict[str, Any]()
    try:
        pairs = _form(request.scope["query_string"], "the query")
        if kind == FORM:
            pairs += _form(body, "the form")
        elif body and (kind == JSON or kind.endswith("+json")):
            values = _json(body)
        elif body and kind == "multipart/form-data":
            # Starlette refuses a wrong one with 400, and files.
            how: Any = {"max_files": 0, "max_part_size": 2**30}
            form = await request.form(max_fields=_MOST, **how)
            pairs += form.multi_items()
        elif body:
            raise ServingError(
                415,
                "unsupported_media_type",
                f"Content-Type must be application/json, not {kind[:40] or 'absent'!r};"
                " forms, urlencoded or multipart, are read too",
            )
    except UnicodeDecodeError as error:
        rule = f"the request must be UTF-8, and byte {error.start} is not"
        raise ServingError(400, "not_unicode", f"{rule}: encode it so") from None
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: own if own[1:] else own[0] for name, own in found.items()} | values


def _json(body: bytes) -> dict[str, Any]:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        fault = first_line(error)
    else:
        if isinstance(value, dict):
            return {name: own for name, own in value.items() if own is not None}
        fault = "an object is needed"
    raise ServingError(400, "bad_json", f"the body must be a JSON object: {fault}")


def _form(data: bytes, place: str) -> list[tuple[str, Any]]:
    fault = ""
    if data.count(b"&") >= _MOST:
        fault = f"has more than {_MOST} fields: leave out what is not needed"
    elif data.lstrip().startswith(b'{"'):  # as curl -d sends it
        fault = "is JSON: send it with Content-Type: application/json"
    if fault:
        raise ServingError(400, "bad_form", f"{place} {fault}")
    return [*parse_qsl(data.decode(), keep_blank_values=True, errors="strict")]


def route(
    router: APIRouter, path: str, kind: type[Model], found: Any, *methods: str
) -> Callable[..., object]:
    """Return a decorator of what answers requests.

    Args:
        router: of the protocol.
        path: of the route.
        kind: of the fields.
        found: what the document says of the answer.
        methods: of HTTP; none: POST.
    """
    read = fields(kind)

    def add(work: Callable[[Call[Model]], Awaitable[Response]]) -> None:
        async def run(call: Any = read) -> Response:
            return await work(call)

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        for method in methods or ["POST"]:
            extra = document(kind, query=method == "GET")
            how: Any = {"response_model": found, "openapi_extra": extra}
            router.add_api_route(path, run, methods=[method], **how)

    return add


def document(kind: type[BaseModel], *, query: bool = False) -> dict[str, Any]:
    """Return what the OpenAPI document says of a request with fields of a kind: of its
    body or, on request, of its query.
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
    content = {name: {"schema": schema} for name in (JSON, FORM)}
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
