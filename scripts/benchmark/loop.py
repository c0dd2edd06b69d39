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

import contextlib
import cProfile
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

import turns
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.cli import config_file
from jaxformer.data.pipeline import Position, TrainingData
from jaxformer.models.config import TransformerConfig
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

SIZES = ("d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers")


def main() -> None:
    """Run what the command line asks for."""
    parser = turns.make_parser(__doc__)
    parser.add_argument(
        "--model",
        choices=("tiny", "quickstart"),
        default="tiny",
        help="TransformerConfig.tiny, or the quickstart's",
    )
    turns.add_numbers(
        parser,
        ("steps", 20, "of a block, and between lines of the log"),
        ("blocks", 20, "of the loop, and as many of bare steps"),
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="profile the loop's blocks"
    )
    options, overrides = parser.parse_known_args()
    # One block more than is counted: in the first the log's and the display's own
    # libraries load.
    steps = (options.blocks + 1) * options.steps
    names = ("steps", "evaluate_every", "checkpoint_every")
    changes = {f"training.{name}": steps for name in names}
    changes |= {"training.log_every": options.steps, "training.warmup_steps": 4000}
    if options.model == "tiny":
        tiny = TransformerConfig.tiny(8_000)
        changes |= {f"model.{name}": getattr(tiny, name) for name in SIZES}
    overrides = [
        *(f"{config_file.PREFIX}{key}={value}" for key, value in changes.items()),
        *overrides,
    ]
    config = configuration.parse(config_file.read(str(CONFIG), overrides))
    with tempfile.TemporaryDirectory() as scratch:
        measure(config, Path(scratch), options.profile)


def now() -> np.ndarray:
    """Read two clocks: the time, and that of the processors that worked for this
    process.
    """
    return np.array([time.perf_counter(), time.process_time()])


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
        self.loop: list[np.ndarray] = []
        self.bare: list[np.ndarray] = []
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
        self.loop.append(now() - self._begun)
        if self._profiler is not None:
            self._profiler.disable()
        self._run_bare()
        self._begin()

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self) -> None:
        if self._profiler is not None and 0 < len(self.loop) < self._blocks:
            self._profiler.enable()
        self._begun = now()

    def _run_bare(self) -> None:
        """Take the batches of the loop's block again."""
        batches = list(
            itertools.islice(self._data.batches(self._position), self._block)
        )
        self._position = batches[-1][1]
        placed = [self._engine.put(batch) for batch, _ in batches]
        jax.block_until_ready([dict(batch) for batch in placed])
        begun = now()
        for batch in placed:
            self._state, _ = self._engine.step(self._state, batch)
        jax.block_until_ready(self._state)
        self.bare.append(now() - begun)

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


def report(
    config: RunConfig, loop: Sequence[np.ndarray], bare: Sequence[np.ndarray]
) -> None:
    """Print medians, and the median of the ratios of neighbouring blocks."""
    steps = config.training.log_every
    result = {
        "model": {name: getattr(config.model, name) for name in SIZES},
        "tokens_per_batch": config.data.tokens_per_batch,
        "steps_a_block": steps,
        "blocks": len(loop),
    }
    blocks = zip(np.transpose(loop), np.transpose(bare), strict=True)
    for kind, (long, short) in zip(("wall", "processor"), blocks, strict=True):
        loop_ms, bare_ms = (1e3 * np.median(times) / steps for times in (long, short))
        low, ratio, high = np.quantile(long / short, (0.25, 0.5, 0.75))
        figures = {"loop_ms": loop_ms, "bare_ms": bare_ms, "lower_quartile": low}
        figures |= {"ratio": ratio, "upper_quartile": high}
        result[kind] = {name: round(float(x), 4) for name, x in figures.items()}
        print(
            f"{kind:<10} loop {loop_ms:8.2f} ms a step, bare step {bare_ms:8.2f} ms:"
            f" the loop costs {ratio - 1:+.1%} (median of {len(long)} blocks;"
            f" quartiles {low - 1:+.1%}, {high - 1:+.1%})"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    turns.run(main)
