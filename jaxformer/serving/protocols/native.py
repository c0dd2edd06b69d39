"""The routes under ``/v1``: everything that the search knows, as JSON, and sentences as
Server-Sent Events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from operator import methodcaller
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from jaxformer.data.records import Pair
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import (
    Call,
    Limited,
    Served,
    Whole,
    Word,
    Words,
    answer,
    document,
    fields,
    route,
    write_json,
    wrong,
)
from jaxformer.serving.languages import find_engine, name_language
from jaxformer.serving.service import Admitted, Service
from jaxformer.translation.pairs import MOST_LIKELY
from jaxformer.translation.results import PairScore
from jaxformer.translation.text.text import Query, SentenceResult, Translated

PATHS = ("/v1",)

_MOST_WEIGHTS = 2**18
"""Most weights of the alignments in an answer: writing them takes a second."""


class Languages(BaseModel):
    """Fields that each route has; an empty code is that of the only pair."""

    model_config = ConfigDict(extra="forbid")
    source: Word = ""
    target: Word = ""


class Options(Languages):
    """How texts are translated."""

    format: Literal["text", "html", ""] = ""
    n_best: Annotated[Whole, Field(ge=1)] = 1
    required: Annotated[list[list[Word]], Field(description="for each text")] = []
    alignment: bool | Literal["soft"] = False
    split_newlines: bool = True
    split_sentences: bool = True


class AskedOne(Options):
    """Fields of ``/v1/translate/stream``."""

    text: Word
    prefix: Word = ""


class Asked(Options):
    """Fields of ``/v1/translate``: ``text`` with ``prefix``, or lists."""

    text: Word | None = None
    prefix: Word = ""
    texts: Annotated[Words | None, Field(min_length=1)] = None
    prefixes: Words = []


class AskedAttention(Languages):
    """Fields of ``/v1/attention``."""

    text: Word
    translation: Word | None = None
    k: Annotated[Whole, Field(ge=0, le=MOST_LIKELY)] = 0


class AskedWords(Languages):
    """Fields of ``/v1/alternatives``."""

    text: Word
    prefix: Word = ""
    k: Annotated[Whole, Field(ge=1, le=MOST_LIKELY)] = MOST_LIKELY


class AskedPair(BaseModel):
    """A text and a translation of it."""

    model_config = ConfigDict(extra="forbid")
    text: Word
    translation: Word


class AskedScores(Languages):
    """Fields of ``/v1/score``."""

    pairs: Annotated[list[AskedPair], Field(min_length=1), Limited]


class Model(BaseModel):
    """What translated."""

    name: str
    source: str
    target: str
    checkpoint: str


class Hypothesis(BaseModel):
    """A translation of a sentence; without links of words the last four are absent."""

    text: str
    score: float | None
    log_probability: float | None
    tokens: list[str]
    finished: bool
    token_log_probabilities: list[float | None] = []
    source_tokens: list[str] = []
    alignment: str = ""
    word_alignment: str = ""
    weights: list[list[float]] = []


class Sentence(BaseModel):
    """A sentence of a text, and its place there."""

    source: str
    source_span: list[int]
    hypotheses: list[Hypothesis]


class Translation(BaseModel):
    """A translation of a text."""

    text: str
    sentences: list[Sentence]
    alternatives: list[str]
    unmet: list[str]


class Translations(BaseModel):
    """Answer of ``/v1/translate``."""

    translations: list[Translation]
    model: Model
    seconds: float
    queue_seconds: float


class Candidate(BaseModel):
    """A token that is possible at a place."""

    token: str
    probability: float


_Weights = list[list[list[list[float]]]]


class Maps(BaseModel):
    """Answer of ``/v1/attention``: weights by layer, head, and both tokens."""

    text: str
    translation: str
    source_tokens: list[str]
    target_tokens: list[str]
    read_tokens: list[str]
    encoder: _Weights
    decoder: _Weights
    cross: _Weights
    candidates: list[list[Candidate]]


class NextWord(BaseModel):
    """A word, and the translation that goes on with it."""

    word: str
    probability: float
    text: str


class NextWords(BaseModel):
    """Answer of ``/v1/alternatives``."""

    alternatives: list[NextWord]


class Scores(BaseModel):
    """Answer of ``/v1/score``."""

    scores: list[PairScore]


class Fault(BaseModel):
    """Why a request is refused; what is not known is absent."""

    code: str
    message: str
    field: str = ""
    limit: float = 0
    given: Any = None


class Error(BaseModel):
    """Answer to a request that is refused."""

    error: Fault


router = APIRouter(
    prefix="/v1", tags=["jaxformer"], responses={"4XX": {"model": Error}}
)


def error(error: ServingError) -> dict[str, Any]:
    """Return an error in the form of the protocol."""
    return {"error": error.to_json()}


@route(router, "/translate", Asked, Translations)
async def translate(call: Call[Asked]) -> Response:
    """Translate texts."""
    asked, service, client, _ = call
    engine, queries = _make_queries(service, asked, *_read_texts(asked))
    done = await service.translate(queries, client)
    is_soft = asked.alignment == "soft"
    if is_soft:
        _check_weights([result for each in done for result in each.sentences])
    translations = [
        {
            "sentences": [_show(own, is_soft) for own in each.sentences],
            **_show_end(each),
        }
        for each in done
    ]
    return answer({"translations": translations, **_show_work(engine, call)})


def _read_texts(asked: Asked) -> tuple[list[str], list[str]]:
    """Return texts and their prefixes."""
    if (asked.text is None) == (asked.texts is None):
        why = "missing", "texts is missing: send this field, or text"
        why = ("wrong_type", "send text or texts, not both") if asked.texts else why
        raise ServingError(400, *why, field="texts")
    if asked.texts is None:
        return [asked.text or ""], [asked.prefix]
    return asked.texts, asked.prefixes


async def _admit(
    call: Annotated[Call[AskedOne], fields(AskedOne)],
) -> AsyncIterator[tuple[Call[AskedOne], Admitted]]:
    """Admit a text, so that one that is refused is answered with a status."""
    asked, service, client, _ = call
    _, queries = _make_queries(service, asked, [asked.text], [asked.prefix])
    async with service.admit(queries, client) as admitted:
        yield call, admitted


@router.post(
    "/translate/stream",
    response_class=EventSourceResponse,
    openapi_extra=document(AskedOne),
)
async def stream(
    given: Annotated[tuple[Call[AskedOne], Admitted], Depends(_admit)],
) -> AsyncIterator[ServerSentEvent]:
    """Translate a text, and yield its sentences as they are found."""
    call, admitted = given
    (text,), events = admitted.texts, asyncio.Queue[dict[str, Any] | None]()
    is_soft, exchange = call.asked.alignment == "soft", call.request.scope["exchange"]
    spans = [[segment.piece.start, segment.piece.stop] for segment in text.segments]
    yield _event("start", {"sentences": len(spans), "source_spans": spans})

    def found(index: int, result: SentenceResult) -> None:
        if is_soft:
            _check_weights([result])
        events.put_nowait({"index": index, **_show(result, is_soft)})

    work = asyncio.create_task(call.service.search(admitted, found))
    work.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield _event("sentence", event)
        (done,) = await work
        call.client.facts["queue_seconds"] = admitted.room.waited
        yield _event("done", _show_end(done) | _show_work(text.engine, call))
    except Exception as fault:
        known = isinstance(fault, ServingError)
        own = fault if known else ServingError(500, "internal", "the server failed")
        exchange.code, exchange.fault = own.code, None if known else fault
        yield _event("error", error(own))
    finally:
        work.cancel()


def _event(name: str, data: Any) -> ServerSentEvent:
    return ServerSentEvent(event=name, raw_data=write_json(data))


@route(router, "/attention", AskedAttention, Maps)
async def attend(call: Call[AskedAttention]) -> Response:
    """Show attention weights, of the model's own translation if none is given."""
    asked, service, client, _ = call
    text, translation = asked.text, asked.translation
    engine = find_engine(service.engines, asked.source, asked.target)
    queries = [Query(text, *engine.languages, sentences=False)]
    async with service.admit(queries[translation is not None :], client, 1) as own:
        for each in await service.search(own):
            translation = each.text
        work = methodcaller("attend", text, translation, asked.k)
        ((maps, candidates),) = await service.call(engine, [work], own.room)
    shown = {
        name: own if isinstance(own, list) else np.round(own.astype(float), 4).tolist()
        for name, own in vars(maps).items()
    }
    return answer(
        {
            "text": text,
            "translation": translation,
            **shown,
            "candidates": [
                [{"token": token, "probability": value} for token, value in own]
                for own in candidates
            ],
        }
    )


