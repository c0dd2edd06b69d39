#!/usr/bin/env python3
r"""Train one model in jaxformer and in PyTorch, and see whether both end at the same
loss.

    python scripts/benchmark/quality.py --config=quickstart --workdir=runs/quality
    python scripts/benchmark/quality.py --config=quickstart --workdir=runs/mine \
        --config.data.train=text:train.en,train.de \
        --config.data.valid=text:valid.en,valid.de \
        --config.data.test=text:test.en,test.de \
        --config.training.steps=6000 --config.training.evaluate_every=500

Vocabulary, batches and their order, initial parameters, learning rates, Adam, dropout
and label smoothing are those of the run that the configuration describes, in both; what
differs is who computes, and dropout's random bits. PyTorch's side is
torch.nn.Transformer as its users write it. Both compute on the CPU, and take turns:
each trains up to the next evaluation (training.evaluate_every) while the other waits.
At the end both translate the test set with jaxformer's search, as decoding.beam_size
and its like say, PyTorch's parameters carried back.

The working directory gets the configuration and the vocabulary, quality.jsonl with a
line for each measurement and one for the result, and the curves as quality.png. It
needs pip install '.[benchmark]'.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import jax

from jaxformer.cli import config_file
from jaxformer.cli.main import INTERRUPTED
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import count_parameters
from jaxformer.runs import config as configuration
from jaxformer.training.run import Run, open_run
from jaxformer.training.train import validation_batches
from jaxformer.visualization import style
from quality_systems import (
    OURS,
    THEIRS,
    Point,
    System,
    TestSet,
    check_comparable,
    load_test,
    make_systems,
    measured_steps,
    relative_difference,
    train_in_turns,
    translate_test,
)
from turns import add_workdir, describe_machine, make_parser, tell


def main() -> None:
    """Run what the command line asks for."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="a Python file with get_config()",
    )
    add_workdir(parser)
    options, overrides = parser.parse_known_args()
    # Where PyTorch's model is, also on a machine with GPUs.
    jax.config.update("jax_platforms", "cpu")
    config = configuration.parse(config_file.read(options.config, overrides))
    # before a vocabulary is trained, and with its ids once more
    check_comparable(config)
    with contextlib.ExitStack() as parts:
        run = open_run(config, options.workdir, report=tell)
        check_comparable(run.config)
        parts.enter_context(run.claim())
        systems = make_systems(run.config)
        # what cannot be translated is found before hours of training
        test = load_test(run, systems[OURS].parameters())
        file = parts.enter_context(
            (options.workdir / "quality.jsonl").open("w", encoding="utf-8")
        )
        points = train(run, systems, file)
        picture = draw(points, options.workdir / "quality.png")
        result = finish(run, systems, test, points)
        write(file, result)
    report(result)
    print(picture)


def train(run: Run, systems: dict[str, System], file: TextIO) -> list[Point]:
    """Train both, and write each measurement at once."""
    data = run.text.load(run.vocabularies, seed=run.config.training.seed, report=tell)
    valid = validation_batches(run, data)
    parameters = count_parameters(systems[OURS].parameters())
    tell(
        f"model: {parameters:,} parameters; data: {data.statistics.batches:,} batches"
        " an epoch"
    )
    points = []
    for point in train_in_turns(systems, data, valid, measured_steps(run.config)):
        points.append(point)
        write(file, point._asdict())
        tell(
            f"{point.system:>9}  step {point.step:,} of {run.config.training.steps:,}  "
            f"valid nll {point.valid_nll:.4f}  {point.seconds:,.0f} s of training"
        )
    return points


def finish(
    run: Run, systems: dict[str, System], test: TestSet, points: list[Point]
) -> dict[str, Any]:
    """Translate with both, and return the result."""
    last = {point.system: point for point in points}
    records = {}
    for name, system in systems.items():
        tell(f"{name:>9}  translates {test.name}")
        records[name] = translate_test(run, test, system.parameters())
    return {
        "step": last[OURS].step,
        "valid_nll": {name: point.valid_nll for name, point in last.items()},
        "relative_difference": relative_difference(points)[-1][1],
        "bleu": {name: record["bleu"] for name, record in records.items()},
        "bleu_signature": records[OURS]["bleu_signature"],
        "sentences": records[OURS]["sentences"],
        "beam_size": run.config.decoding.beam_size,
        "machine": describe_machine(),
    }


def report(result: dict[str, Any]) -> None:
    """Print the result as text."""
    print(f"{'':>9}  valid nll     BLEU")
    for name in (OURS, THEIRS):
        print(
            f"{name:>9}  {result['valid_nll'][name]:>9.4f} "
            f" {result['bleu'][name]:>7.2f}"
        )
    print(
        f"after {result['step']:,} steps the loss of jaxformer is"
        f" {abs(result['relative_difference']):.2%}"
        f" {'above' if result['relative_difference'] > 0 else 'below'} that of PyTorch"
    )
    print(
        f"BLEU on {result['sentences']:,} sentences, beam {result['beam_size']},"
        f" {result['bleu_signature']}"
    )
    print(result["machine"])


def draw(points: Sequence[Point], picture: Path) -> Path:
    """Draw both loss curves, and their difference in percent, as a PNG 900 pixels
    wide.
    """
    figure = style.new_figure(9, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(5, 4))
    dots = {"color": style.BLUE, "linewidth": 1.6, "marker": "o", "markersize": 3.4}
    for name, looks in ((THEIRS, {"color": "#e0a27f", "linewidth": 5}), (OURS, dots)):
        own = [point for point in points if point.system == name]
        losses = [point.valid_nll for point in own]
        label = f"{name}, last {losses[-1]:.4f}"
        left.plot([point.step for point in own], losses, label=label, **looks)
    left.legend(**style.INNER_LEGEND)
    steps, differences = zip(*relative_difference(points), strict=True)
    percent = [100.0 * difference for difference in differences]
    right.axhspan(-1, 1, color=style.BAND)
    right.axhline(0.0, color=style.QUIET, linewidth=0.8)
    right.plot(steps, percent, **dots)
    high = max(1.5, 1.1 * max(map(abs, percent)))
    right.set_ylim(-high, high)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:+.2g}%" if value else "0")
    titles = "validation, nats per token", "jaxformer against PyTorch; shaded: 1%"
    for axes, title in zip((left, right), titles, strict=True):
        style.title(axes, title)
        style.count_steps(axes, 5)
        style.frame(axes)
    return style.save(figure, picture)


def write(file: TextIO, record: dict[str, Any]) -> None:
    """Write a line, and flush it."""
    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    file.flush()


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        tell(
            "interrupted; quality.jsonl has what was measured, and the same command"
            " starts again"
        )
        # threads may still compile or compute: the memory that they use must not go
        # before them
        os._exit(INTERRUPTED)
