"""The one training loop, from top to bottom.

How a run resumes:

1. The directory of a run holds one configuration. The same command on the same directory goes on where the latest
   whole checkpoint stands; another configuration is refused, but for keys that leave what is trained right.
2. A checkpoint holds parameters, optimizer, step and key, the position in the data, the sums of the metrics since the
   last line of the log, and the hashes of the vocabulary and of the training text. Resumed and uninterrupted runs are
   equal bit for bit.
3. The records are cut back to the checkpoint's step, and to its last evaluation, before they grow again.
4. An evaluation that was due but interrupted is made up first.
5. Ctrl-C and SIGTERM save before the loop ends; whatever else ends it leaves the last good checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data.batching import Batch, cover, plan_buckets
from jaxformer.data.cleaning import summary
from jaxformer.data.pipeline import Position, TrainingData, evaluation_batches
from jaxformer.data.transforms import encode_evaluation
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.training.config import RunConfig
from jaxformer.training.engines import Engine, Placed, make_engine
from jaxformer.training.hooks import Display, Log, StopSignal, make_display
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.run import Run, open_run
from jaxformer.training.schedules import paper_schedule
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.step import Metrics
from jaxformer.typing import PyTree


class Validation(NamedTuple):
    """What translating the validation set gave: scores by name, and some of the translations."""

    scores: dict[str, float]
    samples: list[dict[str, str]]


Validator = Callable[[PyTree, Callable[[], bool]], Validation | None]
"""Translates the validation set with some parameters; asks whether to stop, and gives None if it did."""


class Outcome(NamedTuple):
    """How a call of :func:`train` ended."""

    step: int
    finished: bool
    signal: str | None


@dataclasses.dataclass
class Progress:
    """The loop's own counters, saved with each checkpoint.

    Attributes:
        step: updates made.
        position: the next batch.
        sums: metrics summed since the last line of the log, as Python floats.
        evaluated: step of the last evaluation.
        scores: those of the last evaluation.
    """

    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    evaluated: int = 0
    scores: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give the counters as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Progress:
        """Read what :meth:`to_json` gave."""
        return cls(**{**record, "position": Position(**record["position"])})


def train(
    config: RunConfig,
    workdir: Path,
    make_validator: Callable[[Run, Transformer], Validator] | None = None,
) -> Outcome:
    """Train a run from its configuration, or go on with the run that the directory holds.

    Args:
        config: the configuration; ``vocabulary_size`` and token ids of its model come from the vocabulary.
        workdir: directory of the run; made where it is missing.
        make_validator: builds what translates the validation set; without it, only the validation loss is measured.

    Returns:
        Where the run stands and whether it is finished; ``signal`` names what interrupted it.

    Raises:
        InputError: something given does not fit; nothing that is already saved is harmed.
    """
    with contextlib.ExitStack() as open_parts:
        run = open_run(config, workdir)
        config, model = run.config, Transformer(run.config.model)
        engine = make_engine(model, make_optimizer(config.training, config.model.d_model), config.training)
        data = run.text.load(run.vocabularies, seed=config.training.seed)
        valid = _validation_batches(run, data)
        # Until here there is nothing to save, and a signal ends the process at once.
        stop = open_parts.enter_context(StopSignal())
        open_parts.enter_context(run.claim())
        checkpoints = CheckpointManager(
            run.checkpoints,
            keep_latest=config.training.keep_latest,
            keep_best=config.training.keep_best,
            best_metric=config.evaluation.best_metric,
        )
        open_parts.callback(checkpoints.close)
        checkpoints.remove_leftovers()
        identity = {"vocabulary": run.vocabularies.hash, "data": data.hash}
        state, progress = _begin(run, model, identity, checkpoints)
        log = Log(workdir, progress.step, progress.evaluated)
        open_parts.callback(log.close)
        display = make_display(config.training.steps, progress.step)
        open_parts.callback(display.close)
        _introduce(display, run, data, state, engine, progress)
        validate = make_validator(run, model) if make_validator else None
        loop = Loop(config, engine, data, valid, checkpoints, log, display, validate, identity, stop)
        return loop.run(engine.place(state), progress)


def _begin(
    run: Run, model: Transformer, identity: dict[str, str], checkpoints: CheckpointManager
) -> tuple[TrainState, Progress]:
    training = run.config.training
    optimizer = make_optimizer(training, run.config.model.d_model)
    if not checkpoints.steps:
        return create_state(model, optimizer, training.seed), Progress()
    like = jax.eval_shape(lambda: create_state(model, optimizer, training.seed))
    step = checkpoints.find("latest")
    record = checkpoints.progress(step)
    run.check_vocabulary(record.pop("vocabulary"), step)
    if record.pop("data") != identity["data"]:
        raise InputError(
            f"{run.config.data.train} is not the text that {run.directory} was trained on up to step {step}; put that "
            "text back, or choose another --workdir"
        )
    parts = checkpoints.restore(step, params=like.params, training=_without_params(like))
    rest = parts["training"]
    state = TrainState(step=rest["step"], params=parts["params"], optimizer=rest["optimizer"], key=rest["key"])
    return state, Progress.from_json(record)


def _validation_batches(run: Run, data: TrainingData) -> list[Batch]:
    """Put every validation pair into a batch once, in the shapes of training and at most one more."""
    config = run.config
    encoded = encode_evaluation(
        run.valid,
        run.vocabularies,
        source_eos=config.data.source_eos,
        tag=run.valid_language if config.data.language_tags else None,
        max_length=config.model.max_length,
    )
    lengths, budget = (encoded.source_lengths, encoded.target_lengths), config.data.tokens_per_batch
    if data.buckets:
        buckets = cover(data.buckets, *lengths, tokens_per_batch=budget)
    else:
        buckets = plan_buckets(*lengths, num_buckets=config.data.num_buckets, tokens_per_batch=budget)
    return [batch for batch, _ in evaluation_batches(encoded, buckets)]


def _without_params(state: TrainState) -> dict[str, PyTree]:
    return {"step": state.step, "optimizer": state.optimizer, "key": state.key}


def _introduce(
    display: Display, run: Run, data: TrainingData, state: TrainState, engine: Engine, progress: Progress
) -> None:
    where = f"{engine.devices} {jax.devices()[0].platform} device{'s' if engine.devices > 1 else ''}"
    display.say(f"model: {count_parameters(state.params):,} parameters on {where}")
    facts = data.statistics
    display.say(
        f"data: {facts.pairs:,} pairs an epoch, {facts.source_tokens:,} + {facts.target_tokens:,} tokens, "
        f"{facts.batches:,} batches in {facts.shapes} shape{'s' * (facts.shapes > 1)}, {facts.padding:.1%} padding"
    )
    for name, count in data.counts.items():
        display.say(f"  {name}: {count.read:,} pairs read, {summary(count)}")
    if len(data.shares) > 1:
        for part in data.shares:
            size = part.stop - part.start
            display.say(f"  {part.name}: {size:,} pairs x {part.weight:g}, {size * part.weight / facts.pairs:.1%}")
    display.say(f"validation: {run.config.data.valid}, {len(run.valid):,} pairs")
    if progress.step:
        display.say(f"resuming at step {progress.step} of {run.config.training.steps} in {run.directory}")


@dataclasses.dataclass(frozen=True)
class Loop:
    """The parts of a run that trains; :meth:`run` is the loop."""

    config: RunConfig
    engine: Engine
    data: TrainingData
    valid: list[Batch]
    checkpoints: CheckpointManager
    log: Log
    display: Display
    validate: Validator | None
    identity: dict[str, str]
    stop: StopSignal

    def run(self, state: TrainState, progress: Progress) -> Outcome:
        """Train from ``state`` to the configured number of steps, or to a signal."""
        training = self.config.training
        if self._due(progress.step, training.evaluate_every) and progress.evaluated < progress.step:
            self._evaluate(state, progress)
            self._save(state, progress)
        speed = _Speed()
        host, hosts = jax.process_index(), jax.process_count()
        batches = _ahead(self.data.batches(progress.position, host=host, hosts=hosts), self.engine)
        # Metrics are read a step late, so that the devices work while the host gets the next batch; but in time for
        # the log, and before anything is evaluated or saved.
        unread: list[Metrics] = []
        while progress.step < training.steps and not self.stop:
            batch, position = next(batches)
            state, metrics = self.engine.step(state, batch)
            progress.step, progress.position = progress.step + 1, position
            unread.append(metrics)
            logged, evaluated = (self._due(progress.step, n) for n in (training.log_every, training.evaluate_every))
            saved = evaluated or self._due(progress.step, training.checkpoint_every)
            self._read(unread, progress, speed, leave=0 if logged or saved else 1)
            entry = self._log(progress, speed) if logged else {}
            self.display.advance(progress.step, entry)
            if evaluated and not self.stop:
                self._evaluate(state, progress)
                speed = _Speed()
            if saved:
                self._save(state, progress)
        self._read(unread, progress, speed, leave=0)
        if progress.step not in self.checkpoints.steps:
            self._save(state, progress)
        self.checkpoints.wait()
        finished = progress.step >= training.steps and progress.evaluated == progress.step
        if not finished:
            self.display.say(
                f"{self.stop.received}: saved at step {progress.step}; the same command goes on from there"
            )
        return Outcome(progress.step, finished, None if finished else self.stop.received)

    def _due(self, step: int, every: int) -> bool:
        return step > 0 and (step % every == 0 or step >= self.config.training.steps)

    def _read(self, unread: list[Metrics], progress: Progress, speed: _Speed, *, leave: int) -> None:
        """Add the metrics of all but the last ``leave`` steps to the sums."""
        while len(unread) > leave:
            metrics = unread.pop(0)
            speed.add(self._add(metrics, progress, progress.step - len(unread)))

    def _add(self, metrics: Metrics, progress: Progress, step: int) -> float:
        """Add a step's metrics to the sums; return its tokens."""
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss"]) or not math.isfinite(values["gradient_norm"]):
            raise InputError(
                f"the loss at step {step} is {values['loss']} and its gradient norm "
                f"{values['gradient_norm']}: training diverged; lower training.learning_rate or lengthen "
                "training.warmup_steps, and train in a new --workdir"
            )
        values["steps"] = 1.0
        for name, value in values.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + value
        return values["tokens"]

    def _log(self, progress: Progress, speed: _Speed) -> dict[str, float]:
        sums = progress.sums
        schedule = self.config.training
        rate = paper_schedule(self.config.model.d_model, schedule.warmup_steps, schedule.learning_rate)
        tokens = max(sums["tokens"], 1.0)
        entry = {
            "train/loss": sums["loss"] / tokens,
            "train/nll": sums["nll"] / tokens,
            "train/perplexity": _perplexity(sums["nll"] / tokens),
            "train/gradient_norm": sums["gradient_norm"] / sums["steps"],
            "train/learning_rate": float(rate(progress.step - 1)),
            "train/tokens": sums["tokens"],
            "train/epoch": float(progress.position.epoch),
            "train/tokens_per_second": speed.rate(),
        }
        self.log.write(progress.step, entry)
        progress.sums = {}
        return entry

    def _evaluate(self, state: TrainState, progress: Progress) -> None:
        """Measure loss and translations of the validation set, unless a signal comes in between."""
        sums: dict[str, float] = {}
        for batch in self.valid:
            if self.stop:
                return
            for name, value in self.engine.evaluate(state, batch).items():
                sums[name] = sums.get(name, 0.0) + float(value)
        nll = sums["nll"] / sums["tokens"]
        scores = {
            "loss": nll,
            "smoothed_loss": sums["loss"] / sums["tokens"],
            "accuracy": sums["correct"] / sums["tokens"],
        }
        samples = []
        if self.validate is not None:
            params = self.engine.collect(state).params
            validation = self.validate(params, lambda: bool(self.stop))
            if validation is None:
                return
            scores.update(validation.scores)
            samples = validation.samples
        entry = {f"valid/{'nll' if name == 'loss' else name}": value for name, value in scores.items()}
        entry["valid/perplexity"] = _perplexity(nll)
        self.log.write(progress.step, entry)
        self.log.write_samples(progress.step, samples)
        self.display.say(_report(progress.step, entry, samples))
        progress.evaluated, progress.scores = progress.step, scores

    def _save(self, state: TrainState, progress: Progress) -> None:
        collected = self.engine.collect(state)
        self.checkpoints.save(
            progress.step,
            collected.params,
            _without_params(collected),
            {**progress.to_json(), **self.identity},
            progress.scores if progress.evaluated == progress.step else None,
        )


