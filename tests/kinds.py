"""Little data sets of each kind, which the tests of several rooms share."""

import functools
import json
import os
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import runs
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data.config import DataConfig
from jaxformer.data.sources import load
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.runs.config import EvaluationConfig, RunConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.training.run import open_run

LINES = [pair.source for pair in load("bundled:en-de/valid", "en", "de")][:120]


def write_data(folder):
    """Write a file of each kind; return the name of each data set."""
    words = [line.split()[:9] for line in LINES]
    table = "".join(f"{line}\t{len(line) % 3}\n" for line in LINES)
    tagged = "\n\n".join(
        "\n".join(f"{word} {'B-X' if word[0].isupper() else 'O'}" for word in each)
        for each in words
    )
    asked = [
        {"context": line, "qas": [question(number, line)]}
        for number, line in enumerate(LINES)
    ]
    contents = {
        "text.txt": "\n\n".join(LINES),
        "labels.tsv": table,
        "tags.txt": tagged,
        "lines.txt": "\n\n".join(
            "\n".join(LINES[start : start + 3]) for start in range(0, 120, 3)
        ),
        "squad.json": json.dumps({"data": [{"paragraphs": asked}]}),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {
        "text": f"documents:{folder}/text.txt",
        "masked": f"text:{folder}/text.txt",
        "documents": f"documents:{folder}/lines.txt",
        "labelled": f"tsv:{folder}/labels.tsv",
        "scored": f"tsv:{folder}/labels.tsv",
        "tagged": f"conll:{folder}/tags.txt",
        "spans": f"squad:{folder}/squad.json",
    }


def question(number, line):
    word = line.split()[number % len(line.split())]
    answers = [{"text": word, "answer_start": line.index(word)}]
    return {"id": str(number), "question": "Which?", "answers": answers[: number % 4]}


def config_of_kind(kind, name, **options):
    small = {"vocabulary_size": 250, "max_length": 24, "tokens_per_batch": 200}
    given = {"kind": kind, "train": name, "valid": name, "test": name, "num_buckets": 3}
    return DataConfig(**{**given, **small, "workers": 1, **options})


OBJECTIVES = {
    "text": ("causal", "none"),
    "masked": ("masked", "words"),
    "documents": ("masked_and_next", "words_and_next"),
    "labelled": ("classification", "classification"),
    "scored": ("regression", "classification"),
    "tagged": ("tagging", "tagging"),
    "spans": ("span", "span"),
}


def run_config(kind, name, *, training=None, **data):
    """Return the configuration of a tiny run of a kind."""
    objective, head = OBJECTIVES[kind]
    stacks = {"num_encoder_layers": 1, "num_decoder_layers": 0}
    if kind == "text":
        stacks = {"num_encoder_layers": 0, "num_decoder_layers": 1}
    return RunConfig(
        TransformerConfig(d_model=8, num_heads=2, max_length=128, head=head, **stacks),
        config_of_kind(kind, name, **data),
        TrainingConfig(objective=objective, label_smoothing=0.0, **(training or {})),
        DecodingConfig(),
        EvaluationConfig(max_sentences=0, best_metric="loss"),
    )


def drawn_run(kind, name, directory, *, step=1, record=None, **options):
    """Write a run of a kind with a checkpoint of random parameters."""
    with open_run(run_config(kind, name, **options), directory).claim():
        run = open_run(run_config(kind, name, **options), directory)
    model = make_model(run.config.model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 1), int))
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=leaf.shape), leaf.dtype),
        shapes["params"],
    )
    checkpoints = CheckpointManager(directory / "checkpoints", keep_latest=1)
    record = {"vocabulary": run.vocabularies.hash, **(record or {})}
    checkpoints.save(step, params, {"step": jnp.int32(step)}, record, None)
    checkpoints.close()
    return directory


@functools.cache
def shared_data():
    """Write the data sets in a folder of the tests' own; return the names."""
    return write_data(Path(tempfile.mkdtemp(dir=os.environ[runs.FOLDER])))


@functools.cache
def shared_run(kind):
    """Make a run of a kind once; tests only read it."""
    folder = Path(tempfile.mkdtemp(dir=os.environ[runs.FOLDER])) / "run"
    return drawn_run(kind, shared_data()[kind], folder)
