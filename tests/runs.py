"""Little runs for the tests of what uses one: a model of random parameters, and one
that is trained for real.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.cli.main import main
from jaxformer.data import sources
from jaxformer.data.sources import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.training.progress import Progress
from jaxformer.translation.translator import Translator
from jaxformer.typing import PyTree

ROOT = Path(__file__).parent.parent


FOLDER = "JAXFORMER_TESTS"
"""The variable that names the folder of everything here: one for all processes of a
session, which conftest.py makes and removes.
"""


def made_once(make: Callable[[Path], None]) -> Callable[[], Path]:
    """Turn a function that fills a folder into one that returns the filled folder.

    The first process of a session that asks makes it; the others wait and share it.
    """
    name = make.__name__.removesuffix("_run")

    @functools.cache
    @functools.wraps(make)
    def path() -> Path:
        folder = Path(os.environ[FOLDER]) / name
        done = folder.with_suffix(".done")
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return path


def environment() -> dict[str, str]:
    """Return the variables of processes of the tests: they have one device."""
    given = os.environ.get("XLA_FLAGS", "").split()
    flags = " ".join(flag for flag in given if "device_count" not in flag)
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def command(
    *arguments: object, stdin: bytes = b"", cwd: Path = ROOT
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    line = [sys.executable, "-m", "jaxformer.cli.main", *map(str, arguments)]
    return subprocess.run(
        line, input=stdin, capture_output=True, cwd=cwd, env=environment(), check=False
    )


class Outcome(NamedTuple):
    """The exit code of a command and what it wrote."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().removesuffix("\n").split("\n") if self.out else []

    @property
    def error(self) -> str:
        """The one line of a command that failed; after that of a wrong command line is
        what shows the right one.
        """
        assert self.code in (1, 2), self
        assert self.out == b""
        line, *more = self.err.removesuffix("\n").split("\n")
        assert len(more) == self.code - 1, self
        assert all(re.fullmatch("see: jaxformer( [a-z]+)? --help", x) for x in more)
        assert line.startswith("jaxformer: error: "), self
        return line.removeprefix("jaxformer: error: ")


def call(*arguments: object, stdin: bytes = b"") -> Outcome:
    """Run the command line in this process, without the start-up of a new one.

    It computes on the eight devices of the tests and in the current folder.
    :func:`command` runs it in a process of its own.
    """
    given, out, err = io.BytesIO(stdin), io.BytesIO(), io.BytesIO()
    with mock.patch.multiple(
        sys,
        stdin=io.TextIOWrapper(given, encoding="ascii"),
        stdout=io.TextIOWrapper(out, encoding="utf-8"),
        stderr=io.TextIOWrapper(err, encoding="utf-8", write_through=True),
    ):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        sys.stdout.flush()
        assert isinstance(code, int)
        return Outcome(code, out.getvalue(), err.getvalue().decode())


@functools.cache
def pairs() -> list[Pair]:
    """Read a few hundred real pairs."""
    return list(sources.load("bundled:en-de/train", "en", "de"))[:400]


@functools.cache
def vocabulary() -> Vocabulary:
    """Train a vocabulary on them."""
    return Vocabulary.train([text for pair in pairs() for text in pair], 400)


def sentences(count: int, longest: int = 30, shortest: int = 1) -> list[str]:
    """Return different real sentences of so many tokens at most, end of sentence
    included.
    """
    seen = dict.fromkeys(pair.source for pair in pairs())
    lengths = {text: len(vocabulary().encode(text)) + 1 for text in seen}
    fitting = [text for text in seen if shortest <= lengths[text] <= longest]
    assert len(fitting) >= count
    return fitting[:count]


def model_config(**changes) -> TransformerConfig:
    """Describe a model that compiles quickly."""
    values = {
        "vocabulary_size": vocabulary().size,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 4,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "dropout_rate": 0.0,
        "max_length": 128,
        "tied_embeddings": "none",
        "pad_id": vocabulary().pad_id,
        "bos_id": vocabulary().bos_id,
    }
    return TransformerConfig(**{**values, **changes})


