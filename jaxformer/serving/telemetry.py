"""What a server tells its operator: numbers for Prometheus, and a line of JSON for each
request, without texts, keys and addresses.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from jaxformer.serving.batcher import BatchKind
from jaxformer.serving.middleware import Exchange

LOG = logging.getLogger("jaxformer.serving")
_METHODS = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
_PAIR = "source", "target"
# Names, what they count, and labels.
_COUNTERS = {
    "requests": ("Answers", "route", "status"),
    "rejected": ("Requests refused", "reason"),
    "cancelled": ("Requests whose client left",),
    "compilations": ("Programs compiled", "when"),
    "sentences": ("Sentences translated", *_PAIR),
    "source_tokens": ("Tokens of the sentences translated", *_PAIR),
    "target_tokens": ("Tokens of their translations", *_PAIR),
    "characters": ("Characters of the texts translated", *_PAIR),
}
_GAUGES = {
    "queue_sentences": ("Sentences that wait",),
    "requests_in_flight": ("Requests that are being answered",),
    "model_info": ("Models that are served", *_PAIR, "checkpoint", "version"),
}
_HISTOGRAMS = {
    "request_duration_seconds": (_SECONDS, "From a request to its answer", "route"),
    "queue_duration_seconds": (_SECONDS, "Time that a sentence waited"),
    "batch_duration_seconds": (_SECONDS, "Time of a search", "kind"),
    "batch_sentences": (_SENTENCES, "Sentences of a batch", "kind"),
    "batch_padding_ratio": (_RATIOS, "Share of source positions that pad", "kind"),
}
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
        self._numbers: dict[str, Any] = {}
        for kind, names in ((Counter, _COUNTERS), (Gauge, _GAUGES)):
            for name, (help, *labels) in names.items():
                made = kind(f"jaxformer_{name}", help, labels, registry=own)
                self._numbers[name] = made
        for name, (buckets, help, *labels) in _HISTOGRAMS.items():
            how: Any = {"buckets": buckets, "registry": own}
            self._numbers[name] = Histogram(f"jaxformer_{name}", help, labels, **how)
        self._numbers["queue_sentences"].set_function(waiting)
        # A series exists before its first event, so that its rate is known.
        for reason in _REASONS.values():
            self._numbers["rejected"].labels(reason)
        for when in ("warmup", "ready"):
            self._numbers["compilations"].labels(when)

    def count(self, name: str, *labels: object, by: float = 1) -> None:
        """Add to a number that has labels."""
        self._numbers[name].labels(*labels).inc(by)

    def begun(self) -> None:
        """Count a request that is being answered."""
        self._numbers["requests_in_flight"].inc()

    def finished(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        route, seconds = route_of(exchange), time.monotonic() - exchange.begun
        self._numbers["requests_in_flight"].dec()
        self.count("requests", route, exchange.status)
        self._numbers["request_duration_seconds"].labels(route).observe(seconds)
        if exchange.status == 499:
            self._numbers["cancelled"].inc()
        elif exchange.code in _REASONS:
            self.count("rejected", _REASONS[exchange.code])

    def batch(
        self, kind: BatchKind, waits: list[float], seconds: float, padding: float | None
    ) -> None:
        """Count a batch.

        Args:
            kind: of its sentences.
            waits: seconds that each was in the queue.
            seconds: of the search.
            padding: share of its source positions that pad; None: it has none.
        """
        for wait in waits:
            self._numbers["queue_duration_seconds"].observe(wait)
        facts = {"duration_seconds": seconds, "sentences": len(waits)}
        if padding is not None:
            facts["padding_ratio"] = padding
        for name, fact in facts.items():
            self._numbers[f"batch_{name}"].labels(kind.use).observe(fact)


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
