"""Ctrl-C ends every command, whatever it is doing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import pytest

import runs
from jaxformer.errors import InputError
from jaxformer.translation.translator import Translator

EARLY = """
import sys
from jaxformer.cli import main

parse = main.parse
main.parse = lambda arguments: print("begun", flush=True) or parse(arguments)
sys.argv = ["jaxformer", "translate", "--workdir=x"]
sys.exit(main.start())
"""


def test_interrupted_while_libraries_load():
    """It ends with 130 and without a traceback however early Ctrl-C comes."""
    process = subprocess.Popen(
        [sys.executable, "-c", EARLY],
        cwd=runs.ROOT,
        env=runs.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        # with its input open till now: nothing else ends it
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("then", [lambda: None, lambda: 1 / 0])
def test_a_lost_interruption_ends_a_command(then, monkeypatch, call):
    """Where a library loses the exception, or raises another one for it, the exit
    code is 130 too.
    """

    def load(*_, **__):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        then()
        raise InputError("not reached by an interruption")

    monkeypatch.setattr(Translator, "load", load)
    assert call("translate", "--workdir=x", stdin=b"a\n") == (130, b"", "")


STUCK = """
import hashlib, os, signal, sys, threading
from jaxformer.cli import main
from jaxformer import signals
from jaxformer.translation.translator import Translator

def load(*_, **__):
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)

signals.PATIENCE = 0.2
Translator.load = load
sys.argv = ["jaxformer", "translate", "--workdir=x"]
main.start()
"""


def test_an_interruption_ends_what_is_stuck():
    """Compiled code that does not return keeps Python's handler waiting; the process
    ends with 130 all the same.
    """
    line, options = [sys.executable, "-c", STUCK], {"env": runs.environment()}
    begun = time.monotonic()
    done = subprocess.run(line, capture_output=True, check=False, **options)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert time.monotonic() - begun < 20.0
