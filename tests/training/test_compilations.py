"""A run counts the programs that it compiles, and says what takes long."""

import contextlib
import threading
from unittest import mock

import jax
import numpy as np
import pytest

from jaxformer.runs.records import MEASURED
from jaxformer.training.compilations import Compilations
from jaxformer.training.display import Display

EVENT = "/jax/core/compile/backend_compile_duration"


def test_each_shape_is_counted_once():
    """A program is counted when it is compiled, for each shape, and not when it runs
    again. What is compiled afterwards, also after an error, is not its own.
    """
    inputs, double = (
        [np.ones(n, np.float32) for n in (3, 5, 7)],
        jax.jit(lambda x: 2 * x),
    )
    with (
        contextlib.suppress(ZeroDivisionError),
        Compilations(Display()) as compilations,
    ):
        assert set(compilations.read().values()) == {0.0}
        for x in inputs[:2] * 3:
            double(x).block_until_ready()
        assert compilations.seconds > 0.0
        assert set(compilations.read()) <= MEASURED
        raise ZeroDivisionError
    double(inputs[2])
    assert compilations.count == 2


@pytest.mark.parametrize("live", [False, True])
def test_what_takes_more_than_a_second_is_said(live):
    """While it lasts, on a bar where there is one, and at its end."""
    display, shown = mock.Mock(live=live), threading.Event()
    display.doing.side_effect = lambda _: shown.set()
    program = {"fun_name": "jit(train_step)"}
    with Compilations(display):
        jax.monitoring.record_scalar(EVENT, 0.0, fun_name="jit(add)")
        jax.monitoring.record_event_duration_secs(EVENT, 0.1, fun_name="jit(add)")
        jax.monitoring.record_scalar(EVENT, 0.0, **program)
        assert shown.wait(60)
        jax.monitoring.record_event_duration_secs(EVENT, 9.1, **program)
    name = "compiling the training step"
    said = [] if live else [mock.call(f"{name} ...")]
    assert display.say.mock_calls == [*said, mock.call(f"{name} ... 9 s")]
    assert display.doing.mock_calls == [mock.call(name), mock.call("")]
