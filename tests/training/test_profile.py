"""Traces of chosen steps, written also when a run ends within."""

import jax
import pytest

from jaxformer.training.profile import Profile


@pytest.mark.parametrize(
    ("first", "begun", "ended", "traced"),
    [
        (1, 0, 11, [0, 5]),
        (3, 0, 11, [2, 7]),
        (3, 0, 4, [2, "end"]),
        (3, 5, 20, []),
        (None, 0, 9, []),
    ],
)
def test_steps_of_a_trace(monkeypatch, tmp_path, first, begun, ended, traced):
    """It begins before the first step and ends after the last, or with the run. A run
    that continues after the first step has none, and neither has another host.
    """
    calls, made = [], begun
    start = lambda path: calls.append((made, path))  # noqa: E731
    monkeypatch.setattr(jax.profiler, "start_trace", start)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append((made, "")))

    def train():
        nonlocal made
        profile, written = Profile(tmp_path, first), []
        for made in range(begun, ended + 1):
            written += [made] * (profile.at(made, ()) is not None)
        made = "end"
        profile.close()
        return written

    assert train() == [step for step in traced[1:] if step != "end"]
    assert calls == list(zip(traced, (str(tmp_path), ""), strict=False))
    calls.clear()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert train() == calls == []
