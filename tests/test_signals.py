"""Signals are never lost and never waited for; a run that trains notes them."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxformer import signals
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.signals import StopSignal, WaitInterruptedError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_the_garbage_collector_is_not_lost(number):
    """Raised in a callback such as JAX's, Python only prints it: it comes after."""

    def callback(phase, info):
        if todo and phase == "stop":
            signal.raise_signal(todo.pop())

    def collect():
        todo.append(number)
        gc.collect()
        signals.signals()

    before, todo = signal.getsignal(number), []
    gc.callbacks.append(callback)
    with signals.noted(), pytest.raises(KeyboardInterrupt):
        collect()
    gc.callbacks.remove(callback)
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_the_process():
    """Whatever it is busy with."""
    code = (
        "import signal; from jaxformer import signals\n"
        "with signals.noted():\n"
        "    try: signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt: print('first', flush=True)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "print('second')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "first\n")


def test_other_threads_have_no_handlers():
    """Where Python allows none nothing fails."""

    def work():
        with signals.noted(), StopSignal():
            done.append(True)

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_signal_while_a_vocabulary_is_trained():
    """Training is left behind, and reads no further. An error of the sentences comes
    out as it is, and not as SentencePiece words it.
    """
    with pytest.raises(ZeroDivisionError):
        Vocabulary.train((str(1 // number) for number in (1, 0)), 300)
    main, read = threading.main_thread().ident, []

    def sentences():
        for number in range(10_000_000):
            read.append(number)
            if number == 1_000:
                signal.pthread_kill(main, signal.SIGINT)
            if number > 1_000:
                time.sleep(0.001)
            yield f"word {number}"

    with signals.noted(), pytest.raises(KeyboardInterrupt):
        Vocabulary.train(sentences(), 300)
    for thread in threading.enumerate():
        if thread.daemon and "work" in thread.name:
            thread.join(10)
            assert not thread.is_alive()
    assert len(read) < 10_000_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_while_a_run_trains(number):
    """It is noted by name and ends nothing; a second Ctrl-C ends at once. A hang-up
    that is ignored, as under ``nohup``, stays ignored.
    """
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop.received == number.name
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) == before
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


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
