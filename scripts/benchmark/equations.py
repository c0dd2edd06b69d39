#!/usr/bin/env python3
r"""Time a training step with each function of jaxformer.kernels replaced by its
equation.

    python scripts/benchmark/equations.py --model=tiny --precision=float32
    python scripts/benchmark/equations.py --model=base --rows=98 --length=256

A row is a function: the time of the step with its equation, over that of the step as
it is, as a median over interleaved turns; and the memory of intermediate results. The
first row, as it is once more, shows the noise. Time is that of the processors on a CPU,
which other programs disturb little, and of the clock elsewhere. Rows of tokens are
packed, four sentences in each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import turns
from jax_learner import make_config
from jaxformer import functional, kernels
from jaxformer.data.encoding import cores
from jaxformer.kernels.elementwise import ACTIVATIONS
from jaxformer.models.make import make_model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import batch_losses
from jaxformer.training.engines import make_engine
from tasks import EOS, FIRST, TASKS

SENTENCES = 4
CONTROL = "as it is, again"
COLUMNS = {
    "equation of": ("equation of", ""),
    "ratio": ("ratio", ".3f"),
    "ms": ("ms", ",.1f"),
    "memory": ("MiB", ",.0f"),
}


def attend(*arrays: Any, backend: str = "plain", **options: Any) -> Any:
    """Take the arguments of the kernel."""
    return functional.dot_product_attention(*arrays, **options)


def attend_plainly(*arrays: Any, backend: str = "plain", **options: Any) -> Any:
    """Attend without the kernel of a device."""
    return ATTEND(*arrays, **options)


ATTEND = kernels.attend  # in this module it stays
EQUATIONS: dict[str, dict[Callable[..., Any], Callable[..., Any]]] = {
    "linear, joint_linear": {
        kernels.linear: functional.linear,
        kernels.joint_linear: lambda *_: functional.linear,
    },
    "joint_linear": {kernels.joint_linear: lambda *_: kernels.linear},
    "layer_norm": {kernels.layer_norm: functional.layer_norm},
    "kernel of attend": {kernels.attend: attend_plainly},
    "attend": {kernels.attend: attend},
    "dropout": {kernels.dropout: functional.dropout},
    "relu": {kernels.relu: jax.nn.relu},
    "cross_entropy": {kernels.cross_entropy: functional.cross_entropy},
    "project_to_vocabulary": {
        kernels.project_to_vocabulary: functional.project_to_vocabulary
    },
}
EQUATIONS["all of these"] = {
    kernel: equation
    for name, pairs in EQUATIONS.items()
    if name != "joint_linear"
    for kernel, equation in pairs.items()
}
IN_CHUNKS = "output_losses"  # all logits in its place


def main() -> None:
    """Measure, and print the table."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--model", choices=[*TASKS], default="tiny")
    parser.add_argument("--precision", default="bfloat16")
    turns.add_numbers(
        parser,
        ("layers", None, "on either side (default: those of the model)"),
        ("rows", 32, "of a batch"),
        ("length", 64, "tokens of a row, on either side"),
        ("repeats", 16, "turns that count"),
        ("seconds", 600, "for compiling; a row that is not done is left out"),
    )
    options = parser.parse_args()
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    print(f"{options.model}, {options.precision}, {turns.describe_machine(device)}")
    print(turns.format_table(COLUMNS, measure(options)), flush=True)
    os._exit(0)  # what still compiles would be waited for


@contextlib.contextmanager
def equations(name: str) -> Iterator[None]:
    """Put the equations of a row in the place of their kernels, in every module."""
    chosen = EQUATIONS.get(name, {})
    saved = [
        (names, key, value)
        for module in [*sys.modules]
        if module.startswith("jaxformer")
        for names in (vars(sys.modules[module]), ACTIVATIONS)
        for key, value in names.items()
        if callable(value) and value in chosen
    ]
    most = batch_losses.MOST_LOGIT_BYTES
    try:
        for names, key, value in saved:
            names[key] = chosen[value]
        batch_losses.MOST_LOGIT_BYTES = sys.maxsize if name == IN_CHUNKS else most
        yield
    finally:
        for names, key, value in saved:
            names[key] = value
        batch_losses.MOST_LOGIT_BYTES = most


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile a step a row, and let them take turns."""
    task = TASKS[options.model]
    layers = options.layers or task.num_layers
    model = make_config(replace(task, num_layers=layers), options.precision)
    training = TrainingConfig()
    batch = packed_batch(task.vocabulary_size, options.rows, options.length)
    names = ["as it is", CONTROL, *EQUATIONS]
    if options.rows * options.length * task.vocabulary_size * 4 > (
        batch_losses.MOST_LOGIT_BYTES
    ):
        names += [IN_CHUNKS]
    engine, lowered = make_engine(make_model(model), training), {}
    placed = dict(engine.put(batch))
    for name in names:
        with equations(name):
            engine = make_engine(make_model(model), training)
            lowered[name] = engine.train_step.lower(engine.abstract(), placed)
    pool = ThreadPoolExecutor(max(4, cores()))
    made = {name: pool.submit(each.compile) for name, each in lowered.items()}
    done, _ = wait(made.values(), options.seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    names = [name for name in names if made[name] in done]
    names = [name for name in names if not made[name].exception()]
    programs = {name: made[name].result() for name in names}
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    state, seconds = engine.create(), {name: [] for name in names}
    for turn in range(options.repeats + 1):
        for name in names[turn % 2 :] + names[: turn % 2]:
            begun = clock()
            state, _ = jax.block_until_ready(programs[name](state, placed))
            seconds[name].append(clock() - begun)
    first = seconds["as it is"][1:]
    return [
        {
            "equation of": name,
            "ratio": statistics.median(
                own / other for own, other in zip(seconds[name][1:], first, strict=True)
            ),
            "ms": 1e3 * statistics.median(seconds[name][1:]),
            "memory": programs[name].memory_analysis().temp_size_in_bytes / 2**20,
        }
        for name in names[1:]
    ]


def packed_batch(vocabulary_size: int, rows: int, length: int) -> dict[str, np.ndarray]:
    """Draw rows of sentences of equal length."""
    rng = np.random.default_rng(0)
    numbers = np.arange(length, dtype=np.int32) * SENTENCES // length + 1
    batch = {}
    for side in ("source", "target"):
        tokens = rng.integers(FIRST, vocabulary_size, (rows, length), dtype=np.int32)
        tokens[:, np.diff(numbers, append=SENTENCES + 1) > 0] = EOS
        batch[side] = tokens
        batch[f"{side}_segments"] = np.broadcast_to(numbers, tokens.shape).copy()
    return batch


if __name__ == "__main__":
    main()
