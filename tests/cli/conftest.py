"""The command line, called in the process of the tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import runs
from jaxformer.cli.main import main


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
        """The one line of a command that failed."""
        assert self.code == 1, self
        assert self.out == b""
        assert self.err.startswith("jaxformer: error: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("jaxformer: error: ").removesuffix("\n")


Call = Callable[..., Outcome]


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation() -> Iterator[None]:
    with runs.quick_compilation():
        yield


@pytest.fixture
def call(monkeypatch, capfdbinary) -> Call:
    """Give a function that runs a command."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii"))
        capfdbinary.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        assert isinstance(code, int)
        out, err = capfdbinary.readouterr()
        return Outcome(code, out, err.decode())

    return run
