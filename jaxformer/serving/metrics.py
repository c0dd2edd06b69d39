"""The numbers of a server, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder

from jaxformer import __version__
from jaxformer.serving.batcher import Batch
from jaxformer.serving.call import Call

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)

# Why requests are refused, by the code of the error.
_REASONS = {
    "queue": "queue",
    "rate": "rate",
    "deadline": "deadline",
    "body_too_large": "size",
    "headers_too_large": "size",
    "text_too_long": "size",
    "too_many_sentences": "size",
    "too_many_texts": "size",
}


class Metrics:
    """Counts what a server does.

    Labels have few values: templates of routes, statuses, kinds of search, and the
    languages of the models; never a text, key or address.

    A server passes :meth:`finished` to its guard and calls :meth:`batch` from the
    ``observe`` of its batcher, :meth:`translated` after a translation, :meth:`compiled`
    after a compilation, and :meth:`serve` after loading. ``GET /metrics`` answers with
    :meth:`render`.
    """

    def __init__(
        self,
        *,
        waiting: Callable[[], float] = lambda: 0,
        in_flight: Callable[[], float] = lambda: 0,
    ) -> None:
        """Begin at zero, in a registry of its own.

        Args:
            waiting: returns how many sentences wait.
            in_flight: returns how many requests are being answered.
        """
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._gauge("queue_sentences", "Sentences that wait").set_function(waiting)
        self._gauge(
            "requests_in_flight", "Requests that are being answered"
        ).set_function(in_flight)
        self._requests = self._counter("requests", "Answers", "route", "status")
        self._seconds = self._histogram(
            "request_duration_seconds", "Time from a request to its answer", "route"
        )
        self._queue_seconds = self._histogram(
            "queue_duration_seconds", "Time that a sentence waited"
        )
        self._batch_sentences = self._histogram(
            "batch_sentences", "Sentences of a batch", "kind", buckets=_SENTENCES
        )
        self._padding = self._histogram(
            "batch_padding_ratio",
            "Share of a batch's source positions, its empty rows too, that pad",
            "kind",
            buckets=_RATIOS,
        )
        self._batch_seconds = self._histogram(
            "batch_duration_seconds", "Time of a search", "kind"
        )
        pair = "source", "target"
        self._translated = {
            name: self._counter(name, help, *pair)
            for name, help in {
                "sentences": "Sentences translated",
                "source_tokens": "Tokens of the sentences translated",
                "target_tokens": "Tokens of their translations",
                "characters": "Characters of the texts translated",
            }.items()
        }
        self._rejected = self._counter("rejected", "Requests refused", "reason")
        self._cancelled = self._counter("cancelled", "Requests whose client left")
        self._compilations = self._counter("compilations", "Programs compiled", "when")
        self._model = self._gauge(
            "model_info", "Models that are served", *pair, "checkpoint", "version"
        )
        # A series exists before its first event, so that its rate is known.
        for reason in _REASONS.values():
            self._rejected.labels(reason)
        for when in ("warmup", "ready"):
            self._compilations.labels(when)

    def _gauge(self, name: str, help: str, *labels: str) -> Gauge:
        return Gauge(f"jaxformer_{name}", help, labels, registry=self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"jaxformer_{name}", help, labels, registry=self.registry)

    def _histogram(
        self, name: str, help: str, *labels: str, buckets: Iterable[float] = _SECONDS
    ) -> Histogram:
        return Histogram(
            f"jaxformer_{name}",
            help,
            labels,
            buckets=tuple(buckets),
            registry=self.registry,
        )

    def finished(self, call: Call) -> None:
        """Count a request that has ended."""
        self._requests.labels(call.route, call.status).inc()
        self._seconds.labels(call.route).observe(call.seconds)
        if call.status == 499:
            self._cancelled.inc()
        elif call.code in _REASONS:
            self._rejected.labels(_REASONS[call.code]).inc()

    def batch(self, batch: Batch) -> None:
        """Count a batch, by its key, which is written as one of few words."""
        kind = str(batch.key)
        for seconds in batch.waited:
            self._queue_seconds.observe(seconds)
        self._batch_sentences.labels(kind).observe(len(batch.widths))
        self._batch_seconds.labels(kind).observe(batch.seconds)

    def padded(self, kind: str, tokens: int, positions: int) -> None:
        """Count the padding of a batch: its source positions that are no tokens."""
        self._padding.labels(kind).observe(1 - tokens / positions)

    def translated(self, source: str, target: str, **counts: int) -> None:
        """Count a text that has been translated: its ``sentences``, ``characters`` and
        ``source_tokens``, and the ``target_tokens`` of its translation.
        """
        for name, count in counts.items():
            self._translated[name].labels(source, target).inc(count)

    def compiled(self, when: Literal["warmup", "ready"], count: int = 1) -> None:
        """Count compilations; a good server has none when it is ready."""
        self._compilations.labels(when).inc(count)

    def serve(self, models: Iterable[tuple[str, str, str]]) -> None:
        """State the models that are served: of each the languages, source and target,
        and the checkpoint.
        """
        for model in models:
            self._model.labels(*model, __version__).set(1)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all numbers and their content type.

        Args:
            accept: what the client takes: Prometheus' text, or OpenMetrics.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type
