"""Sentences of all requests wait in one queue. Each batch has those of one kind,
and requests take turns.

A request reserves its room once, before it costs anything. The turn of a sentence is
that of start-time fair queueing: the turn that is being served, plus the sentence's
place in its request, times the number of requests that its client has open. So a word
passes a document, and ten documents of one client do not slow the others tenfold. A
queue is a heap for each kind and width: putting and taking cost O(log n).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxformer.serving.errors import ServingError, draining


class BatchKind(NamedTuple):
    """What the sentences of a batch share."""

    pair: tuple[str, str]
    """Their languages."""
    use: str
    """Of their programs."""


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """A sentence that waits for its translations, or other work of a searcher.

    Attributes:
        kind: of its search.
        width: of the program that holds it.
        payload: what is searched.
        room: of its request.
        result: what becomes of it.
        since: when it was put into the queue.
    """

    kind: BatchKind
    width: int
    payload: Any
    room: Room
    result: asyncio.Future[Any]
    since: float


class Batcher:
    """Groups sentences into batches, of which ``workers`` are searched at a time.

    The next batch begins as soon as a worker is free; nothing waits for company.

    Attributes:
        held: sentences of all requests that are not found yet.
    """

    def __init__(
        self,
        search: Callable[[list[Job]], Awaitable[Sequence[Any]]],
        *,
        rows: Callable[[BatchKind], int],
        capacity: int,
        workers: int = 1,
    ) -> None:
        """Begin with an empty queue.

        Args:
            search: returns a result or an exception for each job of a batch.
            rows: returns the most sentences of a batch.
            capacity: most sentences of all requests.
            workers: batches at a time.
        """
        self._search, self._rows, self._capacity = search, rows, capacity
        self._workers = workers
        self._lanes: dict[tuple[BatchKind, int], list[tuple[float, int, Job]]] = {}
        self._turn, self._numbers = 0.0, itertools.count()
        self._held, self._requests = Counter[str](), Counter[str]()
        self._jobs: set[Job] = set()
        self._wake, self._closed = asyncio.Event(), False
        self._seconds_each, self.held = 0.0, 0

    @contextlib.contextmanager
    def reserve(self, client: str, count: int) -> Iterator[Room]:
        """Keep room for the sentences of a request until the block ends.

        Raises:
            ServingError: 413, the queue never has room for so many; 503, it has none
                now, and the client has its share of it or more.
        """
        if self._closed:
            raise draining()
        room = Room(self, client, self._requests[client] + 1)
        self.grow(room, count)
        self._requests[client] += 1
        try:
            yield room
        finally:
            # The callbacks of what is cancelled here run later, and count no more.
            left, room.left = room.left, 0
            self.hold(client, -left)
            self._requests[client] -= 1
            self._requests, self._held = +self._requests, +self._held  # without zeros
            for job in list(room.jobs):  # the client has gone, or another one failed
                job.result.cancel()
            if room.jobs or room.is_broken:
                self._drop()

    def grow(self, room: Room, count: int) -> None:
        """Keep room for more sentences of a request.

        Raises:
            ServingError: see :meth:`reserve`.
        """
        client, whole = room.client, room.left + count
        if whole > (most := self._capacity):
            raise ServingError(
                413,
                "too_many_sentences",
                f"a request has at most {most:,} sentences, not {whole:,}: send it in"
                " parts",
                limit=most,
                given=whole,
            )
        own, share = self._held[client] + count, most // len({*self._requests, client})
        if self.held + count > most and own > share:
            seconds = math.ceil(self.held * self._seconds_each)
            raise ServingError(
                503,
                "queue",
                f"{self.held:,} sentences wait, and {share:,} of yours may: try again"
                " later",
                limit=share,
                given=own,
                retry_after=min(max(seconds, 1), 60),
            )
        room.left = whole
        self.hold(client, count)

    def hold(self, client: str, count: int) -> None:
        """Count sentences of a client that begin, or cease, to be waited for."""
        self.held += count
        self._held[client] += count

    def _drop(self) -> None:
        """Take jobs out of the queue that nobody waits for: one pass over it."""
        for heap in self._lanes.values():
            heap[:] = [each for each in heap if not each[2].result.done()]
            heapq.heapify(heap)

    def put(self, job: Job, turns: float) -> None:
        """Queue a job, so many turns after the one that is served."""
        if self._closed:
            raise draining()
        entry = (self._turn + turns, next(self._numbers), job)
        heapq.heappush(self._lanes.setdefault((job.kind, job.width), []), entry)
        self._jobs.add(job)
        job.result.add_done_callback(lambda _: self._jobs.discard(job))
        self._wake.set()

    async def serve(self) -> None:
        """Search until this is cancelled; every sentence that is left then fails."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            self._closed = True
            for job in self._jobs:
                if not job.result.done():
                    job.result.set_exception(draining())
            self._lanes.clear()

    async def _work(self) -> None:
        while True:
            if batch := self._choose():
                await self._answer(batch)
            else:
                self._wake.clear()
                await self._wake.wait()

    def _choose(self) -> list[Job]:
        """Take the next batch: the first turn decides its kind and width, and narrower
        sentences of the kind fill it.
        """
        waiting = [lane for lane, heap in self._lanes.items() if heap]
        if not waiting:
            return []
        kind, width = min(waiting, key=lambda lane: self._lanes[lane][0][:2])
        self._turn = max(self._turn, self._lanes[kind, width][0][0])
        batch: list[Job] = []
        widths = (own for each, own in waiting if each == kind and own <= width)
        for own in sorted(widths, reverse=True):
            heap = self._lanes[kind, own]
            while heap and len(batch) < self._rows(kind):
                batch.append(heapq.heappop(heap)[2])
        return batch

    async def _answer(self, batch: Sequence[Job]) -> None:
        """Search a batch; if it fails, search its sentences one by one."""
        batch = [job for job in batch if not job.result.done()]
        if not batch:
            return
        begun = time.monotonic()
        for job in batch:
            job.room.begun = job.room.begun or begun
        try:
            found = await self._search(batch)
        except Exception as error:
            found = [error] * len(batch)
        if len(batch) > 1 and all(isinstance(own, Exception) for own in found):
            for job in batch:
                await self._answer([job])
            return
        for job, own in zip(batch, found, strict=True):
            if job.result.done():  # its client has gone
                continue
            if isinstance(own, Exception):
                job.result.set_exception(own)
            else:
                job.result.set_result(own)
        seconds = (time.monotonic() - begun) / len(batch)
        self._seconds_each += 0.2 * (seconds - self._seconds_each)


