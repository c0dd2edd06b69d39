"""The signals that stop a run."""

import os
import signal

import pytest

from jaxformer.training.signals import StopSignal, WaitInterruptedError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_ends_nothing(number):
    """The first signal is noted by name; afterwards the handlers are those of
    before.
    """
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.received == number.name
    assert signal.getsignal(number) == before


def test_a_hang_up_that_is_ignored_stays_ignored():
    """As under ``nohup``: a closed terminal does not stop such a run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_ends_at_once():
    """Who presses Ctrl-C twice does not want to wait; a second SIGTERM changes
    nothing.
    """
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == "SIGTERM"


def test_a_signal_breaks_off_what_waits():
    """What may wait for ever is broken off where it says so, and nowhere else."""
    with StopSignal() as stop:
        with pytest.raises(WaitInterruptedError), stop.interrupting():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with stop.interrupting(False):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(WaitInterruptedError), stop.interrupting():
            pytest.fail("nothing begins to wait after a signal")
    assert stop.received == "SIGTERM"
