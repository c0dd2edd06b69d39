"""The OpenAPI 3.1 document of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jaxformer
from jaxformer.serving.compiled import MOST_CANDIDATES
from jaxformer.serving.deepl import FORMALITIES, MARKUPS, SPLITS
from jaxformer.serving.languages import (
    list_codes,
    write_code,
    write_source,
    write_target,
)

if TYPE_CHECKING:
    from jaxformer.serving.service import Service

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}
_FORMAT: Schema = {"enum": ["text", "html"], "default": "text"}
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"


def make_document(service: Service, root_path: str = "") -> dict[str, Any]:
    """Return the document of a server.

    Args:
        service: for its languages and limits.
        root_path: path of its root behind a proxy.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jaxformer",
            "description": "Translation by a Transformer, in three protocols: that of"
            " LibreTranslate, that of DeepL (`/v2`), and one with all that the search"
            " knows (`/v1`).",
            "version": jaxformer.__version__,
        },
        "servers": [{"url": root_path or "/"}],
        "paths": {
            **_libretranslate(service),
            **_deepl(service),
            **_native(service),
            **_own(),
        },
    }


def _libretranslate(service: Service) -> dict[str, Any]:
    text = _limited(service, minLength=1)
    detected = _record(confidence=_NUMBER, language=_TEXT)
    common = {
        "source": {"enum": ["auto", *list_codes(service, "source", write_code)]},
        "target": {"enum": list_codes(service, "target", write_code)},
        "format": _FORMAT,
        "alternatives": {"type": "integer", "default": 0},
        "api_key": _TEXT,
    }
    needed = ["q", "source", "target"]
    texts = {"anyOf": [text, _several(service, text)]}
    many = {"anyOf": [_TEXT, _list(_TEXT)]}
    found = _record(
        ["translatedText"],
        translatedText=many,
        alternatives=_list(many),
        detectedLanguage={"anyOf": [detected, _list(detected)]},
    )
    language = _record(code=_TEXT, name=_TEXT, targets=_list(_TEXT))
    read = _record(["q"], q=text, api_key=_TEXT)

    def operation(summary: str, answer: Schema, *body: Schema) -> Schema:
        return _operation(summary, answer, {"error": _TEXT}, *body)

    return {
        "/translate": {
            "post": operation(
                "Translate a text or a list of texts",
                found,
                _record(needed, q=texts, **common),
                _record(needed, q=text, **common),
            )
        },
        "/detect": {
            "post": operation(
                "Rank the languages of a text", _list(detected), read, read
            )
        },
        "/languages": {
            "get": operation("List the languages and their targets", _list(language))
        },
        "/frontend/settings": {
            "get": operation("Show the limits of the server", {"type": "object"})
        },
        "/spec": {
            "get": {
                "summary": "Redirect to this document",
                "responses": {"302": {"description": "to /openapi.json"}},
            }
        },
    }


def _deepl(service: Service) -> dict[str, Any]:
    options = {
        "target_lang": {"enum": list_codes(service, "target", write_target)},
        "source_lang": {"enum": list_codes(service, "source", write_source)},
        "tag_handling": {"enum": [*MARKUPS], "default": ""},
        "split_sentences": {"enum": [*SPLITS], "default": "1"},
        "formality": {"enum": [*FORMALITIES]},
        "auth_key": _TEXT,
    }
    texts = _several(service, _limited(service))
    one_or_more = {"anyOf": [_limited(service), texts]}
    body = _record(["text", "target_lang"], text=one_or_more, **options)
    done = _record(detected_source_language=_TEXT, text=_TEXT, billed_characters=_WHOLE)
    language = _record(language=_TEXT, name=_TEXT, supports_formality=_FLAG)
    usage = _record(character_count=_WHOLE, character_limit=_WHOLE)

    def operation(summary: str, answer: Schema, *body: Schema) -> Schema:
        return _operation(summary, answer, {"message": _TEXT}, *body)

    translations = _record(translations=_list(done))
    summary = "Translate texts"
    query = [
        _parameter(name, own, required=name in body["required"])
        for name, own in {"text": texts, **options}.items()
    ]
    kind = _parameter("type", {"enum": ["source", "target"], "default": "source"})
    return {
        "/v2/translate": {
            "post": operation(summary, translations, body, body),
            "get": {**operation(summary, translations), "parameters": query},
        },
        "/v2/languages": {
            "get": {
                **operation("List the languages of one side", _list(language)),
                "parameters": [kind],
            }
        },
        "/v2/usage": {"get": operation("Count the characters translated", usage)},
    }


def _native(service: Service) -> dict[str, Any]:
    text = _limited(service)
    pair = {
        "source": {"enum": list_codes(service, "source")},
        "target": {"enum": list_codes(service, "target")},
    }
    needed = ["source", "target"] if len(service.engines) > 1 else []

    def body(names: list[str], **properties: Schema) -> Schema:
        return _record([*names, *needed], **properties, **pair)

    options = _native_options(service)
    one = body(["text"], text=text, prefix=text, **options)
    texts = _several(service, text)
    several = body(["texts"], texts=texts, prefixes=texts, **options)
    count = {"type": "integer", "minimum": 0, "maximum": MOST_CANDIDATES}
    attended = body(["text"], text=text, translation=text, k=count)
    continued = body(["text"], text=text, prefix=text, k={**count, "minimum": 1})
    scored = body(
        ["pairs"], pairs=_several(service, _record(text=text, translation=text))
    )
    word = _record(word=_TEXT, probability=_NUMBER, text=_TEXT)
    score = _record(log_probability=_NUMBER, tokens=_WHOLE)
    post = _own_operation
    posts = {
        "translate": post(
            "Translate texts: n-best lists, prefixes, required phrases, alignments",
            _translations(),
            {"anyOf": [one, several]},
        ),
        "translate/stream": post("Translate a text, each sentence an event", None, one),
        "attention": post(
            "Attention weights of a text and its translation", _attention(), attended
        ),
        "alternatives": post(
            "The most probable words after a prefix",
            _record(alternatives=_list(word)),
            continued,
        ),
        "score": post(
            "Log-probabilities of given translations",
            _record(scores=_list(score)),
            scored,
        ),
    }
    return {
        **{f"/v1/{name}": {"post": own} for name, own in posts.items()},
        "/v1/models": {"get": _own_operation("List the models", _models())},
    }


