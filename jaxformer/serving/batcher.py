"""A queue of sentences from which batches form while the last batch is searched."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxformer.serving.errors import ServingError, as_serving_error, draining

# Widths up to this one, and up to each power of two above, fit into the same batch.
_NARROW = 32
_STEP = 4  # between widths that differ
_WEIGHT = 0.2  # of the last batch in the mean time of a sentence


class Job(NamedTuple):
    """A sentence to search, or other work of the same worker."""

    key: Hashable
    """Only jobs with equal keys share a batch."""
    width: int
    """Tokens of the source."""
    payload: Any
    """What the search is given."""


class Batch(NamedTuple):
    """A batch that has been searched, for metrics."""

    key: Hashable
    """Of its jobs."""
    widths: list[int]
    """Of its jobs."""
    waited: list[float]
    """Seconds that each job was in the queue."""
    seconds: float
    """Duration of the search."""


Search = Callable[[Hashable, Sequence[Any]], Awaitable[Sequence[Any]]]


class _Request:
    """The jobs of one call of :meth:`Batcher.run`, and their results."""

    def __init__(
        self,
        jobs: Sequence[Job],
        done: Callable[[int, Any], None] | None,
        arrived: float,
        client: Hashable,
    ) -> None:
        self.jobs, self.done, self.arrived = jobs, done, arrived
        self.client = client
        self.error: ServingError | None = None
        self.results: list[Any] = [None] * len(jobs)
        self.left = self.held = len(jobs)
        self.ended = asyncio.get_running_loop().create_future()
        self.waiting: dict[tuple[Hashable, int], deque[int]] = {}
        for index, job in enumerate(jobs):
            group = job.key, -(-job.width // _STEP) * _STEP
            self.waiting.setdefault(group, deque()).append(index)

    def first(self) -> tuple[Hashable, int]:
        """Return the group of the first job that waits."""
        return min(self.waiting, key=lambda group: self.waiting[group][0])

    def take(self, group: tuple[Hashable, int]) -> int:
        """Take the first waiting job of a group, which must have one."""
        indices = self.waiting[group]
        index = indices.popleft()
        self.held -= 1
        if not indices:
            del self.waiting[group]
        return index

    def put(self, index: int, result: Any) -> None:
        """Keep a result. The last one, or an error, ends the request."""
        if self.ended.done():
            return
        if isinstance(result, Exception):
            self.fail(result)
            return
        self.results[index] = result
        self.left -= 1
        if self.done is not None:
            try:
                self.done(index, result)
            except Exception as error:
                self.fail(error)
                return
        if not self.left:
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.waiting.clear()
        if not self.ended.done():
            self.error = as_serving_error(error)
            self.ended.set_result(None)


class Batcher:
    """Groups the jobs of all requests into batches, one after the other.

    The next batch begins as soon as the last one ends; nothing waits for company.
    Requests take turns: the one that was served the longest time ago, or has waited
    longest, leads. Its first job decides the key and the greatest width, rounded up to
    a power of two. Other jobs with this key fill the batch, those of like width first.
    No request, and no client, has more than half of the rows, rounded up, while another
    has a job that fits. Once a request has led, those of its client follow all others.

    Only one event loop may use a batcher; none of its methods but :meth:`check` may be
    called from other threads.

    Attributes:
        active: jobs in the batch that is being searched.

    Example:
        >>> async def search(key, payloads):
        ...     return [payload.upper() for payload in payloads]
        >>> async def main():
        ...     batcher = Batcher(search, rows=16, capacity=1024)
        ...     server = asyncio.create_task(batcher.serve())
        ...     jobs = [Job("en-de", 1, "one"), Job("en-de", 1, "two")]
        ...     print(await batcher.run(jobs, timeout=30))
        ...     server.cancel()
        >>> asyncio.run(main())
        ['ONE', 'TWO']
    """

    def __init__(
        self,
        search: Search,
        *,
        rows: Callable[[Hashable], int] | int,
        capacity: int,
        now: Callable[[], float] = time.monotonic,
        observe: Callable[[Batch], None] | None = None,
    ) -> None:
        """Begin with an empty queue.

        Args:
            search: called with a key and the payloads of a batch; returns a result for
                each. A result may be an exception, which fails only its own request.
            rows: most jobs of a batch, or a function of its key.
            capacity: most jobs that wait.
            now: a clock, in seconds.
            observe: called after each batch.
        """
        self._search, self._now, self._observe = search, now, observe
        self._rows = rows if callable(rows) else lambda _: rows
        self._capacity = capacity
        # In the order of their turns.
        self._requests: dict[_Request, None] = {}
        self._wake = asyncio.Event()
        self._draining = False
        # Jobs that wait or are prepared, by client. One who has none is not in it.
        self._held: Counter[Hashable] = Counter()
        self._seconds_each = 0.0
        self.active = 0

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return sum(request.held for request in self._requests)

    async def run(
        self,
        jobs: Sequence[Job],
        *,
        timeout: float,
        done: Callable[[int, Any], None] | None = None,
        client: Hashable = None,
    ) -> list[Any]:
        """Wait for the results of the jobs of a request, in their order.

        Cancelling the task that waits takes the request's jobs out of the queue. Jobs
        in the running batch are finished, and their results dropped.

        Args:
            jobs: of the request.
            timeout: seconds from now. Jobs that have begun by then may end.
            done: called with the index and the result of each job as soon as it is
                found; what it raises ends the request. Not called with exceptions.
            client: whose request it is.

        Raises:
            ServingError: 503 ``queue``: no room, with ``retry_after``; 413
                ``too_many_sentences``: more jobs than the queue ever has room for; 504
                ``deadline``: a job still waits after ``timeout``; 503 ``draining``: the
                server ends; 500 ``internal``: the search of a job failed, with the
                fault as its cause; or the ServingError that the search returned.
        """
        self.admit(len(jobs), client)
        if not jobs:
            return []
        request = _Request(jobs, done, self._now(), client)
        self._requests[request] = None
        self._hold(client, len(jobs))
        self._wake.set()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(timeout, 0), _expire, request, timeout)
        try:
            await request.ended
        finally:
            timer.cancel()
            del self._requests[request]
            self._hold(client, -request.held)
        if request.error is not None:
            raise request.error
        return request.results

    @contextlib.contextmanager
    def reserved(self, count: int, client: Hashable = None) -> Iterator[None]:
        """Keep room for jobs while they are prepared, so that a request that has none
        is refused before.

        Raises:
            ServingError: 413 or 503, as of :meth:`run`.
        """
        self.admit(count, client)
        self._hold(client, count)
        try:
            yield
        finally:
            self._hold(client, -count)

    def _hold(self, client: Hashable, count: int) -> None:
        """Count jobs of a client that begin to wait; negative: that no longer wait."""
        self._held[client] += count
        if not self._held[client]:
            del self._held[client]

    async def serve(self) -> None:
        """Search batches until this is cancelled: all requests then end with 503
        ``draining``.
        """
        try:
            while True:
                batch = self._choose()
                if batch:
                    await self._search_batch(batch)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._draining = True
            for request in self._requests:
                request.fail(draining())

    def check(self, count: int) -> None:
        """Check that the queue can ever have room for so many sentences.

        Raises:
            ServingError: 413 ``too_many_sentences``: it cannot.
        """
        if count > (most := self._capacity):
            rule = (
                f"a request has at most {most:,} sentences, and this one has at least"
            )
            message, code = f"{rule} {count:,}: send it in parts", "too_many_sentences"
            raise ServingError(413, code, message, limit=most, given=count)

    def admit(self, count: int, client: Hashable = None) -> None:
        """Check that the queue, or the client's share of it, has room for jobs.

        Raises:
            ServingError: 413 or 503, as of :meth:`run`.
        """
        if self._draining:
            raise draining()
        self.check(count)
        waiting, own = self._held.total(), self._held[client]
        share = self._capacity // len({*self._held, client})
        if waiting + count > self._capacity and own + count > share:
            seconds = math.ceil(waiting * self._seconds_each)
            raise ServingError(
                503,
                "queue",
                f"{waiting:,} sentences wait, {own:,} of them yours: at most {share:,}"
                f" of yours may wait now, and {count:,} more are asked for: try again"
                " later",
                limit=share,
                given=own + count,
                retry_after=min(max(seconds, 1), 60),
            )

    def _choose(self) -> list[tuple[_Request, int]]:
        """Take the jobs of the next batch out of the queue; none if nothing waits."""
        leader = next((each for each in self._requests if each.waiting), None)
        if leader is None:
            return []
        key, lead = leader.first()
        rows, widest = self._rows(key), 1 << (max(lead, _NARROW) - 1).bit_length()
        queued: dict[int, list[_Request]] = {}  # by width
        for request in self._requests:
            for kind, width in request.waiting:
                if kind == key and width <= widest:
                    queued.setdefault(width, []).append(request)
        widths = sorted(queued, key=lambda own: (abs(own - lead), -own))
        batch: list[tuple[_Request, int]] = []
        taken, by_client = Counter[_Request](), Counter[Hashable]()
        half = -(-rows // 2)
        for most, most_of_client in ((half, half), (half, rows), (rows, rows)):
            for width in widths:
                for request in queued[width] if len(batch) < rows else ():
                    while (
                        (key, width) in request.waiting
                        and taken[request] < most
                        and by_client[request.client] < most_of_client
                        and len(batch) < rows
                    ):
                        batch.append((request, request.take((key, width))))
                        taken[request] += 1
                        by_client[request.client] += 1
        for client, count in by_client.items():
            self._hold(client, -count)
        return batch

    async def _search_batch(self, batch: Sequence[tuple[_Request, int]]) -> None:
        """Search a batch, and give each result to its request."""
        jobs = [request.jobs[index] for request, index in batch]
        begun, self.active = self._now(), len(batch)
        try:
            results = await self._results(batch)
            for (request, index), result in zip(batch, results, strict=True):
                request.put(index, result)
        finally:
            self.active = 0
        seconds = self._now() - begun
        self._learn(seconds / len(batch))
        # Other clients, and requests that came meanwhile, have their turn before these.
        leader = batch[0][0].client
        own = [request for request in self._requests if request.client == leader]
        for request in (*own, *dict.fromkeys(request for request, _ in batch)):
            if request in self._requests:
                del self._requests[request]
                self._requests[request] = None
        if self._observe is not None:
            waited = [begun - request.arrived for request, _ in batch]
            widths = [job.width for job in jobs]
            self._observe(Batch(jobs[0].key, widths, waited, seconds))

    async def _results(self, batch: Sequence[tuple[_Request, int]]) -> list[Any]:
        """Return a result or an exception for each job.

        If the batch raises, its jobs are searched again one by one, once.
        """
        results = await self._try([request.jobs[index] for request, index in batch])
        if isinstance(results, list):
            return results
        if len(batch) == 1:
            return [results]
        singles: list[Any] = []
        for request, index in batch:
            if request.ended.done():
                singles.append(None)
                continue
            single = await self._try([request.jobs[index]])
            singles.extend(single if isinstance(single, list) else [single])
        return singles

    async def _try(self, jobs: Sequence[Job]) -> list[Any] | Exception:
        try:
            results = await self._search(jobs[0].key, [job.payload for job in jobs])
            if len(results) != len(jobs):
                raise RuntimeError(f"{len(results)} results of {len(jobs)} jobs")
            return list(results)
        except Exception as error:
            return error

    def _learn(self, seconds: float) -> None:
        """Update the mean time of a sentence."""
        weight = _WEIGHT if self._seconds_each else 1.0
        self._seconds_each += weight * (seconds - self._seconds_each)


def _expire(request: _Request, timeout: float) -> None:
    """End a request of which a job still waits."""
    if request.waiting:
        request.fail(
            ServingError(
                504,
                "deadline",
                f"the text still waited after {timeout:g} seconds: try again later, or"
                " send less at once",
                limit=timeout,
            )
        )
