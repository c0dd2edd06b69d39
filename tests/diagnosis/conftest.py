"""Runs to examine."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
from diagnosis import healthy

from jaxformer.data.language_identification import is_foreign
from jaxformer.diagnosis.checks import text


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """Copy a run in which nothing is wrong; its text is in the working directory."""
    shutil.copytree(healthy.template(), tmp_path / "sick")
    monkeypatch.chdir(tmp_path / "sick")
    return tmp_path / "sick" / "run"


@pytest.fixture(autouse=True, scope="session")
def cached_languages():
    """Detect the language of each sentence once: most tests share the text."""
    kept = pytest.MonkeyPatch()
    kept.setattr(text, "is_foreign", functools.cache(is_foreign))
    yield
    kept.undo()
