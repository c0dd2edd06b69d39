from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from system.processes import Processes
from training.little import write_corpus


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Return what starts processes and ends those that are left."""
    made = Processes(tmp_path_factory.mktemp("processes"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the data sets of the little run."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True, scope="module")
def _promotion() -> Iterator[None]:
    """Let optax promote types: its bias correction is a float to the power of an
    integer.
    """
    with jax.numpy_dtype_promotion("standard"):
        yield
