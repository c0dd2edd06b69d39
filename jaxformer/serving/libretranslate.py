"""The protocol of LibreTranslate: its routes, fields, answers and words of errors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jaxformer.serving.call import current
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import Fields, answer, missing, read_fields, refuse
from jaxformer.serving.languages import (
    Source,
    find_engine,
    find_language,
    find_source,
    name_language,
    translate,
    write_code,
)

if TYPE_CHECKING:
    from jaxformer.serving.service import Service


_FORMATS = ("text", "html")

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


def routes(service: Service) -> list[Route]:
    """Return the routes of the protocol."""
    handlers = {
        ("POST", "/translate"): _translate,
        ("POST", "/detect"): _detect,
        ("GET", "/languages"): _languages,
        ("GET", "/frontend/settings"): _settings,
        ("GET", "/spec"): _spec,
    }
    return [
        Route(path, functools.partial(handle, service), methods=[method])
        for (method, path), handle in handlers.items()
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    words = _WORDS.get(error.code, "{message}")
    if error.code == "wrong_type" and error.field == "alternatives":
        words = "Invalid request: alternatives parameter is not a number"
    facts = {"field": error.field, "limit": error.limit, "given": error.given}
    return refuse(error, {"error": words.format(message=error.message, **facts)})


async def _translate(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    for name in ("q", "source", "target"):
        _need(fields, name)
    texts, target = fields.texts("q"), fields.text("target")
    source, found = fields.text("source"), None
    if source.lower() == "auto":
        found = await find_source(service, "source", texts)
    pair = (
        found.code if found else find_language(service, "source", source),
        find_language(service, "target", target),
    )
    form = fields.choice("format", _FORMATS, default="text", code="bad_format")
    wanted = fields.whole("alternatives", least=None, default=0)
    n_best = 1
    if pair[0] != pair[1]:  # fewer than wanted, if the beam has no more
        n_best += min(find_engine(service, pair).beam_size - 1, max(wanted, 0))
    done = await translate(service, texts, *pair, format=form, n_best=n_best)
    shown: list[dict[str, Any]] = [{"translatedText": each.text} for each in done]
    for own, each in zip(shown, done, strict=True):
        if wanted > 0:
            own["alternatives"] = each.alternatives
        if found:
            own["detectedLanguage"] = _show_source(found)
    if not fields.is_list("q"):
        return answer(200, shown[0])
    return answer(200, {name: [own[name] for own in shown] for name in shown[0]})


async def _detect(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    _need(fields, "q")
    ranked = await service.detect(fields.text("q"))
    return answer(200, [_show_source(Source(*own)) for own in ranked])


async def _languages(service: Service, request: Request) -> Response:
    """List the languages. Each is a target of its own: its text comes back."""
    shown = [
        {
            "code": write_code(own.code),
            "name": own.name,
            "targets": sorted(map(write_code, {own.code, *own.targets})),
        }
        for own in service.languages()
    ]
    return answer(200, shown)


async def _settings(service: Service, request: Request) -> Response:
    first = next(iter(service.engines))
    languages = {
        side: {"code": write_code(code), "name": name_language(code)}
        for side, code in zip(("source", "target"), first, strict=True)
    }
    needs_key = current().keys is not None
    settings = {
        "apiKeys": needs_key,
        "charLimit": service.config.max_characters or -1,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": needs_key,
        "language": languages,
        "suggestions": False,
        "supportedFilesFormat": [],
    }
    return answer(200, settings)


async def _spec(service: Service, request: Request) -> Response:
    return RedirectResponse("openapi.json", 302)


def _need(fields: Fields, name: str) -> None:
    if fields.values.get(name) in (None, "", []):
        raise missing(name)


def _show_source(source: Source) -> dict[str, Any]:
    return {
        "confidence": round(100 * source.probability, 1),
        "language": write_code(source.code),
    }
