"""A run counts the programs that it compiles, and asks devices for their memory."""

import time

import jax
import jax.numpy as jnp
import pytest

from jaxformer.runs.records import MEASURED
from jaxformer.training.compilations import Compilations, read_memory


def test_each_shape_is_counted_once():
    """A program is counted when it is compiled, for each shape, and not when it runs
    again.
    """
    inputs = [jnp.ones(size) for size in (3, 5)]
    double = jax.jit(lambda x: x * 2.0)
    with Compilations() as compilations:
        assert compilations.read() == {
            "train/compilations": 0.0,
            "train/compile_seconds": 0.0,
        }
        for x in inputs * 3:
            double(x).block_until_ready()
        assert compilations.count == 2
        assert compilations.seconds > 0.0
        assert set(compilations.read()) <= MEASURED


def test_it_knows_when_the_last_one_ended():
    """A call that compiles and then computes for long has ended its compilation
    before.
    """

    def sleep(x):
        time.sleep(0.2)
        return x

    x = jnp.ones(7)
    slow = jax.jit(lambda x: jax.pure_callback(sleep, x, x, vmap_method="sequential"))
    with Compilations() as compilations:
        begun = time.monotonic()
        slow(x).block_until_ready()
        ended = compilations.ended
        assert begun < ended < time.monotonic() - 0.2
        slow(x).block_until_ready()
        assert compilations.ended == ended


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_it_listens_no_longer_than_it_should(error):
    """Whatever is compiled afterwards, also after an error, is not its own."""
    x, compilations = jnp.ones(3), Compilations()
    try:
        with compilations:
            if error:
                raise error
    except ZeroDivisionError:
        pass
    jax.jit(lambda y: y - 4.0)(x)
    assert compilations.count == 0


class Device:
    """A device that tells its memory, or does not."""

    def __init__(self, statistics):
        self.memory_stats = lambda: statistics


@pytest.mark.parametrize(
    ("statistics", "entry"),
    [
        ([None, None], {}),
        ([{"bytes_limit": 5}], {}),
        (
            [{"peak_bytes_in_use": 3}, {"peak_bytes_in_use": 8}, None],
            {"train/memory_bytes": 8.0},
        ),
    ],
)
def test_memory_is_the_most_of_any_device(monkeypatch, statistics, entry):
    """The fullest device decides whether a run fits; where none tells, nothing is
    said.
    """
    monkeypatch.setattr(
        jax, "local_devices", lambda: [Device(found) for found in statistics]
    )
    assert read_memory() == entry
    assert set(entry) <= MEASURED