@route(router, "/alternatives", AskedWords, NextWords)
async def alternatives(call: Call[AskedWords]) -> Response:
    """Find next words."""
    asked, service, client, _ = call
    engine = find_engine(service.engines, asked.source, asked.target)
    work = methodcaller("alternatives", asked.text, asked.prefix, asked.k)
    async with service.admit([], client, 1) as own:
        (found,) = await service.call(engine, [work], own.room)
    return answer({"alternatives": [each._asdict() for each in found]})


@route(router, "/score", AskedScores, Scores)
async def score(call: Call[AskedScores]) -> Response:
    """Score given translations."""
    asked, service, client, _ = call
    engine = find_engine(service.engines, asked.source, asked.target)
    works = [
        methodcaller("score", Pair(own.text, own.translation)) for own in asked.pairs
    ]
    async with service.admit([], client, len(works)) as own:
        found = await service.call(engine, works, own.room)
    return answer({"scores": [own.to_json() for own in found]})


@router.get("/models")
async def models(service: Served) -> Response:
    """List the models and the limits."""
    config = service.config
    return answer(
        {
            "models": [
                {
                    **each.facts,
                    "source_name": name_language(each.languages[0]),
                    "target_name": name_language(each.languages[1]),
                    "beam_size": each.beam_size,
                    "positions": each.positions,
                    "parameters": each.parameters,
                }
                for each in service.engines.values()
            ],
            "limits": {
                "characters": config.max_characters,
                "texts": config.max_texts,
                "body": config.max_body,
            },
            "key_required": service.access.keys is not None,
        }
    )


