"""The protocol of DeepL: version 2, and what clients ask of version 3."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import (
    Call,
    Word,
    Words,
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
from jaxformer.serving.service import Service
from jaxformer.translation.text.text import Query

PATHS = ("/v2", "/v3")

_LIMIT = 10**12  # DeepL's number for none
# Its clients refuse these languages as targets without a region.
_REGIONS = {"en": ["en-GB", "en-US"], "pt": ["pt-BR", "pt-PT"]}


def _divide(tags: Any) -> Any:
    """Return names of tags, which may be one text with commas."""
    listed = tags if isinstance(tags, list) else [tags]
    names = (name for each in listed for name in str(each).lower().split(","))
    return [name.strip() for name in names if name.strip()]


_Tags = Annotated[list[str], BeforeValidator(_divide)]
_Absent = Annotated[None, BeforeValidator(lambda own: own or None)]
_Model = Literal["latency_optimized", "quality_optimized", "prefer_quality_optimized"]


class Error(BaseModel):
    """Why a request is refused."""

    message: str


class Asked(BaseModel):
    """Fields of ``/v2/translate``. What would change the answer is done or refused."""

    text: Annotated[Words, Field(min_length=1)]
    target_lang: Annotated[Word, Field(min_length=1)]
    source_lang: Word = ""
    tag_handling: Literal["", "html", "xml"] = ""
    ignore_tags: _Tags = []
    splitting_tags: _Tags = []
    non_splitting_tags: _Tags = []
    outline_detection: bool = True
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], default("1")] = "1"
    formality: Annotated[
        Literal["default", "prefer_more", "prefer_less"], default("default")
    ] = "default"
    model_type: Annotated[_Model | None, default(None)] = None
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

    type: Annotated[Literal["source", "target"], default("source")] = "source"


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


@router.get(
    "/v2/translate",
    response_model=Translations,
    openapi_extra=document(Asked, query=True),
)
@router.post(
    "/v2/translate", response_model=Translations, openapi_extra=document(Asked)
)
async def translate(call: Annotated[Call[Asked], fields(Asked)]) -> Response:
    """Translate texts. The language of each is found for itself."""
    asked, service, client, request = call
    check_texts(service, "text", asked.text)
    engines, queries = service.engines, []
    target = read_language(engines, "target_lang", asked.target_lang)
    tags = {} if asked.outline_detection else {"*": "inline"}
    tags |= dict.fromkeys(asked.splitting_tags, "block")
    tags |= dict.fromkeys(asked.non_splitting_tags, "inline")
    tags |= dict.fromkeys(asked.ignore_tags, "keep")
    begin = end = ""
    if (asked.tag_handling, asked.split_sentences) == ("xml", "1"):
        # In this element of HTML a line break ends a sentence.
        begin, end, tags["pre"] = "<pre>", "</pre>", "block"
    for text in asked.text:
        form = "html" if asked.tag_handling else "text"
        if asked.source_lang:
            source = read_language(engines, "source_lang", asked.source_lang)
        else:
            plain = plain_text(text, form)
            source, _ = await find_source(service, "source_lang", plain, target)
        check_pair(engines, source, target)
        queries.append(
            Query(
                f"{begin}{text}{end}",
                source,
                target,
                format=form,
                sentences=asked.split_sentences != "0",
                split_newlines=asked.split_sentences != "nonewlines",
                tags=tags,
            )
        )
    done = await translate_others(service, queries, client)
    count_characters(request, sum(map(len, asked.text)))
    used = (asked.model_type or "").removeprefix("prefer_")
    more = {"model_type_used": used} if used else {}
    return answer(
        {
            "translations": [
                {
                    "detected_source_language": _write_source(each.source),
                    "text": each.text[len(begin) : len(each.text) - len(end)],
                    # DeepL's client for Python fails where this is missing.
                    "billed_characters": len(text),
                    **more,
                }
                for text, each in zip(asked.text, done, strict=True)
            ]
        }
    )


def count_characters(request: Request, more: int = 0) -> int:
    """Return the characters of all texts of a server, with some more."""
    state = request.app.state
    state.characters = getattr(state, "characters", 0) + more
    return state.characters


@router.get(
    "/v2/languages",
    response_model=list[Language],
    openapi_extra=document(AskedSide, query=True),
)
@router.post(
    "/v2/languages", response_model=list[Language], openapi_extra=document(AskedSide)
)
async def languages(call: Annotated[Call[AskedSide], fields(AskedSide)]) -> Response:
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


@router.get("/v3/languages", openapi_extra=document(AskedResource, query=True))
async def list_both(
    call: Annotated[Call[AskedResource], fields(AskedResource)],
) -> Response:
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


@router.get("/v2/usage", response_model=Usage, openapi_extra=document(Key, query=True))
@router.post("/v2/usage", response_model=Usage, openapi_extra=document(Key))
async def usage(call: Annotated[Call[Key], fields(Key)]) -> Response:
    """Count the characters translated."""
    count = count_characters(call.request)
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
