"""Texts to translations: what the routes of every protocol call."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from jaxformer.data.language_identification import rank_languages
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.serving.batcher import Batcher, Job
from jaxformer.serving.call import current
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.jobs import Key, RequestJobs, Times, Waiting, call_all
from jaxformer.serving.languages import find_language
from jaxformer.serving.metrics import Metrics
from jaxformer.translation.results import PairScore
from jaxformer.translation.text.glossary import Glossary
from jaxformer.translation.text.text import (
    MOST_ALIGNED,
    Query,
    SentenceResult,
    Text,
    Translated,
)

Result = TypeVar("Result")

_SHORT = 500  # characters that are encoded sooner than a thread begins
_SCORED = 4  # pairs between which other requests have their turn


class Service:
    """The engines of a server behind one queue. One thread searches, another compiles.

    Attributes:
        engines: by their languages, source and target.
        config: of the server.
        state: ``warming`` until the first programs are compiled, then ``ready``;
            ``draining`` once the server ends.
        done: programs compiled, of ``programs``.
        error: what ended the warm-up or the batches; None: nothing.
        metrics: of the server.
        count_requests: returns how many requests are being answered.
    """

    def __init__(
        self,
        engines: Sequence[TranslationEngine],
        config: ServingConfig,
        *,
        glossaries: Mapping[str, Glossary] | None = None,
    ) -> None:
        """Take engines that have loaded their runs.

        Args:
            engines: one for each pair of languages.
            config: of the server.
            glossaries: whose terms translations contain, by pair, such as ``en-de``;
                an empty text is the only pair.

        Raises:
            InputError: two engines translate the same pair, or none that of a glossary.
        """
        self.engines: dict[tuple[str, str], TranslationEngine] = {}
        for engine in engines:
            other = self.engines.setdefault(engine.languages, engine)
            if other is not engine:
                names = f"{other.name} and {engine.name}"
                if engine.name == other.name:
                    names = f"two runs named {engine.name}"
                raise InputError(
                    "each run must translate a pair of languages of its own, but"
                    f" {names} both translate {'-'.join(engine.languages)}: leave one"
                    " out"
                )
        self.config = config
        self.glossaries = {
            self._find_pair(name): own for name, own in (glossaries or {}).items()
        }
        self.state: Literal["warming", "ready", "draining"] = "warming"
        self.done = 0
        self.error: BaseException | None = None
        self.is_ready = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "model")
        # A program takes seconds to compile, in which others are searched.
        self._compiler = ThreadPoolExecutor(1, "compiler")
        # Several would keep the event loop from the interpreter.
        self._encoder = ThreadPoolExecutor(1, "encoder")
        # The long texts of a client wait for each other, not for those of others.
        self._turns = weakref.WeakValueDictionary[str, asyncio.Lock]()
        self.count_requests: Callable[[], float] = lambda: 0
        self.metrics = Metrics(
            waiting=lambda: self.batcher.waiting,
            in_flight=lambda: self.count_requests(),
        )
        self.batcher = Batcher(
            self._search,
            rows=self._rows,
            capacity=config.queue,
            observe=self.metrics.batch,
        )
        self.metrics.serve(
            (*own.languages, own.checkpoint) for own in self.engines.values()
        )

    @property
    def programs(self) -> int:
        """Number of programs that the warm-up compiles."""
        return sum(engine.programs for engine in self.engines.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Search what waits, and compile, until the block ends."""
        tasks = [
            asyncio.create_task(self._guarded(work))
            for work in (self.batcher.serve, self._warm)
        ]
        try:
            yield
        finally:
            self.state = "draining"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for threads in (self._worker, self._compiler, self._encoder):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Exception as error:
            self.error = error

    async def _warm(self) -> None:
        """Compile what makes each engine ready, then the rest."""
        warmed = [(engine, engine.warm()) for engine in self.engines.values()]
        counts = [0] * len(warmed)
        for needed in (True, False):
            for number, (engine, steps) in enumerate(warmed):
                while not needed or counts[number] < engine.needed:
                    count: Any = await _run_in(self._compiler, next, steps, None)
                    if count is None:
                        break
                    counts[number] = count
                    self.metrics.compiled("warmup")
                    self.done = sum(counts)
            if needed and self.state == "warming":
                self.state = "ready"
                self.is_ready.set()

    def _rows(self, key: Any) -> int:
        return 1 if key.kind is None else self.engines[key.pair].rows

    async def _search(self, key: Any, jobs: Sequence[Waiting]) -> Sequence[Any]:
        """Search a batch."""
        begun, engine = time.monotonic(), self.engines[key.pair]
        for job in jobs:
            job.begun = begun
        before, positions = engine.compilations, engine.source_positions
        if key.kind is None:
            results = await _run_in(self._worker, call_all, engine, jobs)
        else:
            work: list[Any] = [job.work for job in jobs]
            results = await _run_in(self._worker, engine.search, key.kind, work)
            tokens = sum(each.width for each in work)
            self.metrics.padded(str(key), tokens, engine.source_positions - positions)
        self.metrics.compiled("ready", engine.compilations - before)
        return results

    def engine(self, source: str, target: str) -> TranslationEngine:
        """Return the engine of a pair of languages; an empty code is any language.

        Raises:
            ServingError: a language or the pair is unknown, or several pairs fit.
        """
        asked = {"source": source, "target": target}
        known = [find_language(self, *own) if own[1] else "" for own in asked.items()]
        pairs = [
            pair
            for pair in self.engines
            if all(code in ("", own) for code, own in zip(known, pair, strict=True))
        ]
        if len(pairs) == 1:
            return self.engines[pairs[0]]
        empty = [name for name, code in asked.items() if not code]
        if pairs:
            fault, field = f"{empty[0]} is missing", empty[0]
        else:
            one, other = (code or "any language" for code in known)
            field = "target" if target else "source"
            fault = f"{field} must fit: nothing translates {one} to {other}"
        choices = ", ".join("-".join(pair) for pair in pairs or self.engines)
        raise ServingError(
            400,
            "missing" if pairs else "unknown_pair",
            f"{fault}; choose one of {choices}",
            field=field,
            given=asked[field] or None,
        )

    def _find_pair(self, name: str) -> tuple[str, str]:
        source, _, target = name.partition("-")
        try:
            return self.engine(source, target).languages
        except ServingError as error:
            raise InputError(
                "a glossary must be of one pair of languages, as in"
                f" --glossary=en-de:FILE: {error.message}"
            ) from None

    @property
    def languages(self) -> list[str]:
        """Codes of the languages of all texts and translations, sorted."""
        return sorted({code for pair in self.engines for code in pair})

    async def detect(self, text: str) -> list[tuple[str, float]]:
        """Rank the languages of the server by the probability that a text is in them.

        Raises:
            ServingError: a package that this needs is not installed.
        """
        try:
            return await asyncio.to_thread(rank_languages, text, self.languages)
        except InputError as error:
            raise ServingError(501, "no_detector", str(error)) from None

    async def translate(
        self,
        queries: Sequence[Query],
        *,
        sentence: Callable[[int, int, SentenceResult], None] | None = None,
        begin: Callable[[list[Text]], None] | None = None,
        times: Times | None = None,
    ) -> list[Translated]:
        """Translate the texts of a request.

        Args:
            queries: one for each text.
            sentence: called with the numbers of a text and of its sentence, and the
                result, as each is found.
            begin: called with the texts, cut into sentences, before they are searched.
            times: set to the times of the request.

        Raises:
            ServingError: a text is refused, or the server has no room or no time.
        """
        arrived = time.monotonic()
        self._check_ready()
        pairs = [(query.source, query.target) for query in queries]
        known = {pair: self.engine(*pair) for pair in dict.fromkeys(pairs)}
        engines = [known[pair] for pair in pairs]
        call, lines = current(), sum(query.lines for query in queries)
        with self.batcher.reserved(lines, call.client):
            call.spend(lines)
            texts = await self._compute(queries, self._prepare, queries, engines)
        count = sum(text.searches for text in texts)
        self.batcher.admit(count, call.client)  # what is refused costs no more
        call.owe(count - lines)
        if begin is not None:
            begin(texts)
        run = RequestJobs(texts, sentence)
        end = arrived + self.config.timeout
        await self._run(run, end)
        queue_seconds = run.begun - arrived if run.jobs else 0.0
        if run.lost:
            await _run_in(self._encoder, run.ask_between)
            run.queue(run.lost)
            await self._run(run, end)
        if times is not None:
            times.seconds = time.monotonic() - arrived
            times.queue_seconds = queue_seconds
        call.note(
            kind=run.kind,
            queue_seconds=queue_seconds,
            sentences=sum(len(text.cuts) for text in texts),
            characters=sum(len(query.text) for query in queries),
        )
        done = await self._compute(queries, run.finish)
        for text, own in zip(texts, done, strict=True):
            self._count(text, own)
        return done

    async def _compute(
        self, queries: Sequence[Query], call: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Call a function of the texts of queries, in a thread if they are long."""
        if sum(len(query.text) for query in queries) <= _SHORT:
            return call(*arguments)
        async with self._turns.setdefault(current().client, asyncio.Lock()):
            return await _run_in(self._encoder, call, *arguments)

    async def _run(self, run: RequestJobs, end: float) -> None:
        left, client = end - time.monotonic(), current().client
        await self.batcher.run(run.jobs, timeout=left, done=run.take, client=client)

    def _count(self, text: Text, done: Translated) -> None:
        best = [each.hypotheses[0] for each in done.sentences]
        self.metrics.translated(
            *text.engine.languages,
            sentences=len(text.cuts),
            characters=len(text.query.text),
            source_tokens=text.tokens,
            target_tokens=sum(len(each.tokens) for each in best),
        )

    def _prepare(
        self, queries: Sequence[Query], engines: Sequence[TranslationEngine]
    ) -> list[Text]:
        texts, count = list[Text](), 0
        for query, engine in zip(queries, engines, strict=True):
            glossary = self.glossaries.get(engine.languages)
            with _required(400, "out_of_range"):
                texts.append(text := Text(query, engine, glossary))
            self.batcher.check(count := count + len(text.cuts))
        for text in texts:
            with _required(422, "cannot_write"):
                text.encode()
            _check_links(text)
        return texts

    def _check_ready(self) -> None:
        if self.state == "warming":
            raise ServingError(
                503,
                "warming",
                "the server compiles its programs: try again when /ready says so",
                retry_after=5,
            )

    async def call(
        self,
        engine: TranslationEngine,
        *calls: Callable[[TranslationEngine], Result],
        cost: int = 1,
    ) -> list[Result]:
        """Call an engine in the queue of the sentences, once for each turn.

        Args:
            engine: the one of its pair by then is called.
            *calls: such as ``lambda engine: engine.attend(text, translation)``.
            cost: sentences that they count as.

        Raises:
            ServingError: as of :meth:`translate`, or what the engine refuses.
        """
        self._check_ready()
        self.batcher.admit(len(calls), current().client)
        current().spend(cost)
        key, limit = Key(engine.languages, None), self.config.timeout
        jobs = [Job(key, 0, Waiting(call)) for call in calls]
        return await self.batcher.run(jobs, timeout=limit, client=current().client)

    async def score(
        self, engine: TranslationEngine, pairs: Sequence[Pair]
    ) -> list[PairScore]:
        """Return the log-probability of each target given its source."""
        parts = [pairs[i : i + _SCORED] for i in range(0, len(pairs), _SCORED)]
        calls = (lambda own, part=part: own.score(part) for part in parts)
        found = await self.call(engine, *calls, cost=len(pairs))
        return [score for part in found for score in part]

    def describe(self) -> str:
        """Return the pairs and their checkpoints in one line."""
        return ", ".join(
            f"{'-'.join(pair)} checkpoint {engine.checkpoint}"
            for pair, engine in self.engines.items()
        )


@contextlib.contextmanager
def _required(status: int, code: str) -> Iterator[None]:
    """Answer required phrases that are refused."""
    try:
        yield
    except InputError as error:
        fault = getattr(error, "fault", None)
        message = f"a sentence {fault}" if fault else str(error)
        raise ServingError(status, code, message, field="required") from None


def _check_links(text: Text) -> None:
    """Check that words are not linked in a sentence of too many tokens.

    Raises:
        ServingError: 422, they are.
    """
    tokens = max((cut.tokens for cut in text.cuts), default=0) * text.query.alignment
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
