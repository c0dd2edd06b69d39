"""What a run says of its speed is what the clock and the sentences say."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.models import flops
from jaxformer.models.config import TransformerConfig
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


def test_utilisation_is_that_of_the_tokens(clock, started, monkeypatch):
    """The operations of all steps but the first, over time and peak: for tokens, and
    for slots.
    """
    monkeypatch.setattr(flops, "peak_flops", lambda device, dtype: 1e6)
    measured = started(passes=2)
    for seconds in (1.0, 3.0):
        clock.now += seconds
        measured.add(1.0, BATCH)
    entry = measured.read(0)
    for name, work in (
        ("mfu", flops.tokens(BATCH, 0)),
        ("mfu_slots", flops.slots(BATCH)),
    ):
        made = 2 * flops.training_flops(MODEL, work, passes=2)
        assert entry[f"train/{name}"] == pytest.approx(made / 4.0 / 4e6)
    assert entry["train/mfu"] < entry["train/mfu_slots"]


def test_evaluations_change_the_time_left_and_no_speed(clock, started):
    """A step that is left takes as long as one that was made, evaluations included; the
    first step tells nothing. Where the peak of the devices is not known, as on the CPU,
    no utilisation is logged.
    """
    assert Meter(MODEL, 4).read(9) == {}
    measured = started()
    assert "train/seconds_left" not in measured.read(7)
    with measured.paused():
        clock.now += 50.0
        measured.wait(3.0)
    clock.now += 2.0
    measured.wait(0.5)
    measured.add(10.0, BATCH)
    entry = measured.read(5)
    assert entry == {
        "train/tokens_per_second": 5.0,
        "train/data_wait": 0.25,
        "train/seconds_left": 5 * 52.0,
    }
    assert entry.keys() <= MEASURED
