"""Batches that are waited for: the waiting is measured, a stall is reported once,
and the watch ends with them.
"""

import threading
import time

import pytest

from jaxformer.training.stalls import Watched, describe_stall


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "stalls"]


@pytest.fixture(autouse=True)
def _nothing_stays():
    """No thread may be left when a test ends."""
    yield
    assert watchers() == []


class Gate:
    """Batches of which some are held back until something was reported."""

    def __init__(self, held):
        self.held, self.reported, self.reports = held, threading.Event(), []

    def report(self, seconds):
        self.reports.append(seconds)
        self.reported.set()

    def batches(self, count):
        for number in range(count):
            if number in self.held:
                self.reported.clear()
                assert self.reported.wait(60.0)
                time.sleep(0.2)  # several limits more, of which nothing is heard
            yield number


def test_each_stall_is_reported_once():
    """A batch that does not come is reported while it is waited for, once however long
    it takes; the others are not, and none is lost.
    """
    gate = Gate(held={1, 4})
    watched = Watched(gate.batches(6), 0.05, gate.report)
    assert list(watched) == list(range(6))
    assert len(gate.reports) == 2
    assert min(gate.reports) >= 0.05
    assert watched.waited >= 2 * 0.2


def test_work_between_batches_is_no_waiting():
    """A long step is no stall, and not waited for."""
    reports = []
    watched = Watched(iter(range(3)), 0.05, reports.append)
    for _ in watched:
        time.sleep(0.15)
    assert reports == []
    assert watched.waited < 0.15


def test_the_watch_ends_with_the_batches():
    """The last batch ends the thread, and so does an error, which comes through."""

    def broken():
        yield 1
        raise ZeroDivisionError

    watched = Watched(broken(), 60.0, lambda seconds: None)
    assert next(watched) == 1
    assert len(watchers()) == 1
    with pytest.raises(ZeroDivisionError):
        next(watched)
    assert watchers() == []
    assert list(Watched(iter(()), 60.0, lambda seconds: None)) == []


def test_closing_ends_the_batches_too():
    """Who stops early closes: the batches' own cleaning up is done, and a second
    time changes nothing.
    """
    ended = []

    def batches():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    watched = Watched(batches(), 60.0, lambda seconds: None)
    assert next(watched) == 1
    watched.close()
    watched.close()
    assert ended == [True]
    Watched(iter(()), 60.0, lambda seconds: None).close()  # what cannot be closed


def test_the_line_says_what_waits_for_what():
    """One line, with the seconds and the data set."""
    line = describe_stall(61.3, "text:train.en,train.de")
    assert line.startswith(
        "training has waited 61 s for its next batch"
        " (data.train=text:train.en,train.de): "
    )
    assert "\n" not in line
