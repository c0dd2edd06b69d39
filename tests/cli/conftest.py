"""The command line, called in the process of the tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from jaxformer.cli.main import main
from jaxformer.data import interruption


class Outcome(NamedTuple):
    """The exit code of a command, what it gave, and what it said."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().removesuffix("\n").split("\n") if self.out else []

    @property
    def error(self) -> str:
        """The one line of a command that failed, or of a wrong command line, whose
        usage may stand before it.
        """
        assert self.code in (1, 2), self
        assert self.out == b""
        *usage, last = self.err.removesuffix("\n").split("\n")
        assert not usage or (self.code == 2 and usage[0].startswith("usage: ")), self
        prefix, _, line = last.partition(": error: ")
        assert prefix.startswith("jaxformer"), self
        return line


Call = Callable[..., Outcome]


@pytest.fixture
def call(monkeypatch, capfdbinary) -> Call:
    """Return a function that runs a command."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii")
        )
        capfdbinary.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        assert isinstance(code, int)
        out, err = capfdbinary.readouterr()
        return Outcome(code, out, err.decode())

    return run


@pytest.fixture
def ends(monkeypatch):
    """Note the exit codes by which a process would end, and go on."""
    codes: list[int] = []
    monkeypatch.setattr(interruption, "end", lambda code=130: codes.append(code))
    return codes
