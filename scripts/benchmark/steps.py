#!/usr/bin/env python3
r"""Compare training steps with PyTorch's torch.nn.Transformer and Hugging Face's Marian
on the CPU or a GPU.

    python scripts/benchmark/steps.py
    python scripts/benchmark/steps.py --model=base --repeats=7 \
        --systems=jaxformer-float32,torch-float32
    python scripts/benchmark/steps.py --source=train.en --target=train.de --format=jsonl
    python scripts/benchmark/steps.py --device=cuda --model=big --rows=96 --length=256 \
        --steps=20 --systems=jaxformer-bfloat16,torch-bfloat16,torch-bfloat16-compiled

Sizes, dropout, label smoothing and optimizer are the same in all systems. Each is a
process of its own, and they take turns; figures are medians over the turns. The ratio
is to torch-float32 within a turn. Batches of the fixed shape have no padding. With
--source and --target there are also batches of real text, in which each system has its
own batching under the same budget of slots. Without PyTorch only jaxformer is measured;
pip install '.[train,parity]' installs the others. Close other programs first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import turns
from jaxformer.data.batching import Batch
from jaxformer.data.files import read_lines
from jaxformer.data.store import Encoded, Sentences
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError, require
from tasks import (
    PACKED_LENGTH,
    TASKS,
    Learner,
    Task,
    fixed_batches,
    load_pairs,
    padding,
    real_tokens,
    save_pairs,
)
from turns import Message, Process, Turn

FIXED, TEXT = "fixed", "text"

# Framework, precision, and a variation: of jaxformer packed rows in place of length
# buckets, or scanned layers; of PyTorch torch.compile.
SYSTEMS = (
    "jaxformer-float32",
    "jaxformer-float32-packing",
    "jaxformer-float32-scanned",
    "jaxformer-bfloat16",
    "jaxformer-bfloat16-packing",
    "jaxformer-bfloat16-scanned",
    "torch-float32",
    "torch-bfloat16",
    "torch-bfloat16-compiled",
    "marian-float32",
    "marian-bfloat16",
)
REFERENCE = "torch-float32"
COLUMNS = {
    "system": ("system", ""),
    "batches": ("batches", ""),
    "target_tokens_per_second": ("target tok/s", ",.1f"),
    "ratio": ("ratio", ".2f"),
    "step_ms": ("step ms", ",.1f"),
    "padding": ("padding", ".1%"),
    "first_step_seconds": ("first step s", ",.1f"),
    "second_start_seconds": ("2nd start s", ",.1f"),
    "memory_gib": ("GiB", ".2f"),
}
LONGEST = 100  # tokens of a sentence of real text

_ENVIRONMENT = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # The systems share the memory of a GPU.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def main() -> None:
    """Measure, and print a table or an object for each row."""
    options = parse()
    task = TASKS[options.model]
    sizes = {
        name: getattr(options, name)
        for name in ("tokens_per_batch", "rows", "length")
        if getattr(options, name) is not None
    }
    task = dataclasses.replace(task, **sizes)
    systems = _possible() if options.systems is None else options.systems.split(",")
    check_systems(systems)  # before a vocabulary is trained
    pairs = read_text(
        options.source, options.target, options.pairs, task.vocabulary_size
    )
    how = options.steps, options.repeats, options.device
    rows = measure(task, systems, pairs, *how)
    machine = turns.describe_machine(options.device)
    if options.format == "jsonl":
        for row in rows:
            print(json.dumps({"model": options.model, "machine": machine, **row}))
    else:
        print(f"{options.model}, {machine}")
        print(turns.format_table(COLUMNS, rows))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--model", choices=[*TASKS], default="tiny")
    parser.add_argument(
        "--systems", help=f"separated by commas, of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--source", type=Path, help="real text, one sentence a line")
    parser.add_argument("--target", type=Path, help="its translation")
    turns.add_numbers(
        parser,
        ("pairs", 2000, "of real text in a turn"),
        ("tokens_per_batch", None, "slots of a batch of real text (default 2048)"),
        ("rows", None, "sentences of a batch of the fixed shape"),
        ("length", None, "their tokens, on either side"),
        ("steps", 4, "of a turn with batches of the fixed shape"),
        ("repeats", 5, "turns of each system"),
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text")
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target are given together")
    return options


def _possible() -> list[str]:
    """Return the systems whose packages are installed."""
    needs = {"jaxformer": "jax", "torch": "torch", "marian": "torch transformers"}
    return [
        system
        for system in SYSTEMS
        if all(map(importlib.util.find_spec, needs[system.partition("-")[0]].split()))
    ]


def check_systems(systems: Sequence[str]) -> None:
    """Refuse systems that are unknown, are named twice or lack their packages.

    Raises:
        InputError: there is such a system.
    """
    for system in systems:
        if system not in SYSTEMS:
            raise InputError(
                f"there is no system {system!r}: choose from {', '.join(SYSTEMS)}"
            )
        # Its first start would find what the other one compiled.
        if list(systems).count(system) > 1:
            raise InputError(f"the system {system} is named twice: name each once")
        framework = system.partition("-")[0]
        if framework != "jaxformer":
            require("torch", "parity")
        if framework == "marian":
            require("transformers", "parity")


def read_text(
    source: Path | None, target: Path | None, count: int, vocabulary_size: int
) -> Encoded | None:
    """Read pairs spread evenly over two files of parallel text, as tokens of a
    vocabulary trained on both.

    Args:
        source: one sentence a line; None: there is no text.
        target: their translations.
        count: most pairs; pairs of more than 100 tokens do not count.
        vocabulary_size: of the vocabulary.

    Raises:
        InputError: the files differ in length, or have too little text.
    """
    if source is None or target is None:
        return None
    texts = [read_lines(path) for path in (source, target)]
    if len(texts[0]) != len(texts[1]):
        raise InputError(
            f"{source} has {len(texts[0]):,} lines and {target} has {len(texts[1]):,}:"
            " name the two files of one text"
        )
    every = (line for text in texts for line in text)
    try:
        vocabulary = Vocabulary.train(every, vocabulary_size)
    except InputError as error:
        raise InputError(
            f"{source} and {target}: {error}: use a longer text or --model=tiny"
        ) from None
    pad, end = vocabulary.pad_id, vocabulary.eos_id
    source_side, target_side = (
        Sentences.from_lists(vocabulary.encode_batch(text), pad, last=end)
        for text in texts
    )
    pairs = Encoded(source_side, target_side)
    lengths = np.stack([pairs.source_lengths, pairs.target_lengths])
    fitting = np.flatnonzero(
        (lengths.max(axis=0) <= LONGEST) & (lengths.min(axis=0) > 1)
    )
    if not len(fitting):
        raise InputError(
            f"{source} and {target} have no pair of 1 to {LONGEST - 1} tokens: use"
            " other files"
        )
    count = min(count, len(fitting))
    return pairs.take(fitting[np.arange(count) * len(fitting) // count])


def measure(
    task: Task,
    systems: Sequence[str],
    pairs: Encoded | None,
    steps: int,
    repeats: int,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Let the systems take turns; return a row for each of them, first for fixed
    batches, then for text.

    The start is from the start of a process to the end of its first step: first with
    nothing compiled, then with what the first start compiled. Memory is the peak until
    then.

    Args:
        task: what they learn.
        systems: of :data:`SYSTEMS`.
        pairs: real text, an epoch of which is a turn; None: only fixed batches.
        steps: of a turn with fixed batches.
        repeats: turns that count.
        device: on which all compute, ``cpu`` or ``cuda``.

    Raises:
        InputError: a batch does not hold a row, or a system ended too early.
    """
    _check_budget(task, pairs)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        requests: list[Message] = [{"pairs": None}]
        if pairs is not None:
            save_pairs(folder / "pairs.npz", pairs)
            requests.append({"pairs": str(folder / "pairs.npz")})
        processes: dict[str, Process] = {}
        first_starts: dict[str, float] = {}
        for system in systems:
            turns.tell(f"{system} starts twice, first with nothing compiled")
            begin = {
                "system": system,
                "task": dataclasses.asdict(task),
                "steps": steps,
                "device": device,
            }
            own = {
                "JAX_PLATFORMS": device,
                "JAX_COMPILATION_CACHE_DIR": str(folder / system),
            }
            given = system, __file__, begin, {**_ENVIRONMENT, **own}
            with Process(*given) as first:
                first_starts[system] = first.startup_seconds
            processes[system] = stack.enter_context(Process(*given))
        answers = turns.take_turns(processes, requests, repeats, turns.tell)
    return [
        {
            "system": system,
            "batches": (FIXED, TEXT)[number],
            **summarize(own, answers.get((number, REFERENCE))),
            "first_step_seconds": first_starts[system],
            "second_start_seconds": processes[system].startup_seconds,
        }
        for (number, system), own in answers.items()
    ]


