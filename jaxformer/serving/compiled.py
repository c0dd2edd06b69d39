"""A translator whose programs are compiled before they are needed."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import jax

from jaxformer.data.records import Pair
from jaxformer.serving.programs import (
    PLAIN,
    RICH,
    TERMS,
    Programs,
    SearchKind,
    ServedProgram,
)
from jaxformer.serving.words import NextWords
from jaxformer.translation import pairs as given_pairs
from jaxformer.translation.batch import Shape
from jaxformer.translation.stream import LineSearch
from jaxformer.translation.translator import Translator

MOST_CANDIDATES = 8
"""Most tokens that are named for a place of a translation."""

_CONSIDERED = 64  # first pieces among which the words of alternatives are looked for

# JAX's own name of the event that a program is ready: compiled, or read from a cache.
_COMPILED = "/jax/core/compile/backend_compile_duration"


@functools.cache
def count_compilations() -> Counter[int]:
    """Return the numbers of programs that each thread of the process has compiled since
    the first call, which a listener of JAX's keeps.
    """
    counts: Counter[int] = Counter()

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            counts[threading.get_ident()] += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    return counts


class CompiledTranslator:
    """A translator, its searches and their programs.

    Attributes:
        translator: of the run.
        searches: of each kind that its settings allow.
        rows: most sentences of a batch.
        longest: most tokens of a source that is searched at once.
        programs: how many programs :meth:`warm` compiles.
        needed: how many of them, the first, make a server ready.
        compilations: programs that were compiled within :meth:`program`.
        source_positions: of the shapes of all its batches, rows times width.
    """

    def __init__(self, translator: Translator, rows: int) -> None:
        """Plan what is compiled.

        Args:
            translator: of the run.
            rows: most sentences of a batch on each device; 0: 16 on a CPU, 64 on a GPU
                or TPU.
        """
        self.compilations = self.source_positions = 0
        self.translator = translator
        self.searches = plan_searches(translator)
        self.words = NextWords(translator.vocabularies.target)
        size = translator.model.config.vocabulary_size
        self._candidates = min(MOST_CANDIDATES, size)
        self._considered = min(_CONSIDERED, size)
        models = self.searches[PLAIN].models
        rows = rows or (16 if jax.default_backend() == "cpu" else 64)
        plan = self._programs = Programs(translator, models, self.searches, rows)
        self.rows, self.longest = plan.rows, plan.longest
        self.programs, self.needed = len(plan.all), plan.needed

    def warm(self) -> Iterator[int]:
        """Compile one program after another; yield how many are done.

        First are those that translate sentences of at most 64 tokens, then those of
        rich searches of as many, of attention and scores, and of longer sentences. A
        request whose program is not compiled yet waits for it.
        """
        for program in self._programs.all:
            self._compile(program)
            yield len(self._programs.done)

    @contextlib.contextmanager
    def program(self, use: SearchKind | str, count: int, width: int) -> Iterator[Shape]:
        """Compile the program for a batch, unless it is done; yield its shape, and
        count what this thread compiles in the block.
        """
        program = self._programs.choose(use, count, width)
        self._compile(program)
        counts, thread = count_compilations(), threading.get_ident()
        before = counts[thread]
        self.source_positions += program.shape.rows * program.shape.width
        try:
            yield program.shape
        finally:
            self.compilations += counts[thread] - before

    def _compile(self, program: ServedProgram) -> None:
        """Compile a program, unless it is done, by giving it next to nothing to do."""
        if program in self._programs.done:
            return
        (use, shape), translator = program, self.translator
        models, codec = translator.models, translator.codec
        pair = [codec.frame.end], [codec.frame.end]
        if use == "attend":
            how = {"width": shape.width, "k": self._candidates}
            given_pairs.attend(models, codec, "", "", **how)
        elif use == "candidates":
            given_pairs.candidates(models, pair, self._considered, width=shape.width)
        elif use == "score":
            decoding = translator.decoding
            given_pairs.score(models, codec, [Pair("", "")], decoding, shape)
        else:
            self.searches[cast(SearchKind, use)].compile(shape)
        self._programs.done.add(program)


def plan_searches(translator: Translator) -> dict[SearchKind, LineSearch]:
    """Return the search of each kind that a run's settings allow."""
    decoding = translator.decoding
    rich: Any = {"n_best": decoding.beam_size, "prefixes": (), "alignment": True}
    found = {
        PLAIN: translator.line_search(),
        RICH: translator.line_search(**rich),
    }
    if not decoding.sample and decoding.beam_size >= 2 * decoding.diversity_groups:
        found[TERMS] = translator.line_search(required=(), **rich)
    return found
