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
    answer,
    check_texts,
    default,
    document,
    fields,
)
from jaxformer.serving.languages import (
    check_pair,
    find_source,
    name_language,
    plain_text,
    read_language,
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

    q: Annotated[Word | list[Word], Field(min_length=1)]
    source: Annotated[_Named, Field(description="a code of /languages, or auto")]
    target: _Named
    format: Annotated[Literal["text", "html"], default("text")] = "text"
    alternatives: Annotated[Whole, default(0)] = 0
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


@router.post("/translate", response_model=Translations, openapi_extra=document(Asked))
async def translate(call: Annotated[Call[Asked], fields(Asked)]) -> Response:
    """Translate texts."""
    asked, service, client, _ = call
    is_list, engines = isinstance(asked.q, list), service.engines
    texts = asked.q if isinstance(asked.q, list) else [asked.q]
    check_texts(service, "q", texts, listed=is_list)
    target, found = read_language(engines, "target", asked.target), None
    if asked.source.lower() == "auto":
        text = "\n".join(plain_text(text, asked.format) for text in texts)
        source, probability = await find_source(service, "source", text, target)
        found = _show(source, probability)
    else:
        source = read_language(engines, "source", asked.source)
    check_pair(engines, source, target)
    n_best = 1
    if source != target:  # fewer than wanted, if the beam has no more
        most = engines[source, target].beam_size - 1
        n_best += min(most, max(asked.alternatives, 0))
    queries = [Query(text, source, target, asked.format, n_best) for text in texts]
    shown: list[dict[str, Any]] = []
    for each in await translate_others(service, queries, client):
        shown.append({"translatedText": each.text})
        if asked.alternatives > 0:
            shown[-1]["alternatives"] = each.alternatives
        if found:
            shown[-1]["detectedLanguage"] = found
    if not is_list:
        return answer(shown[0])
    return answer({name: [own[name] for own in shown] for name in shown[0]})


@router.post(
    "/detect", response_model=list[Detected], openapi_extra=document(AskedLanguage)
)
async def detect(
    call: Annotated[Call[AskedLanguage], fields(AskedLanguage)],
) -> Response:
    """Rank the languages of a text."""
    check_texts(call.service, "q", [call.asked.q], listed=False)
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