def _make_queries(
    service: Service, asked: Options, texts: Sequence[str], prefixes: Sequence[str]
) -> tuple[TranslationEngine, list[Query]]:
    """Return what translates, and the texts."""
    engine = find_engine(service.engines, asked.source, asked.target)
    if asked.n_best > (most := engine.beam_size):
        raise wrong("n_best", f"at most {most}", asked.n_best, "out_of_range", most)
    count = len(texts)
    prefixes, required = prefixes or [""] * count, asked.required or [[]] * count
    for name, own in (("prefixes", prefixes), ("required", required)):
        if len(own) != count:
            rule = f"a list of one for each text, {count}"
            raise wrong(name, rule, own, "out_of_range", count, len(own))
    return engine, [
        Query(
            text,
            *engine.languages,
            format=asked.format or "text",
            n_best=asked.n_best,
            prefix=prefix,
            required=tuple(filter(None, phrases)),
            alignment=bool(asked.alignment),
            split_newlines=asked.split_newlines,
            sentences=asked.split_sentences,
        )
        for text, prefix, phrases in zip(texts, prefixes, required, strict=True)
    ]


def _check_weights(results: Sequence[SentenceResult]) -> None:
    every = (each.alignment for result in results for each in result.hypotheses)
    count = sum(own.weights.size for own in every if own is not None)
    if count > _MOST_WEIGHTS:
        raise ServingError(
            422,
            "too_many_tokens",
            f"an answer has at most {_MOST_WEIGHTS:,} weights of alignments, not"
            f" {count:,}: send less text, or alignment true",
            field="alignment",
            limit=_MOST_WEIGHTS,
            given=count,
        )


def _show(result: SentenceResult, soft: bool) -> dict[str, Any]:
    return {
        "source": result.source,
        "source_span": list(result.span),
        "hypotheses": [each.to_json(soft_alignment=soft) for each in result.hypotheses],
    }


def _show_end(done: Translated) -> dict[str, Any]:
    return {"text": done.text, "alternatives": done.alternatives, "unmet": done.unmet}


def _show_work(engine: TranslationEngine, call: Call[Any]) -> dict[str, Any]:
    begun = call.request.scope["exchange"].begun
    return {
        "model": engine.facts,
        "seconds": round(time.monotonic() - begun, 4),
        "queue_seconds": call.client.facts.get("queue_seconds", 0.0),
    }
