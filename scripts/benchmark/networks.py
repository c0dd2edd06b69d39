#!/usr/bin/env python3
r"""Train RNNsearch, Luong's network and the Transformer for equal time, and see what
attention alone changed.

    python scripts/benchmark/networks.py --minutes=15 --workdir=runs/networks
    python scripts/benchmark/networks.py --minutes=60 --workdir=runs/mine \
        --config.data.train=text:train.en,train.de \
        --config.data.valid=text:valid.en,valid.de \
        --config.data.test=text:test.en,test.de

The Transformer is configs/quickstart.py and the others are configs/recurrent.py, of
about as many parameters, with the same vocabulary, batches and label smoothing. They
take turns: each trains for a slice of its minutes, and its loss on the validation text
is measured, while the others wait. The time of an update counts from the batch to its
result; updates that compile a new shape, and measuring, do not count. At the end each
translates the test set with its search.

The working directory gets a folder for each network, networks.jsonl with a line for
each measurement and each result, and the curves as networks.png.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib import ticker

from jax_learner import JaxLearner
from jaxformer.cli import config_file
from jaxformer.data.batching import Batch
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import count_parameters
from jaxformer.runs import config as configuration
from jaxformer.training.run import open_run, validation_batches
from jaxformer.visualization import style
from quality_systems import load_test, translate_test
from turns import (
    add_numbers,
    add_workdir,
    describe_machine,
    format_table,
    make_parser,
    run,
    tell,
)

CONFIGS = {
    "bahdanau": "recurrent:bahdanau",
    "luong": "recurrent:luong",
    "transformer": "quickstart",
}
"""The configuration of each network."""

TITLES = {
    "bahdanau": "RNNsearch",
    "luong": "Luong",
    "transformer": "Transformer",
}
COLOURS = {"bahdanau": style.RED, "luong": style.GREEN, "transformer": style.BLUE}
COLUMNS = {
    "network": ("network", ""),
    "parameters": ("parameters", ",d"),
    "updates": ("updates", ",d"),
    "tokens_per_second": ("target tokens/s", ",.0f"),
    "valid_nll": ("valid nll", ".3f"),
    "bleu": ("BLEU", ".2f"),
}


class Point(NamedTuple):
    """The loss of a network on the validation text, in nats a token, after some seconds
    of training.
    """

    network: str
    seconds: float
    updates: int
    valid_nll: float


class Contestant:
    """A network with its text, and what it has done."""

    def __init__(self, name: str, folder: Path, overrides: Sequence[str]) -> None:
        """Make vocabulary, text and parameters.

        Raises:
            InputError: the configuration does not fit, or text cannot be read.
        """
        config = configuration.parse(config_file.read(CONFIGS[name], overrides))
        self.name = name
        self.run = open_run(config, folder, report=tell)
        config, seed = self.run.config, self.run.config.training.seed
        self.data = self.run.text.load(self.run.vocabularies, seed=seed, report=tell)
        self.learner = JaxLearner(config.model, config.training, config.data)
        self.valid = validation_batches(self.run, self.data)
        self.test = load_test(self.run, self.learner.parameters())
        self.updates, self.tokens, self.seconds = 0, 0, 0.0
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()

    def train(self, batches: Iterator[Batch], until: float) -> None:
        """Update until so many seconds of training have gone by."""
        while self.seconds < until:
            batch = next(batches)
            shape = tuple(np.shape(batch[side]) for side in sorted(batch))
            begun = time.perf_counter()
            self.learner.run([batch])
            if shape in self._shapes:
                self.seconds += time.perf_counter() - begun
                real = batch["target"] != self.run.config.model.pad_id
                self.tokens += int(np.sum(real))
            self._shapes.add(shape)
            self.updates += 1

    def measure(self) -> Point:
        """Measure the loss."""
        nll = self.learner.nll(self.valid)
        return Point(self.name, self.seconds, self.updates, nll)

    def result(self, last: Point) -> dict[str, Any]:
        """Translate the test set, and return the row of the table."""
        params = self.learner.parameters()
        record = translate_test(self.run, self.test, params)
        return {
            "network": TITLES[self.name],
            "parameters": count_parameters(params),
            "updates": self.updates,
            "tokens_per_second": self.tokens / self.seconds,
            "valid_nll": last.valid_nll,
            "bleu": record["bleu"],
            "bleu_signature": record["bleu_signature"],
            "sentences": record["sentences"],
            "seconds": self.seconds,
            "machine": describe_machine(),
        }


def main() -> None:
    """Run what the command line asks for."""
    options, overrides = parse()
    # As the figures say, also on a machine with GPUs.
    jax.config.update("jax_platforms", "cpu")
    with contextlib.ExitStack() as parts:
        contestants = {
            name: Contestant(name, options.workdir / name, overrides)
            for name in CONFIGS
        }
        for each in contestants.values():
            parts.enter_context(each.run.claim())
        path = options.workdir / "networks.jsonl"
        file = parts.enter_context(path.open("w", encoding="utf-8"))
        points, results = [], []
        for point in compete(contestants, 60.0 * options.minutes, options.slices):
            points.append(point)
            print(json.dumps(point._asdict()), file=file, flush=True)
            tell(
                f"{TITLES[point.network]:>11}  {point.seconds:,.0f} s "
                f" {point.updates:,} updates  valid nll {point.valid_nll:.4f}"
            )
        last = {point.network: point for point in points}
        for name, each in contestants.items():
            tell(f"{TITLES[name]:>11}  translates {each.test.name}")
            results.append(each.result(last[name]))
            print(json.dumps(results[-1]), file=file, flush=True)
    print(format_table(COLUMNS, results))
    print(results[0]["bleu_signature"])
    print(results[0]["machine"])
    print(draw(points, options.workdir / "networks.png"))


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line into options and keys of the configurations."""
    parser = make_parser(__doc__)
    add_workdir(parser)
    parser.add_argument(
        "--minutes",
        required=True,
        type=float,
        metavar="M",
        help="that each network trains",
    )
    add_numbers(parser, ("slices", 10, "measurements of each network (default: 10)"))
    options, overrides = parser.parse_known_args()
    if not options.minutes > 0:
        raise InputError(f"--minutes must be above 0, not {options.minutes}")
    return options, overrides


