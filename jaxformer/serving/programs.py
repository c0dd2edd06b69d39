"""The programs that a server compiles: at most eight; the first makes it ready.

Three kinds of search: ``plain`` returns the best translation, ``rich`` the whole beam
and takes a prefix, ``terms`` takes required phrases too. One pass over a given pair
serves links of words, scores, attention and next words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_ATTENDED = 64
"""Most tokens of either side of a pair whose attention is shown."""

MOST_READ = 256
"""Most tokens of either side of a pair that is scored, or whose words have
alternatives.
"""

PLAIN, RICH, TERMS, PAIRS = "plain", "rich", "terms", "pairs"
CALL = "call"
"""What is not a sentence: it calls programs itself, alone."""
_READY = 64  # a server is ready when it can translate sentences of so many tokens


class Program(NamedTuple):
    """What is compiled once."""

    use: str
    rows: int
    width: int


def plan(longest: int, pair: int, rows: int) -> list[Program]:
    """Return the programs in the order in which they are compiled.

    Args:
        longest: tokens of a source.
        pair: tokens of either side of a pair.
        rows: most sentences of a batch.

    Example:
        >>> ["{}-{}x{}".format(*each) for each in plan(64, 128, 16)]
        ['rich-1x64', 'plain-16x32', 'plain-1x16', 'plain-16x64', 'plain-1x32', \
'terms-4x64', 'pairs-1x128', 'plain-16x16']
    """
    short, middle = min(16, longest), min(32, longest)
    whole = Program(PAIRS, 1, pair)
    # Where sentences may be long, short ones have programs of their own.
    last = [Program(PLAIN, rows, short)]
    if longest > _READY:
        last = [Program(RICH, 1, longest), whole]
        whole = Program(PAIRS, 1, min(2 * _READY, pair))
    planned = [
        Program(RICH, 1, min(_READY, longest)),  # ready: it holds every short sentence
        Program(PLAIN, rows, middle),
        Program(PLAIN, 1, short if longest <= _READY else middle),
        Program(PLAIN, rows, longest),
        Program(PLAIN, 1, middle),
        Program(TERMS, min(4, rows), longest),
        whole,
        *last,
    ]
    return list(dict.fromkeys(planned))


class Programs:
    """The programs of an engine, and which are compiled.

    Attributes:
        all: in their order.
        done: those that are compiled; a thread that compiles adds to them, so it is
            assigned and never changed.
    """

    def __init__(self, planned: Sequence[Program], start: int = 4) -> None:
        """Plan what is compiled.

        Args:
            planned: of :func:`plan`.
            start: cost of a search in rows, besides its rows: 4 on a CPU with a small
                model, hundreds on an accelerator.
        """
        self.all, self.done, self._start = list(planned), frozenset[Program](), start
        self._wanted: Program | None = None

    def next(self) -> Program | None:
        """Return what to compile next: what a request waits for, or else the first."""
        left = [each for each in self.all if each not in self.done]
        return self._wanted if self._wanted in left else next(iter(left), None)

    def wait_for(self, use: str, width: int) -> bool:
        """Return whether a sentence of a use can be served, or else have what serves it
        compiled next.
        """
        if self._holding(use, width, self.done):
            return True
        self._wanted = self._holding(use, width, self.all)[0]
        return False

    def longest(self, use: str) -> int:
        """Return the width of the widest program of a use."""
        return max(each.width for each in self._holding(use, 0, self.all))

    def fit(self, use: str, width: int) -> int:
        """Return the width of the narrowest program that holds a sentence."""
        widths = (each.width for each in self._holding(use, width, self.all))
        return min(widths, default=0)

    def rows(self, use: str) -> int:
        """Return the most sentences of a batch by now."""
        return max((each.rows for each in self._holding(use, 0, self.done)), default=1)

    def choose(self, use: str, count: int, width: int) -> Program:
        """Return the cheapest compiled program for a batch, which is searched in parts
        where it has fewer rows.
        """

        def cost(each: Program) -> tuple[int, bool]:
            searches = math.ceil(count / each.rows)
            return searches * (each.rows + self._start) * each.width, each.use != use

        return min(self._holding(use, width, self.done), key=cost)

    def _holding(self, use: str, width: int, among: Iterable[Program]) -> list[Program]:
        # The whole beam has the best translation, too.
        uses = (use, RICH) if use == PLAIN else (use,)
        return [each for each in among if each.use in uses and each.width >= width]
