"""JSON Schemas of requests and answers: requests are read by what documents them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxformer.serving.call import KEY_FIELDS
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import printable, replace_surrogates, show

Schema = dict[str, Any]

_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    None: "null",
}
_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
FORMAT: Schema = {"enum": ["text", "html"], "default": "text", "x-code": "bad_format"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def record(fields: Mapping[str, Any]) -> Schema:
    """Return the schema of an object.

    Args:
        fields: shapes of :func:`describe`; a name ends with ``?`` where the field may
            be absent.
    """
    return {
        "type": "object",
        "properties": {name.rstrip("?"): describe(own) for name, own in fields.items()},
        "required": [name for name in fields if not name.endswith("?")],
    }


def closed(fields: Mapping[str, Any]) -> Schema:
    """Return the schema of an object that must not have other fields."""
    return {**record(fields), "additionalProperties": False}


def describe(shape: Any) -> Schema:
    """Return the schema of a shape: a type, a list with the shape of its items, a tuple
    of possible shapes, or a schema.
    """
    match shape:
        case dict():
            return shape
        case [items]:
            return {"type": "array", "items": describe(items)}
        case tuple():
            return {"anyOf": [describe(own) for own in shape]}
    return {"type": _TYPES[shape]}


def limited(config: ServingConfig, *, least: int = 0) -> Schema:
    """Return the schema of a text; with ``least`` 1 an empty one is missing."""
    most = config.max_characters
    bounds = {"minLength": least} if least else {}
    return {"type": "string", **bounds, **({"maxLength": most} if most else {})}


def several(config: ServingConfig, items: Schema, *, least: int = 1) -> Schema:
    """Return the schema of a list; with ``least`` 1 an empty one is missing."""
    bounds = {"minItems": least, "maxItems": config.max_texts}
    return {"type": "array", "items": items, **bounds}


def whole(least: int, most: int, default: int) -> Schema:
    """Return the schema of a whole number."""
    bounds = {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds, "default": default}


def listed(value: Any) -> list[Any]:
    """Return a list: the value, or that with the value."""
    return value if isinstance(value, list) else [value]


def read(schema: Schema, value: Any, place: str = "") -> Any:
    """Check a value of a request.

    A form has numbers and flags as texts. Lone surrogates become U+FFFD. Objects have
    all their properties: one that is absent, null, or an empty text instead of one of
    some words, has its default or is None.

    Args:
        schema: of types, bounds, ``enum``, ``anyOf`` and ``not``. An ``enum`` next to a
            type is only documented: there are other ways to write the same.
        value: of JSON or a form; not null.
        place: of the value in errors, such as ``pairs[0].text``.

    Raises:
        ServingError: 400, of which an ``enum`` may have the ``x-code``.
    """
    options = _choose(schema.get("anyOf", [schema]), value)
    for own in options:
        found = _convert(own, value)
        if found is not None:
            return _check(own, found, place)
    rule, code = " or ".join(map(_name, options)), "wrong_type"
    if options == [schema] and "type" not in schema:
        code = schema.get("x-code", "out_of_range")
    raise wrong(place, rule, value, code)


def _choose(options: list[Schema], value: Any) -> list[Schema]:
    """Return the schemas that a value may have: the first field of one tells which."""
    names = {own["required"][0]: own for own in options if own.get("required")}
    if not isinstance(value, dict) or not names:
        return options
    found = [name for name in names if value.get(name) is not None] or [*names][-1:]
    if found[1:]:
        message = f"send {' or '.join(found)}, not both"
        raise ServingError(400, "wrong_type", message, field=found[-1])
    return [names[found[0]]]


def _name(schema: Schema) -> str:
    if "not" in schema:
        return schema["description"]
    if "type" in schema:
        return _NAMES[schema["type"]]
    return f"one of {', '.join(schema['enum'])}"


def _convert(schema: Schema, value: Any) -> Any:
    """Return a value as one of the schema's type; None: it is of another."""
    match schema.get("type"), value:
        case "string", str():
            return replace_surrogates(value)
        case ("array", list()) | ("object", dict()):
            return value
        case "boolean", str() | int():
            return _FLAGS.get(str(value).lower())
        case ("integer", str()) if _WHOLE.fullmatch(value.strip()):
            return int(value)
        case ("integer", float()) if value.is_integer():
            return int(value)
        case ("integer", int()) if not isinstance(value, bool):
            return value
        case None, str() | int() if str(value) in schema.get("enum", ()):
            return str(value)
    return None


def _check(schema: Schema, value: Any, place: str) -> Any:
    """Check the bounds of a value, and what is in it."""
    match value:
        case dict():
            return _read_fields(schema, value, f"{place}." if place else "")
        case bool():
            return value
        case int():
            least, most = schema.get("minimum", value), schema.get("maximum", value)
            if value < least:
                raise wrong(place, f"at least {least}", value, "out_of_range", least)
            if value > most:
                raise wrong(place, f"at most {most}", value, "out_of_range", most)
            return value
        case str():
            unit, code = "Length", "text_too_long"
            rule = "a text of at most {:,} characters"
        case _:
            unit, rule, code = "Items", "a list of at most {:,}", "too_many_texts"
    size = len(value)
    if size < schema.get(f"min{unit}", 0):
        raise missing(place)
    most = schema.get(f"max{unit}", size)
    if size > most:
        raise wrong(place, rule.format(most), value, code, most, size)
    if isinstance(value, str):
        return value
    items = schema["items"]
    return [read(items, own, f"{place}[{i}]") for i, own in enumerate(value)]


def _read_fields(schema: Schema, values: dict[str, Any], before: str) -> dict[str, Any]:
    known, found = schema["properties"], {}
    if "additionalProperties" in schema:
        for name, value in values.items():
            if value is not None and name not in known and name not in KEY_FIELDS:
                shown = before + (name if name.isidentifier() else show(name))
                raise ServingError(
                    400,
                    "unknown_field",
                    f"{shown[:80]} must be absent: the fields here are"
                    f" {', '.join(known)}",
                    field=before + replace_surrogates(name[:80]),
                )
    for name, own in known.items():
        if name in KEY_FIELDS:  # checked before
            continue
        value = values.get(name)
        if value is None or (value == "" and "enum" in own and "type" not in own):
            if name in schema["required"]:
                raise missing(before + name)
            found[name] = own.get("default")
        else:
            found[name] = read(own, value, before + name)
    return found


def missing(field: str) -> ServingError:
    """Return the error of a field that must be there."""
    return ServingError(
        400, "missing", f"{field} is missing: send this field", field=field
    )


def wrong(
    field: str,
    rule: str,
    value: Any,
    code: str = "wrong_type",
    limit: int | None = None,
    given: Any = None,
) -> ServingError:
    """Return the error of a field with a wrong value."""
    return ServingError(
        400,
        code,
        f"{field} must be {rule}, not {show(value)}",
        field=field,
        limit=limit,
        given=printable(value) if given is None else given,
    )