def _ahead(batches: Iterator[tuple[Batch, Position]], engine: Engine) -> Iterator[tuple[Placed, Position]]:
    """Put each batch where the steps run before it is asked for, one at a time."""
    waiting = None
    for batch, position in batches:
        placed = engine.put(batch), position
        if waiting is not None:
            yield waiting
        waiting = placed


class _Speed:
    """Target tokens a second since it was made; the first step, which compiles, is not counted."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._tokens = 0.0

    def add(self, tokens: float) -> None:
        if self._begun is None:
            self._begun = time.monotonic()
        else:
            self._tokens += tokens

    def rate(self) -> float:
        elapsed = time.monotonic() - (self._begun or time.monotonic())
        rate = self._tokens / elapsed if elapsed > 0.0 else 0.0
        self._begun, self._tokens = time.monotonic(), 0.0
        return rate


def _perplexity(nll: float) -> float:
    return math.exp(min(nll, 700.0))


def _report(step: int, entry: dict[str, float], samples: list[dict[str, str]]) -> str:
    words = [f"valid nll {entry['valid/nll']:.3f}", f"ppl {entry['valid/perplexity']:.2f}"]
    for name, label in (("valid/bleu", "BLEU"), ("valid/chrf", "chrF")):
        if name in entry:
            words.append(f"{label} {entry[name]:.2f}")
    lines = [f"evaluation at step {step}: {', '.join(words)}"]
    for sample in samples[:2]:
        lines += [f"  source      {sample['source']}", f"  translation {sample['translation']}"]
    return "\n".join(lines)
