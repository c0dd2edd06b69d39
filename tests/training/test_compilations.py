"""A run counts the programs that it compiles, and asks devices for their memory."""

import contextlib
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.runs.records import MEASURED
from jaxformer.training.compilations import Compilations, read_memory


def test_each_shape_is_counted_once():
    """A program is counted when it is compiled, for each shape, and not when it runs
    again. What is compiled afterwards, also after an error, is not its own.
    """
    inputs = [np.ones(size, np.float32) for size in (3, 5, 7)]
    double, nothing = jax.jit(lambda x: x * 2.0), {"train/compilations": 0.0}
    with contextlib.suppress(ZeroDivisionError), Compilations() as compilations:
        assert compilations.read() == {**nothing, "train/compile_seconds": 0.0}
        for x in inputs[:2] * 3:
            double(x).block_until_ready()
        assert compilations.count == 2
        assert compilations.seconds > 0.0
        assert set(compilations.read()) <= MEASURED
        raise ZeroDivisionError
    double(inputs[2])
    assert compilations.count == 2


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
    devices = [mock.Mock(**{"memory_stats.return_value": each}) for each in statistics]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert read_memory() == entry
    assert set(entry) <= MEASURED
