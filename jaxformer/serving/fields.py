"""The fields of a request, from JSON, a form, a multipart form or the query, as a class
that documents them; and the JSON of an answer.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar
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
_RULES = {
    "string": "a text",
    "int": "a whole number",
    "bool": "true or false",
    "list": "a list",
    "model": "an object",
    "none": "absent",
}
Model = TypeVar("Model", bound=BaseModel)


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a whole number")
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


def fields(kind: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """Return the dependency that finds out whose request it is, waits until the runs
    are read, and reads fields of a kind.
    """

    async def read(request: Request) -> Model:
        values, service = await read_values(request), find_service(request)
        scheme, _, header = request.headers.get("authorization", "").partition(" ")
        keys = [values.pop(name, None) for name in _KEYS]
        if scheme.lower() in ("bearer", "deepl-auth-key"):
            keys.append(header.strip())
        name = service.access.identify(
            keys, request.client.host if request.client else ""
        )
        request.state.client = Client(name, request.scope["exchange"].facts)
        await service.is_loaded.wait()
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            raise _describe(error, kind) from None

    return read


def find_service(request: Request) -> Service:
    """Return the service that answers."""
    return request.app.state.service


async def find_loaded(request: Request) -> Service:
    """Return the service once its runs are read."""
    service = find_service(request)
    await service.is_loaded.wait()
    return service


def find_client(request: Request) -> Client:
    """Return whose request it is, once its fields are read."""
    return request.state.client


Served = Annotated[Service, Depends(find_loaded)]
Caller = Annotated[Client, Depends(find_client)]


def _describe(error: ValidationError, kind: type[BaseModel]) -> ServingError:
    """Return the error of the first wrong field: one that is unknown, or another."""
    faults = error.errors(include_url=False)
    first = min(faults, key=lambda own: own["type"] != "extra_forbidden")
    name, facts, field = first["type"], first.get("ctx", {}), _name(first["loc"])
    if name in ("missing", "string_too_short", "too_short"):
        fault = f"{field} is missing: send this field"
        return ServingError(400, "missing", fault, field=field)
    if name == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        fault = f"{field} must be absent: the fields here are {known}"
        return ServingError(400, "unknown_field", fault, field=field)
    code, limit = "wrong_type", facts.get("ge", facts.get("le"))
    if limit is not None:
        code, rule = (
            "out_of_range",
            f"at {'least' if 'ge' in facts else 'most'} {limit}",
        )
    elif name == "literal_error":
        code = "bad_format" if field == "format" else code
        rule = f"one of {facts['expected']}"
    else:  # of each type that the field may have
        own = (each for each in faults if _name(each["loc"]) == field)
        words = (_RULES.get(x["type"].partition("_")[0], x["msg"]) for x in own)
        rule = " or ".join(dict.fromkeys(words))
    return wrong(field, rule, first["input"], code, limit)


def _name(place: Sequence[str | int]) -> str:
    """Return the name of a field such as ``pairs[0].text``."""
    found = ""
    for part in place:
        if isinstance(part, int):
            found += f"[{part}]"
        elif not found or part.isidentifier():  # else a type that it may have
            found += f"{'.' * bool(found)}{replace_surrogates(part[:80])}"
    return found


def wrong(
    field: str,
    rule: str,
    value: Any,
    code: str = "wrong_type",
    limit: float | None = None,
    given: Any = None,
) -> ServingError:
    """Return the error of a field with a wrong value."""
    fault = f"{field} must be {rule}, not {_show(value)}"
    shown = _printable(value) if given is None else given
    return ServingError(400, code, fault, field=field, limit=limit, given=shown)


def _printable(value: Any) -> str | int | float | None:
    """Return a value that is short and can be written as JSON; None: it is not."""
    if isinstance(value, str):
        return replace_surrogates(value[:100])
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number and abs(value) < 2**53 else None


def _show(value: Any) -> str:
    match value:
        case None | True | False:
            return json.dumps(value)
        case str():
            is_short = len(value) <= 40
            return repr(_printable(value)) if is_short else f"a text of {len(value):,}"
        case int() | float():
            return (
                f"{'a number out of range' if (x := _printable(value)) is None else x}"
            )
        case list():
            return f"a list of {len(value):,}"
    return "an object"


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
        fault = f"an object is needed, not {_show(value)}"
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
