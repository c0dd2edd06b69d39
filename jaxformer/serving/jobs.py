"""The jobs of a request in the queue, and the calls of an engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.serving.batcher import Job
from jaxformer.serving.engine import EncodedSentence, TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import SearchKind
from jaxformer.translation.text.text import Cut, SentenceResult, Text, Translated


class Key(NamedTuple):
    """What jobs of a batch share. Without a kind they are calls of the engine."""

    pair: tuple[str, str]
    kind: SearchKind | None

    def __str__(self) -> str:
        """A word for metrics."""
        if self.kind is None:
            return "call"
        return "terms" if self.kind.required else "rich" if self.kind.rich else "plain"


@dataclasses.dataclass
class Waiting:
    """A job of the queue.

    Attributes:
        work: a sentence, or a call of the engine.
        begun: time at which its batch began; NaN: it waits.
    """

    work: EncodedSentence | Callable[[TranslationEngine], Any]
    begun: float = math.nan


@dataclasses.dataclass
class Times:
    """How long a request took and waited, in seconds."""

    seconds: float = 0.0
    queue_seconds: float = 0.0


class RequestJobs:
    """The sentences of a request in the queue, and their results.

    Attributes:
        jobs: to be searched.
        results: of each sentence of each text; see :meth:`Text.settle`.
        lost: sentences that are to be searched again without their placeholders, each
            by the numbers of its text and its place.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        sentence: Callable[[int, int, SentenceResult], None] | None,
    ) -> None:
        """Queue the sentences of texts.

        Args:
            texts: of a request.
            sentence: called with the numbers of a text and of its sentence, and the
                result, as each is found.
        """
        self.texts, self._sentence = texts, sentence
        self._found: dict[tuple[int, int], list[list[Any]]] = {}
        self.results: list[list[Any]] = [[None] * len(text.cuts) for text in texts]
        places = ((i, j) for i, text in enumerate(texts) for j in range(len(text.cuts)))
        self.queue(list(places))

    def queue(self, places: Sequence[tuple[int, int]]) -> None:
        """Make the jobs of sentences."""
        self.jobs: list[Job] = []
        self.lost: list[tuple[int, int]] = []
        self._owners: list[tuple[tuple[int, int], int, int]] = []
        for place in places:
            text, cut = self._cut(place)
            self._found[place] = [[None] * len(ask) for ask in cut.asks]
            for number, ask in enumerate(cut.asks):
                for index, encoded in enumerate(ask):
                    key = Key(text.engine.languages, encoded.kind)
                    self.jobs.append(Job(key, encoded.width, Waiting(encoded)))
                    self._owners.append((place, number, index))
            self._complete(place)

    def _cut(self, place: tuple[int, int]) -> tuple[Text, Cut]:
        text = self.texts[place[0]]
        return text, text.cuts[place[1]]

    @property
    def kind(self) -> str:
        """A word for the log."""
        asks = (ask for text in self.texts for cut in text.cuts for ask in cut.asks)
        is_rich = any(each.kind.rich for ask in asks for each in ask)
        return "rich" if is_rich else "plain"

    @property
    def begun(self) -> float:
        """The time at which the first batch began."""
        return min(job.payload.begun for job in self.jobs)

    def take(self, job: int, result: Any) -> None:
        """Keep the result of a job; the last one of a sentence completes it."""
        place, number, index = self._owners[job]
        self._found[place][number][index] = result
        self._complete(place)

    def ask_between(self) -> None:
        """Ask for the lost sentences again, without their placeholders."""
        for number, place in self.lost:
            self.texts[number].ask_between(self.texts[number].cuts[place])

    def finish(self) -> list[Translated]:
        """Return the translations of the texts."""
        pairs = zip(self.texts, self.results, strict=True)
        return [text.finish(results) for text, results in pairs]

    def _complete(self, place: tuple[int, int]) -> None:
        found = self._found[place]
        if any(part is None for ask in found for part in ask):
            return
        text, cut = self._cut(place)
        settled = text.settle(cut, found)
        if settled is None:
            self.lost.append(place)
            return
        self.results[place[0]][place[1]] = settled
        if self._sentence is not None:
            self._sentence(*place, settled[0])


def call_all(engine: TranslationEngine, jobs: Sequence[Waiting]) -> list[Any]:
    """Call an engine for each job; an error is the result of its own."""

    def call(job: Waiting) -> Any:
        try:
            return job.work(engine)  # pyright: ignore[reportCallIssue]
        except InputError as error:
            return ServingError(422, "refused", str(error))
        except Exception as error:
            return error

    return [call(job) for job in jobs]
