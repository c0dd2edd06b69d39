"""What a run says of its speed is what the clock and the sentences say."""

import numpy as np
import pytest

from jaxformer.models.config import TransformerConfig
from jaxformer.runs.records import MEASURED
from jaxformer.training import flops, meter
from jaxformer.training.flops import slots, tokens, training_flops
from jaxformer.training.meter import Meter

MODEL = TransformerConfig.tiny(vocabulary_size=100)
BATCH = {
    "source": np.array([[5, 6, 7], [5, 0, 0]]),
    "target": np.array([[8, 9], [8, 0]]),
}


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = self.waited = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the meter."""
    made = Clock()
    monkeypatch.setattr(meter, "time", made)
    return made


@pytest.fixture
def peak(monkeypatch):
    """Let each device have a peak; give that of the four."""
    monkeypatch.setattr(
        flops, "peak_flops", lambda device, dtype: {"float32": 1e6}[dtype]
    )
    return 4 * 1e6


def test_speed_counts_tokens_after_the_first_step(clock):
    """Tokens a second: those of the metrics over the time since the first step,
    which compiles.
    """
    measured = Meter(MODEL, 4)
    for now, count in ((110.0, 1000.0), (112.0, 30.0), (114.0, 50.0)):
        clock.now = now
        measured.add(count, BATCH)
    assert measured.read(0)["train/tokens_per_second"] == 80.0 / 4.0
    clock.now = 120.0
    measured.add(12.0, BATCH)
    assert measured.read(0)["train/tokens_per_second"] == 12.0 / 6.0


def test_utilisation_is_that_of_the_tokens(clock, peak):
    """The operations of all steps but the first, over time and peak: for tokens, and
    for slots.
    """
    measured = Meter(MODEL, 4, passes=2)
    for now in (0.0, 1.0, 4.0):
        clock.now = now
        measured.add(1.0, BATCH)
    entry = measured.read(0)
    for name, work in (("mfu", tokens(BATCH, 0)), ("mfu_slots", slots(BATCH))):
        assert entry[f"train/{name}"] == pytest.approx(
            2 * training_flops(MODEL, work, passes=2) / 4.0 / peak
        )
    assert entry["train/mfu"] < entry["train/mfu_slots"]


def test_no_utilisation_without_a_peak(clock):
    """Where the peak of the devices is not known, as on the CPU, none is said; all
    names are those of measures.
    """
    measured = Meter(MODEL, 4)
    for _ in range(3):
        clock.now += 1.0
        measured.add(1.0, BATCH)
    names = {
        f"train/{name}" for name in ("tokens_per_second", "data_wait", "seconds_left")
    }
    assert set(measured.read(5)) == names <= MEASURED


def test_time_left_is_that_of_the_steps_made(clock):
    """What is left takes as long a step as what was made, evaluations included; the
    first step tells nothing.
    """
    measured = Meter(MODEL, 4)
    measured.add(1.0, BATCH)
    assert "train/seconds_left" not in measured.read(7)
    clock.now += 2.0
    measured.add(1.0, BATCH)
    measured.pause()
    clock.now += 6.0
    measured.add(1.0, BATCH)
    assert measured.read(5)["train/seconds_left"] == 5 * 8.0 / 2


def test_a_pause_is_not_measured(clock):
    """An evaluation between two lines of the log slows nothing down; nothing
    measured is no speed.
    """
    measured = Meter(MODEL, 4, waited=lambda: clock.waited)
    assert measured.read(9) == {}
    measured.add(1.0, BATCH)
    measured.pause()
    clock.now, clock.waited = clock.now + 50.0, clock.waited + 3.0
    measured.add(1.0, BATCH)
    clock.now, clock.waited = clock.now + 2.0, clock.waited + 0.5
    measured.add(10.0, BATCH)
    entry = measured.read(9)
    assert entry["train/tokens_per_second"] == 5.0
    assert entry["train/data_wait"] == 0.25


def test_compilations_are_left_out(clock):
    """What the calls of steps took to compile is no time of training, neither for
    the speed nor for the time left.
    """
    measured = Meter(MODEL, 4, waited=lambda: clock.waited)
    measured.leave_out(30.0)
    measured.add(1.0, BATCH)
    clock.now += 2.0
    measured.add(8.0, BATCH)
    clock.now += 42.0
    measured.leave_out(40.0)
    measured.add(8.0, BATCH)
    entry = measured.read(10)
    assert entry["train/tokens_per_second"] == 16.0 / 4.0
    assert entry["train/seconds_left"] == 10 * 4.0 / 2
    clock.now += 2.0
    measured.add(6.0, BATCH)
    assert measured.read(10)["train/tokens_per_second"] == 3.0
