"""The protocol of LibreTranslate: its routes, fields, answers and words of errors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from jaxformer.serving.call import current
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import refuse
from jaxformer.serving.languages import (
    Source,
    find_engine,
    find_language,
    find_source,
    list_codes,
    name_language,
    translate,
    write_code,
)
from jaxformer.serving.operations import Operation
from jaxformer.serving.schema import FORMAT, describe, limited, listed, record, several

if TYPE_CHECKING:
    from jaxformer.serving.service import Service


ERROR = {"error": str}
_DETECTED = record({"confidence": float, "language": str})
_TRANSLATIONS = record(
    {
        "translatedText": (str, [str]),
        "alternatives?": [(str, [str])],
        "detectedLanguage?": (_DETECTED, [_DETECTED]),
    }
)

# What programs may look for in the text of an error; others have our own.
_WORDS = {
    "missing": "Invalid request: missing {field} parameter",
    "bad_json": "Invalid JSON format",
    "unknown_language": "{given} is not supported",
    "bad_format": "{given} format is not supported",
    "text_too_long": "Invalid request: request ({given}) exceeds text limit ({limit})",
    "key": "Invalid API key",
    "rate": "Slowdown: {limit} per 1 minute",
}


def operations(service: Service) -> list[Operation]:
    """Return the operations of the protocol."""
    text = limited(service.config, least=1)
    sources = list_codes(service, "source", write_code)
    targets = list_codes(service, "target", write_code)
    texts = several(service.config, limited(service.config))
    key = {"api_key?": str}
    translated = {
        "q": describe((text, texts)),
        "source": {"type": "string", "minLength": 1, "enum": ["auto", *sources]},
        "target": {"type": "string", "minLength": 1, "enum": targets},
        "format?": FORMAT,
        "alternatives?": {"type": "integer", "default": 0},
    }
    words, one = record(translated | key), record({"q": text} | key)
    languages = [record({"code": str, "name": str, "targets": [str]})]
    post, get = (functools.partial(Operation, method) for method in ("POST", "GET"))
    return [
        post("/translate", "Translate texts", _translate, _TRANSLATIONS, words),
        post("/detect", "Rank the languages of a text", _detect, [_DETECTED], one),
        get("/languages", "List the languages and targets", _languages, languages),
        get("/frontend/settings", "Show the limits of the server", _settings, dict),
        get("/spec", "Redirect to the document", _spec, "text/plain", status=302),
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    words = _WORDS.get(error.code, "{message}")
    if error.code == "wrong_type" and error.field == "alternatives":
        words = "Invalid request: alternatives parameter is not a number"
    facts = {"field": error.field, "limit": error.limit, "given": error.given}
    return refuse(error, {"error": words.format(message=error.message, **facts)})


async def _translate(service: Service, given: dict[str, Any]) -> Any:
    texts, wanted, found = listed(given["q"]), given["alternatives"], None
    if given["source"].lower() == "auto":
        found = await find_source(service, "source", texts)
    pair = (
        found.code if found else find_language(service, "source", given["source"]),
        find_language(service, "target", given["target"]),
    )
    n_best = 1
    if pair[0] != pair[1]:  # fewer than wanted, if the beam has no more
        n_best += min(find_engine(service, pair).beam_size - 1, max(wanted, 0))
    done = await translate(service, texts, *pair, format=given["format"], n_best=n_best)
    shown: list[dict[str, Any]] = [{"translatedText": each.text} for each in done]
    for own, each in zip(shown, done, strict=True):
        if wanted > 0:
            own["alternatives"] = each.alternatives
        if found:
            own["detectedLanguage"] = _show_source(found)
    if texts is not given["q"]:
        return shown[0]
    return {name: [own[name] for own in shown] for name in shown[0]}


async def _detect(service: Service, given: dict[str, Any]) -> Any:
    return [_show_source(Source(*own)) for own in await service.detect(given["q"])]


async def _languages(service: Service, given: dict[str, Any]) -> Any:
    """List the languages. Each is a target of its own: its text comes back."""
    return [
        {
            "code": write_code(code),
            "name": name_language(code),
            "targets": sorted(
                {write_code(to) for of, to in service.engines if of == code}
                | {write_code(code)}
            ),
        }
        for code in service.languages
    ]


async def _settings(service: Service, given: dict[str, Any]) -> Any:
    first = next(iter(service.engines))
    languages = {
        side: {"code": write_code(code), "name": name_language(code)}
        for side, code in zip(("source", "target"), first, strict=True)
    }
    needs_key = current().keys is not None
    return {
        "apiKeys": needs_key,
        "charLimit": service.config.max_characters or -1,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": needs_key,
        "language": languages,
        "suggestions": False,
        "supportedFilesFormat": [],
    }


async def _spec(service: Service, given: dict[str, Any]) -> Any:
    return RedirectResponse("openapi.json", 302)


def _show_source(source: Source) -> dict[str, Any]:
    return {
        "confidence": round(100 * source.probability, 1),
        "language": write_code(source.code),
    }
