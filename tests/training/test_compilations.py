"""A run counts the programs that it compiles, and asks devices for their memory."""

import contextlib
from unittest import mock

import jax
import numpy as np

from jaxformer.runs.records import MEASURED
from jaxformer.training.compilations import Compilations, read_memory


def test_each_shape_is_counted_once():
    """A program is counted when it is compiled, for each shape, and not when it runs
    again. What is compiled afterwards, also after an error, is not its own.
    """
    inputs, double = (
        [np.ones(n, np.float32) for n in (3, 5, 7)],
        jax.jit(lambda x: 2 * x),
    )
    with contextlib.suppress(ZeroDivisionError), Compilations() as compilations:
        assert set(compilations.read().values()) == {0.0}
        for x in inputs[:2] * 3:
            double(x).block_until_ready()
        assert compilations.seconds > 0.0
        assert set(compilations.read()) <= MEASURED
        raise ZeroDivisionError
    double(inputs[2])
    assert compilations.count == 2


def test_memory_is_the_most_of_any_device(monkeypatch):
    """The fullest device decides whether a run fits; where none tells, nothing is
    logged.
    """
    full = [{"peak_bytes_in_use": 3}, {"peak_bytes_in_use": 8}, None]
    for statistics, memory in (([None, {"bytes_limit": 5}], []), (full, [8.0])):
        devices = [mock.Mock(**{"memory_stats.return_value": x}) for x in statistics]
        monkeypatch.setattr(jax, "local_devices", lambda devices=devices: devices)
        assert list(read_memory().values()) == memory
        assert read_memory().keys() <= MEASURED