def _check_budget(task: Task, pairs: Encoded | None) -> None:
    if pairs is None:
        return
    lengths = pairs.source_lengths.max(), pairs.target_lengths.max(), PACKED_LENGTH
    if task.tokens_per_batch < max(lengths):
        raise InputError(
            f"a batch of {task.tokens_per_batch} tokens does not hold a row of"
            f" {max(lengths)}: raise --tokens_per_batch"
        )


def summarize(
    own: Sequence[Turn], reference: Sequence[Turn] | None
) -> dict[str, float | None]:
    """Return medians over the turns of a system."""
    return {
        "target_tokens_per_second": turns.median_rate(own),
        "ratio": turns.median_ratio(own, reference),
        "step_ms": 1e3
        * statistics.median(turn["seconds"] / turn["steps"] for turn in own),
        "padding": own[0]["padding"],
        "memory_gib": own[-1]["memory_gib"],
    }


def make_learner(system: str, task: Task, device: str = "cpu") -> Learner:
    """Build a system from its name, on a device."""
    framework, precision, *variation = system.split("-")
    if framework == "jaxformer":
        import jax_learner

        return jax_learner.make_learner(task, precision, *variation)
    from torch_learners import TorchLearner, TorchTransformer, make_marian

    model = {"torch": TorchTransformer, "marian": make_marian}[framework](task)
    if variation:
        model.compile()
    return TorchLearner(task, precision, model, device=device)


def begin(request: Message) -> Callable[[Message], Message]:
    """Build the system that a process is, and take its first step."""
    task = Task(**request["task"])
    learner = make_learner(request["system"], task, request["device"])
    work: dict[str | None, list[Batch]] = {None: fixed_batches(task, request["steps"])}
    learner.run(work[None][:1])

    def answer(request: Message) -> Message:
        """Learn from fixed batches, or from an epoch of the pairs in a file."""
        pairs = request["pairs"]
        if pairs not in work:
            work[pairs] = learner.batches(load_pairs(Path(pairs)))
        batches = work[pairs]
        begun = time.perf_counter()
        learner.run(batches)
        return {
            "seconds": time.perf_counter() - begun,
            "work": real_tokens(batches),
            "padding": padding(batches),
            "steps": len(batches),
        }

    return answer


if __name__ == "__main__":
    turns.run(main, begin)
