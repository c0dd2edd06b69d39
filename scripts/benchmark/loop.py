#!/usr/bin/env python3
r"""Measure the overhead of the training loop over its steps: data, transfer, metrics,
log and display.

    python scripts/benchmark/loop.py                        # the tiny model
    python scripts/benchmark/loop.py --model=quickstart     # a model of half its size
    python scripts/benchmark/loop.py --config.data.tokens_per_batch=4000 \
        --profile=loop.prof

A run on the bundled corpus stops after each line of its log, before the next step, and
the same compiled step runs over the same batches, which are on the device already, on a
state of its own. So blocks of the loop and blocks of bare steps take turns; printed are
medians over the blocks and their ratio, as text and as one line of JSON: of the time on
the clock, and of the processor time of the whole process, which other programs disturb
less. Every shape of a batch is compiled before. The loop makes up to four batches while
bare steps run: of every block those few are free. Evaluations and checkpoints are no
part of it.

With ``--profile`` the main thread's time in the loop's blocks is written for ``python
-m pstats``.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.cli import config_file
from jaxformer.data.pipeline import Position, TrainingData
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.signals import StopSignal
from jaxformer.training.compilations import Compilations
from jaxformer.training.display import Display, Lines
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.log import Log
from jaxformer.training.loop import LoopParts, run_loop
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Progress
from jaxformer.training.run import open_run
from jaxformer.training.state import TrainState

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.py"

MODELS: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "d_model": 256,
        "d_ff": 1024,
        "num_heads": 4,
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
    },
    "quickstart": {},
}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        choices=[*MODELS],
        default="tiny",
        help="TransformerConfig.tiny, or the quickstart's",
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="of a block, and between lines of the log"
    )
    parser.add_argument(
        "--blocks", type=int, default=20, help="of the loop, and as many of bare steps"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile the loop's blocks"
    )
    options, overrides = parser.parse_known_args()
    # One block more than is counted: in the first the log's and the display's own
    # libraries load.
    steps = (options.blocks + 1) * options.steps
    changes = {f"model.{name}": value for name, value in MODELS[options.model].items()}
    changes |= {
        "training.steps": steps,
        "training.evaluate_every": steps,
        "training.checkpoint_every": steps,
    }
    changes |= {"training.log_every": options.steps, "training.warmup_steps": 4000}
    overrides = [
        *(f"{config_file.PREFIX}{key}={value}" for key, value in changes.items()),
        *overrides,
    ]
    config = configuration.parse(config_file.read(str(CONFIG), overrides))
    with tempfile.TemporaryDirectory() as scratch:
        measure(config, Path(scratch), options.profile)


class Seconds(NamedTuple):
    """A time: on the clock, and of the processors that worked for this process."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, begun: Seconds) -> Seconds:
        """Return the time between."""
        return Seconds(self.wall - begun.wall, self.processor - begun.processor)


class Alternating(Display):
    """A display that runs bare steps between the loop's blocks, and times both."""

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        data: TrainingData,
        profiler: cProfile.Profile | None,
    ) -> None:
        """Compile a step for every shape of a batch, and begin."""
        self.loop: list[Seconds] = []
        self.bare: list[Seconds] = []
        self._engine, self._data, self._block = engine, data, config.training.log_every
        self._blocks, self._profiler = config.training.steps // self._block, profiler
        self._lines = Lines(config.training.steps)
        self._state = self._compile()
        self._position = Position()
        self._begin()

    def say(self, text: str) -> None:
        """Show a line."""
        self._lines.say(text)

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show what there is to show, and let the bare steps run where a block ends."""
        self._lines.advance(step, metrics)
        if step % self._block:
            return
        # The loop has just read the metrics of its last step: nothing is under way.
        self.loop.append(Seconds.now().since(self._begun))
        if self._profiler is not None:
            self._profiler.disable()
        self._run_bare()
        self._begin()

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self) -> None:
        if self._profiler is not None and 0 < len(self.loop) < self._blocks:
            self._profiler.enable()
        self._begun = Seconds.now()

    def _run_bare(self) -> None:
        """Take the batches of the loop's block again."""
        batches = list(
            itertools.islice(self._data.batches(self._position), self._block)
        )
        self._position = batches[-1][1]
        placed = [self._engine.put(batch) for batch, _ in batches]
        jax.block_until_ready([dict(batch) for batch in placed])
        begun = Seconds.now()
        for batch in placed:
            self._state, _ = self._engine.step(self._state, batch)
        jax.block_until_ready(self._state)
        self.bare.append(Seconds.now().since(begun))

    def _compile(self) -> TrainState:
        state, shapes = self._engine.create(), set()
        for batch, _ in self._data.batches():
            shape = batch["source"].shape, batch["target"].shape
            if shape not in shapes:
                state, _ = self._engine.step(state, self._engine.put(batch))
            shapes.add(shape)
            if len(shapes) == self._data.statistics.shapes:
                break
        return jax.block_until_ready(state)


