"""Waiting for data: how long, and a word when it takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Watched(Generic[Item]):
    """An iterator of batches that knows how long it was waited for, and reports a stall
    while it lasts.

    Attributes:
        waited: seconds that the consumer has waited for batches so far.
    """

    def __init__(
        self, batches: Iterator[Item], limit: float, report: Callable[[float], None]
    ) -> None:
        """Watch an iterator; :meth:`close` it in the end.

        Args:
            batches: what is waited for.
            limit: seconds of waiting for one batch after which it is reported.
            report: is given the seconds waited, in a thread of its own, once for each
                batch that takes so long.
        """
        self.waited = 0.0
        self._batches, self._limit, self._report = batches, limit, report
        # when the batch was asked for that is not here yet
        self._asked: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)
        self._thread.start()

    def __iter__(self) -> Watched[Item]:
        """Return itself."""
        return self

    def __next__(self) -> Item:
        """Wait for the next batch; the end of the batches, or their error, is the
        end of the watch.
        """
        begun = self._asked = time.monotonic()
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise
        finally:
            self._asked = None
            self.waited += time.monotonic() - begun

    def close(self) -> None:
        """End the watch, and the iterator if it can be closed."""
        self._end()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def _end(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        # It sleeps until the batch of the moment would be late, and wakes no more than
        # once in a limit: a step costs no more than two readings of the clock.
        reported, sleep = None, self._limit
        while not self._closed.wait(sleep):
            asked, now = self._asked, time.monotonic()
            sleep = self._limit
            if asked is None or asked == reported:
                continue
            if now - asked >= self._limit:
                reported = asked
                self._report(now - asked)
            else:
                sleep = asked + self._limit - now


def describe_stall(seconds: float, train: str) -> str:
    """Say that training waits for its data, and where to look.

    Args:
        seconds: how long it has waited.
        train: what ``data.train`` names.
    """
    return (
        f"training has waited {seconds:.0f} s for its next batch (data.train={train}):"
        " the disk or the network it is read from is slow or gone, or another program"
        " takes the processors; it goes on as soon as the batch is there"
    )
