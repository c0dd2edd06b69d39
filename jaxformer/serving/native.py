"""The routes under ``/v1``: everything that the search knows, as JSON, and sentences as
Server-Sent Events.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.responses import Response, StreamingResponse

from jaxformer.data.records import Pair
from jaxformer.serving.call import current
from jaxformer.serving.compiled import MOST_CANDIDATES
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.fields import refuse, write_json
from jaxformer.serving.jobs import Times
from jaxformer.serving.languages import list_codes, name_language
from jaxformer.serving.operations import Operation
from jaxformer.serving.schema import (
    FORMAT,
    closed,
    describe,
    limited,
    listed,
    read,
    record,
    several,
    whole,
    wrong,
)
from jaxformer.serving.service import Service
from jaxformer.serving.words import Alternative
from jaxformer.translation.text.placeholders import Hidden, hide
from jaxformer.translation.text.text import Query, SentenceResult, Text, Translated

_SILENCE = 15.0
"""Seconds of a stream after which a comment keeps proxies from closing it."""
_MOST_WEIGHTS = 2**18
"""Most weights of the alignments in an answer: writing them takes a second."""
Fields = dict[str, Any]
_EVENTS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

# The shapes of answers.
_NUMBER = (float, None)
_HYPOTHESIS = record(
    {
        "text": str,
        "score": _NUMBER,
        "log_probability": _NUMBER,
        "tokens": [str],
        "finished": bool,
        "token_log_probabilities?": [_NUMBER],
        "source_tokens?": [str],
        "alignment?": str,
        "word_alignment?": str,
        "weights?": [[float]],
    }
)
_SENTENCE = record({"source": str, "source_span": [int], "hypotheses": [_HYPOTHESIS]})
_TRANSLATION = record(
    {"text": str, "sentences": [_SENTENCE], "alternatives": [str], "unmet": [str]}
)
_NAME = {"name": str, "source": str, "target": str, "checkpoint": str}
_TRANSLATIONS = record(
    {
        "translations": [_TRANSLATION],
        "model": record(_NAME),
        "seconds": float,
        "queue_seconds": float,
    }
)
_MAPS = ("encoder", "decoder", "cross")
_PIECES = ("source_tokens", "target_tokens", "read_tokens")
_ATTENTION = record(
    {
        **dict.fromkeys(("text", "translation"), str),
        **{name: [str] for name in _PIECES},
        **{name: [[[[float]]]] for name in _MAPS},
        "candidates": [[record({"token": str, "probability": float})]],
    }
)
_WORD = record({"word": str, "probability": float, "text": str})
_WORDS = record({"alternatives": [_WORD]})
_SCORES = record({"scores": [record({"log_probability": _NUMBER, "tokens": int})]})
_MODEL = record(
    {
        **_NAME,
        **dict.fromkeys(("source_name", "target_name"), str),
        **dict.fromkeys(("beam_size", "positions", "parameters"), int),
    }
)
_LIMITS = record({"characters": int, "texts": int, "body": int})
_MODELS = record({"models": [_MODEL], "limits": _LIMITS, "key_required": bool})
_FAULT = {"code": str, "message": str, "field?": str, "limit?": float, "given?": {}}
ERROR = {"error": record(_FAULT)}


def operations(service: Service) -> list[Operation]:
    """Return the operations of the protocol."""
    config = service.config
    text = limited(config)
    start = {**text, "default": ""}
    pair = {
        f"{side}?": {"type": "string", "enum": list_codes(service, side)}
        for side in ("source", "target")
    }
    beam_size = max(engine.beam_size for engine in service.engines.values())
    options = {
        "format?": FORMAT,
        "n_best?": whole(1, beam_size, default=1),
        "required?": several(config, several(config, text, least=0)),
        "alignment?": {**describe((bool, {"enum": ["soft"]})), "default": False},
        "split_newlines?": {"type": "boolean", "default": True},
        "split_sentences?": {"type": "boolean", "default": True},
        **pair,
    }
    texts, k = several(config, text), whole(1, MOST_CANDIDATES, default=MOST_CANDIDATES)
    one = closed({"text": text, "prefix?": start, **options})
    many = closed({"texts": describe((text, texts)), "prefixes?": texts, **options})
    k_or_none = whole(0, MOST_CANDIDATES, default=0)
    maps = closed({"text": text, "translation?": text, "k?": k_or_none, **pair})
    words = closed({"text": text, "prefix?": start, "k?": k, **pair})
    given = several(config, closed({"text": text, "translation": text}))
    scores = closed({"pairs": given, **pair})
    post = functools.partial(Operation, "POST")
    either, events = describe((one, many)), "text/event-stream"
    return [
        post("/v1/translate", "Translate texts", _translate, _TRANSLATIONS, either),
        post("/v1/translate/stream", "Translate by sentence", _stream, events, one),
        post("/v1/attention", "Show attention weights", _attend, _ATTENTION, maps),
        post("/v1/alternatives", "Find next words", _alternatives, _WORDS, words),
        post("/v1/score", "Score given translations", _score, _SCORES, scores),
        Operation("GET", "/v1/models", "List the models", _models, _MODELS),
    ]


def error(error: ServingError) -> Response:
    """Write an error in the form of the protocol."""
    return refuse(error, {"error": error.to_json()})


async def _translate(service: Service, given: Fields) -> Fields:
    engine, queries, soft = _make_queries(service, given)
    times = Times()
    done = await service.translate(queries, times=times)
    if soft:
        _check_weights([result for each in done for result in each.sentences])
    translations = [
        {"sentences": [_show(own, soft) for own in each.sentences], **_show_end(each)}
        for each in done
    ]
    return {"translations": translations, **_show_work(engine, times)}


async def _stream(service: Service, given: Fields) -> Response:
    """Answer with events. What is refused before the first one has a status."""
    engine, queries, soft = _make_queries(service, given)
    events: asyncio.Queue[str | None] = asyncio.Queue()  # None: the last one is next

    def put(name: str, data: Any) -> None:
        events.put_nowait(_event(name, data))

    def begin(texts: list[Text]) -> None:
        pieces = [cut.piece for text in texts for cut in text.cuts]
        spans = [[piece.start, piece.stop] for piece in pieces]
        put("start", {"sentences": len(spans), "source_spans": spans})

    def sentence(_: int, index: int, result: SentenceResult) -> None:
        if soft:
            _check_weights([result])
        put("sentence", {"index": index, **_show(result, soft)})

    times = Times()
    work = asyncio.create_task(
        service.translate(queries, sentence=sentence, begin=begin, times=times)
    )

    def end(done: asyncio.Task[Any]) -> None:
        if not done.cancelled():
            done.exception()  # seen, also if nobody reads the events
        events.put_nowait(None)

    work.add_done_callback(end)
    try:
        first = await events.get()
    except BaseException:
        work.cancel()
        raise
    if work.done():  # by now it has been queued or refused
        work.result()

    async def write() -> AsyncIterator[str]:
        """Yield events; end the work that nobody reads any more."""
        event = first
        try:
            while event is not None:
                yield event
                event = await _next(events)
            yield _last_event(work, lambda: _show_work(engine, times))
        finally:
            work.cancel()

    return StreamingResponse(write(), media_type="text/event-stream", headers=_EVENTS)


async def _next(events: asyncio.Queue[str | None]) -> str | None:
    try:
        async with asyncio.timeout(_SILENCE):
            return await events.get()
    except TimeoutError:
        return ": still searching\n\n"


def _last_event(
    work: asyncio.Task[list[Translated]], show_work: Callable[[], Fields]
) -> str:
    fault = work.exception()
    if fault is None:
        return _event("done", _show_end(work.result()[0]) | show_work())
    current().refused(fault)
    if not isinstance(fault, ServingError):
        fault = ServingError(500, "internal", "the server failed on this text")
    return _event("error", {"error": fault.to_json()})


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {write_json(data)}\n\n"


async def _attend(service: Service, given: Fields) -> Fields:
    engine, text = _find_engine(service, given), given["text"]
    translation = given["translation"]
    if translation is None:
        query = Query(text, *engine.languages, sentences=False)
        translation = (await service.translate([query]))[0].text
    ((maps, candidates),) = await service.call(
        engine, lambda own: own.attend(text, translation, given["k"])
    )
    shown = [
        [{"token": token, "probability": probability} for token, probability in own]
        for own in candidates
    ]
    pieces = {name: getattr(maps, name) for name in _PIECES}
    kept = {name: getattr(maps, name).astype(np.float64) for name in _MAPS}
    weights = {name: np.round(own, 4).tolist() for name, own in kept.items()}
    own = {"text": text, "translation": translation, "candidates": shown}
    return own | pieces | weights


async def _alternatives(service: Service, given: Fields) -> Fields:
    text, prefix, k = (given[name] for name in ("text", "prefix", "k"))
    engine = _find_engine(service, given)
    hidden = hide(text, engine.writes)
    if hidden is not None:
        if not hidden.text:  # it has too many
            return {"alternatives": []}
        text, prefix = hidden.text, hidden.hide(prefix)
    (found,) = await service.call(engine, lambda own: own.alternatives(text, prefix, k))
    if hidden is not None:
        begun = {"prefix": prefix, "sentences": False}
        query = Query(given["text"], *engine.languages, **begun)
        found = await _show_hidden(hidden, found, service, query)
    return {"alternatives": [each._asdict() for each in found]}


async def _show_hidden(
    hidden: Hidden, found: list[Alternative], service: Service, query: Query
) -> list[Alternative]:
    """Return the next words after a prefix, in translations with placeholders."""
    before = len(query.prefix)
    ends = [each.text.find(each.word, before) + len(each.word) for each in found]
    starts = [hidden.show(own.text[:end]) for own, end in zip(found, ends, strict=True)]
    done = await service.translate([replace(query, prefix=own) for own in starts])
    return [
        Alternative(hidden.show(each.word), each.probability, own.text)
        for each, start, own in zip(found, starts, done, strict=True)
        if own.text.startswith(start)
    ]


async def _score(service: Service, given: Fields) -> Fields:
    pairs = [Pair(own["text"], own["translation"]) for own in given["pairs"]]
    scores = await service.score(_find_engine(service, given), pairs)
    return {"scores": [score.to_json() for score in scores]}


async def _models(service: Service, given: Fields) -> Fields:
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
    return {"models": models, "limits": limits, "key_required": needed}


def _find_engine(service: Service, given: Fields) -> TranslationEngine:
    return service.engine(given["source"] or "", given["target"] or "")


def _make_queries(
    service: Service, given: Fields
) -> tuple[TranslationEngine, list[Query], bool]:
    """Return what translates, the texts, and whether alignments have weights."""
    engine = _find_engine(service, given)
    n_best = read(whole(1, engine.beam_size, 1), given["n_best"], "n_best")
    if "text" in given:
        texts, prefixes = [given["text"]], [given["prefix"]]
    else:
        texts = listed(given["texts"])
        prefixes = _one_each("prefixes", given, texts, "")
    queries = [
        Query(
            text,
            *engine.languages,
            format=given["format"],
            n_best=n_best,
            prefix=prefix,
            required=tuple(filter(None, phrases)),
            alignment=bool(given["alignment"]),
            split_newlines=given["split_newlines"],
            sentences=given["split_sentences"],
        )
        for text, prefix, phrases in zip(
            texts, prefixes, _one_each("required", given, texts, []), strict=True
        )
    ]
    return engine, queries, given["alignment"] == "soft"


def _one_each(name: str, given: Fields, texts: list[str], default: Any) -> list[Any]:
    """Return the value of a field for each text."""
    found = given[name] or [default] * len(texts)
    if len(found) != len(texts):
        rule = f"a list of one for each text, {len(texts)}"
        raise wrong(name, rule, found, "out_of_range", len(texts), len(found))
    return found


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
