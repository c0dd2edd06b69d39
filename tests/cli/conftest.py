"""The command line, called in the process of the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import runs
from jaxformer import signals
from jaxformer.translation import models
from runs import Outcome

Call = Callable[..., Outcome]


@pytest.fixture
def call() -> Call:
    """Return the function that runs a command."""
    return runs.call


@pytest.fixture(autouse=True)
def _one_device(monkeypatch):
    """Translate on one device: programs for eight compile and run far longer."""
    monkeypatch.setattr(models, "mesh_of_devices", lambda: None)


@pytest.fixture
def ends(monkeypatch):
    """Note the exit codes by which a process would end, and go on."""
    codes: list[int] = []
    monkeypatch.setattr(signals, "end", lambda code=130: codes.append(code))
    return codes
