"""A server that speaks the native API from a dictionary, for the tests of the page.

Its delays and refusals are under the test's control; ``requests`` keeps what it was
asked.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from serving.fake_engine import FakeEngine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from visualization.made import make_maps

import jaxformer.serving
from jaxformer.serving import app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.protocols import native
from jaxformer.serving.service import Service

PAGE = Path(jaxformer.serving.__file__).with_name("page")
WORDS = {
    "en": "the animal did not cross street because it was too tired open file in a new"
    " window close insert table please save changes before you quit",
    "de": "das Tier hat nicht überquert Straße weil es war zu müde öffnen Datei in ein"
    " neues Fenster schließen einfügen Tabelle bitte speichern Änderungen bevor Sie"
    " beenden",
}
WORDS["zh"] = WORDS["de"]
FIELDS = {
    "translate": native.Asked,
    "translate/stream": native.AskedOne,
    "attention": native.AskedAttention,
    "alternatives": native.AskedWords,
}
OTHERS = ("dies", "jenes", "ein", "andere", "alle", "manche", "kein", "so")


class Fake:
    """What the server is to do, and what it was asked."""

    def __init__(self) -> None:
        """Answer everything at once."""
        self.reset()

    def reset(self) -> None:
        """Forget the requests, the delays and the refusals."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.delays: dict[str, float] = {}  # seconds before a text that holds this
        self.refusals: list[Response] = []  # of the next requests with a body
        self.warm = (18, 18)  # programs compiled, of so many
        self.aborted = self.finished = 0  # streams
        self.break_off = False  # end a stream after its first event
        self.silent = False  # accept requests and answer none, as a stopped process
        self.held = False  # keep all sentences of a stream but the first
        self.canned: dict[str, dict[str, Any]] = {}  # the candidate of a sentence
        self.pairs = [
            ("en", "English", "de", "German"),
            ("de", "German", "en", "English"),
        ]
        self.limit = 5000
        self.key = ""

    def asked(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies of the requests of a route."""
        return [body for route, body in self.requests if route == path]


def refusal(
    status: int, code: str, message: str, retry: int = 0, **facts: Any
) -> Response:
    """Build a refusal of the native API."""
    headers = {"Retry-After": str(retry)} if retry else None
    error = {"code": code, "message": message, **facts}
    return JSONResponse({"error": error}, status, headers)


def translate_words(text: str, source: str, target: str) -> list[str]:
    """Translate word by word; an unknown word stays."""
    table = dict(zip(WORDS[source].split(), WORDS[target].split(), strict=False))
    table = {word.lower(): other for word, other in table.items()}
    words = []
    for word in text.split():
        core = word.strip(".,!?")
        other = table.get(core.lower(), core)
        if core[:1].isupper():
            other = other[:1].upper() + other[1:]
        words.append(word.replace(core, other) if core else word)
    return words


def pieces(words: list[str]) -> list[str]:
    """Cut words into pieces: a long one in two, a stop from its word."""
    found = []
    for word in words:
        core, stop = re.fullmatch(r"(.*?)([.,!?]*)", word, re.DOTALL).groups()
        half = len(core) // 2 if len(core) > 7 else len(core)
        found += ["\u2581" + core[:half]] + [core[half:]] * (half < len(core))
        found += list(stop)
    return found


def hypothesis(source: str, words: list[str], rank: int, known: int) -> dict[str, Any]:
    """Build the record of a translation, whose first ``known`` words were given."""
    tokens, probabilities = pieces(words), []
    for number, token in enumerate(tokens):
        number -= known
        certain = number < 0 or number % 5
        low = 0.9 if certain else (0.12, 0.42, 0.71)[(len(token) + rank) % 3]
        probabilities.append(math.log(low))
    source_words = source.split()
    links = [
        f"{min(number, len(source_words) - 1)}-{number}" for number in range(len(words))
    ]
    logarithm = sum(probabilities) - rank - 0.05
    return {
        "text": " ".join(words),
        "score": logarithm / max(1, len(tokens)) ** 0.6,
        "log_probability": logarithm,
        "tokens": tokens,
        "finished": "endless" not in source,
        "token_log_probabilities": [*probabilities, -0.05],
        "source_tokens": [*pieces(source_words), "</s>"],
        "word_alignment": " ".join(links),
        "alignment": "",
    }


def search(body: dict[str, Any], sentence: str) -> list[dict[str, Any]]:
    """Return the candidates of a sentence."""
    if "impossible" in sentence:
        nothing = {"text": "", "score": None, "log_probability": None, "tokens": []}
        return [nothing | {"finished": False, "token_log_probabilities": []}]
    words = translate_words(sentence, body["source"], body["target"])
    prefix = body.get("prefix", "").split()
    words = [*prefix, *words[len(prefix) :]]
    found = [hypothesis(sentence, words, 0, len(prefix))]
    for rank in range(1, body.get("n_best", 1)):
        other = list(words)
        place = max(len(prefix), (3 * rank) % len(words)) % len(words)
        other[place] = OTHERS[rank] + re.sub(r"[^.,!?]", "", other[place])
        found.append(hypothesis(sentence, other, rank, len(prefix)))
    return found


def divide(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences of a text."""
    found = re.finditer(r"\S[^.!?\n]*[.!?]*", text)
    return [
        (each.start(), each.start() + len(each[0].rstrip()))
        for each in found
        if each[0].strip()
    ]


def attention(body: dict[str, Any]) -> dict[str, Any]:
    """Build maps of two layers and four heads, and candidates."""
    source = [*pieces(body["text"].split()), "</s>"]
    target = [*pieces(body["translation"].split()), "</s>"]
    maps, k = make_maps(source, target, ((2, 4),) * 3), body.get("k", 0)
    shares = [0.55, 0.2, 0.1, 0.06, 0.03, 0.02, 0.01, 0.004]
    candidates = [
        [
            {"token": token, "probability": share}
            for token, share in zip([token, *OTHERS], shares[:k], strict=False)
        ]
        for token in target
    ]
    return {
        "source_tokens": source,
        "target_tokens": target,
        "read_tokens": maps.read_tokens,
        "encoder": maps.encoder.round(4).tolist(),
        "decoder": maps.decoder.round(4).tolist(),
        "cross": maps.cross.round(4).tolist(),
        "candidates": candidates,
        "text": body["text"],
        "translation": body["translation"],
    }


def alternatives(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the words that may follow a prefix, and what follows each."""
    words = translate_words(body["text"], body["source"], body["target"])
    prefix = body["prefix"].split()
    best = words[len(prefix)] if len(prefix) < len(words) else "."
    rest = words[len(prefix) + 1 :]
    found = [best, *(word for word in OTHERS if word != best)][: body["k"]]
    shares = [0.58, 0.17, 0.09, 0.05, 0.03, 0.02, 0.01, 0.0004]
    return [
        {"word": word, "probability": share, "text": " ".join([*prefix, word, *rest])}
        for word, share in zip(found, shares, strict=False)
    ]


class _Routes:
    """What the routes of a fake server answer."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def post(self, path: str, handle: Callable[[dict[str, Any]], Response]) -> Route:
        """Build a route that answers a body unless the server refuses it."""

        async def endpoint(request: Request) -> Response:
            body = await request.json()
            name = request.url.path.rpartition("/v1/")[2]
            self.fake.requests.append((name, body))
            # As the server would.
            FIELDS[name].model_validate(body, context=ServingConfig(max_characters=0))
            text = body.get("text") or "".join(body["texts"])
            refused = self.refuse(request.headers.get("Authorization"), text)
            return refused or handle(body)

        return Route(path, endpoint, methods=["POST"])

    def refuse(self, authorization: str | None, text: str) -> Response | None:
        """Return the refusal of a request, if any."""
        fake = self.fake
        if fake.key and authorization != f"Bearer {fake.key}":
            return refusal(403, "key", "The key is missing or wrong.")
        if fake.refusals:
            return fake.refusals.pop(0)
        if fake.warm[0] < fake.warm[1]:
            return refusal(503, "warming", "The server is warming up.", 1)
        if len(text) > fake.limit:
            message = f"text has {len(text)} characters; the limit is {fake.limit}"
            return refusal(400, "text_too_long", message, field="text")
        return None

    def translate(self, body: dict[str, Any]) -> Response:
        texts = body.get("texts") or [body["text"]]
        prefixes = body.get("prefixes") or [body.get("prefix", "")]
        results = [
            self.translate_one(body | {"text": text, "prefix": prefix})
            for text, prefix in zip(texts, prefixes, strict=True)
        ]
        return JSONResponse({"translations": results, **facts(body)})

    def translate_one(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["text"]
        spans = divide(text) if body.get("split_sentences", True) else [(0, len(text))]
        sentences = [
            {
                "source": text[a:b],
                "source_span": [a, b],
                "hypotheses": search(body, text),
            }
            for a, b in spans
        ]
        best = " ".join(each["hypotheses"][0]["text"] for each in sentences)
        return {"text": best, "sentences": sentences, "alternatives": [], "unmet": []}

    def stream(self, body: dict[str, Any]) -> Response:
        return StreamingResponse(self.events(body), media_type="text/event-stream")

    async def events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """Yield the events of a translation, with the delays of the test."""
        fake, text, whole, end = self.fake, body["text"], "", 0
        spans = divide(text)
        try:
            for word, seconds in fake.delays.items():
                if word in text:
                    await asyncio.sleep(seconds)
            yield event("start", {"sentences": len(spans), "source_spans": spans})
            for index, (start, stop) in enumerate(spans):
                sentence = text[start:stop]
                if fake.break_off:
                    return
                found = search(body, sentence)
                if sentence in fake.canned:
                    found = [fake.canned[sentence]]
                data = {"source": sentence, "source_span": [start, stop]}
                while fake.held and index:
                    await asyncio.sleep(0.01)
                yield event("sentence", {"index": index, **data, "hypotheses": found})
                whole += text[end:start] + found[0]["text"]
                end = stop
            done = {"text": whole + text[end:], "alternatives": [], "unmet": []}
            fake.finished += 1
            yield event("done", done | facts(body))
        except asyncio.CancelledError:
            fake.aborted += 1
            raise

    async def models(self, _: Request) -> Response:
        rest = {"checkpoint": "2800", "beam_size": 4, "positions": 256}
        rest |= {"name": "quickstart", "parameters": 2_460_000}
        names = ("source", "source_name", "target", "target_name")
        pairs = [dict(zip(names, pair, strict=True)) for pair in self.fake.pairs]
        limits = {"characters": self.fake.limit, "texts": 50, "body": 262_144}
        found = [pair | rest for pair in pairs]
        needed = bool(self.fake.key)
        return JSONResponse({"models": found, "limits": limits, "key_required": needed})

    async def ready(self, _: Request) -> Response:
        done, of = self.fake.warm
        status, code = ("ready", 200) if done == of else ("warming", 503)
        return JSONResponse({"status": status, "done": done, "of": of}, code)


def event(name: str, data: dict[str, Any]) -> str:
    """Write an event of a stream."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def facts(body: dict[str, Any]) -> dict[str, Any]:
    """Return the model and the times of an answer."""
    pair = {"source": body["source"], "target": body["target"]}
    model = {"name": "quickstart", "checkpoint": "2800", **pair}
    return {"model": model, "queue_seconds": 0.003, "seconds": 0.042}


def make_app(fake: Fake) -> ASGIApp:
    """Build the application: routes of canned answers, before the real ones."""
    own = _Routes(fake)
    routes = [
        Route("/v1/models", own.models),
        Route("/ready", own.ready),
        own.post("/v1/translate", own.translate),
        own.post("/v1/translate/stream", own.stream),
        own.post("/v1/attention", lambda body: JSONResponse(attention(body))),
        own.post(
            "/v1/alternatives",
            lambda body: JSONResponse({"alternatives": alternatives(body)}),
        ),
        Mount("/", app.make_app(Service(lambda: [FakeEngine()], ServingConfig()))),
    ]
    answer = Starlette(routes=routes)

    async def answer_aloud(scope: Scope, receive: Receive, send: Send) -> None:
        while fake.silent:
            await asyncio.sleep(0.01)
        await answer(scope, receive, send)

    return answer_aloud


@contextmanager
def serve(fake: Fake) -> Iterator[str]:
    """Serve in a thread, and yield the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # connections wait until the thread accepts them
        config = uvicorn.Config(make_app(fake), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()
