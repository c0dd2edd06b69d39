"""A little model, its batches, and engines for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
from training.little import (
    EOS,
    PAD,
    VOCABULARY,
    cached_make_engine,
    little_config,
    score,
    write_corpus,
)

from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import train as training
from jaxformer.training.engines import Engine
from jaxformer.training.loop import Outcome
from jaxformer.training.state import TrainState, create_state


@pytest.fixture(autouse=True)
def _promotion() -> Iterator[None]:
    """Let optax promote types: its bias correction is a float to the power of an
    integer.
    """
    with jax.numpy_dtype_promotion("standard"):
        yield


MakeModel = Callable[..., Transformer]
MakeTraining = Callable[..., tuple[Engine, TrainState]]
MakeBatch = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the data sets of the little run by configuration key."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """Return a function that makes a little model, without dropout unless it is asked
    for.
    """

    def make(**changes) -> Transformer:
        values = {
            "vocabulary_size": VOCABULARY,
            "d_model": 8,
            "d_ff": 16,
            "num_heads": 2,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout_rate": 0.0,
            "max_length": 16,
        }
        return Transformer(TransformerConfig(**{**values, **changes}))

    return make


@pytest.fixture(scope="session")
def make_training() -> MakeTraining:
    """Return a function that makes an engine for a model, and a first state in its
    place.

    The engines are kept, since compiling a step for eight devices takes seconds.
    """

    @functools.cache
    def start(model: Transformer, config: TrainingConfig) -> TrainState:
        return create_state(model, config)

    def make(model: Transformer, engine: str, **changes) -> tuple[Engine, TrainState]:
        config = TrainingConfig(**{"warmup_steps": 300, "engine": engine, **changes})
        made = cached_make_engine(model, config)
        return made, made.place(start(model, config))

    return make


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Return a function that draws a batch of sentences of the given lengths; what is
    left over is only padding.

    Two rows for each of eight devices and nine tokens are the shape of most tests,
    since each shape is compiled.
    """

    def make(
        seed: int, lengths: list[int], *, rows: int = 16, width: int = 9
    ) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(seed)
        batch = {
            side: np.full((rows, width), PAD, np.int32) for side in ("source", "target")
        }
        for side in batch.values():
            for row, length in zip(side, lengths, strict=False):
                if length:
                    row[:length] = [*generator.integers(4, VOCABULARY, length - 1), EOS]
        return batch

    return make


@pytest.fixture
def train(corpus, tmp_path, monkeypatch):
    """Return a function that runs ``train`` in a folder of this test, by name, with
    changes to the configuration.
    """
    monkeypatch.setattr(training, "make_engine", cached_make_engine)

    def run(name, changes=None, validator=score):
        return training.train(
            little_config(corpus, changes), tmp_path / name, validator
        )

    return run


@pytest.fixture(scope="session")
def straight(corpus, tmp_path_factory):
    """Return the directory of the little run, made without any interruption."""
    directory = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(training, "make_engine", cached_make_engine)
        outcome = training.train(little_config(corpus), directory, score)
    assert outcome == Outcome(12, finished=True, signal=None)
    return directory
