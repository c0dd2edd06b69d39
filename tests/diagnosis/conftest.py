"""Runs to examine."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosis import healthy


@pytest.fixture
def run(tmp_path) -> Path:
    """Return the directory of a run in which nothing is wrong."""
    return healthy.make(tmp_path / "sick")