def _native_options(service: Service) -> dict[str, Schema]:
    beam_size = max(engine.beam_size for engine in service.engines.values())
    return {
        "format": _FORMAT,
        "n_best": {
            "type": "integer",
            "minimum": 1,
            "maximum": beam_size,
            "default": 1,
        },
        "required": _several(service, _list(_TEXT)),
        "alignment": {"enum": [False, True, "soft"], "default": False},
        "split_newlines": {"type": "boolean", "default": True},
        "split_sentences": {"type": "boolean", "default": True},
    }


def _translations() -> Schema:
    hypothesis = _record(
        ["text", "score", "log_probability", "tokens", "finished"],
        text=_TEXT,
        score={"type": ["number", "null"]},
        log_probability={"type": ["number", "null"]},
        tokens=_list(_TEXT),
        finished=_FLAG,
        token_log_probabilities=_list({"type": ["number", "null"]}),
        source_tokens=_list(_TEXT),
        alignment=_TEXT,
        word_alignment=_TEXT,
        weights=_list(_list(_NUMBER)),
    )
    span = {**_list(_WHOLE), "minItems": 2, "maxItems": 2}
    sentence = _record(source=_TEXT, source_span=span, hypotheses=_list(hypothesis))
    translation = _record(
        text=_TEXT,
        sentences=_list(sentence),
        alternatives=_list(_TEXT),
        unmet=_list(_TEXT),
    )
    return _record(
        translations=_list(translation),
        model=_record(name=_TEXT, source=_TEXT, target=_TEXT, checkpoint=_TEXT),
        seconds=_NUMBER,
        queue_seconds=_NUMBER,
    )


def _attention() -> Schema:
    maps = _list(_list(_list(_list(_NUMBER))))  # layer, head, query, key
    candidates = _list(_list(_record(token=_TEXT, probability=_NUMBER)))
    return _record(
        text=_TEXT,
        translation=_TEXT,
        source_tokens=_list(_TEXT),
        target_tokens=_list(_TEXT),
        read_tokens=_list(_TEXT),
        encoder=maps,
        decoder=maps,
        cross=maps,
        candidates=candidates,
    )


def _models() -> Schema:
    texts = ("name", "source", "source_name", "target", "target_name", "checkpoint")
    numbers = ("beam_size", "positions", "parameters")
    model = _record(**dict.fromkeys(texts, _TEXT), **dict.fromkeys(numbers, _WHOLE))
    limits = _record(characters=_WHOLE, texts=_WHOLE, body=_WHOLE)
    return _record(
        ["models", "limits"], models=_list(model), limits=limits, key_required=_FLAG
    )


def _own() -> dict[str, Any]:
    status = _record(["status"], status=_TEXT, done=_WHOLE, of=_WHOLE)
    ready = _own_operation("Say whether translation is possible", status)
    ready["responses"]["503"] = {
        "description": "warming up or draining",
        "content": {_JSON: {"schema": status}},
    }
    reloaded = _record(checkpoints=_list(_TEXT))
    return {
        "/health": {"get": _own_operation("Say that the process lives", status)},
        "/ready": {"get": ready},
        "/openapi.json": {
            "get": _own_operation("Show this document", {"type": "object"})
        },
        "/reload": {"post": _own_operation("Read the runs again", reloaded)},
        "/metrics": {
            "get": {
                "summary": "Numbers for Prometheus",
                "responses": {
                    "200": {
                        "description": "the text format of Prometheus",
                        "content": {"text/plain": {}},
                    }
                },
            }
        },
    }


def _own_operation(summary: str, answer: Schema | None, *body: Schema) -> Schema:
    error = _record(
        ["code", "message"],
        code=_TEXT,
        message=_TEXT,
        field=_TEXT,
        limit=_NUMBER,
        given={},
    )
    return _operation(summary, answer, {"error": error}, *body)


def _operation(
    summary: str, answer: Schema | None, error: Schema, *bodies: Schema
) -> Schema:
    """Describe an operation.

    Args:
        summary: one line.
        answer: schema of the JSON of status 200; None: Server-Sent Events.
        error: properties of the JSON of other statuses.
        bodies: schema of the JSON, and of the fields of a form.
    """
    content = {_JSON: {"schema": answer}} if answer else {"text/event-stream": {}}
    fault = {
        "description": "refused: the answer says why",
        "content": {_JSON: {"schema": _record(**error)}},
    }
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "4XX": fault,
            "5XX": fault,
        },
    }
    if bodies:
        types = (_JSON, _FORM)[: len(bodies)]
        found["requestBody"] = {
            "required": True,
            "content": {
                name: {"schema": own} for name, own in zip(types, bodies, strict=True)
            },
        }
    return found


def _parameter(name: str, schema: Schema, *, required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _record(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    """Return the schema of an object; all its properties are required by default."""
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _limited(service: Service, **rules: int) -> Schema:
    most = service.config.max_characters
    return {**_TEXT, **rules, **({"maxLength": most} if most else {})}


def _several(service: Service, items: Schema) -> Schema:
    return {**_list(items), "minItems": 1, "maxItems": service.config.max_texts}
