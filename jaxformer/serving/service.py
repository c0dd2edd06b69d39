"""Texts to translations: what the routes of every protocol call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import jax

from jaxformer import __version__
from jaxformer.data.language_identification import rank_languages
from jaxformer.errors import InputError, LineError
from jaxformer.serving.access import Access, load_keys
from jaxformer.serving.batcher import Batcher, Job, Room
from jaxformer.serving.config import MOST_SEARCHES, ServingConfig
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError, draining
from jaxformer.serving.languages import find_engine
from jaxformer.serving.programs import CALL, PLAIN
from jaxformer.serving.telemetry import Metrics
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import (
    MOST_ALIGNED,
    Query,
    Segment,
    SentenceResult,
    Text,
    Translated,
)

Item = TypeVar("Item")
Result = TypeVar("Result")

_SHORT = 500  # characters that are encoded sooner than a thread begins
# JAX's own name of the event that a program is ready: compiled, or read from a cache.
_COMPILED = "/jax/core/compile/backend_compile_duration"


class Client(NamedTuple):
    """Whose request it is, and what the log says of the request."""

    name: str
    facts: dict[str, Any]


class Admitted(NamedTuple):
    """Texts that have room in the queue."""

    texts: Sequence[Text]
    room: Room
    client: Client


class Service:
    """The engines of a server, with one queue.

    Attributes:
        config: of the server.
        engines: by their languages, source and target; empty until they are loaded.
        state: ``warming`` until each engine can translate, then ``ready``;
            ``draining`` once the server ends.
        error: what ended the server; None: nothing.
        access: keys and rates.
        metrics: of the server.
    """

    def __init__(
        self,
        load: Callable[[], Sequence[TranslationEngine]],
        config: ServingConfig,
        glossaries: Mapping[str, Glossary] | None = None,
        tell: Callable[[str], object] = lambda step: None,
    ) -> None:
        """Load nothing yet.

        Args:
            load: reads the runs, one engine for each pair of languages.
            config: of the server.
            glossaries: whose terms translations contain, by pair, such as ``en-de``;
                an empty text is the only pair.
            tell: called once the runs are ``loaded``, once a translation waits for no
                more compilation (``ready``), once all programs are compiled (``warm``),
                and when the service ``failed``, see ``error``.

        Raises:
            InputError: the keys cannot be read.
        """
        self._load, self._tell = load, tell
        self.config, self._named = config, glossaries or {}
        self._glossaries: dict[tuple[str, str], Glossary] = {}
        self.engines: dict[tuple[str, str], TranslationEngine] = {}
        self._changed = asyncio.Condition()
        self.error: BaseException | None = None
        self.state = "warming"
        keys = load_keys(config.keys) if config.keys else None
        self.access = Access(keys, config.rate)
        # A program takes seconds to compile, in which others are searched.
        self._threads = ThreadPoolExecutor(1 + MOST_SEARCHES)
        # Several would keep the event loop from the interpreter.
        self._encoder = ThreadPoolExecutor(1)
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self.metrics = Metrics(config, lambda: self.batcher.held)
        self.batcher = Batcher(self._search, config.queue)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load, compile and search until the block ends."""

        def note(event: str, duration_secs: float, **_: str | int) -> None:
            done, of = self.programs
            if event == _COMPILED and 0 < done == of:  # in a request
                self.metrics.number("compilations", "ready").inc()

        jax.monitoring.register_event_duration_secs_listener(note)
        work = asyncio.create_task(self._work())
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
            self.drain()
            work.cancel()
            await asyncio.wait([work])
            for threads in (self._threads, self._encoder):
                threads.shutdown(wait=False, cancel_futures=True)

    def drain(self) -> None:
        """Say from now on that the server ends."""
        self.state = "draining"

    async def _work(self) -> None:
        """Read the runs, compile their programs, and search, until this is cancelled or
        fails.
        """
        try:
            self._add(await _run_in(self._threads, self._load))
            await self._notify()
            self._tell("loaded")
            workers = max(engine.searches for engine in self.engines.values())
            searching = (self.batcher.work() for _ in range(workers))
            await asyncio.gather(self._warm(), *searching)
        except Exception as error:
            self.error = error
            self._tell("failed")
        finally:
            self.batcher.close()
            await self._notify()

    async def _notify(self) -> None:
        """Have all that waits see what has changed."""
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, is_there: Callable[[], object]) -> None:
        """Wait until something is there, without a limit: nobody is refused because the
        server reads its runs or compiles.

        Raises:
            ServingError: 503, the server ends.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.batcher.closed or is_there())
        if self.batcher.closed:
            raise draining()

    async def _warm(self) -> None:
        """Compile programs: one of each engine in turn."""
        left = deque(self.engines.values())
        while left:
            engine = left.popleft()
            if await _run_in(self._threads, engine.warm):
                left.append(engine)
                self.metrics.number("compilations", "warmup").inc()
                await self._notify()
                if self.state == "warming" and self.programs[0] == len(self.engines):
                    self.state = "ready"
                    self._tell("ready")
        self._tell("warm")

    def _add(self, engines: Sequence[TranslationEngine]) -> None:
        """Take engines that have read their runs.

        Raises:
            InputError: two translate the same pair, or none that of a glossary.
        """
        for engine in engines:
            pair = engine.languages
            other = self.engines.setdefault(pair, engine)
            if other is not engine:
                raise InputError(
                    "each run must translate a pair of languages of its own, but"
                    f" {other.name} and {engine.name} both translate"
                    f" {'-'.join(pair)}: leave one out"
                )
            model = *pair, engine.checkpoint, __version__
            self.metrics.number("model_info", *model).set(1)
        for name, glossary in self._named.items():
            source, _, target = name.partition("-")
            try:
                pair = find_engine(self.engines, source, target).languages
            except ServingError as error:
                raise InputError(
                    "a glossary must be of one pair of languages, as in"
                    f" --glossary=en-de:FILE: {error.message}"
                ) from None
            self._glossaries[pair] = glossary

    @property
    def programs(self) -> tuple[int, int]:
        """How many programs are compiled, and how many will be."""
        every = [each.programs for each in self.engines.values()]
        return sum(len(own.done) for own in every), sum(len(own.all) for own in every)

    async def _search(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Search a batch."""
        _, engine, use, *_ = jobs[0]
        begun, padding = time.monotonic(), None
        work = [job.payload for job in jobs]
        if use == CALL:
            found = [await _run_in(self._threads, work[0], engine)]
        else:
            run = engine.search, use, work
            found, positions = await _run_in(self._threads, *run)
            padding = 1 - sum(each.width for each in work) / positions
        waits = [begun - job.since for job in jobs]
        self.metrics.batch(use, waits, time.monotonic() - begun, padding)
        return found

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """Rank the languages of the server by the probability that a text is in them.

        Raises:
            ServingError: a package that this needs is not installed.
        """
        languages = sorted({code for pair in self.engines for code in pair})
        try:
            return await asyncio.to_thread(rank_languages, text, languages)
        except InputError as error:
            raise ServingError(501, "no_detector", str(error)) from None

    @contextlib.asynccontextmanager
    async def admit(
        self, queries: Sequence[Query], client: Client, calls: int = 0
    ) -> AsyncIterator[Admitted]:
        """Reserve room for the sentences of texts, and encode them.

        A request that has no room or no rate left is refused before a word of it is
        encoded, and after that if the parts of its sentences have none. When the block
        ends, no sentence of it that has not begun is searched.

        Args:
            queries: one for each text, with the languages of an engine.
            client: whose request it is.
            calls: how many of :meth:`call` have room, too.

        Raises:
            ServingError: it is refused.
        """
        if queries:
            client.facts["characters"] = sum(len(query.text) for query in queries)
        texts = await self._each(client, self._segment, queries)
        count = calls + sum(len(text.segments) for text in texts)
        client.facts["sentences"] = count - calls * bool(queries)
        with self.batcher.reserve(client.name, count) as room:
            await self.access.spend(client.name, count)
            try:
                await self._each(client, _encode, texts)
                segments = (segment for text in texts for segment in text.segments)
                parts = calls + sum(
                    len(unit) for segment in segments for unit in segment.units
                )
                if parts > count:
                    self.batcher.grow(room, parts - count)
                    await self.access.spend(client.name, parts, count)
                yield Admitted(texts, room, client)
            finally:
                client.facts["queue_seconds"] = room.waited

    def _segment(self, query: Query) -> Text:
        pair = query.source, query.target
        return Text(query, self.engines[pair], self._glossaries.get(pair))

    async def translate(
        self, queries: Sequence[Query], client: Client
    ) -> list[Translated]:
        """Translate the texts of a request; see :meth:`admit` and :meth:`search`."""
        async with self.admit(queries, client) as admitted:
            return await self.search(admitted)

    async def search(
        self,
        admitted: Admitted,
        found: Callable[[int, SentenceResult], None] = lambda *_: None,
    ) -> list[Translated]:
        """Translate what is admitted; the first sentence that fails ends the others.

        Args:
            admitted: texts with room in the queue.
            found: called with the number of a sentence in its text, and the result,
                as each is found.

        Raises:
            ServingError: 504, the time is over, or the error of a sentence.
        """
        texts, room, client = admitted
        for text in texts:
            await self._prepare(text, text.segments)

        async def search(text: Text, segment: Segment) -> Any:
            completed = await self._complete(text, segment, room)
            found(segment.place, completed[0])
            return completed

        results = iter(
            await self._gather(
                search(text, segment) for text in texts for segment in text.segments
            )
        )
        done = await self._each(
            client,
            lambda text: text.finish([next(results) for _ in text.segments]),
            texts,
        )
        for text, each in zip(texts, done, strict=True):
            best = (own.hypotheses[0].tokens for own in each.sentences)
            counts = {
                "sentences": len(text.segments),
                "characters": len(text.query.text),
                "source_tokens": text.tokens,
                "target_tokens": sum(map(len, best)),
            }
            for name, count in counts.items():
                self.metrics.number(name, *text.engine.languages).inc(count)
        return done

    async def _complete(self, text: Text, segment: Segment, room: Room) -> Any:
        """Search a sentence, and the texts between its placeholders if they do not come
        back.
        """
        put, engine = self.batcher.put, text.engine
        while True:
            units = [
                [put(room, engine, own.kind, own.width, own) for own in unit]
                for unit in segment.units
            ]
            completed = text.complete(
                segment, [[await own for own in unit] for unit in units]
            )
            if completed is not None:
                return completed
            await _run_in(self._encoder, text.encode_fragments, segment)
            await self._prepare(text, [segment])

    async def _prepare(self, text: Text, segments: Sequence[Segment]) -> None:
        """Wait for the programs of what is searched for some sentences of a text."""
        every = [own for segment in segments for unit in segment.units for own in unit]
        await self.wait(lambda: all(map(text.engine.is_ready, every)))

    async def call(
        self,
        engine: TranslationEngine,
        calls: Sequence[Callable[[TranslationEngine], Result]],
        room: Room,
    ) -> list[Result]:
        """Call functions of an engine in the queue of the sentences, each in a turn of
        its own.

        Raises:
            ServingError: 504, the time is over, or what the engine refuses.
        """
        programs = engine.programs
        uses = {each.use for each in programs.all} - {PLAIN}
        needed = [(use, programs.longest(use)) for use in uses]
        await self.wait(lambda: all(starmap(programs.wait_for, needed)))
        put = self.batcher.put
        return await self._gather(put(room, engine, CALL, 0, each) for each in calls)

    async def _gather(self, works: Iterable[Awaitable[Result]]) -> list[Result]:
        """Wait for all; the first that fails ends the others.

        Raises:
            ServingError: 504, the time is over.
        """
        limit = self.config.timeout

        async def wait(work: Awaitable[Result]) -> Result:
            return await work

        try:
            async with asyncio.timeout(limit), asyncio.TaskGroup() as group:
                tasks = [group.create_task(wait(work)) for work in works]
        except TimeoutError:
            raise ServingError(
                504,
                "deadline",
                f"the text was not done after {limit:g} seconds: try again later, or"
                " send less at once",
                limit=limit,
            ) from None
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _each(
        self, client: Client, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Call a function of each text of a request: of long ones in a thread, in which
        clients take turns.

        Raises:
            ServingError: 400 or 422, phrases cannot be required.
        """
        try:
            if client.facts.get("characters", 0) <= _SHORT:
                return list(map(function, items))
            found = []
            for item in items:
                async with self._locks.setdefault(client.name, asyncio.Lock()):
                    found.append(await _run_in(self._encoder, function, item))
            return found
        except LineError as error:
            fault = f"a sentence {error.fault}"
            raise ServingError(422, "cannot_write", fault, field="required") from None
        except InputError as error:
            fault = str(error)
            raise ServingError(400, "out_of_range", fault, field="required") from None


def _encode(text: Text) -> None:
    """Encode a text.

    Raises:
        InputError: a phrase cannot be required.
        ServingError: 422, words are to be linked in a sentence of too many tokens.
    """
    text.encode()
    tokens = (
        max((segment.tokens for segment in text.segments), default=0)
        * text.query.alignment
    )
    if tokens > MOST_ALIGNED:
        raise ServingError(
            422,
            "too_many_tokens",
            f"words are linked in sentences of at most {MOST_ALIGNED:,} tokens, not"
            f" {tokens:,}: shorten the sentence, or leave out alignment",
            field="alignment",
            limit=MOST_ALIGNED,
            given=tokens,
        )


async def _run_in(
    threads: ThreadPoolExecutor, call: Callable[..., Result], *arguments: Any
) -> Result:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, call, *arguments)
