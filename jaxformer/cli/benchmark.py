"""``jaxformer benchmark``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

from jaxformer.benchmark.task import TASKS
from jaxformer.benchmark.training_speed import (
    COLUMNS,
    REFERENCE,
    SYSTEMS,
    Row,
    check_systems,
    describe_machine,
    measure,
    read_text,
)
from jaxformer.cli.main import DONE
from jaxformer.cli.options import write_output
from jaxformer.errors import UsageError
from jaxformer.table import align

_PAIRS = 2000

EXAMPLE = f"""
examples:
  jaxformer benchmark
  jaxformer benchmark --model=base --systems=jaxformer-float32,torch-float32 --repeats=7
  jaxformer benchmark --source=train.en --target=train.de --format=jsonl

Measures training steps of the paper's Transformer on the CPU of this machine, whatever else it has: jaxformer,
PyTorch's own torch.nn.Transformer and Hugging Face's Marian, the same sizes, dropout, smoothing and optimizer, each a
process of its own; they take turns.
Without PyTorch it measures jaxformer alone; pip install 'jaxformer[benchmark]' brings the others. On the batches of one
fixed shape there is no padding; with --source and --target there are also those of real text, each system with the
batching that suits it best under the same budget of slots. Figures are medians over the turns, the ratio is to
{REFERENCE} within a turn. Close other programs first: what else runs slows the systems down unequally.

systems: {", ".join(SYSTEMS)}
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--model", choices=[*TASKS], default="tiny", help="its size (default tiny)"
    )
    parser.add_argument(
        "--systems",
        metavar="LIST",
        help="separated by commas (default: all that can run)",
    )
    parser.add_argument(
        "--source", type=Path, metavar="FILE", help="source text, one sentence a line"
    )
    parser.add_argument("--target", type=Path, metavar="FILE", help="its translation")
    parser.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help=f"of the text in a turn (default {_PAIRS})",
    )
    parser.add_argument(
        "--tokens_per_batch",
        type=int,
        metavar="N",
        help="slots of its batches, a side (default 2048)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=4,
        metavar="N",
        help="of a turn on a fixed shape (default 4)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        metavar="N",
        help="turns of each system (default 5)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="a table, or one object a row",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and print."""
    task = TASKS[options.model]
    if options.tokens_per_batch is not None:
        task = dataclasses.replace(task, tokens_per_batch=options.tokens_per_batch)
    systems = _possible() if options.systems is None else options.systems.split(",")
    check_systems(systems)  # before a vocabulary is trained
    if options.pairs is not None and options.source is None and options.target is None:
        raise UsageError(
            "--pairs are of real text: give --source and --target too, or leave it out"
        )
    count = _PAIRS if options.pairs is None else options.pairs
    pairs = read_text(options.source, options.target, count, task.vocabulary_size)
    rows = list(
        measure(
            task,
            systems,
            pairs=pairs,
            steps=options.steps,
            repeats=options.repeats,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
    )
    if options.format == "jsonl":
        about = {"model": options.model, "machine": describe_machine()}
        write_output(
            None, [json.dumps({**about, **dataclasses.asdict(row)}) for row in rows]
        )
    else:
        write_output(None, [f"{options.model}, {describe_machine()}", *_table(rows)])
    return DONE


def _possible() -> list[str]:
    """Return the systems whose packages are there."""
    packages = {"jaxformer": "jax", "torch": "torch", "marian": "transformers"}
    torch = importlib.util.find_spec("torch") is not None
    return [
        system
        for system in SYSTEMS
        if importlib.util.find_spec(packages[system.partition("-")[0]])
        and (torch or system.startswith("jaxformer"))
    ]


def _table(rows: list[Row]) -> list[str]:
    return list(
        align(
            [
                [*COLUMNS.values()],
                *(
                    [_form(name, getattr(row, name)) for name in COLUMNS]
                    for row in rows
                ),
            ]
        )
    )


def _form(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if name == "padding":
        return f"{value:.1%}"
    return f"{value:,.2f}" if name in ("ratio", "memory_gib") else f"{value:,.1f}"
