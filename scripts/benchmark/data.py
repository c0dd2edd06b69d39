#!/usr/bin/env python3
"""Measure the data room: pairs a second from text and from prepared shards, padding, and memory.

    python scripts/benchmark/data.py speed   --source=train.en --target=train.de
    python scripts/benchmark/data.py padding --source=train.en --target=train.de
    python scripts/benchmark/data.py memory  --pairs=20000000 --steps=10000

``speed`` runs every way in turn, several times, and prints medians: ours from text (clean, tokenise, plan, pad) and
from prepared shards, a plain Python loop over the same text, and, where it is installed, Hugging Face `datasets`, which
tokenises by the same SentencePiece model, shuffles, and pads each batch to its longest sentence. ``memory`` writes a
prepared folder of invented pairs and reads all of it. By default the bundled corpus is read, ten times over.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxformer.data import (
    DataConfig,
    Encoded,
    Prepared,
    Sentences,
    ShardWriter,
    TrainingData,
    TrainingText,
    Vocabularies,
    load,
    prepare,
)
from jaxformer.data.tokenizing import cores

PAGE = resource.getpagesize()


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "padding", "memory"])
    parser.add_argument("--source", help="text, one sentence a line (default: the bundled corpus, ten times)")
    parser.add_argument("--target", help="its translation")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary_size", type=int, default=8000)
    parser.add_argument("--tokens_per_batch", type=int, default=25_000)
    parser.add_argument("--pairs", type=int, default=20_000_000)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        {"speed": speed, "padding": padding, "memory": memory}[options.what](options, Path(scratch))


def config_of(options: argparse.Namespace, scratch: Path, **changes: object) -> DataConfig:
    """Give a configuration that reads the text of the command line."""
    source, target = options.source, options.target
    if source is None:
        pairs = list(load("bundled:en-de/train", "en", "de")) * 10
        source, target = scratch / "train.en", scratch / "train.de"
        source.write_text("".join(pair.source + "\n" for pair in pairs), "utf-8")
        target.write_text("".join(pair.target + "\n" for pair in pairs), "utf-8")
    values = {
        "train": f"text:{source},{target}",
        "vocabulary_size": options.vocabulary_size,
        "max_length": 128,
        "tokens_per_batch": options.tokens_per_batch,
        "num_buckets": 12,
        **changes,
    }
    return DataConfig(**values)


def epoch(data: TrainingData) -> int:
    """Make every batch of an epoch; count the pairs."""
    for number, _ in enumerate(data.batches(), 1):
        if number == data.statistics.batches:
            return data.statistics.pairs
    raise AssertionError


def speed(options: argparse.Namespace, scratch: Path) -> None:
    """Print pairs a second of each way to batches."""
    config = config_of(options, scratch)
    prepare(config, scratch / "prepared")
    vocabularies = Vocabularies.load(scratch / "prepared" / "vocabulary")
    from_shards = config_of(options, scratch, train=f"prepared:{scratch}/prepared")
    packed = config_of(options, scratch, train=f"prepared:{scratch}/prepared", packing=True)
    opened = {name: TrainingText.open(c).load(vocabularies, seed=0) for name, c in (("b", from_shards), ("p", packed))}
    ways: dict[str, Callable[[], int]] = {
        "text, tokenised in this process": lambda: epoch(
            TrainingText.open(config_of(options, scratch, workers=1)).load(vocabularies, seed=0)
        ),
        "text, tokenised in a process a core": lambda: epoch(
            TrainingText.open(config_of(options, scratch, workers=cores())).load(vocabularies, seed=0)
        ),
        "prepared shards, buckets": lambda: epoch(opened["b"]),
        "prepared shards, packed": lambda: epoch(opened["p"]),
        "plain Python loop over text": lambda: plain_loop(config, vocabularies),
    }
    try:
        import datasets
    except ModuleNotFoundError:
        datasets = None
    if datasets is not None:
        ways["Hugging Face datasets, tokenised before"] = hugging_face(datasets, config, vocabularies)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            pairs = way()
            rates[name].append(pairs / (time.perf_counter() - begun))
    for name, measured in rates.items():
        print(
            f"{name:<42} {statistics.median(measured):>10,.0f} pairs/s   "
            f"(least {min(measured):,.0f}, most {max(measured):,.0f}, {len(measured)} runs)"
        )


def plain_loop(config: DataConfig, vocabularies: Vocabularies) -> int:
    """Read, tokenise a sentence at a time, fill buckets by length, pad: what a person writes first."""
    lengths = [16, 32, 48, 64, 96, 128]
    buckets: dict[int, list[tuple[list[int], list[int]]]] = {length: [] for length in lengths}
    source, target = vocabularies.source, vocabularies.target
    pairs = 0

    def pad(rows: list[list[int]], length: int) -> np.ndarray:
        return np.array([row + [source.pad_id] * (length - len(row)) for row in rows], np.int32)

    for pair in load(config.train, "en", "de"):
        ids = [*source.encode(pair.source), source.eos_id], [*target.encode(pair.target), target.eos_id]
        length = next((length for length in lengths if length >= max(map(len, ids))), None)
        if length is None:
            continue
        pairs += 1
        buckets[length].append(ids)
        if len(buckets[length]) * length >= config.tokens_per_batch:
            for side in range(2):
                pad([both[side] for both in buckets[length]], length)
            buckets[length] = []
    return pairs


def hugging_face(datasets, config: DataConfig, vocabularies: Vocabularies) -> Callable[[], int]:
    """Give an epoch over a data set that was tokenised and saved as Arrow before, padded batch by batch."""
    pairs = list(load(config.train, "en", "de"))
    source, target = vocabularies.source, vocabularies.target
    data = datasets.Dataset.from_dict(
        {
            "source": [ids + [source.eos_id] for ids in source.encode_batch([pair.source for pair in pairs])],
            "target": [ids + [target.eos_id] for ids in target.encode_batch([pair.target for pair in pairs])],
        }
    )
    rows = config.tokens_per_batch // 32

    def run() -> int:
        count = 0
        for batch in data.shuffle(seed=0).iter(batch_size=rows):
            for side in ("source", "target"):
                longest = max(map(len, batch[side]))
                np.array([ids + [0] * (longest - len(ids)) for ids in batch[side]], np.int32)
            count += len(batch["source"])
        return count

    return run


def padding(options: argparse.Namespace, scratch: Path) -> None:
    """Print the share of padding of an epoch, by number of buckets and packed."""
    config = config_of(options, scratch)
    text = TrainingText.open(config)
    vocabularies = text.vocabularies(scratch / "vocabulary")
    for change in [{"num_buckets": count} for count in (6, 12, 16, 24, 32, 48)] + [{"packing": True}]:
        facts = TrainingText.open(config_of(options, scratch, **change)).load(vocabularies, seed=0).statistics
        print(f"{change}: {facts.padding:.2%} padding, {facts.batches} batches, {facts.pairs:,} pairs")


def memory(options: argparse.Namespace, scratch: Path) -> None:
    """Write a prepared folder of invented pairs, read all of it, and print the memory of the process on the way."""
    begun = time.perf_counter()
    writer = ShardWriter(scratch / "prepared", {})
    for piece in invented(options.pairs, options.vocabulary_size):
        writer.add(piece, options.vocabulary_size)
    writer.finish({"vocabulary": "", "counts": {}, "lengths": []})
    size = sum(path.stat().st_size for path in (scratch / "prepared").iterdir())
    print(f"wrote {options.pairs:,} pairs, {size / 2**30:.2f} GiB, in {time.perf_counter() - begun:.0f} s")
    del writer
    begun = time.perf_counter()
    store = Prepared.open(scratch / "prepared", pad_id=(0, 0), vocabulary_size=options.vocabulary_size)
    data = TrainingData.of(store, DataConfig(tokens_per_batch=options.tokens_per_batch, num_buckets=12), seed=0)
    batches = data.batches()
    print(f"opened and planned in {time.perf_counter() - begun:.1f} s, {resident():,.0f} MB")
    begun, pairs, steps = time.perf_counter(), 0, 0
    while pairs < options.pairs or steps < options.steps:
        batch, _ = next(batches)
        pairs += int((batch["target"][:, 0] != 0).sum())
        steps += 1
        if steps % 1000 == 0:
            rate = pairs / (time.perf_counter() - begun)
            print(
                json.dumps({"step": steps, "pairs": pairs, "MB": round(resident()), "pairs/s": round(rate)}), flush=True
            )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory of the process: {most:,.0f} MB; {pairs / (time.perf_counter() - begun):,.0f} pairs/s")


def invented(pairs: int, size: int) -> Iterator[Encoded]:
    """Invent pairs whose lengths are spread as those of news are, a piece at a time."""
    generator = np.random.default_rng(0)
    for start in range(0, pairs, 50_000):
        count = min(50_000, pairs - start)
        means = generator.lognormal(3.1, 0.55, count)
        sides = []
        for _ in range(2):
            lengths = np.clip(means * generator.lognormal(0, 0.15, count), 2, 120).astype(np.int64)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            sides.append(Sentences(generator.integers(4, size, offsets[-1], np.int32), offsets, 0))
        yield Encoded(*sides)


def resident() -> float:
    """Give the memory that the process holds now, in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


if __name__ == "__main__":
    main()
