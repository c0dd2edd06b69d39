"""The routes under ``/v1``: everything that the search knows, as JSON, and sentences as
Server-Sent Events.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jaxformer.data.records import Pair
from jaxformer.serving.call import current
from jaxformer.serving.compiled import MOST_CANDIDATES
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import (
    Fields,
    answer,
    read_fields,
    refuse,
    write_json,
)
from jaxformer.serving.languages import name_language
from jaxformer.serving.service import Service, Times
from jaxformer.serving.texts import Query, SentenceResult, Text, Translated

_SILENCE = 15.0
"""Seconds of a stream after which a comment keeps proxies from closing it."""
_MOST_WEIGHTS = 2**18
"""Most weights of the alignments in an answer: writing them takes a second."""
_FORMATS = ("text", "html")
_EVENTS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def routes(service: Service) -> list[Route]:
    """Return the routes of the protocol."""
    posts = {
        "translate": _translate,
        "translate/stream": _stream,
        "attention": _attend,
        "alternatives": _alternatives,
        "score": _score,
    }
    return [
        *(
            Route(f"/v1/{name}", functools.partial(handle, service), methods=["POST"])
            for name, handle in posts.items()
        ),
        Route("/v1/models", functools.partial(_models, service), methods=["GET"]),
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    return refuse(error, {"error": error.to_json()})


async def _translate(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    engine, queries, soft = _read_queries(service, fields)
    times = Times()
    done = await service.translate(queries, times=times)
    if soft:
        _check_weights([result for each in done for result in each.sentences])
    translations = [
        {
            "text": each.text,
            "sentences": [_show(own, soft) for own in each.sentences],
            "alternatives": each.alternatives,
            "unmet": each.unmet,
        }
        for each in done
    ]
    return answer(200, {"translations": translations, **_show_work(engine, times)})


async def _stream(service: Service, request: Request) -> Response:
    """Answer with events. What is refused before the first one has a status."""
    fields = await read_fields(request, service.config)
    if fields.has("texts"):
        raise ServingError(
            400, "wrong_type", "a stream translates one text: send text", field="texts"
        )
    engine, queries, soft = _read_queries(service, fields)
    events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def begin(texts: list[Text]) -> None:
        pieces = [cut.piece for text in texts for cut in text.cuts]
        spans = [[piece.start, piece.stop] for piece in pieces]
        start = {"sentences": len(spans), "source_spans": spans}
        events.put_nowait(("start", start))

    def sentence(_: int, index: int, result: SentenceResult) -> None:
        if soft:
            _check_weights([result])
        events.put_nowait(("sentence", {"index": index, **_show(result, soft)}))

    times = Times()
    work = asyncio.create_task(
        service.translate(queries, sentence=sentence, begin=begin, times=times)
    )

    def end(done: asyncio.Task[Any]) -> None:
        if not done.cancelled():
            done.exception()  # seen, also if nobody reads the event
            events.put_nowait(("end", done))

    work.add_done_callback(end)
    try:
        first = await events.get()
    except BaseException:
        work.cancel()
        raise
    # It has been queued or refused by now.
    if work.done() and (fault := work.exception()) is not None:
        raise fault
    shown = _write_events(first, events, lambda: _show_work(engine, times))
    return StreamingResponse(
        _ending(shown, work), media_type="text/event-stream", headers=_EVENTS
    )


async def _ending(
    events: AsyncIterator[str], work: asyncio.Task[Any]
) -> AsyncIterator[str]:
    """Yield events; end the work that nobody reads any more."""
    try:
        async for event in events:
            yield event
    finally:
        work.cancel()


async def _write_events(
    first: tuple[str, Any],
    events: asyncio.Queue[tuple[str, Any]],
    show_work: Callable[[], dict[str, Any]],
) -> AsyncIterator[str]:
    name, data = first
    while name != "end":
        yield _event(name, data)
        name = ""
        while not name:
            try:
                async with asyncio.timeout(_SILENCE):
                    name, data = await events.get()
            except TimeoutError:
                yield ": still searching\n\n"
    fault = data.exception()
    if fault is None:
        (done,) = data.result()
        yield _event("done", _show_end(done) | show_work())
        return
    current().refused(fault)
    if not isinstance(fault, ServingError):
        fault = ServingError(500, "internal", "the server failed on this text")
    yield _event("error", {"error": fault.to_json()})


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {write_json(data)}\n\n"


async def _attend(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    engine, text = _read_sentence(service, fields)
    k = fields.whole("k", most=MOST_CANDIDATES, default=0)
    translation = fields.text("translation", "")
    if not fields.has("translation"):
        query = Query(text, *engine.languages, sentences=False)
        translation = (await service.translate([query]))[0].text
    maps, candidates = await service.attend(engine, text, translation, k)
    weights = {
        kind: np.round(getattr(maps, kind).astype(np.float64), 4).tolist()
        for kind in ("encoder", "decoder", "cross")
    }
    shown = [
        [{"token": token, "probability": probability} for token, probability in own]
        for own in candidates
    ]
    return answer(
        200,
        {
            "text": text,
            "translation": translation,
            "source_tokens": maps.source_tokens,
            "target_tokens": maps.target_tokens,
            "read_tokens": maps.read_tokens,
            **weights,
            "candidates": shown,
        },
    )


async def _alternatives(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    engine, text = _read_sentence(service, fields)
    prefix = fields.text("prefix", "")
    k = fields.whole("k", least=1, most=MOST_CANDIDATES, default=MOST_CANDIDATES)
    found = await service.alternatives(engine, text, prefix, k)
    shown = [
        {"word": each.word, "probability": each.probability, "text": each.text}
        for each in found
    ]
    return answer(200, {"alternatives": shown})


async def _score(service: Service, request: Request) -> Response:
    fields = await read_fields(request, service.config)
    engine = _read_engine(service, fields)
    given = fields.objects("pairs")
    pairs = [Pair(own.text("text"), own.text("translation")) for own in given]
    scores = await service.score(engine, pairs)
    return answer(200, {"scores": [score.to_json() for score in scores]})


async def _models(service: Service, request: Request) -> Response:
    models = [
        {
            **_name(engine),
            "source_name": name_language(engine.languages[0]),
            "target_name": name_language(engine.languages[1]),
            "beam_size": engine.beam_size,
            "positions": engine.positions,
            "parameters": engine.parameters,
        }
        for engine in service.engines.values()
    ]
    config = service.config
    limits = {
        "characters": config.max_characters,
        "texts": config.max_texts,
        "body": config.max_body,
    }
    needed = current().keys is not None
    return answer(200, {"models": models, "limits": limits, "key_required": needed})


def _read_engine(service: Service, fields: Fields) -> TranslationEngine:
    return service.engine(fields.text("source", ""), fields.text("target", ""))


def _read_sentence(service: Service, fields: Fields) -> tuple[TranslationEngine, str]:
    return _read_engine(service, fields), fields.text("text")


def _read_queries(
    service: Service, fields: Fields
) -> tuple[TranslationEngine, list[Query], bool]:
    """Read what translates, the texts, and whether alignments have weights."""
    engine = _read_engine(service, fields)
    single = fields.has("text")
    if single and fields.has("texts"):
        raise ServingError(
            400, "wrong_type", "send text or texts, not both", field="texts"
        )
    texts = [fields.text("text")] if single else fields.texts("texts")
    if single:
        prefixes = [fields.text("prefix", "")]
    else:
        prefixes = fields.texts("prefixes", default=[""] * len(texts))
    required = fields.text_lists("required", default=[[]] * len(texts))
    for name, given in (("prefixes", prefixes), ("required", required)):
        if len(given) != len(texts):
            raise ServingError(
                400,
                "out_of_range",
                f"{name} must be a list of one for each text, {len(texts)}, not"
                f" {len(given)}",
                field=name,
                limit=len(texts),
                given=len(given),
            )
    soft = fields.values.get("alignment") == "soft"
    aligned = soft or fields.flag("alignment")
    form = fields.choice("format", _FORMATS, default="text", code="bad_format")
    common: dict[str, Any] = {
        "source": engine.languages[0],
        "target": engine.languages[1],
        "format": form,
        "n_best": fields.whole("n_best", least=1, most=engine.beam_size, default=1),
        "alignment": aligned,
        "split_newlines": fields.flag("split_newlines", default=True),
        "sentences": fields.flag("split_sentences", default=True),
    }
    queries = [
        Query(text, prefix=prefix, required=tuple(filter(None, phrases)), **common)
        for text, prefix, phrases in zip(texts, prefixes, required, strict=True)
    ]
    return engine, queries, soft


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


def _name(engine: TranslationEngine) -> dict[str, str]:
    source, target = engine.languages
    return {
        "name": engine.name,
        "source": source,
        "target": target,
        "checkpoint": engine.checkpoint,
    }


def _show_work(engine: TranslationEngine, times: Times) -> dict[str, Any]:
    return {
        "model": _name(engine),
        "seconds": round(times.seconds, 4),
        "queue_seconds": round(times.queue_seconds, 4),
    }