def random_params(config: TransformerConfig, eos: float = 2.2, seed: int = 2) -> PyTree:
    """Draw parameters whose translations differ from sentence to sentence, some
    finished and some not.

    Output rows of one length keep single tokens from winning everywhere; that of end of
    sentence is ``eos`` times as long, so that it wins in some places.
    """
    tokens, init = jax.ShapeDtypeStruct((1, 1), jnp.int32), Transformer(config).init
    shapes = jax.eval_shape(init, jax.random.key(0), tokens, tokens)["params"]
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        if leaf.ndim == 1:
            return np.full(leaf.shape, float("scale" in name), np.float32)
        size = (2.0 if "embedding" in name else 1.5) * config.d_model**-0.5
        return (size * generator.normal(size=leaf.shape)).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    rows = params["output"]
    rows = 1.5 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[vocabulary().eos_id] *= eos
    return jax.tree.map(jnp.asarray, {**params, "output": rows})


def translator(
    *,
    eos: float = 2.2,
    output: dict[int, np.ndarray] | None = None,
    source_eos: bool = True,
    **changes,
) -> Translator:
    """Put a translator of random parameters together.

    Args:
        eos: see :func:`random_params`.
        output: output rows to replace, by token.
        source_eos: whether sources end with end of sentence.
        **changes: of the model, or, where they are its keys, of decoding.
    """
    keys = {field.name for field in dataclasses.fields(DecodingConfig)}
    of_decoding: dict[str, Any] = {"max_extra_length": 20, "batch_size": 8}
    of_decoding |= {k: v for k, v in changes.items() if k in keys}
    config = model_config(**{k: v for k, v in changes.items() if k not in keys})
    params = random_params(config, eos)
    for token, row in (output or {}).items():
        params["output"] = params["output"].at[token].set(row)
    both = Vocabularies(vocabulary(), vocabulary())
    return Translator(
        config, params, both, DecodingConfig(**of_decoding), source_eos=source_eos
    )


@made_once
def random_run(path: Path) -> None:
    """Make the directory of a run with two checkpoints: step 10, the best by its score,
    and step 20, the latest.

    Tests only read it; those that write take :func:`copy`.
    """
    base = configuration.parse(configuration.default_config().to_dict())
    sizes = {"vocabulary_size": vocabulary().size, "max_length": 64}
    data = dataclasses.replace(base.data, **sizes)
    decoding = DecodingConfig(max_extra_length=20, batch_size=8)
    config = RunConfig(model_config(), data, base.training, decoding, base.evaluation)
    vocabulary().save(path / "vocabulary" / "shared.model")
    configuration.save(config, path / "config.json")
    both = Vocabularies(vocabulary(), vocabulary())
    checkpoints = CheckpointManager(path / "checkpoints")
    for step, seed, bleu in ((10, 2, 5.0), (20, 3, 4.0)):
        progress = {**Progress(step=step).to_json(), "vocabulary": both.hash}
        params, rest = random_params(config.model, seed=seed), {"step": jnp.int32(step)}
        checkpoints.save(step, params, rest, progress, {"bleu": bleu})
        checkpoints.wait()
    checkpoints.close()


@made_once
def refusing_run(path: Path) -> None:
    """Make a run like :func:`random_run` whose configuration refuses long sources,
    as those of older runs do.
    """
    copy(random_run(), path)
    record = json.loads((path / "config.json").read_text())
    record["decoding"]["long_sources"] = "refuse"
    (path / "config.json").write_text(json.dumps(record))


@made_once
def reversal_run(path: Path) -> None:
    """Train the reversal task by the command line until most of it is learned, and not
    all.

    Tests only read it; those that write take :func:`copy`.
    """
    values = {
        "model.d_model": 64,
        "model.d_ff": 128,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "data.num_buckets": 1,
        "data.tokens_per_batch": 1_000,
        "training.steps": 200,
        "training.warmup_steps": 60,
        "training.learning_rate": 0.5,
        "training.evaluate_every": 200,
        "training.checkpoint_every": 100,
        "evaluation.max_sentences": 32,
    }
    options = [f"--config.{key}={value}" for key, value in values.items()]
    run = "--config=configs/reverse.py", f"--workdir={path}"
    done = command("train", *run, *options)
    assert done.returncode == 0, done.stderr.decode()


def slow_but(quick: Collection[str], names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of a test that is slow but for the quick ones."""
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def copy(run: Path, path: Path) -> Path:
    """Copy a run for a test that changes it."""
    return Path(shutil.copytree(run, path))
