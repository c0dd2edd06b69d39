"""A little run in which nothing is wrong, and ways to plant faults in it.

The working directory is that of the text, next to the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import runs
from jaxformer.checkpoints.average import save_average
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import open_to_read
from jaxformer.data import sources
from jaxformer.data.corpus import load_evaluation
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.evaluation import metrics
from jaxformer.runs import config as configuration
from jaxformer.runs import records
from jaxformer.search.config import DecodingConfig
from jaxformer.training.progress import Progress

SIZES = {"train": 1500, "valid": 150, "test": 300}
STEPS = 600
Change = Callable[[list[str]], list[str]]
Fault = Callable[[Path], object]


@runs.made_once
def template(folder: Path) -> None:
    """Make the run: real text, vocabulary and checkpoint; curves and translations of a
    good run.
    """
    with contextlib.chdir(_make(folder)):
        translate(folder / "run")


def _make(folder: Path) -> Path:
    for split, size in SIZES.items():
        pairs = list(sources.load(f"bundled:en-de/{split}", "en", "de"))[:size]
        for side, language in enumerate(("en", "de")):
            write_lines(folder / f"{split}.{language}", [pair[side] for pair in pairs])
    pairs = list(sources.load("bundled:en-de/train", "en", "de"))[: SIZES["train"]]
    vocabulary = Vocabulary.train([text for pair in pairs for text in pair], 1000)
    vocabulary.save(folder / "run" / "vocabulary" / "shared.model")
    base = configuration.parse(configuration.default_config().to_dict())
    size, run = {"vocabulary_size": vocabulary.size}, folder / "run"
    model = runs.model_config(**size, tied_embeddings="all", dropout_rate=0.1)
    data = {split: name(split) for split in SIZES} | size
    data |= {"max_length": 64, "tokens_per_batch": 500}
    rates = {"steps": STEPS, "warmup_steps": 100, "learning_rate": 0.3}
    config = dataclasses.replace(
        base,
        model=model,
        data=dataclasses.replace(base.data, **data),
        training=dataclasses.replace(base.training, **rates),
    )
    configuration.save(config, run / "config.json")
    _save_checkpoint(run, Vocabularies(vocabulary, vocabulary).hash)
    lines = [json.dumps(_line(step)) for step in range(20, STEPS + 1, 20)]
    write_lines(run / "metrics.jsonl", lines)
    return folder


def configure(run: Path, *settings: object) -> None:
    """Set keys of the run's configuration: ``"model.d_model", 512, ...``."""
    record = json.loads((run / "config.json").read_text())
    for key, value in zip(settings[::2], settings[1::2], strict=True):
        section, name = str(key).split(".")
        record[section][name] = value
    (run / "config.json").write_text(json.dumps(record))


def translate(run: Path, change: Change = list, **fields: Any) -> None:
    """Record translations that are nearly the references, changed by ``change``."""
    config = configuration.load(run / "config.json")
    pairs, _ = load_evaluation(config.data.test, config.data)
    texts, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    nearly = each(lambda line: " ".join(line.split()[1:]), every=9)
    hypotheses = change(nearly(references))
    score = metrics.score(metrics.BLEU, hypotheses, references)
    record = {
        "dataset": config.data.test,
        "text": records.fingerprint(texts, [references]),
        "bleu": round(score.value, 2),
        "bleu_signature": score.signature,
        "sentences": len(pairs),
        "unfinished": 0,
        "checkpoint": STEPS,
        "decoding": dataclasses.asdict(DecodingConfig()) | {"shortlist": False},
    }
    records.write_result(run, {**record, **fields}, hypotheses)


def alter_record(run: Path, **fields: Any) -> None:
    """Change fields of the run's only result."""
    ((name, record),) = records.read_results(run).items()
    (run / "results.json").write_text(json.dumps({name: {**record, **fields}}))


def alter_curve(run: Path, key: str, change: Callable[[int, float], float]) -> None:
    """Change the points of a curve."""
    records = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    for record in records:
        if key in record:
            record[key] = change(record["step"], record[key])
    write_lines(run / "metrics.jsonl", [json.dumps(record) for record in records])


def alter_text(run: Path, name: str, change: Change) -> None:
    """Change the lines of a file next to the run, such as ``train.de``."""
    write_lines(run.parent / name, change(read(run.parent / name)))


def fault(plant: Callable[..., object], *given: Any, **fields: Any) -> Fault:
    return lambda run: plant(run, *given, **fields)


setting = functools.partial(fault, configure)
recorded = functools.partial(fault, alter_record)
curve = functools.partial(fault, alter_curve)
written = functools.partial(fault, alter_text)
output = functools.partial(fault, translate)


def both(first: Fault, second: Fault) -> Fault:
    return lambda run: (first(run), second(run))


def removed(*patterns: str) -> Fault:
    """Remove files and folders of the run."""

    def plant(run: Path) -> None:
        for path in (path for pattern in patterns for path in run.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return plant


def made(folder: str) -> Fault:
    return lambda run: (run / folder).mkdir(parents=True)


def filled(file: str, content: str) -> Fault:
    return lambda run: (run / file).write_text(content)


def add_average(run: Path) -> None:
    save_average(run, "last-1", open_to_read(run / "checkpoints", "bleu"), [STEPS])


def each(change: Callable[[str], str], every: int = 1) -> Change:
    """Change each of so many lines."""
    return lambda lines: [
        line if i % every else change(line) for i, line in enumerate(lines)
    ]


def read(file: Path | str) -> list[str]:
    return Path(file).read_text("utf-8").split("\n")[:-1]


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def name(split: str, languages: tuple[str, str] = ("en", "de")) -> str:
    """Name the data set of a split."""
    return f"text:{','.join(f'{split}.{language}' for language in languages)}"


def _save_checkpoint(run: Path, vocabulary: str) -> None:
    checkpoints = CheckpointManager(run / "checkpoints")
    progress = {**Progress(step=STEPS).to_json(), "vocabulary": vocabulary}
    params, state = {"x": jnp.zeros(1)}, {"step": jnp.asarray(STEPS)}
    checkpoints.save(STEPS, params, state, progress, {"bleu": 20.0})
    checkpoints.close()


def _line(step: int) -> dict[str, float]:
    """Return what the log has of a step."""
    left = math.exp(-step / 60)
    line = {"step": step, "train/nll": 1.5 + 5.0 * left, "train/tokens": 8e3}
    line["train/skipped"] = 0.0
    if step % 100 == 0:
        line |= {"valid/nll": 1.9 + 3.0 * left, "valid/bleu": 20.0 - 15.0 * left}
    return line
