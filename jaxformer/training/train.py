"""Put the parts of a run together, and train.

How a run resumes:

1. The directory of a run holds one configuration. The same command on the same
   directory continues from the latest whole checkpoint. Another configuration is
   refused, except for keys that do not change what is already trained.
2. A checkpoint holds parameters and their average, optimizer, step and key, the
   position in the data, the best score, the sums of the metrics since the last line of
   the log, and the hashes of the vocabulary and of the training text. Resumed and
   uninterrupted runs are equal bit for bit on the same CPUs. On a GPU this needs flags
   of XLA.
3. The records are cut back to the checkpoint's step, and to its last evaluation.
4. An evaluation that was due but interrupted comes first.
5. Ctrl-C, SIGTERM and SIGHUP save before the loop ends, on all hosts at the same step.
   Any other end leaves the last good checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path

import jax

from jaxformer import signals
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import open_to_read
from jaxformer.data.batching import Batch
from jaxformer.data.cleaning import summary
from jaxformer.data.pipeline import TrainingData
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Validator, last_step
from jaxformer.training.compilations import Compilations
from jaxformer.training.display import Display, make_display
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.hosts import check_same, make_once, together
from jaxformer.training.log import Log
from jaxformer.training.loop import LoopParts, Outcome, run_loop
from jaxformer.training.optimizer import frozen_mask
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Progress, hash_validation
from jaxformer.training.run import Run, open_run, validation_batches
from jaxformer.training.state import TrainState
from jaxformer.training.warm_start import load_initial, restart_schedule

VISIBLE_AFTER = 60.0
"""Seconds until every host sees what another has written into a shared directory."""

_SHARE = "put --workdir on a file system that all hosts share"


def train(
    config: RunConfig,
    workdir: Path,
    make_validator: Callable[[Run, Transformer], Validator] | None = None,
) -> Outcome:
    """Train a run from its configuration, or continue the run in the directory.

    Args:
        config: the configuration; ``vocabulary_size`` and token ids of its model come
            from the vocabulary.
        workdir: directory of the run; made where it is missing. Several hosts share it.
        make_validator: builds what translates the validation set; without it, only the
            validation loss is measured.

    Returns:
        The step and whether the run is finished; ``signal`` names what interrupted it.

    Raises:
        InputError: something given does not fit; nothing that is already saved is
            harmed.
    """
    with contextlib.ExitStack() as open_parts:
        enter, closing = open_parts.enter_context, contextlib.closing
        compilations = enter(Compilations())
        check_same(
            configuration.flatten(config), "give every host the same configuration"
        )
        display = enter(closing(make_display(config.training.steps)))
        run = open_run(config, workdir, report=display.say)
        config, model = run.config, Transformer(run.config.model)
        engine = make_engine(model, config.training)
        data, valid = together(lambda: _load(run, display))
        check_same(
            {"the hash of the training text": data.hash},
            "give every host the same text",
        )
        first, texts = _check_start(run, engine)
        validate = None
        if make_validator is not None and config.evaluation.max_sentences != 0:
            validate = together(functools.partial(make_validator, run, model))
        # Until here there was nothing to save, and a signal ended the process at once.
        signals.check()
        stop = enter(signals.StopSignal())
        progress = Progress()
        _claim(run, open_parts, lambda: progress.step > 0)
        checkpoints = enter(closing(_open_checkpoints(run, display)))
        checkpoints.remove_leftovers()
        identity = {"vocabulary": run.vocabularies.hash, "data": data.hash}
        state, progress = _begin(run, engine, identity, checkpoints, first)
        progress.valid = texts
        _choose_best(progress, config.evaluation.best_metric, display)
        log = enter(closing(together(lambda: _open_log(run, progress))))
        first_step, steps = config.training.profile_step, config.training.profile_steps
        profile = enter(closing(Profile(workdir / "profile", first_step, steps)))
        _introduce(display, run, data, engine, progress)
        display.advance(progress.step, {})
        parts = LoopParts(
            config=config,
            directory=workdir,
            engine=engine,
            data=data,
            valid=valid,
            checkpoints=checkpoints,
            log=log,
            display=display,
            validate=validate,
            identity=identity,
            stop=stop,
            profile=profile,
            compilations=compilations,
        )
        return run_loop(parts, state, progress)


def _check_start(run: Run, engine: Engine) -> tuple[TrainState | None, dict[str, str]]:
    """Return the first state of a new run and the hashes of the validation text, before
    anything is written.
    """
    texts = hash_validation(run.valid, run.config.evaluation.max_sentences)
    if not _has_checkpoints(run):
        return _first_state(run, engine), texts
    together(lambda: _check_validation(run, texts))
    return None, texts


def _choose_best(progress: Progress, metric: str, display: Display) -> None:
    if progress.choose_by(metric):
        display.say(
            f"evaluation.best_metric={metric} is new: the best so far begins again"
            " from nothing"
        )


def _load(run: Run, display: Display) -> tuple[TrainingData, list[Batch]]:
    data = run.text.load(
        run.vocabularies, seed=run.config.training.seed, report=display.say
    )
    return data, validation_batches(run, data)


def _claim(
    run: Run, open_parts: contextlib.ExitStack, is_begun: Callable[[], bool]
) -> None:
    """Let the first host take the directory until the parts are closed, and the
    others see what it has written.
    """

    def claim() -> None:
        open_parts.enter_context(run.claim(is_begun))

    make_once(claim)
    together(lambda: _await(run.directory / "config.json"))


def _open_log(run: Run, progress: Progress) -> Log:
    project, config = run.config.training.wandb_project, dataclasses.asdict(run.config)
    return Log(
        run.directory,
        progress.step,
        progress.evaluated,
        wandb_project=project,
        config=config,
    )


def _await(path: Path) -> None:
    """Wait until this host sees a file that the first has written: network file
    systems take their time.
    """
    begun = time.monotonic()
    while not path.exists():
        if time.monotonic() - begun > VISIBLE_AFTER:
            raise InputError(
                f"the first host has written {path}, and here it is not: {_SHARE}"
            )
        time.sleep(0.1)


def _open_checkpoints(run: Run, display: Display) -> CheckpointManager:
    training = run.config.training
    if training.on_failed_save == "continue" and jax.process_count() > 1:
        raise InputError(
            "training.on_failed_save=continue is for one host: after a failure several"
            " no longer save together; set training.on_failed_save=stop"
        )

    def go_on(error: InputError) -> None:
        display.say(f"{error}; training continues")

    return CheckpointManager(
        run.checkpoints,
        keep_latest=training.keep_latest,
        keep_best=training.keep_best,
        keep_every=training.keep_every,
        best_metric=run.config.evaluation.best_metric,
        on_failure=None if training.on_failed_save == "stop" else go_on,
    )


def _begin(
    run: Run,
    engine: Engine,
    identity: dict[str, str],
    checkpoints: CheckpointManager,
    first: TrainState | None,
) -> tuple[TrainState, Progress]:
    check_same(
        {f"the list of checkpoints in {run.checkpoints}": checkpoints.steps}, _SHARE
    )
    if not checkpoints.steps:
        return first or _first_state(run, engine), Progress()
    step = checkpoints.find("latest")
    record = checkpoints.progress(step)
    run.check_vocabulary(record.pop("vocabulary"), step)
    if record.pop("data") != identity["data"]:
        raise InputError(
            f"{run.config.data.train} is not the text that {run.directory} was trained"
            f" on up to step {step}; put that text back, or choose another --workdir"
        )
    like = engine.abstract()
    parts = checkpoints.restore(step, params=like.weights, training=like.rest())
    return engine.place(
        TrainState.from_parts(parts["params"], parts["training"])
    ), Progress.from_json(record)


def _check_validation(run: Run, texts: dict[str, str]) -> None:
    """Refuse to compare scores of two validation texts, of whichever checkpoints are
    kept.
    """
    config, metric = run.config, run.config.evaluation.best_metric
    checkpoints, records = open_to_read(run.checkpoints, metric), []
    for step in {*checkpoints.ranking(), *checkpoints.steps[-1:]}:
        # a damaged one, which is refused where it is used
        with contextlib.suppress(InputError):
            records.append(checkpoints.progress(step))
    if any(
        each.get("evaluated")
        and each.get("valid", {}).get(metric, texts[metric]) != texts[metric]
        for each in records
    ):
        raise InputError(
            f"data.valid={config.data.valid} with"
            f" evaluation.max_sentences={config.evaluation.max_sentences} is another"
            f" text than {run.directory} was evaluated on, and scores of two texts do"
            " not compare: put the old text back, and score the new one by jaxformer"
            " evaluate --dataset; or begin a new --workdir with"
            f" training.initial_run={run.directory}"
        )


def _has_checkpoints(run: Run) -> bool:
    return any(path.name.isdecimal() for path in run.checkpoints.glob("*"))


def _first_state(run: Run, engine: Engine) -> TrainState:
    """Make the state of a run that begins, from its seed or from another run."""
    _refuse_lost_checkpoints(run)
    state, training = engine.create(), run.config.training
    if training.initial_run is None:
        return state
    like = engine.abstract()
    initial = load_initial(training, run.vocabularies.hash, like.params, like.optimizer)
    state = engine.collect(state)
    return engine.place(
        dataclasses.replace(
            state,
            params=initial.params,
            average=None if state.average is None else initial.params,
            optimizer=(
                state.optimizer
                if initial.optimizer is None
                else restart_schedule(initial.optimizer)
            ),
        )
    )


def _refuse_lost_checkpoints(run: Run) -> None:
    """Refuse to begin again where a run had a checkpoint: its record would be cut back
    to nothing.

    The folder of checkpoints is made before the first line of the record. The second
    save waits for the end of the first, so a line after it proves that there was a
    checkpoint.
    """
    cure = f"put {run.checkpoints} back, or choose another --workdir"
    for name in ("results.json", "averages", "curve.png"):  # made from checkpoints only
        if (run.directory / name).exists():
            raise InputError(
                f"{run.directory} has {name} of a run whose checkpoints are gone:"
                f" {cure}"
            )
    training, files = (
        run.config.training,
        [run.directory / name for name in ("metrics.jsonl", "samples.jsonl")],
    )
    made = max(map(last_step, files))
    if made > (
        2 * min(training.evaluate_every, training.checkpoint_every)
        if run.checkpoints.is_dir()
        else 0
    ):
        raise InputError(
            f"{run.directory} has the record of {made} steps and no checkpoint: {cure},"
            " or remove metrics.jsonl and samples.jsonl to begin again"
        )


def _introduce(
    display: Display, run: Run, data: TrainingData, engine: Engine, progress: Progress
) -> None:
    where = (
        f"{engine.devices} {jax.devices()[0].platform}"
        f" device{'s' if engine.devices > 1 else ''}"
    )
    display.say(
        f"model: {count_parameters(engine.abstract().params):,} parameters on {where}"
    )
    facts = data.statistics
    display.say(
        f"data: {facts.pairs:,} pairs an epoch, {facts.source_tokens:,} +"
        f" {facts.target_tokens:,} tokens, {facts.batches:,} batches in {facts.shapes}"
        f" shape{'s' * (facts.shapes > 1)}, {facts.padding:.1%} padding"
    )
    for name, count in data.counts.items():
        display.say(f"  {name}: {count.read:,} pairs read, {summary(count)}")
    if len(data.shares) > 1:
        for part in data.shares:
            size = part.stop - part.start
            display.say(
                f"  {part.name}: {size:,} pairs x {part.weight:g},"
                f" {size * part.weight / facts.pairs:.1%}"
            )
    display.say(f"validation: {run.config.data.valid}, {len(run.valid):,} pairs")
    training = run.config.training
    if training.initial_run is not None and not progress.step:
        with_optimizer = " and its moments" if training.initial_optimizer else ""
        display.say(
            "beginning with the best parameters of"
            f" {training.initial_run}{with_optimizer}"
        )
    if training.frozen is not None:
        params = engine.abstract().params
        frozen = frozen_mask(params, training.frozen)
        kept = sum(
            leaf.size
            for leaf, stays in zip(*map(jax.tree.leaves, (params, frozen)), strict=True)
            if stays
        )
        display.say(f"frozen: {kept:,} parameters by training.frozen={training.frozen}")
    if progress.step:
        display.say(
            f"resuming at step {progress.step} of {run.config.training.steps} in"
            f" {run.directory}"
        )
