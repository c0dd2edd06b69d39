"""The protocol of DeepL, version 2: translation, languages and usage."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import refuse
from jaxformer.serving.languages import (
    find_language,
    find_source,
    list_codes,
    name_language,
    translate,
    write_source,
    write_target,
)
from jaxformer.serving.operations import Operation
from jaxformer.serving.schema import describe, limited, listed, record, several

if TYPE_CHECKING:
    from jaxformer.serving.service import Service


ERROR = {"message": str}
_CHARACTER_LIMIT = 10**12  # DeepL's number for none
_TRANSLATION = record(
    {"detected_source_language": str, "text": str, "billed_characters": int}
)
_LANGUAGE = record({"language": str, "name": str, "supports_formality": bool})


class _Usage:
    """The characters of all texts since the server began."""

    characters = 0


def operations(service: Service) -> list[Operation]:
    """Return the operations of the protocol, which count in one place."""
    text, usage = limited(service.config), _Usage()
    targets = list_codes(service, "target", write_target)
    sources = list_codes(service, "source", write_source)
    no_glossaries = "absent, as this server keeps no glossaries of clients"
    translated = {
        "text": describe((text, several(service.config, text))),
        "target_lang": {"type": "string", "enum": targets},
        "source_lang?": {"type": "string", "enum": sources},
        "tag_handling?": {"enum": ["", "html", "xml"], "x-code": "bad_format"},
        "split_sentences?": {"enum": ["0", "1", "nonewlines"], "default": "1"},
        "formality?": {"enum": ["default", "prefer_more", "prefer_less"]},
        "glossary_id?": {"not": {}, "description": no_glossaries},
        "auth_key?": str,
    }
    fields = record(translated)
    side = record({"type?": {"enum": ["source", "target"], "default": "source"}})
    count = record({"character_count": int, "character_limit": int})
    translations = record({"translations": [_TRANSLATION]})
    handle = functools.partial(_translate, usage=usage)
    show = functools.partial(_usage, usage=usage)
    none = record({})  # they are read for the key, which a client may ask to try
    get = functools.partial(Operation, "GET")
    return [
        Operation(
            "GET POST", "/v2/translate", "Translate texts", handle, translations, fields
        ),
        get("/v2/languages", "List languages", _languages, [_LANGUAGE], side),
        get("/v2/usage", "Count the characters translated", show, count, none),
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    return refuse(error, {"message": error.message})


async def _translate(service: Service, given: dict[str, Any], *, usage: _Usage) -> Any:
    texts = listed(given["text"])
    target = find_language(service, "target_lang", given["target_lang"], write_target)
    if given["source_lang"]:
        source = find_language(
            service, "source_lang", given["source_lang"], write_source
        )
    else:
        source = (await find_source(service, "source_lang", texts)).code
    done = await translate(
        service,
        texts,
        source,
        target,
        format="html" if given["tag_handling"] else "text",
        sentences=given["split_sentences"] != "0",
        split_newlines=given["split_sentences"] != "nonewlines",
    )
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
    return {"translations": shown}


async def _languages(service: Service, given: dict[str, Any]) -> Any:
    side = given["type"]
    write = {"source": write_source, "target": write_target}[side]
    names = {write(code): name_language(code) for code in list_codes(service, side)}
    return [
        {"language": code, "name": name, "supports_formality": False}
        for code, name in names.items()
    ]


async def _usage(service: Service, given: dict[str, Any], *, usage: _Usage) -> Any:
    count = usage.characters
    return {"character_count": count, "character_limit": _CHARACTER_LIMIT}
