"""Sentences of all requests wait in one queue. Each batch has those of one kind,
and requests take turns.

A request reserves its room once, before it costs anything. The turn of a sentence is
that of start-time fair queueing: the turn that is being served, plus the sentence's
place in its request, times the number of requests that its client has open. So a word
passes a document, and ten documents of one client do not slow the others tenfold.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxformer.serving.errors import ServingError, draining


@dataclasses.dataclass(eq=False)
class Room:
    """The room of a request in the queue.

    Attributes:
        client: whose request it is.
        open: how many requests the client had open with it.
        left: sentences that are not found yet.
        jobs: what was put into the queue.
        since: when the room was reserved.
        begun: when the first search began; None: none has.
    """

    client: str
    open: int
    left: int = 0
    jobs: list[Job] = dataclasses.field(default_factory=list)
    since: float = dataclasses.field(default_factory=time.monotonic)
    begun: float | None = None

    @property
    def waited(self) -> float:
        """Seconds until the first search began, or until now."""
        return round((self.begun or time.monotonic()) - self.since, 4)


class Job(NamedTuple):
    """A sentence that waits for its translations, or other work of a searcher.

    Attributes:
        turn: at which it is searched; the least comes first.
        engine: that searches it.
        use: of its program.
        width: of the narrowest program that holds it.
        payload: what is searched.
        room: of its request.
        result: what becomes of it.
        since: when it was put into the queue.
    """

    turn: float
    engine: Any
    use: str
    width: int
    payload: Any
    room: Room
    result: asyncio.Future[Any]
    since: float


class Batcher:
    """Groups sentences into batches; the next one begins as soon as a worker is free,
    nothing waits for company.

    Attributes:
        closed: whether nothing more is searched.
    """

    def __init__(
        self, search: Callable[[list[Job]], Awaitable[Sequence[Any]]], capacity: int
    ) -> None:
        """Begin with an empty queue.

        Args:
            search: returns a result or an exception for each job of a batch.
            capacity: most sentences of all requests.
        """
        self._search, self._capacity = search, capacity
        self._waiting: list[Job] = []
        self._rooms: set[Room] = set()
        self._turn = self._seconds_each = 0.0
        self._wake, self.closed = asyncio.Event(), False

    @property
    def held(self) -> int:
        """Sentences of all requests that are not found yet."""
        return sum(room.left for room in self._rooms)

    @contextlib.contextmanager
    def reserve(self, client: str, count: int) -> Iterator[Room]:
        """Keep room for the sentences of a request until the block ends.

        Raises:
            ServingError: 413, the queue never has room for so many; 503, it has none
                now, and the client has its share of it or more.
        """
        room = Room(client, 1 + sum(each.client == client for each in self._rooms))
        self.grow(room, count)
        self._rooms.add(room)
        try:
            yield room
        finally:
            self._rooms.remove(room)
            for job in room.jobs:  # the client has gone, or another one failed
                job.result.cancel()

    def grow(self, room: Room, count: int) -> None:
        """Keep room for more sentences of a request.

        Raises:
            ServingError: see :meth:`reserve`.
        """
        if self.closed:
            raise draining()
        whole, most = room.left + count, self._capacity
        if whole > most:
            raise ServingError(
                413,
                "too_many_sentences",
                f"a request has at most {most:,} sentences, not {whole:,}: send it in"
                " parts",
                limit=most,
                given=whole,
            )
        held = {room.client: 0}
        for each in self._rooms:
            held[each.client] = held.get(each.client, 0) + each.left
        own, share = held[room.client] + count, most // len(held)
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

    def put(
        self, room: Room, engine: Any, use: str, width: int, payload: Any
    ) -> asyncio.Future[Any]:
        """Queue a sentence, and return its result to come."""
        if self.closed:
            raise draining()
        result = asyncio.get_running_loop().create_future()
        # An exception is seen also where nobody waits any more.
        result.add_done_callback(lambda own: own.cancelled() or own.exception())
        turn = self._turn + (len(room.jobs) + 1) * room.open
        what = engine, use, engine.programs.fit(use, width), payload
        job = Job(turn, *what, room, result, time.monotonic())
        room.jobs.append(job)
        bisect.insort(self._waiting, job, key=lambda own: own.turn)
        self._wake.set()
        return result

    async def work(self) -> None:
        """Search batch after batch until this is cancelled."""
        while True:
            if batch := self._choose():
                await self._answer(batch)
            else:
                self._wake.clear()
                await self._wake.wait()

    def close(self) -> None:
        """Have every sentence that is left fail, and refuse others."""
        self.closed = True
        for room in self._rooms:
            for job in room.jobs:
                if not job.result.done():
                    job.result.set_exception(draining())

    def _choose(self) -> list[Job]:
        """Take the next batch: the first turn decides its use and width, and narrower
        sentences of the use fill it.
        """
        waiting = [job for job in self._waiting if not job.result.done()]
        batch: list[Job] = []
        if waiting:
            self._turn, engine, use, width, *_ = waiting[0]
            own = [
                job
                for job in waiting
                if job[1:3] == (engine, use) and job.width <= width
            ]
            own.sort(key=lambda job: -job.width)
            batch = own[: engine.programs.rows(use)]
        taken = {job.result for job in batch}
        self._waiting = [job for job in waiting if job.result not in taken]
        return batch

    async def _answer(self, batch: Sequence[Job]) -> None:
        """Search a batch; if it fails, search its sentences one by one."""
        begun = time.monotonic()
        for job in batch:
            job.room.begun = job.room.begun or begun
        try:
            found = await self._search(list(batch))
        except Exception as error:
            found = [error] * len(batch)
        if len(batch) > 1 and all(isinstance(own, Exception) for own in found):
            for job in batch:
                if not job.result.done():
                    await self._answer([job])
            return
        for job, own in zip(batch, found, strict=True):
            if job.result.done():  # its client has gone
                continue
            # What is searched again around its placeholders needs no more room.
            job.room.left = max(0, job.room.left - 1)
            if isinstance(own, Exception):
                job.result.set_exception(own)
            else:
                job.result.set_result(own)
        seconds = (time.monotonic() - begun) / len(batch)
        self._seconds_each += 0.2 * (seconds - self._seconds_each)
