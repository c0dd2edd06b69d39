"""What a run says of its speed is what the clock and the sentences say."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.models import flops
from jaxformer.models.config import TransformerConfig
from jaxformer.models.flops import slots, tokens, training_flops
from jaxformer.runs.records import MEASURED
from jaxformer.training import meter
from jaxformer.training.meter import Meter

MODEL = TransformerConfig.tiny(vocabulary_size=100)
BATCH = {
    "source": np.array([[5, 6, 7], [5, 0, 0]]),
    "target": np.array([[8, 9], [8, 0]]),
}


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the meter, which a test sets."""
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(meter, "time", made)
    return made


@pytest.fixture
def peak(monkeypatch):
    """Let each device have a peak; return that of the four."""
    monkeypatch.setattr(flops, "peak_flops", lambda device, dtype: 1e6)
    return 4 * 1e6


@pytest.fixture
def started(clock):
    """Return a function that makes a meter whose first step, which compiles and is not
    counted, is made.
    """

    def start(**options):
        measured = Meter(MODEL, 4, **options)
        with measured.compiling():
            measured.add(1000.0, BATCH)
        return measured

    return start


@pytest.mark.parametrize("seconds", [(2.0, 2.0), (4.0, 0.0)])
def test_speed_counts_tokens_after_the_first_step(clock, started, seconds):
    """Tokens a second are those of the metrics over the time since the first step,
    whether a step is read when its call returns or a step later. A step that compiles
    counts neither for the speed nor for the time left.
    """
    measured = started()
    for count, passed in zip((30.0, 50.0), seconds, strict=True):
        clock.now += passed
        measured.add(count, BATCH)
    assert measured.read(0)["train/tokens_per_second"] == 80.0 / 4.0
    with measured.compiling():
        clock.now += 42.0
        measured.add(8.0, BATCH)
    clock.now += 6.0
    measured.add(12.0, BATCH)
    entry = measured.read(10)
    assert entry["train/tokens_per_second"] == 12.0 / 6.0
    assert entry["train/seconds_left"] == pytest.approx(10 * 10.0 / 3)


def test_utilisation_is_that_of_the_tokens(clock, peak, started):
    """The operations of all steps but the first, over time and peak: for tokens, and
    for slots.
    """
    measured = started(passes=2)
    for seconds in (1.0, 3.0):
        clock.now += seconds
        measured.add(1.0, BATCH)
    entry = measured.read(0)
    for name, work in (("mfu", tokens(BATCH, 0)), ("mfu_slots", slots(BATCH))):
        assert entry[f"train/{name}"] == pytest.approx(
            2 * training_flops(MODEL, work, passes=2) / 4.0 / peak
        )
    assert entry["train/mfu"] < entry["train/mfu_slots"]


def test_no_utilisation_without_a_peak(clock, started):
    """Where the peak of the devices is not known, as on the CPU, none is logged; all
    names are those of measures.
    """
    measured = started()
    clock.now += 1.0
    measured.add(1.0, BATCH)
    names = {
        f"train/{name}" for name in ("tokens_per_second", "data_wait", "seconds_left")
    }
    assert set(measured.read(5)) == names <= MEASURED


def test_time_left_is_that_of_the_steps_made(clock, started):
    """A step that is left takes as long as one that was made, evaluations included; the
    first step tells nothing.
    """
    measured = started()
    assert "train/seconds_left" not in measured.read(7)
    clock.now += 2.0
    measured.add(1.0, BATCH)
    with measured.paused():
        clock.now += 5.0
    clock.now += 1.0
    measured.add(1.0, BATCH)
    assert measured.read(5)["train/seconds_left"] == 5 * 8.0 / 2


def test_a_pause_is_not_measured(clock, started):
    """An evaluation between two lines of the log changes no speed; without a step there
    is no speed.
    """
    assert Meter(MODEL, 4).read(9) == {}
    measured = started()
    with measured.paused():
        clock.now += 50.0
        measured.wait(3.0)
    clock.now += 2.0
    measured.wait(0.5)
    measured.add(10.0, BATCH)
    entry = measured.read(9)
    assert entry["train/tokens_per_second"] == 5.0
    assert entry["train/data_wait"] == 0.25