def compete(
    contestants: dict[str, Contestant], seconds: float, slices: int
) -> Iterator[Point]:
    """Let each train for a slice of its seconds and be measured, while the others
    wait.
    """
    with contextlib.ExitStack() as parts:
        streams = {
            name: parts.enter_context(contextlib.closing(each.data.batches()))
            for name, each in contestants.items()
        }
        for part in range(slices + 1):
            for name, each in contestants.items():
                batches = (batch for batch, _ in streams[name])
                each.train(batches, seconds * part / slices)
                yield each.measure()


def draw(points: Sequence[Point], picture: Path) -> Path:
    """Draw the loss over the time of training, and over updates, as a PNG 900 pixels
    wide.
    """
    figure = style.new_figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    for name, title in TITLES.items():
        own = [point for point in points if point.network == name]
        losses = [point.valid_nll for point in own]
        looks = {"color": COLOURS[name], "linewidth": 1.6, "marker": "o"}
        looks |= {"markersize": 3.4, "label": f"{title}, last {losses[-1]:.2f}"}
        left.plot([point.seconds / 60 for point in own], losses, **looks)
        right.plot([point.updates for point in own], losses, **looks)
    left.legend(**style.INNER_LEGEND)
    titles = "validation, nats per token, by minutes", "and by updates"
    for axes, title in zip((left, right), titles, strict=True):
        style.title(axes, title)
        axes.set_yscale("log")  # the last minutes differ by hundredths
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 4, 6, 8)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        style.frame(axes)
    return style.save(figure, picture)


if __name__ == "__main__":
    run(main)
