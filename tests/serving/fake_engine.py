"""An engine without a model: each word of a sentence becomes upper case."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from jaxformer.data.records import Pair
from jaxformer.errors import LineError
from jaxformer.serving.engine import EncodedSentence
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import PAIRS, PLAIN, RICH, TERMS, Program, Programs
from jaxformer.serving.words import Alternative
from jaxformer.translation.results import Alignment, Attention, Hypothesis, PairScore


class FakeEngine:
    """Answers as an engine does, at once or after a while.

    Attributes:
        batches: the kind and the texts of each search.
        encoded: the texts that were encoded.
    """

    name, checkpoint = "fake", "7"
    beam_size, positions, parameters = 3, 64, 10

    def __init__(
        self,
        languages: tuple[str, str] = ("en", "de"),
        *,
        rows: int = 4,
        searches: int = 1,
        before: Callable[[str, list[str]], object] = lambda kind, texts: None,
        warming: Callable[[], object] = lambda: None,
    ) -> None:
        self.languages, self.before, self.warming = languages, before, warming
        self.searches = searches
        uses = (RICH, 1), (PLAIN, rows), (TERMS, rows), (PAIRS, 1)
        self.programs = Programs([Program(*use, 64) for use in uses])
        self.batches: list[tuple[str, list[str]]] = []
        self.encoded: list[str] = []

    @property
    def facts(self) -> dict[str, str]:
        source, target = self.languages
        names = {"name": self.name, "checkpoint": self.checkpoint}
        return names | {"source": source, "target": target}

    def warm(self) -> bool:
        program = self.programs.next()
        if program is not None:
            self.warming()
            self.programs.done |= {program}
        return program is not None

    def is_ready(self, encoded: EncodedSentence) -> bool:
        return self.programs.wait_for(encoded.kind, encoded.width)

    def encode(
        self,
        text: str,
        *,
        prefix: str = "",
        required: Sequence[str] = (),
        n_best: int = 1,
        aligned: int | None = 0,
        place: int = 0,
    ) -> list[EncodedSentence]:
        rich = n_best > 1 or aligned is None or prefix
        kind = TERMS if required else RICH if rich else PLAIN
        self.encoded.append(text)
        words = [word for word in text.split() if word != "nothing"]
        if any(len(word) > 40 for word in words):
            raise ServingError(422, "sentence_too_long", "too long", field="text")
        if "unwritable" in required:
            raise LineError("", kind="required", number=1, fault="has no such tokens")
        runs = [words[i : i + 8] for i in range(0, len(words), 8)]
        return [
            EncodedSentence((run, prefix, required, aligned), kind, len(run), text)
            for run in runs
        ]

    def writes(self, text: str) -> bool:
        return "🎉" not in text

    def join(
        self, encoded: Sequence[EncodedSentence], parts: Sequence[list[Hypothesis]]
    ) -> list[Hypothesis]:
        if len(parts) == 1:
            return parts[0]
        return [
            dataclasses.replace(row[0], text=" ".join(each.text for each in row))
            for row in zip(*parts, strict=True)
        ]

    def search(
        self, kind: str, encoded: Sequence[EncodedSentence]
    ) -> tuple[list[list[Hypothesis] | Exception], int]:
        texts = [" ".join(each.sentence[0]) for each in encoded]
        self.batches.append((kind, texts))
        self.before(kind, texts)
        if "fail" in texts:
            raise FloatingPointError("secret")
        found = [self._translate(kind, *each.sentence) for each in encoded]
        return found, 16 * self.programs.rows(kind)

    def _translate(
        self,
        kind: str,
        words: list[str],
        prefix: str,
        required: Sequence[str],
        aligned: int | None,
    ) -> list[Hypothesis] | Exception:
        if "poison" in words:
            return RuntimeError("poison")
        made = [word.upper() for word in words]
        if prefix:
            made = [*prefix.split(), *made[len(prefix.split()) :]]
        if "forget" in words:
            made = [word for word in made if word.strip(".") != "F1"]
            required = ()
        text = " ".join(made)
        made += [word for word in required if word not in ("impossible", *text.split())]
        count = 1 if kind == PLAIN else self.beam_size
        most = count if aligned is None else aligned
        return [
            self._hypothesis(words, made, rank, rank < most) for rank in range(count)
        ]

    def _hypothesis(
        self, words: list[str], made: list[str], rank: int, is_aligned: bool
    ) -> Hypothesis:
        text = " ".join(made) + "!" * rank
        numbers = list(range(len(made)))
        weights = np.eye(len(made), len(words), dtype=np.float32)
        alignment = Alignment(words, weights, [*range(len(words))], numbers)
        scores = [-0.5 - rank] * len(made)
        return Hypothesis(
            text,
            sum(scores),
            sum(scores),
            made,
            finished=True,
            alignment=alignment if is_aligned else None,
            token_log_probabilities=scores,
        )

    def attend(
        self, text: str, translation: str, k: int = 0
    ) -> tuple[Attention, list[list[tuple[str, float]]]]:
        source, target = text.split(), translation.split()
        maps = [
            np.full((1, 1, *shape), 1 / 3)
            for shape in ((len(source),) * 2, (len(target),) * 2)
        ]
        cross = np.full((1, 1, len(target), len(source)), 1 / 3)
        found = Attention(source, target, ["<s>", *target[:-1]], *maps, cross)
        return found, [[(token, 0.5)] * k for token in target]

    def alternatives(self, text: str, prefix: str, k: int) -> list[Alternative]:
        words = text.upper().split()[len(prefix.split()) :] or [""]
        whole = f"{prefix} {' '.join(words)}".strip()
        return [Alternative(words[0], 0.5, whole)] * k

    def score(self, pair: Pair) -> PairScore:
        return PairScore(-1.5, len(pair.target.split()))


def slowly(seconds: float) -> Callable[[str, list[str]], None]:
    """Return what makes each batch take a while."""
    return lambda kind, texts: time.sleep(seconds)
