"""The command line, called in the process of the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import runs
from jaxformer.translation import models
from jaxformer.translation.translator import Translator
from runs import Outcome

Call = Callable[..., Outcome]


@pytest.fixture
def call() -> Call:
    """Return the function that runs a command."""
    return runs.call


@pytest.fixture(scope="session")
def workdir() -> str:
    """Return the option that names the run of random parameters."""
    return f"--workdir={runs.random_run()}"


@pytest.fixture(scope="session")
def translator() -> Translator:
    """Return a translator that no test changes."""
    return Translator.load(runs.random_run())


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return runs.sentences(6, longest=12, shortest=12)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the run, to be changed."""
    return runs.copy(runs.random_run(), tmp_path / "run")


@pytest.fixture(autouse=True)
def _one_device(monkeypatch):
    """Translate on one device: programs for eight compile and run far longer."""
    monkeypatch.setattr(models, "mesh_of_devices", lambda: None)
