"""What a server tells its operator: numbers for Prometheus, and a line of JSON for each
request, without texts, keys and addresses.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPMethod
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
from starlette.types import Scope

from jaxformer.serving.config import ServingConfig

LOG = logging.getLogger("jaxformer.serving")
_PAIR = "source", "target"
_SECONDS = functools.partial(
    Histogram, buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
)
_ROWS = functools.partial(Histogram, buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256))
_RATIOS = functools.partial(
    Histogram, buckets=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
)
# Names, what they count, and labels.
_NUMBERS: dict[str, Any] = {
    "requests": (Counter, "Answers", "route", "status"),
    "rejected": (Counter, "Requests refused", "reason"),
    "cancelled": (Counter, "Requests whose client left"),
    "compilations": (Counter, "Programs compiled", "when"),
    "sentences": (Counter, "Sentences translated", *_PAIR),
    "source_tokens": (Counter, "Tokens of the sentences translated", *_PAIR),
    "target_tokens": (Counter, "Tokens of their translations", *_PAIR),
    "characters": (Counter, "Characters of the texts translated", *_PAIR),
    "queue_sentences": (Gauge, "Sentences that wait"),
    "requests_in_flight": (Gauge, "Requests that are being answered"),
    "model_info": (Gauge, "Models that are served", *_PAIR, "checkpoint", "version"),
    "request_duration_seconds": (_SECONDS, "From a request to its answer", "route"),
    "queue_duration_seconds": (_SECONDS, "Time that a sentence waited"),
    "batch_duration_seconds": (_SECONDS, "Time of a search", "kind"),
    "batch_sentences": (_ROWS, "Sentences of a batch", "kind"),
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


@dataclasses.dataclass
class Exchange:
    """A request and what became of it.

    Attributes:
        id: of the request.
        scope: of ASGI.
        status: of the answer; 499: its client left.
        is_over: whether all of the answer has been sent.
        code: of the error that is the answer.
        fault: what caused an error 500.
        facts: of a translation.
    """

    id: str
    scope: Scope
    begun: float = dataclasses.field(default_factory=time.monotonic)
    status: int = 499
    is_over: bool = False
    code: str | None = None
    fault: BaseException | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


class Metrics:
    """Counts what a server does, and logs its requests.

    Labels have few values: templates of routes, statuses, uses of programs, and the
    languages of the models; never a text, key or address.

    Attributes:
        registry: of the numbers.
    """

    def __init__(self, config: ServingConfig, waiting: Callable[[], float]) -> None:
        """Begin at zero.

        Args:
            config: of the log.
            waiting: returns how many sentences wait.
        """
        self._config, own = config, CollectorRegistry()
        self.registry, self._numbers = own, dict[str, Any]()
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        for name, (kind, help, *labels) in _NUMBERS.items():
            self._numbers[name] = kind(f"jaxformer_{name}", help, labels, registry=own)
        self._numbers["queue_sentences"].set_function(waiting)
        # A series exists before its first event, so that its rate is known.
        for reason in _REASONS.values():
            self.number("rejected", reason)
        for when in ("warmup", "ready"):
            self.number("compilations", when)

    def number(self, name: str, *labels: object) -> Any:
        """Return a counter, gauge or histogram with its labels."""
        found = self._numbers[name]
        return found.labels(*labels) if labels else found

    def batch(
        self, use: str, waits: list[float], seconds: float, padding: float | None
    ) -> None:
        """Count a batch.

        Args:
            use: of its program.
            waits: seconds that each was in the queue.
            seconds: of the search.
            padding: share of its source positions that pad; None: it has none.
        """
        for wait in waits:
            self.number("queue_duration_seconds").observe(wait)
        self.number("batch_duration_seconds", use).observe(seconds)
        self.number("batch_sentences", use).observe(len(waits))
        if padding is not None:
            self.number("batch_padding_ratio", use).observe(padding)

    def finished(self, exchange: Exchange) -> None:
        """Count a request that has ended, and write its line.

        It has ``time`` (UTC), ``id``, ``method``, ``route``, ``status`` (499: the
        client left), ``seconds``, and where they are known ``queue_seconds``,
        ``sentences``, ``characters``, and the ``code`` of an error. An error 500 has
        ``fault``, the name of its class, and ``trace``, the places in the code; its
        message may show a text.
        """
        scope, fault, status = exchange.scope, exchange.fault, exchange.status
        route = getattr(scope.get("route"), "path", "other")
        seconds = time.monotonic() - exchange.begun
        self.number("requests_in_flight").dec()
        self.number("requests", route, status).inc()
        self.number("request_duration_seconds", route).observe(seconds)
        if status == 499:
            self.number("cancelled").inc()
        elif exchange.code in _REASONS:
            self.number("rejected", _REASONS[exchange.code]).inc()
        if self._config.log == "off":
            return
        method = scope["method"]
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": exchange.id,
            "method": method if method in HTTPMethod.__members__ else "other",
            "route": route,
            "status": status,
            "seconds": round(seconds, 4),
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
        if self._config.log_addresses:
            line["address"] = (scope.get("client") or ("",))[0]
        LOG.info(json.dumps(line, separators=(",", ":")))