def measure(config: RunConfig, directory: Path, profile: Path | None) -> None:
    """Train, and print how long the loop and the bare steps took."""
    with contextlib.ExitStack() as parts:
        compilations = parts.enter_context(Compilations())
        run = open_run(config, directory)
        config, model = run.config, Transformer(run.config.model)
        engine = make_engine(model, config.training)
        data = run.text.load(run.vocabularies, seed=config.training.seed)
        profiler = None if profile is None else cProfile.Profile()
        display = Alternating(config, engine, data, profiler)
        loop = LoopParts(
            config,
            directory,
            engine,
            data,
            [batch for batch, _ in itertools.islice(data.batches(), 1)],
            parts.enter_context(
                contextlib.closing(CheckpointManager(directory / "checkpoints"))
            ),
            parts.enter_context(contextlib.closing(Log(directory, 0, 0))),
            display,
            None,
            {},
            parts.enter_context(StopSignal()),
            Profile(directory / "profile", None, 1),
            compilations,
        )
        state = engine.create()
        display.say(
            f"model: {count_parameters(engine.abstract().params):,} parameters on"
            f" {engine.devices} {jax.devices()[0].platform} device,"
            f" {config.data.tokens_per_batch:,} tokens on each side of a batch"
        )
        run_loop(loop, state, Progress())
    report(config, display.loop[1:], display.bare[1:])
    if profiler is not None and profile is not None:
        profiler.dump_stats(profile)


def report(config: RunConfig, loop: Sequence[Seconds], bare: Sequence[Seconds]) -> None:
    """Print medians, and the median of the ratios of neighbouring blocks."""
    steps = config.training.log_every
    result = {
        "model": {name: getattr(config.model, name) for name in MODELS["tiny"]},
        "tokens_per_batch": config.data.tokens_per_batch,
        "steps_a_block": steps,
        "blocks": len(loop),
    }
    for kind in Seconds._fields:
        long, short = (
            [getattr(block, kind) for block in blocks] for blocks in (loop, bare)
        )
        ratios = [ours / theirs for ours, theirs in zip(long, short, strict=True)]
        both = [1e3 * statistics.median(times) / steps for times in (long, short)]
        quarters = (
            statistics.quantiles(ratios, method="inclusive")
            if len(ratios) > 1
            else ratios * 3
        )
        result[kind] = dict(
            zip(
                ("loop_ms", "bare_ms", "lower_quartile", "ratio", "upper_quartile"),
                (round(value, 4) for value in (*both, *quarters)),
                strict=True,
            )
        )
        print(
            f"{kind:<10} loop {both[0]:8.2f} ms a step, bare step {both[1]:8.2f} ms:"
            f" the loop costs {quarters[1] - 1:+.1%} (median of {len(ratios)} blocks;"
            f" quartiles {quarters[0] - 1:+.1%}, {quarters[2] - 1:+.1%})"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
