"""The protocol of LibreTranslate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field

from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import (
    Call,
    Served,
    Whole,
    Word,
    Words,
    answer,
    route,
)
from jaxformer.serving.languages import (
    find_pair,
    name_language,
    translate_others,
    write_code,
)
from jaxformer.translation.text.text import Query

PATHS = ("/translate", "/detect", "/languages", "/frontend", "/suggest")
PATHS += ("/translate_file",)

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
_Named = Annotated[Word, Field(min_length=1)]


class Error(BaseModel):
    """Why a request is refused."""

    error: str


class Asked(BaseModel):
    """Fields of ``POST /translate``."""

    q: Annotated[Word | Words, Field(min_length=1)]
    source: Annotated[_Named, Field(description="a code of /languages, or auto")]
    target: _Named
    format: Literal["text", "html", ""] = ""
    alternatives: Whole = 0
    api_key: str | None = None


class AskedLanguage(BaseModel):
    """Fields of ``POST /detect``."""

    q: _Named
    api_key: str | None = None


class Detected(BaseModel):
    """A language of a text."""

    confidence: float
    language: str


class Translations(BaseModel):
    """Answer of ``POST /translate``: values, or lists of them where ``q`` is one."""

    text: str | list[str] = Field(alias="translatedText")
    alternatives: list[str] | list[list[str]] = []
    language: Detected | list[Detected] | None = Field(None, alias="detectedLanguage")


class Language(BaseModel):
    """A language, and those that it is translated into; its own text comes back."""

    code: str
    name: str
    targets: list[str]


router = APIRouter(tags=["LibreTranslate"], responses={"4XX": {"model": Error}})


def error(error: ServingError) -> dict[str, Any]:
    """Return an error in the form of the protocol."""
    words = _WORDS.get(error.code, "{message}")
    if error.code == "wrong_type" and error.field == "alternatives":
        words = "Invalid request: alternatives parameter is not a number"
    return {"error": words.format(**vars(error))}


@route(router, "/translate", Asked, Translations)
async def translate(call: Call[Asked]) -> Response:
    """Translate texts."""
    asked, service, client, _ = call
    texts = asked.q if isinstance(asked.q, list) else [asked.q]
    is_auto = asked.source.lower() == "auto"
    named = {"source": "" if is_auto else asked.source, "target": asked.target}
    form = asked.format or "text"
    source, target, probability = await find_pair(service, named, texts, form)
    n_best = 1
    if source != target:  # fewer than wanted, if the beam has no more
        most = service.engines[source, target].beam_size - 1
        n_best += min(most, max(asked.alternatives, 0))
    queries = [Query(text, source, target, form, n_best) for text in texts]
    done = await translate_others(service, queries, client)
    shown: dict[str, list[Any]] = {"translatedText": [each.text for each in done]}
    if asked.alternatives > 0:
        shown["alternatives"] = [each.alternatives for each in done]
    if is_auto:
        shown["detectedLanguage"] = [_show(source, probability)] * len(done)
    if asked.q is texts:
        return answer(shown)
    return answer({name: own[0] for name, own in shown.items()})


@route(router, "/detect", AskedLanguage, list[Detected])
async def detect(call: Call[AskedLanguage]) -> Response:
    """Rank the languages of a text."""
    return answer([_show(*own) for own in await call.service.detect(call.asked.q)])


@router.get("/languages", response_model=list[Language])
async def languages(service: Served) -> Response:
    """List the languages and their targets."""
    return answer(
        [
            {
                "code": write_code(code),
                "name": name_language(code),
                "targets": sorted(
                    {write_code(to) for of, to in service.engines if of == code}
                    | {write_code(code)}
                ),
            }
            for code in sorted({code for pair in service.engines for code in pair})
        ]
    )


@router.get("/frontend/settings")
async def settings(service: Served) -> Response:
    """Show the limits of the server."""
    pair = zip(("source", "target"), next(iter(service.engines)), strict=True)
    needs_key = service.access.keys is not None
    return answer(
        {
            "apiKeys": needs_key,
            "charLimit": service.config.max_characters or -1,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": needs_key,
            "language": {
                side: {"code": write_code(code), "name": name_language(code)}
                for side, code in pair
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }
    )


@router.get("/spec", status_code=302)
async def spec() -> Response:
    """Redirect to the document."""
    return RedirectResponse("openapi.json", 302)


@router.post("/suggest")
@router.post("/translate_file")
async def _refuse() -> Response:
    """Refuse what this server does not do, as LibreTranslate does."""
    raise ServingError(403, "disabled", "this is disabled on this server")


def _show(code: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability, 1), "language": write_code(code)}