class Room:
    """The room of a request in the queue.

    Attributes:
        client: whose request it is.
        left: sentences that are not found yet.
        jobs: those that wait or are being searched.
        is_broken: whether one was cancelled.
        since: when the room was reserved.
        begun: when the first search began; None: none has.
    """

    def __init__(self, batcher: Batcher, client: str, open_: int) -> None:
        """Take the place of the client's request number ``open_``."""
        self._batcher, self.client, self._open = batcher, client, open_
        self.left, self.jobs, self._put = 0, set[Job](), 0
        self.is_broken, self.since = False, time.monotonic()
        self.begun: float | None = None

    @property
    def waited(self) -> float:
        """Seconds until the first search began, or until now."""
        return round((self.begun or time.monotonic()) - self.since, 4)

    def put(self, kind: BatchKind, width: int, payload: Any) -> asyncio.Future[Any]:
        """Queue a sentence, and return its result to come. Cancelling that takes the
        sentence out of the queue, or drops what is found.
        """
        result = asyncio.get_running_loop().create_future()
        job = Job(kind, width, payload, self, result, time.monotonic())
        self._put += 1
        self._batcher.put(job, self._put * self._open)
        self.jobs.add(job)
        result.add_done_callback(lambda _: self._end(job))
        return result

    def _end(self, job: Job) -> None:
        if job.result.cancelled():
            self.is_broken = True
        else:
            job.result.exception()  # seen, also where nobody waits any more
        self.jobs.discard(job)
        if self.left:  # what is searched again around its placeholders adds none
            self.left -= 1
            self._batcher.hold(self.client, -1)
