"""The protocol of DeepL, version 2: translation, languages and usage."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import Fields, answer, missing, read_fields, refuse
from jaxformer.serving.languages import (
    find_language,
    find_source,
    list_codes,
    name_language,
    translate,
    write_source,
    write_target,
)

if TYPE_CHECKING:
    from jaxformer.serving.service import Service


# The values of options.
MARKUPS = ("", "html", "xml")
SPLITS = ("0", "1", "nonewlines")
FORMALITIES = ("default", "prefer_more", "prefer_less")

_CHARACTER_LIMIT = 10**12  # DeepL's number for none


class _Usage:
    """The characters of all texts since the server began."""

    characters = 0


def routes(service: Service) -> list[Route]:
    """Return the routes of the protocol."""
    usage = _Usage()
    handlers = {
        "translate": (functools.partial(_translate, usage=usage), ["GET", "POST"]),
        "languages": (_languages, ["GET"]),
        "usage": (functools.partial(_usage, usage=usage), ["GET"]),
    }
    return [
        Route(f"/v2/{name}", functools.partial(handle, service), methods=methods)
        for name, (handle, methods) in handlers.items()
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    return refuse(error, {"message": error.message})


async def _translate(service: Service, request: Request, *, usage: _Usage) -> Response:
    fields = await read_fields(request, service.config)
    options = _read_options(fields)
    texts = fields.texts("text")
    if not texts:
        raise missing("text")
    target = find_language(
        service, "target_lang", fields.text("target_lang"), write_target
    )
    given = fields.text("source_lang", "")
    if given:
        source = find_language(service, "source_lang", given, write_source)
    else:
        source = (await find_source(service, "source_lang", texts)).code
    done = await translate(service, texts, source, target, **options)
    usage.characters += sum(map(len, texts))
    shown = [
        {
            "detected_source_language": write_source(each.source),
            "text": each.text,
            # DeepL's client for Python fails where this is missing.
            "billed_characters": len(text),
        }
        for text, each in zip(texts, done, strict=True)
    ]
    return answer(200, {"translations": shown})


def _read_options(fields: Fields) -> dict[str, Any]:
    """Read the options of a query, and refuse those that this server cannot keep to."""
    markup = fields.choice("tag_handling", MARKUPS, default="", code="bad_format")
    split = fields.choice("split_sentences", SPLITS, default="1")
    fields.choice("formality", FORMALITIES, default="default")
    if fields.has("glossary_id"):
        raise ServingError(
            400,
            "out_of_range",
            "glossary_id must be absent, as this server keeps no glossaries of clients",
            field="glossary_id",
        )
    return {
        "format": "html" if markup else "text",
        "sentences": split != "0",
        "split_newlines": split == "1",
    }


async def _languages(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    kind = fields.choice("type", ("source", "target"), default="source")
    write = {"source": write_source, "target": write_target}[kind]
    shown = {
        write(code): {
            "language": write(code),
            "name": name_language(code),
            "supports_formality": False,
        }
        for code in list_codes(service, kind)
    }
    return answer(200, list(shown.values()))


async def _usage(service: Service, request: Request, *, usage: _Usage) -> Response:
    await read_fields(request, service.config)  # a client may ask to try its key
    count = {"character_count": usage.characters, "character_limit": _CHARACTER_LIMIT}
    return answer(200, count)
