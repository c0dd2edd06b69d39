#!/usr/bin/env python3
"""Measure the way from text to padded batches: pairs a second, or padding.

    python scripts/benchmark/data.py speed   --source=train.en --target=train.de
    python scripts/benchmark/data.py padding --source=train.en --target=train.de

``speed`` runs each way in turn, several times, and prints medians: from text (clean,
tokenise, plan, pad) in one process and in one a core, and from a prepared folder in
buckets and packed. ``padding`` prints the share of padding in the batches of an epoch.
The default text is the bundled corpus, ten times over.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import turns
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import TrainingText
from jaxformer.data.encoding import cores
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.preparing import prepare
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies


def main() -> None:
    """Run what the command line asks for."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("what", choices=["speed", "padding"])
    parser.add_argument("--source", help="text, a sentence a line (default: bundled)")
    parser.add_argument("--target", help="its translation")
    turns.add_numbers(
        parser,
        ("repeats", 5, "of each way of speed"),
        ("vocabulary_size", 8000, "of both languages"),
        ("tokens_per_batch", 25_000, "slots on each side of a batch"),
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        {"speed": speed, "padding": padding}[options.what](options, Path(scratch))


def config_of(
    options: argparse.Namespace, scratch: Path, **changes: object
) -> DataConfig:
    """Return a configuration that reads the text of the command line."""
    files = options.source, options.target
    if options.source is None:
        files = scratch / "train.en", scratch / "train.de"
        if not files[0].exists():
            sides = zip(*load("bundled:en-de/train", "en", "de"), strict=True)
            for path, lines in zip(files, sides, strict=True):
                text = "".join(f"{line}\n" for line in lines)
                path.write_text(text * 10, encoding="utf-8")
    values = {
        "train": f"text:{files[0]},{files[1]}",
        "vocabulary_size": options.vocabulary_size,
        "max_length": 128,
        "tokens_per_batch": options.tokens_per_batch,
        "num_buckets": 12,
        "packing": False,
        "packed_length": 256,
        **changes,
    }
    return DataConfig(**values)


def epoch(data: TrainingData) -> int:
    """Make every batch of an epoch; count the pairs."""
    batches = data.statistics.batches
    assert sum(1 for _ in itertools.islice(data.batches(), batches)) == batches
    return data.statistics.pairs


def speed(options: argparse.Namespace, scratch: Path) -> None:
    """Print pairs a second of each way to batches."""
    prepare(config_of(options, scratch), scratch / "prepared")
    vocabularies = Vocabularies.load(scratch / "prepared" / "vocabulary")

    def read_text(**changes: object) -> TrainingData:
        text = TrainingText.open(config_of(options, scratch, **changes))
        return text.load(vocabularies, seed=0)

    prepared = {"train": f"prepared:{scratch}/prepared"}
    buckets, packed = read_text(**prepared), read_text(**prepared, packing=True)
    ways: dict[str, Callable[[], int]] = {
        "text, one process": lambda: epoch(read_text(workers=1)),
        "text, a process a core": lambda: epoch(read_text(workers=cores())),
        "prepared folder, buckets": lambda: epoch(buckets),
        "prepared folder, packed": lambda: epoch(packed),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            pairs = way()
            rates[name].append(pairs / (time.perf_counter() - begun))
    for name, measured in rates.items():
        print(
            f"{name:<26} {statistics.median(measured):>10,.0f} pairs/s   (least"
            f" {min(measured):,.0f}, most {max(measured):,.0f}, {len(measured)} runs)"
        )


def padding(options: argparse.Namespace, scratch: Path) -> None:
    """Print the share of padding of an epoch, by number of buckets and packed, with
    and without rounded shapes.
    """
    text = TrainingText.open(config_of(options, scratch))
    store = text.load(text.vocabularies(scratch / "vocabulary"), seed=0).store
    for count, multiple in itertools.product((1, 4, 6, 8, 12, 24, 48, 0), (1, 8)):
        name = f"{count} buckets" if count else "packed"
        shape = {"num_buckets": count} if count else {"packing": True}
        config = config_of(options, scratch, **shape, shape_multiple=multiple)
        facts = TrainingData.from_pairs(store, config, seed=0).statistics
        print(
            f"{name}, shape_multiple {multiple}: {facts.padding:.1%} padding,"
            f" {facts.batches} batches of {facts.shapes} shapes, {facts.pairs:,} pairs"
        )


if __name__ == "__main__":
    turns.run(main)
