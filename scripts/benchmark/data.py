#!/usr/bin/env python3
"""Measure the data room: pairs a second from text and from prepared folder, padding,
and memory.

    python scripts/benchmark/data.py speed   --source=train.en --target=train.de
    python scripts/benchmark/data.py padding --source=train.en --target=train.de
    python scripts/benchmark/data.py memory  --pairs=20000000 --steps=10000
    python scripts/benchmark/data.py memory  --road=text --pairs=2000000

``speed`` runs every way in turn, several times, and prints medians: ours from text
(clean, tokenise, plan, pad) and from prepared folder, a plain Python loop over the same
text, and Hugging Face `datasets` (extra `benchmark`), which was tokenised by the same
SentencePiece model before, shuffles, and pads each batch to its longest sentence, by
the collator of `transformers` and by a loop. ``padding`` prints how much of the batches
of an epoch is padding, and how little any such lengths could reach. ``memory`` writes a
prepared folder of invented pairs and reads all of it; with ``--road=text`` it writes
plain text instead, made of the bundled corpus, and trains straight from that. By
default ``speed`` and ``padding`` read the bundled corpus, ten times over.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import statistics
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

import turns
from data_peers import hugging_face, plain_loop
from jaxformer.data import (
    DataConfig,
    Encoded,
    Pair,
    Sentences,
    TrainingData,
    TrainingText,
    Vocabularies,
    load,
    prepare,
)
from jaxformer.data.encoding import cores
from jaxformer.data.store import TokenWriter
from jaxformer.errors import InputError

PAGE = resource.getpagesize()


def main() -> None:
    """Run what the command line asks for."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("what", choices=["speed", "padding", "memory"])
    parser.add_argument(
        "--source",
        help="text of speed and padding, a sentence a line (default: bundled, ten"
        " times)",
    )
    parser.add_argument("--target", help="its translation")
    parser.add_argument(
        "--road",
        choices=["prepared", "text"],
        default="prepared",
        help="what memory reads",
    )
    pairs = "of memory (default: 20 million prepared ones, 2 million of text)"
    turns.add_numbers(
        parser,
        ("repeats", 5, "of each way of speed"),
        ("vocabulary_size", 8000, "of both languages"),
        ("tokens_per_batch", 25_000, "slots on each side of a batch"),
        ("pairs", None, pairs),
        ("steps", 10_000, "least steps of memory from prepared folder"),
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        memory = {"prepared": memory_of_prepared, "text": memory_of_text}[options.road]
        {"speed": speed, "padding": padding, "memory": memory}[options.what](
            options, Path(scratch)
        )


def config_of(
    options: argparse.Namespace, scratch: Path, **changes: object
) -> DataConfig:
    """Return a configuration that reads the text of the command line."""
    source, target = options.source, options.target
    if source is None:
        source, target = scratch / "train.en", scratch / "train.de"
        if not source.exists():
            write_text(
                list(load("bundled:en-de/train", "en", "de")) * 10, source, target
            )
    values = {
        "train": f"text:{source},{target}",
        "vocabulary_size": options.vocabulary_size,
        "max_length": 128,
        "tokens_per_batch": options.tokens_per_batch,
        "num_buckets": 12,
        **changes,
    }
    return DataConfig(**values)


def write_text(pairs: Iterable[Pair], source: Path, target: Path) -> None:
    """Write a sentence a line, the two sides into two files."""
    with (
        source.open("w", encoding="utf-8") as sources,
        target.open("w", encoding="utf-8") as targets,
    ):
        for pair in pairs:
            sources.write(pair.source + "\n")
            targets.write(pair.target + "\n")


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

    def read_text(**changes: object) -> TrainingData:
        text = TrainingText.open(config_of(options, scratch, **changes))
        return text.load(vocabularies, seed=0)

    prepared = {"train": f"prepared:{scratch}/prepared"}
    buckets, packed = read_text(**prepared), read_text(**prepared, packing=True)
    ways: dict[str, Callable[[], int]] = {
        "text, tokenised in this process": lambda: epoch(read_text(workers=1)),
        "text, tokenised in a process a core": lambda: epoch(
            read_text(workers=cores())
        ),
        "prepared folder, buckets": lambda: epoch(buckets),
        "prepared folder, packed": lambda: epoch(packed),
        "plain Python loop over text": lambda: plain_loop(config, vocabularies),
    }
    try:
        ways |= hugging_face(config, vocabularies, scratch / "arrow")
    except InputError as error:
        print(f"left out Hugging Face datasets with its collator: {error}")
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            pairs = way()
            rates[name].append(pairs / (time.perf_counter() - begun))
    for name, measured in rates.items():
        print(
            f"{name:<42} {statistics.median(measured):>10,.0f} pairs/s   (least"
            f" {min(measured):,.0f}, most {max(measured):,.0f}, {len(measured)} runs)"
        )


def padding(options: argparse.Namespace, scratch: Path) -> None:
    """Print the share of padding of an epoch, by number of buckets and packed, with
    and without rounded shapes; and the least of twelve lengths.
    """
    text = TrainingText.open(config_of(options, scratch))
    store = text.load(text.vocabularies(scratch / "vocabulary"), seed=0).store
    buckets = [{"num_buckets": count} for count in (1, 4, 6, 8, 12, 24, 48)]
    for shape, multiple in itertools.product([*buckets, {"packing": True}], (1, 8)):
        config = config_of(options, scratch, **shape, shape_multiple=multiple)
        facts = TrainingData.from_pairs(store, config, seed=0).statistics
        print(
            f"{shape}, shape_multiple {multiple}: {facts.padding:.1%} padding,"
            f" {facts.batches} batches of {facts.shapes} shapes, {facts.pairs:,} pairs"
        )
    tokens = slots = 0
    for side, lengths in (
        ("source", store.source_lengths),
        ("target", store.target_lengths),
    ):
        best = best_lengths(lengths, 12)
        tokens += lengths.sum(dtype=np.int64)
        slots += best[np.searchsorted(best, lengths)].sum()
        print(
            f"best 12 lengths of the {side} ({lengths.min()} to {lengths.max()}"
            f" tokens): {best.tolist()}"
        )
    print(
        f"each side alone at its best 12 lengths: {1 - tokens / slots:.2%} padding; no"
        " 12 shapes do better"
    )


def best_lengths(lengths: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """Choose the at most ``count`` lengths that waste fewest slots when each sentence
    is padded to the next of them.

    Exact, by a dynamic programme over the histogram: with ``k`` lengths of which the
    last is ``n``, sentences of at most ``n`` tokens take the slots that those up to
    some shorter ``m`` take with ``k - 1`` lengths, and ``n`` each for the rest. Batches
    of ``count`` shapes have no more lengths than this on either side, so none can waste
    less.

    Args:
        lengths: tokens of each sentence, at least one sentence [N].
        count: most lengths.

    Returns:
        The lengths, ascending; the last is that of the longest sentence.
    """
    up_to = np.bincount(lengths).cumsum()
    ends = np.arange(len(up_to))
    # [m, n]: the slots of the sentences of more than m and at most n tokens, each
    # padded to n.
    slots = np.where(
        ends[:, None] < ends, ends * (up_to - up_to[:, None]).astype(np.float64), np.inf
    )
    least = np.where(ends == 0, 0.0, np.inf)
    before = []
    for _ in range(min(count, len(np.unique(lengths)))):
        totals = least[:, None] + slots
        before.append(totals.argmin(0))
        least = totals.min(0)
    chosen = [int(ends[-1])]
    for choice in reversed(before[1:]):
        chosen.append(int(choice[chosen[-1]]))
    return np.array(chosen[::-1])


def memory_of_prepared(options: argparse.Namespace, scratch: Path) -> None:
    """Write a prepared folder of invented pairs, read all of it, and print the
    memory of the process on the way.
    """
    count = options.pairs or 20_000_000
    begun = time.perf_counter()
    folder = scratch / "prepared"
    folder.mkdir()
    dtype = "<u2" if options.vocabulary_size <= 1 << 16 else "<i4"
    form = types.SimpleNamespace(pad_ids=(0, 0), token_dtype=dtype)
    with TokenWriter(cast("Vocabularies", form), folder) as writer:
        for piece in invented(count, options.vocabulary_size):
            writer.add(piece)
        store = writer.finish()
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"wrote {count:,} pairs, {size / 2**30:.2f} GiB, in"
        f" {time.perf_counter() - begun:.0f} s"
    )
    begun = time.perf_counter()
    data = TrainingData.from_pairs(
        store,
        DataConfig(tokens_per_batch=options.tokens_per_batch, num_buckets=12),
        seed=0,
    )
    print(f"planned in {time.perf_counter() - begun:.1f} s, {resident():,.0f} MB")
    read(data, steps=options.steps, every=1000)


def memory_of_text(options: argparse.Namespace, scratch: Path) -> None:
    """Write plain text, train straight from it for an epoch, and print the memory of
    the process on the way.
    """
    count = options.pairs or 2_000_000
    bundled = TrainingText.open(DataConfig(vocabulary_size=options.vocabulary_size))
    source, target = scratch / "train.en", scratch / "train.de"
    write_text(varied(list(bundled.pairs), count), source, target)
    text_size = source.stat().st_size + target.stat().st_size
    print(f"wrote {count:,} pairs of text, {text_size / 1e6:,.0f} MB")
    # Of the bundled corpus, which has the same words: SentencePiece holds the text that
    # it trains on in memory.
    vocabularies = bundled.vocabularies(scratch / "vocabulary")
    config = config_of(options, scratch, train=f"text:{source},{target}")
    print(f"before reading: {resident():,.0f} MB")
    begun = time.perf_counter()
    with watched():
        data = TrainingText.open(config).load(vocabularies, seed=0)
    took = time.perf_counter() - begun
    assert isinstance(data.store, Encoded)  # the spooled text of one data set
    spooled = sum(side.tokens.nbytes for side in (data.store.source, data.store.target))
    print(
        f"tokenised and planned in {took:.0f} s, {resident():,.0f} MB;"
        f" {len(data.store):,} pairs are left"
    )
    print(
        f"temporary files: {spooled / 1e6:,.0f} MB, {spooled / text_size:.2f} bytes for"
        " each byte of text"
    )
    read(data, steps=0, every=200)


def read(data: TrainingData, *, steps: int, every: int) -> None:
    """Read an epoch, and on to at least so many steps; print the memory ``every`` so
    many, and the most.
    """
    begun, pairs = time.perf_counter(), 0
    for step, (batch, position) in enumerate(data.batches(), 1):
        pairs += int((batch["target"][:, 0] != 0).sum())
        ended = position.epoch > 0 and step >= steps
        rate = pairs / (time.perf_counter() - begun)
        if step % every == 0 or ended:
            tell(step=step, pairs=pairs, **megabytes(), **{"pairs/s": round(rate)})
        if ended:
            break
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(
        f"most memory of the process: {most:,.0f} MB"
        + (f"; of one that it started: {workers:,.0f} MB" if workers else "")
    )


@contextlib.contextmanager
def watched(interval: float = 10.0) -> Iterator[None]:
    """Print the memory of the process every few seconds while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        begun = time.perf_counter()
        while not ended.wait(interval):
            tell(s=round(time.perf_counter() - begun), **megabytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def invented(pairs: int, size: int) -> Iterator[Encoded]:
    """Invent pairs whose lengths are spread as those of news are, a piece at a time."""
    generator = np.random.default_rng(0)
    for start in range(0, pairs, 50_000):
        count = min(50_000, pairs - start)
        means = generator.lognormal(3.1, 0.55, count)
        sides = []
        for _ in range(2):
            lengths = np.clip(means * generator.lognormal(0, 0.15, count), 2, 120)
            offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64))])
            tokens = generator.integers(4, size, offsets[-1], np.int32)
            sides.append(Sentences(tokens, offsets, 0))
        yield Encoded(*sides)


def varied(pairs: list[Pair], count: int) -> Iterator[Pair]:
    """Invent pairs of text: one to four of these end to end, drawn at random, so
    that hardly any two are the same.
    """
    generator = np.random.default_rng(0)
    for start in range(0, count, 50_000):
        chosen = generator.integers(0, len(pairs), (min(50_000, count - start), 4))
        for row, parts in zip(
            chosen.tolist(), generator.integers(1, 5, len(chosen)).tolist(), strict=True
        ):
            drawn = [pairs[index] for index in row[:parts]]
            yield Pair(
                " ".join(pair.source for pair in drawn),
                " ".join(pair.target for pair in drawn),
            )


def tell(**record: int) -> None:
    """Print a record at once."""
    print(json.dumps(record), flush=True)


def megabytes() -> dict[str, int]:
    """Return the memory that the process holds now, and how much of it the system may
    take back: mapped files.
    """
    shared = int(Path("/proc/self/statm").read_text().split()[2]) * PAGE / 1e6
    return {"MB": round(resident()), "of mapped files": round(shared)}


def resident() -> float:
    """Return the memory that the process holds now, in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


if __name__ == "__main__":
    turns.run(main)
