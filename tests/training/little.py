"""What the tests of training share: a little model's alphabet, a little corpus, a
little run, and ways to compare.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.sources import reversal
from jaxformer.models.transformer import Transformer
from jaxformer.runs.config import RunConfig, load, parse
from jaxformer.runs.records import MEASURED, Validation
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import engines

VOCABULARY, PAD, EOS = 11, 0, 3

# A run of a second or two: it logs, evaluates and saves at steps of its own, so that
# each meets each.
LITTLE_RUN: dict[str, Any] = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout_rate": 0.1,
    "model.max_length": 32,
    "data.vocabulary_size": 57,
    "data.max_length": 16,
    "data.tokens_per_batch": 200,
    "data.num_buckets": 2,
    "training.steps": 12,
    "training.warmup_steps": 20,
    "training.learning_rate": 0.5,
    "training.engine": "jit",
    "training.log_every": 3,
    "training.evaluate_every": 6,
    "training.checkpoint_every": 4,
    "decoding.max_extra_length": 3,
    "evaluation.max_sentences": 4,
    "evaluation.samples": 2,
}


def assert_trees_close(found: Any, expected: Any, **tolerance: float) -> None:
    """Compare two trees of arrays leaf by leaf."""
    equal = functools.partial(np.testing.assert_allclose, **tolerance)
    jax.tree.map(lambda a, b: equal(np.asarray(a), np.asarray(b)), found, expected)


def assert_trees_equal(found: Any, expected: Any) -> None:
    """Compare two trees of arrays bit for bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    equal = np.testing.assert_array_equal
    jax.tree.map(lambda a, b: equal(np.asarray(a), np.asarray(b)), found, expected)


def write_corpus(folder: Path) -> dict[str, str]:
    """Write some of the reversal task as parallel text; the files of the test set
    cannot be read.
    """
    names = {
        "data.test": f"text:{folder / 'test.forwards'},{folder / 'test.backwards'}"
    }
    for side in ("forwards", "backwards"):
        (folder / f"test.{side}").write_bytes(b"\xff no text\n")
    for split, count in (("train", 300), ("valid", 31)):
        pairs = reversal(split)[:count]
        files = folder / f"{split}.forwards", folder / f"{split}.backwards"
        for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(line + "\n" for line in lines))
        names[f"data.{split}"] = f"text:{files[0]},{files[1]}"
    return names


def nested(keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Turn ``section.key`` into sections."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return sections


def little_config(
    corpus: dict[str, str], changes: dict[str, Any] | None = None
) -> RunConfig:
    """Return the configuration of the little run with some keys changed."""
    return parse(nested({**LITTLE_RUN, **corpus, **(changes or {})}))


@functools.cache
def _engine(model: Any, config: TrainingConfig) -> engines.Engine:
    return engines.make_engine(model, config)


# What of the section ``training`` is no part of a compiled step.
_NOT_COMPILED = (
    *("steps", "seed", "log_every", "evaluate_every", "checkpoint_every"),
    *("keep_latest", "keep_best", "keep_every", "max_bad_steps", "patience"),
    *("initial_run", "initial_optimizer", "profile_step"),
)


def cached_make_engine(model: Any, config: TrainingConfig) -> engines.Engine:
    """Stand in for ``make_engine``: compiling takes seconds, and many runs have the
    same steps.
    """
    same = {name: getattr(TrainingConfig, name) for name in _NOT_COMPILED}
    if config.lora_rank is not None:
        same["initial_run"] = "any"
    return _engine(model, dataclasses.replace(config, **same))


@contextlib.contextmanager
def compiling() -> Iterator[list[str]]:
    """Yield a list that gets the names of the programs that are compiled within the
    block, but for those by which orbax cuts arrays that several devices hold.
    """
    names: list[str] = []

    def note(event: str, _: float, **facts: Any) -> None:
        if event.endswith("/backend_compile_duration") and "slice" not in str(facts):
            names.append(facts["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def score(run: Any, model: Any) -> Any:
    """Stand in for ``make_validator``, which translates: scores and samples show
    which parameters they are of.
    """

    def validate(params: Any, stop: Callable[[], bool], _: Any) -> Validation | None:
        size = sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(params))
        source, target = run.valid[0]
        sample = {"source": source, "reference": target, "translation": str(size)}
        return None if stop() else Validation({"bleu": size % 1.0}, [sample])

    return validate


def without_key_biases(tree: Any) -> dict[str, Any]:
    """Leave out the biases of the keys, which change no softmax: their gradient is 0
    but for rounding, of which Adam, whose steps do not depend on the size of a
    gradient, makes whole steps.
    """
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if "['key']['bias']" not in jax.tree_util.keystr(path)
    }


def steps_of(directory: Path) -> list[int]:
    """List the checkpoints of a run."""
    return SavedCheckpoints(directory / "checkpoints").steps


def read_checkpoint(directory: Path, step: int) -> Any:
    """Read all arrays of a checkpoint."""
    config = load(directory / "config.json")
    state = cached_make_engine(Transformer(config.model), config.training).shapes
    checkpoints = SavedCheckpoints(directory / "checkpoints")
    parts = checkpoints.restore(step, params=state.weights, training=state.rest())
    return jax.tree.map(np.asarray, parts)


def read_records(directory: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Read the lines of a record, without what the machine decides, such as the
    speed.
    """
    lines = (directory / name).read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    records = [json.loads(line) for line in lines]
    for record in records:
        for key in MEASURED & record.keys():
            del record[key]
    return records


def assert_same_run(found: Path, expected: Path) -> None:
    """Two runs ended at the same step with the same bits, and left the same records,
    line for line.
    """
    last = steps_of(expected)[-1]
    assert steps_of(found)[-1] == last
    assert_trees_equal(read_checkpoint(found, last), read_checkpoint(expected, last))
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert read_records(found, name) == read_records(expected, name)
