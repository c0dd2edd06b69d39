"""Ctrl-C ends every command, whatever it is doing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

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
    assert call("attention", "--workdir=x", "a") == (130, b"", "")
