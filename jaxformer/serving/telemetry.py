"""What a server tells its operator: numbers for Prometheus, and a line of JSON for each
request, without texts, keys and addresses.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from jaxformer import __version__
from jaxformer.serving.batcher import Kind
from jaxformer.serving.middleware import Exchange

LOG = logging.getLogger("jaxformer.serving")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
# Why requests are refused, by the code of the error.
_REASONS = {
    "queue": "queue",
    "rate": "rate",
    "deadline": "deadline",
    "body_too_large": "size",
    "text_too_long": "size",
    "too_many_sentences": "size",
    "too_many_texts": "size",
}


class Metrics:
    """Counts what a server does.

    Labels have few values: templates of routes, statuses, uses of programs, and the
    languages of the models; never a text, key or address.

    Attributes:
        registry: of the numbers.
    """

    def __init__(self, waiting: Callable[[], float]) -> None:
        """Begin at zero.

        Args:
            waiting: returns how many sentences wait.
        """
        own = self.registry = CollectorRegistry()
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"jaxformer_{name}", help, labels, registry=own)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"jaxformer_{name}", help, labels, registry=own)

        def histogram(
            name: str, help: str, *labels: str, buckets: Iterable[float] = _SECONDS
        ) -> Histogram:
            name, buckets = f"jaxformer_{name}", tuple(buckets)
            return Histogram(name, help, labels, registry=own, buckets=buckets)

        pair = "source", "target"
        gauge("queue_sentences", "Sentences that wait").set_function(waiting)
        self._in_flight = gauge("requests_in_flight", "Requests that are answered")
        self._requests = counter("requests", "Answers", "route", "status")
        self._seconds = histogram(
            "request_duration_seconds", "Time from a request to its answer", "route"
        )
        self._waited = histogram(
            "queue_duration_seconds", "Time that a sentence waited"
        )
        self._rows = histogram(
            "batch_sentences", "Sentences of a batch", "kind", buckets=_SENTENCES
        )
        self._padding = histogram(
            "batch_padding_ratio",
            "Share of a batch's source positions, its empty rows too, that pad",
            "kind",
            buckets=_RATIOS,
        )
        self._searched = histogram("batch_duration_seconds", "Time of a search", "kind")
        self._translated = {
            name: counter(name, help, *pair)
            for name, help in {
                "sentences": "Sentences translated",
                "source_tokens": "Tokens of the sentences translated",
                "target_tokens": "Tokens of their translations",
                "characters": "Characters of the texts translated",
            }.items()
        }
        self._rejected = counter("rejected", "Requests refused", "reason")
        self._cancelled = counter("cancelled", "Requests whose client left")
        self._compilations = counter("compilations", "Programs compiled", "when")
        self._model = gauge("model_info", "Models", *pair, "checkpoint", "version")
        # A series exists before its first event, so that its rate is known.
        for reason in _REASONS.values():
            self._rejected.labels(reason)
        for when in ("warmup", "ready"):
            self._compilations.labels(when)

    def begun(self) -> None:
        """Count a request that is being answered."""
        self._in_flight.inc()

    def finished(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        route = route_of(exchange)
        self._in_flight.dec()
        self._requests.labels(route, exchange.status).inc()
        self._seconds.labels(route).observe(time.monotonic() - exchange.begun)
        if exchange.status == 499:
            self._cancelled.inc()
        elif exchange.code in _REASONS:
            self._rejected.labels(_REASONS[exchange.code]).inc()

    def batch(
        self, kind: Kind, waits: list[float], seconds: float, padding: float | None
    ) -> None:
        """Count a batch.

        Args:
            kind: of its sentences.
            waits: seconds that each was in the queue.
            seconds: of the search.
            padding: share of its source positions that pad; None: it has none.
        """
        for wait in waits:
            self._waited.observe(wait)
        self._searched.labels(kind.use).observe(seconds)
        self._rows.labels(kind.use).observe(len(waits))
        if padding is not None:
            self._padding.labels(kind.use).observe(padding)

    def compiled(self, when: str) -> None:
        """Count a program: of the ``warmup``, or once the server is ``ready``."""
        self._compilations.labels(when).inc()

    def translated(self, pair: tuple[str, str], **counts: int) -> None:
        """Count a text that has been translated: its ``sentences``, ``characters`` and
        ``source_tokens``, and the ``target_tokens`` of its translation.
        """
        for name, count in counts.items():
            self._translated[name].labels(*pair).inc(count)

    def serve(self, *model: str) -> None:
        """State a model: its languages and checkpoint."""
        self._model.labels(*model, __version__).set(1)


def route_of(exchange: Exchange) -> str:
    """Return the template of a request's route; ``other``: it has none."""
    return getattr(exchange.scope.get("route"), "path", "other")


def log(exchange: Exchange, *, address: bool = False) -> None:
    """Write the line of a request that has ended.

    It has ``time`` (UTC), ``id``, ``method``, ``route``, ``status`` (499: the client
    left), ``seconds``, and where they are known ``queue_seconds``, ``sentences``,
    ``characters``, and the ``code`` of an error. An error 500 has ``fault``, the name
    of its class, and ``trace``, the places in the code; its message may show a text.
    """
    scope, fault = exchange.scope, exchange.fault
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": exchange.id,
        "method": scope["method"] if scope["method"] in _METHODS else "other",
        "route": route_of(exchange),
        "status": exchange.status,
        "seconds": round(time.monotonic() - exchange.begun, 4),
        **exchange.facts,
    }
    if exchange.code:
        line["code"] = exchange.code
    if fault:
        line["fault"] = type(fault).__name__
        line["trace"] = [
            f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(fault.__traceback__)
        ]
    if address:
        line["address"] = (scope.get("client") or ("",))[0]
    LOG.info(json.dumps(line, separators=(",", ":")))
