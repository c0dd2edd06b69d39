#!/usr/bin/env python3
r"""Measure training steps of the paper's models: tokens a second, use of the devices,
compilation, memory.

    python scripts/benchmark/train.py --preset=gpu --model=big  # bfloat16
    python scripts/benchmark/train.py --preset=gpu --model=big --tokens=sweep
    python scripts/benchmark/train.py --preset=gpu --model=base --packing \
        --profile=trace
    python scripts/benchmark/train.py --preset=cpu              # small, for a laptop

The batches are invented: lengths spread as those of news are, in buckets as training
has them (``--buckets=1``: one shape; ``--packing``: rows of several pairs). The steps
are those of training, dropout on, by the engine that training would take. Every shape
is compiled before the clock runs; the batches are then on the device, as in training. A
step's time is that between the metrics of two steps, read as the loop reads them: one
step late, but on a CPU at once.

Printed are, as a table and as one line of JSON a size of batch, tokens a second of the
target and of both sides (padding is none of them), the median step, the utilisation of
the devices by real tokens (MFU) and by slots with padding, seconds of compilation, and
the most memory that a device held; the last two only where JAX tells them. A sweep
doubles the batch until the memory is full.

What to pass: 82,059 target tokens a second for big, which NVIDIA published for its
fairseq code on one A100 in mixed precision (Deep Learning Examples,
PyTorch/Translation/Transformer). The goals are an MFU of 50 % for big and of 35 % for
base, of the bfloat16 peak without sparsity (jaxformer/models/flops.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

import turns
from data import invented
from jaxformer.data import DataConfig, Encoded, Sentences, TrainingData
from jaxformer.data.batching import Batch
from jaxformer.models import flops
from jaxformer.models.config import DTYPES, TransformerConfig
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.nn.stacks import REMATERIALIZATIONS
from jaxformer.runs.training import ENGINES, TrainingConfig
from jaxformer.training.compilations import Compilations, read_memory
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.state import TrainState

MODELS: Mapping[str, Callable[[int], TransformerConfig]] = {
    "base": TransformerConfig.base,
    "big": TransformerConfig.big,
    "tiny": TransformerConfig.tiny,
}

# What the command line does not say.
GIVEN = ("model", "dtype", "vocabulary_size", "tokens", "steps")
PRESETS: Mapping[str, Mapping[str, str | int]] = {
    "gpu": dict(zip(GIVEN, ("big", "bfloat16", 37_000, "25000", 40), strict=True)),
    "cpu": dict(zip(GIVEN, ("tiny", "float32", 8_000, "1000", 10), strict=True)),
}

SMALLEST = {"gpu": 6_250, "cpu": 250}
"""Tokens on each side of the first batch of a sweep."""

WARM_STEPS = 3

COLUMNS = {
    "tokens": ("tokens", ",.0f"),
    "shapes": ("shapes", ",.0f"),
    "padding": ("padding", ".1%"),
    "target_tokens_per_second": ("target tok/s", ",.0f"),
    "tokens_per_second": ("all tok/s", ",.0f"),
    "step_ms": ("step ms", ",.1f"),
    "mfu": ("MFU", ".1%"),
    "mfu_slots": ("with padding", ".1%"),
    "compile_seconds": ("compile s", ",.1f"),
    "memory_gib": ("GiB", ",.1f"),
}


def main() -> None:
    """Run what the command line asks for."""
    options = parse()
    # Of the devices' memory JAX takes three quarters otherwise.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    config = dataclasses.replace(
        MODELS[options.model](options.vocabulary_size),
        dtype=options.dtype,
        rematerialization=options.rematerialization,
        scan_layers=options.scan_layers,
    )
    training = TrainingConfig(
        engine=options.engine, accumulation_steps=options.accumulation_steps
    )
    model = Transformer(config)
    parameters = count_parameters(make_engine(model, training).abstract().params)
    device = jax.devices()[0]
    print(
        f"{options.model}: {parameters:,} parameters, {config.dtype}, on"
        f" {jax.device_count()} x {device.device_kind}"
    )
    named = {"model": options.model, "dtype": config.dtype}
    named["device"] = device.device_kind
    rows: list[dict[str, float | str | None]] = []
    for tokens in sizes(options.tokens, SMALLEST[options.preset]):
        try:
            row = measure(model, training, tokens, options)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print(
                f"{tokens:,} tokens a side of a batch do not fit:"
                f" {str(error).splitlines()[0]}"
            )
            break
        rows.append({**named, **row})
        print(json.dumps(rows[-1]), flush=True)
        if options.tokens == "sweep" and tokens >= options.most_tokens:
            break
    rows.sort(key=lambda row: float(row["target_tokens_per_second"] or 0))
    print(turns.format_table(COLUMNS, rows))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    parser.add_argument(
        "--preset",
        choices=[*PRESETS],
        required=True,
        help="what holds for all that is not given",
    )
    parser.add_argument("--model", choices=[*MODELS])
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument(
        "--tokens",
        help="slots on each side of a batch, several separated by commas; or sweep",
    )
    turns.add_numbers(
        parser,
        ("vocabulary_size", None, "of the model"),
        ("most_tokens", 400_000, "where a sweep ends at the latest"),
        ("steps", None, "that are timed"),
        ("buckets", 6, "shapes of batches at most"),
        ("accumulation_steps", 1, "batches of an update"),
    )
    parser.add_argument(
        "--packing", action="store_true", help="rows of several pairs, all of one shape"
    )
    parser.add_argument(
        "--rematerialization", choices=REMATERIALIZATIONS, default="none"
    )
    parser.add_argument("--scan_layers", action="store_true")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="DIR",
        help="trace some steps more, for TensorBoard or Perfetto",
    )
    options = parser.parse_args()
    for name, value in PRESETS[options.preset].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def sizes(tokens: str, smallest: int) -> Iterator[int]:
    """Return the sizes of batches that the command line names; those of a sweep
    without end.
    """
    if tokens != "sweep":
        return map(int, tokens.split(","))
    return (smallest * 2**number for number in itertools.count())


def measure(
    model: Transformer,
    training: TrainingConfig,
    tokens: int,
    options: argparse.Namespace,
) -> dict[str, float | None]:
    """Time the steps of batches of so many slots a side."""
    batches = make_batches(model.config.vocabulary_size, tokens, options)
    engine = make_engine(model, training)
    state = engine.create()
    placed = [engine.put(batch) for batch in batches]
    with Compilations() as compilations:
        begun = time.perf_counter()
        # Packed rows have the same shape all; of other batches each shape once.
        for index in {
            tuple(batch[side].shape for side in sorted(batch)): i
            for i, batch in enumerate(batches)
        }.values():
            state, _ = engine.step(state, placed[index])
        jax.block_until_ready(state)
        first = time.perf_counter() - begun
    for batch in placed[:WARM_STEPS]:
        state, _ = engine.step(state, batch)
    jax.block_until_ready(state)
    state, times = timed(engine, state, placed)
    if options.profile is not None:
        with jax.profiler.trace(str(options.profile)):
            state, _ = timed(engine, state, placed[:5])
    memory = read_memory().get("train/memory_bytes")
    return {
        "tokens": tokens,
        "shapes": engine.compilations(),
        "steps": len(times),
        **rates(model.config, engine.devices, batches, sum(times)),
        "step_ms": 1e3 * statistics.median(times),
        "compile_seconds": compilations.seconds,
        "first_steps_seconds": first,
        "memory_gib": None if memory is None else memory / 2**30,
    }


def rates(
    config: TransformerConfig, devices: int, batches: Sequence[Batch], seconds: float
) -> dict[str, float | None]:
    """Compute padding, tokens a second, and the utilisation of the devices."""
    real = [flops.tokens(batch, config.pad_id) for batch in batches]
    slots = [flops.slots(batch) for batch in batches]
    target = sum(work.target for work in real)
    both, all_slots = (
        sum(work.source + work.target for work in works) for works in (real, slots)
    )
    peak = flops.peak_flops(jax.devices()[0], config.dtype)
    used: dict[str, float | None] = dict.fromkeys(("mfu", "mfu_slots"))
    if peak is not None:
        for name, works in zip(used, (real, slots), strict=True):
            done = sum(flops.training_flops(config, work) for work in works)
            used[name] = done / seconds / peak / devices
    return {
        "padding": 1 - both / all_slots,
        "target_tokens_per_second": target / seconds,
        "tokens_per_second": both / seconds,
        **used,
    }


def timed(
    engine: Engine, state: TrainState, placed: list
) -> tuple[TrainState, list[float]]:
    """Run a step on each batch; return the seconds between the metrics of one step and
    the next.
    """
    ends, unread = [time.perf_counter()], []
    for number, batch in enumerate(placed, start=1):
        state, metrics = engine.step(state, batch)
        unread.append(metrics)
        # A CPU may have made the step when the call returns.
        late = jax.default_backend() != "cpu"
        left = int(late and number < len(placed))
        while len(unread) > left:
            jax.block_until_ready(unread.pop(0))
            ends.append(time.perf_counter())
    jax.block_until_ready(state)
    return state, [end - begin for begin, end in itertools.pairwise(ends)]


def make_batches(
    vocabulary_size: int, tokens: int, options: argparse.Namespace
) -> list[Batch]:
    """Invent the batches of the steps that are timed."""
    # Of about 25 tokens a side on average: enough for two epochs at most, so that no
    # bucket lacks pairs.
    pairs = join(list(invented(1_000 + options.steps * tokens // 25, vocabulary_size)))
    config = DataConfig(
        tokens_per_batch=tokens, num_buckets=options.buckets, packing=options.packing
    )
    data = TrainingData.from_pairs(pairs, config, seed=0)
    return list(itertools.islice(whole_batches(data), options.steps))


def join(pieces: Sequence[Encoded]) -> Encoded:
    """Concatenate pairs."""

    def side(parts: Sequence[Sentences]) -> Sentences:
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Sentences(
            np.concatenate([part.tokens for part in parts]), offsets, parts[0].pad_id
        )

    return Encoded(
        side([piece.source for piece in pieces]),
        side([piece.target for piece in pieces]),
    )


def whole_batches(data: TrainingData) -> Iterator[Batch]:
    """Yield batches epoch after epoch, without the last, unfilled ones."""
    for epoch in itertools.count():
        plan = dataclasses.replace(data, drop_remainder=True).plan(epoch)
        for number in range(len(plan)):
            yield plan.batch(number, 0, 1)


if __name__ == "__main__":
    main()
