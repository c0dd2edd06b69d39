"""A run counts the programs that it compiles, and says what takes long."""

import threading
from unittest import mock

import jax
import pytest

from jaxformer.training.compilations import Compilations

EVENT = "/jax/core/compile/backend_compile_duration"


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
