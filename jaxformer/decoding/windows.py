"""Lines of any number, in windows that memory holds, and the batches of a window."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

from jaxformer.decoding.batch_search import round_width
from jaxformer.decoding.options import Prefixes, Required, check_phrases, check_text
from jaxformer.errors import LineError

# What an error calls the lists that go beside the lines.
_NAMES = {"prefixes": "prefixes", "required": "lists of required phrases"}
_END = object()

# A window ends with the line that brings it to so many characters: endless lines do not fill the memory.
_CHARACTERS = 1 << 22


T = TypeVar("T")


class Line(NamedTuple):
    """A line to translate."""

    place: int
    """How many lines came before it."""
    text: str
    prefixes: tuple[str, ...] = ()
    """With one of which its translation begins; none: it begins as it will."""
    required: tuple[str, ...] = ()
    """What its translation holds."""


class Numbering:
    """Numbers lines and puts each beside its prefixes and the phrases that it requires."""

    def __init__(self, prefixes: Prefixes, required: Required) -> None:
        """Begin; None: no line has any."""
        given = {"prefixes": prefixes, "required": required}
        self._lists = {kind: iter(lists) for kind, lists in given.items() if lists is not None}
        self._count = 0

    def line(self, text: str) -> Line:
        """Give the next line.

        Raises:
            InputError: there are fewer prefixes or required phrases than lines, or something is no string.
        """
        check_text(f"texts[{self._count}]", text)
        given = {}
        for kind, lists in self._lists.items():
            found = next(lists, _END)
            if found is _END:
                rule = f"there are {self._count} {_NAMES[kind]} and more sentences"
                cure = "give one for each, empty where nothing is asked for"
                fault = f"is missing: {rule}; {cure}"
                raise LineError(f"{rule}: {cure}", kind=kind, number=self._count + 1, fault=fault)
            given[kind] = check_phrases(f"{kind}[{self._count}]", found)
        self._count += 1
        return Line(self._count - 1, text, **given)

    def finish(self) -> None:
        """Check that nothing is left.

        Raises:
            InputError: there are more prefixes or required phrases than lines.
        """
        for kind, lists in self._lists.items():
            if next(lists, _END) is not _END:
                rule = f"there are more {_NAMES[kind]} than the {self._count} sentences: give one for each"
                raise LineError(rule, kind=kind, number=self._count + 1, fault=f"is one too many: {rule}")


def number_lines(texts: Iterable[str], prefixes: Prefixes, required: Required = None) -> Iterator[Line]:
    """Number lines as they are asked for.

    Raises:
        InputError: there are more prefixes or required phrases than lines, or fewer, or something is no string.
    """
    numbering = Numbering(prefixes, required)
    for text in texts:
        yield numbering.line(text)
    numbering.finish()


async def number_lines_async(
    texts: AsyncIterable[str], prefixes: Prefixes, required: Required = None
) -> AsyncIterator[Line]:
    """Do as :func:`number_lines`."""
    numbering = Numbering(prefixes, required)
    async for text in texts:
        yield numbering.line(text)
    numbering.finish()


def windows(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Gather lines into windows of at most ``size``, each when the one before is done with."""
    window: list[Line] = []
    characters = 0
    for line in lines:
        window.append(line)
        characters += len(line.text)
        if len(window) == size or characters >= _CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


async def windows_async(lines: AsyncIterable[Line], size: int) -> AsyncGenerator[list[Line], None]:
    """Gather what has arrived into windows, reading on, at most ``size`` lines ahead, while one is translated.

    A window has one line at least and waits for no second one: lines that come slowly are not held back.

    Raises:
        Exception: whatever the lines raise, when the window is read in which it would stand.
    """
    arrived: asyncio.Queue[Line | Exception | None] = asyncio.Queue(size)

    async def read() -> None:
        end: Exception | None = None
        try:
            async for line in lines:
                await arrived.put(line)
        except Exception as error:
            end = error
        await arrived.put(end)

    reader = asyncio.create_task(read())
    try:
        ended = False
        while not ended:
            window: list[Line] = []
            characters = 0
            while not window or (not arrived.empty() and len(window) < size and characters < _CHARACTERS):
                item = await arrived.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    ended = True
                    break
                window.append(item)
                characters += len(item.text)
            if window:
                yield window
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader


async def in_threads(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Give what an iterator gives, each item made in a thread, so that the event loop goes on meanwhile."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield cast(T, item)


def batches(lengths: Sequence[int], most: int, tokens: int, limit: int) -> Iterator[tuple[list[int], int]]:
    """Put sentences of like length together, longest first, so that memory is short at once or never.

    Args:
        lengths: tokens of each sentence; those without any are in no batch.
        most: sentences of a batch.
        tokens: of a batch, padding counted; a single sentence may have more.
        limit: the longest sentence there can be.

    Yields:
        The places of a batch's sentences, and how many its shape has room for: as many as ``tokens`` allow at that
        width, rounded down to a power of two for the sake of few shapes, and at most ``most``.
    """
    order = sorted(
        (place for place, length in enumerate(lengths) if length), key=lambda place: (-lengths[place], place)
    )
    start = 0
    while start < len(order):
        rows = max(1, tokens // round_width(lengths[order[start]], limit))
        rows = min(most, 1 << (rows.bit_length() - 1))
        yield order[start : start + rows], rows
        start += rows
