"""The protocol of DeepL: version 2, and what clients ask of version 3."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, Field

from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import (
    Call,
    Names,
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
from jaxformer.serving.service import Service
from jaxformer.translation.text.text import Query

PATHS = ("/v2", "/v3")

_LIMIT = 10**12  # DeepL's number for none
# Its clients refuse these languages as targets without a region.
_REGIONS = {"en": ["en-GB", "en-US"], "pt": ["pt-BR", "pt-PT"]}


_Absent = Annotated[None, BeforeValidator(lambda own: own or None)]


class Error(BaseModel):
    """Why a request is refused."""

    message: str


class Asked(BaseModel):
    """Fields of ``/v2/translate``. What would change the answer is done or refused."""

    text: Annotated[Words, Field(min_length=1)]
    target_lang: Annotated[Word, Field(min_length=1)]
    source_lang: Word = ""
    tag_handling: Literal["html", "xml", ""] = ""
    ignore_tags: Names = []
    splitting_tags: Names = []
    non_splitting_tags: Names = []
    outline_detection: bool = True
    split_sentences: Literal["0", "1", "nonewlines", ""] = ""
    formality: Literal["default", "prefer_more", "prefer_less", ""] = ""
    model_type: Literal[
        "latency_optimized", "quality_optimized", "prefer_quality_optimized", ""
    ] = ""
    glossary_id: _Absent = None
    glossary_ids: _Absent = None
    style_id: _Absent = None
    custom_instructions: _Absent = None
    translation_memory_id: _Absent = None
    auth_key: str | None = None


class Key(BaseModel):
    """Where a client may have its key."""

    auth_key: str | None = None


class AskedSide(Key):
    """Fields of ``/v2/languages``."""

    type: Literal["source", "target", ""] = ""


class AskedResource(Key):
    """Fields of ``/v3/languages``."""

    resource: Literal[
        "translate_text",
        "translate_document",
        "glossary",
        "style_rules",
        "translation_memory",
        "voice",
        "write",
    ] = "translate_text"


class Translation(BaseModel):
    """A translation of a text."""

    detected_source_language: str
    text: str
    billed_characters: int
    model_type_used: str | None = None


class Translations(BaseModel):
    """Answer of ``/v2/translate``."""

    translations: list[Translation]


class Language(BaseModel):
    """A language."""

    language: str
    name: str
    supports_formality: bool | None = None


class Usage(BaseModel):
    """The characters of all texts since the server began."""

    character_count: int
    character_limit: int


router = APIRouter(tags=["DeepL"], responses={"4XX": {"model": Error}})


def error(error: ServingError) -> dict[str, Any]:
    """Return an error in the form of the protocol."""
    if error.code == "unknown_language":
        return {"message": f"Value for '{error.field}' not supported."}
    return {"message": error.message}


@route(router, "/v2/translate", Asked, Translations, "POST", "GET")
async def translate(call: Call[Asked]) -> Response:
    """Translate texts. The language of each is found for itself."""
    asked, service, client, request = call
    form = "html" if asked.tag_handling else "text"
    tags = {} if asked.outline_detection else {"*": "inline"}
    for rule, names in (
        ("block", asked.splitting_tags),
        ("inline", asked.non_splitting_tags),
        ("keep", asked.ignore_tags),
    ):
        tags |= dict.fromkeys(re.findall(r"[^\s,]+", ",".join(names).lower()), rule)
    if asked.tag_handling == "xml" and asked.split_sentences in ("", "1"):
        tags["\n"] = "block"
    named = {"source_lang": asked.source_lang, "target_lang": asked.target_lang}
    queries = [
        Query(
            text,
            *(await find_pair(service, named, [text], form))[:2],
            format=form,
            sentences=asked.split_sentences != "0",
            split_newlines=asked.split_sentences != "nonewlines",
            tags=tags,
        )
        for text in asked.text
    ]
    done = await translate_others(service, queries, client)
    state = request.app.state
    count = sum(map(len, asked.text))
    state.characters = getattr(state, "characters", 0) + count
    used = asked.model_type.removeprefix("prefer_")
    more = {"model_type_used": used} if used else {}
    return answer(
        {
            "translations": [
                {
                    "detected_source_language": _write_source(each.source),
                    "text": each.text,
                    # DeepL's client for Python fails where this is missing.
                    "billed_characters": len(text),
                    **more,
                }
                for text, each in zip(asked.text, done, strict=True)
            ]
        }
    )


@route(router, "/v2/languages", AskedSide, list[Language], "POST", "GET")
async def languages(call: Call[AskedSide]) -> Response:
    """List languages."""
    is_target = call.asked.type == "target"
    more = {"supports_formality": False} if is_target else {}
    return answer(
        [
            {"language": code.upper(), "name": name, **more}
            for code, name in _name_codes(call.service, is_target).items()
            if not (is_target and code in _REGIONS)
        ]
    )


@route(router, "/v3/languages", AskedResource, None, "GET")
async def list_both(call: Call[AskedResource]) -> Response:
    """List the languages of both sides; none for what is not texts."""
    sources, targets = (_name_codes(call.service, side) for side in (False, True))
    shown = sources | targets if call.asked.resource == "translate_text" else {}
    return answer(
        [
            {
                "lang": code,
                "name": name,
                "status": "stable",
                "usable_as_source": code in sources,
                "usable_as_target": code in targets,
                "features": {"tag_handling": {"status": "stable"}},
            }
            for code, name in sorted(shown.items())
        ]
    )


def _name_codes(service: Service, is_target: bool) -> dict[str, str]:
    """Return the codes of the languages of a side with their names."""
    names: dict[str, str] = {}
    for own in sorted({pair[is_target] for pair in service.engines}):
        code = write_code(own)
        regions = [code, *_REGIONS.get(code, [])]
        codes = regions if is_target else [code.partition("-")[0]]
        names |= dict.fromkeys(codes, name_language(own))
    return names


@route(router, "/v2/usage", Key, Usage, "POST", "GET")
async def usage(call: Call[Key]) -> Response:
    """Count the characters translated."""
    count = getattr(call.request.app.state, "characters", 0)
    return answer({"character_count": count, "character_limit": _LIMIT})


@router.get("/v2/glossary-language-pairs")
async def glossary_pairs() -> Response:
    """Say that there are no glossaries of clients, which Weblate asks first."""
    return answer({"supported_languages": []})


@router.get("/v2/glossaries")
@router.get("/v3/glossaries")
async def glossaries() -> Response:
    """List no glossaries."""
    return answer({"glossaries": []})


def _write_source(code: str) -> str:
    """Return the code of a run's language as DeepL writes that of a text."""
    return write_code(code).upper().partition("-")[0]
