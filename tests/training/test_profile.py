"""Traces of chosen steps, written also when a run ends within."""

import jax
import pytest

from jaxformer.training.profile import Profile


@pytest.fixture
def calls(monkeypatch):
    """Note the beginnings and ends of traces, which take seconds."""
    found = []
    start, stop = lambda path: found.append(("start", path)), ("stop",)
    monkeypatch.setattr(jax.profiler, "start_trace", start)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: found.append(stop))
    return found


def train(profile, start, stop):
    """Go from ``start`` steps to ``stop``; return the steps after which a trace was
    written.
    """
    written = [step for step in range(start, stop + 1) if profile.at(step, ())]
    profile.close()
    return written


@pytest.mark.parametrize(("first", "steps"), [(1, 1), (3, 5)])
def test_steps_of_a_trace(calls, tmp_path, first, steps):
    """It begins before the first step and ends after the last, once."""
    profile = Profile(tmp_path, first, steps)
    seen = []
    for step in range(12):
        profile.at(step, ())
        seen.append(len(calls))
    assert seen.index(1) == first - 1
    assert seen.index(2) == first - 1 + steps
    assert calls == [("start", str(tmp_path)), ("stop",)]


def test_a_run_that_ends_within(calls, tmp_path):
    """The trace is ended with the run, once; a run that never came so far has none
    to end.
    """
    assert train(Profile(tmp_path, 3, 5), 0, 4) == []
    assert calls == [("start", str(tmp_path)), ("stop",)]
    assert train(Profile(tmp_path, 9, 5), 0, 4) == []
    assert len(calls) == 2


def test_no_trace(calls, tmp_path, monkeypatch):
    """None is asked for, the run continues after it, or it is another host than the
    first.
    """
    assert train(Profile(tmp_path, None, 5), 0, 9) == []
    assert train(Profile(tmp_path, 3, 5), 5, 20) == []
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert train(Profile(tmp_path, 3, 5), 0, 9) == []
    assert calls == []
