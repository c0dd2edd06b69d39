"""Put the parts of a run together, and train.

How a run resumes:

1. The directory of a run holds one configuration. The same command on the same
   directory continues from the latest whole checkpoint. Another configuration is
   refused, except for keys that do not change what is already trained.
2. A checkpoint holds parameters and their average, optimizer, step and key, the
   position in the data, the best score, the sums of the metrics since the last line of
   the log, and the hashes of the vocabulary and of the training text. Resumed and
   uninterrupted runs are equal bit for bit on the same CPUs, and with
   ``training.deterministic`` on the same GPUs.
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

from jaxformer import bucket, signals
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.parameters import Base
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.batching import Batch, round_down, round_up
from jaxformer.data.pipeline import Position, TrainingData
from jaxformer.data.word_vectors import Rows, read_vectors
from jaxformer.errors import InputError
from jaxformer.models.base import Model
from jaxformer.models.make import make_model
from jaxformer.nn.backend import choose_backend
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.folder import check_vocabulary
from jaxformer.runs.records import Validator, last_step
from jaxformer.training.compilations import Compilations
from jaxformer.training.display import Display, make_display
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.hosts import check_same, make_once, together
from jaxformer.training.introduction import introduce, report_unknown
from jaxformer.training.log import Log
from jaxformer.training.loop import LoopParts, Outcome, run_loop
from jaxformer.training.profile import Profile
from jaxformer.training.progress import Progress, hash_validation
from jaxformer.training.run import Run, open_run, validation_batches
from jaxformer.training.state import TrainState
from jaxformer.training.step import SEGMENTS
from jaxformer.training.warm_start import fill_tables, load_initial, restart_schedule
from jaxformer.typing import PyTree

VISIBLE_AFTER = 60.0
"""Seconds until every host sees what another has written into a shared directory."""

_SAME = "give every host the same configuration"
_SHARE = "put --workdir on a file system that all hosts share"


def train(
    config: RunConfig,
    workdir: Path | str,
    make_validator: Callable[[Run, Model], Validator] | None = None,
) -> Outcome:
    """Train a run from its configuration, or continue the run in the directory.

    Args:
        config: of the run; the vocabulary gives its model sizes and token ids.
        workdir: directory of the run; made where it is missing. A string may be the URL
            of one in a bucket, such as ``gs://bucket/run``. Several hosts share it.
        make_validator: builds what translates the validation set; None: loss only.

    Returns:
        The step and whether the run is finished; ``signal`` names an interruption.

    Raises:
        InputError: something given does not fit; what is already saved stays.
    """
    with contextlib.ExitStack() as open_parts:
        enter, closing = open_parts.enter_context, contextlib.closing
        check_same(configuration.flatten(config), _SAME)
        display = enter(closing(make_display(config.training.steps)))
        compilations = enter(Compilations(display))
        # Before any text is read.
        choose_backend(make_model(config.model), None, 1, train=True)
        directory = together(lambda: bucket.open_directory(workdir))
        display.doing("reading the text and its vocabulary")
        run = open_run(config, directory, report=display.say)
        config, model = run.config, make_model(run.config.model)
        engine = make_engine(model, config.training)
        display.doing("encoding the text")
        data, valid = together(lambda: _load(run, display))
        display.doing("initializing the parameters")
        compile_ahead = functools.partial(_compile_ahead, run, engine, data, valid)
        first, texts = _check_start(run, engine, data, compile_ahead)
        compile_ahead()  # of a run that continues
        validate = None
        if make_validator is not None and config.evaluation.max_sentences != 0:
            validate = together(functools.partial(make_validator, run, model))
        # Until here there was nothing to save, and a signal ended the process at once.
        signals.check()
        stop = enter(signals.StopSignal())
        progress = Progress()
        _claim(run, open_parts, lambda: progress.step > 0)
        checkpoints = enter(closing(_open_checkpoints(run)))
        checkpoints.remove_leftovers()
        state, progress = _begin(run, engine, data, checkpoints, first)
        progress.valid = texts
        log = enter(closing(together(lambda: _open_log(run, progress))))
        profile = enter(closing(_make_profile(run)))
        introduce(display, run, data, engine, progress)
        parts = LoopParts(
            *(config, directory, engine, data, valid, checkpoints, log, display),
            *(validate, stop, profile, compilations),
        )
        return run_loop(parts, state, progress)


def _load(run: Run, display: Display) -> tuple[TrainingData, list[Batch]]:
    seed = run.config.training.seed
    data = run.text.load(run.vocabularies, seed=seed, report=display.say)
    valid = validation_batches(run, data)
    report_unknown(run, data, valid, display.say)
    return data, valid


def _compile_ahead(
    run: Run, engine: Engine, data: TrainingData, valid: list[Batch]
) -> None:
    """Begin to compile what surely runs, while the state is made. Several hosts compile
    where they need it, all in the same order.
    """
    made = max(SavedCheckpoints(run.checkpoints).steps, default=0)
    if jax.process_count() > 1 or made >= run.config.training.steps:
        return
    if not (made and data.buckets):  # whose first shape depends on the position
        for blank in data.blanks(Position(), 1):
            engine.compile(blank)
    for batch in valid:
        engine.compile(batch, train=False)


def _check_start(
    run: Run, engine: Engine, data: TrainingData, compile_ahead: Callable[[], None]
) -> tuple[tuple[TrainState, Progress] | None, dict[str, str]]:
    """Return what a new run begins with and the hashes of the validation text, before
    anything is written.
    """
    hashes = {"the hash of the training text": data.hash}
    check_same(hashes, "give every host the same text")
    texts = hash_validation(run.valid, run.config.evaluation.max_sentences)
    if not SavedCheckpoints(run.checkpoints).steps:
        return _first_state(run, engine, data, compile_ahead), texts
    together(lambda: _check_validation(run, texts))
    return None, texts


def _claim(
    run: Run, open_parts: contextlib.ExitStack, is_begun: Callable[[], bool]
) -> None:
    """Let the first host take the directory until the parts are closed, and the
    others see what it has written.
    """

    def claim() -> None:
        open_parts.enter_context(run.claim(is_begun))

    make_once(claim)
    if not bucket.is_mirror(run.directory):
        together(lambda: _await(run.directory / "config.json"))


def _make_profile(run: Run) -> Profile:
    training, traces = run.config.training, run.directory / "profile"
    return Profile(traces, training.profile_step)


def _open_log(run: Run, progress: Progress) -> Log:
    return Log(
        run.directory,
        progress.step,
        progress.evaluated,
        wandb_project=run.config.training.wandb_project,
        config=dataclasses.asdict(run.config),
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


def _open_checkpoints(run: Run) -> CheckpointManager:
    training = run.config.training
    return CheckpointManager(
        run.checkpoints,
        keep_latest=training.keep_latest,
        keep_best=training.keep_best,
        keep_every=training.keep_every,
        best_metric=run.config.evaluation.best_metric,
    )


def _begin(
    run: Run,
    engine: Engine,
    data: TrainingData,
    checkpoints: CheckpointManager,
    first: tuple[TrainState, Progress] | None,
) -> tuple[TrainState, Progress]:
    # The mirrors of a bucket have different names.
    where = bucket.reword(str(run.checkpoints))
    check_same({f"the list of checkpoints in {where}": checkpoints.steps}, _SHARE)
    if not checkpoints.steps:
        return first or _first_state(run, engine, data, lambda: None)
    step = checkpoints.find("latest")
    progress = Progress.from_json(checkpoints.progress(step))
    check_vocabulary(run.directory, run.vocabularies, progress.vocabulary, step)
    if progress.data != data.hash:
        raise InputError(
            f"{run.config.data.train} is not the text that {run.directory} was trained"
            f" on up to step {step}; put that text back, or choose another --workdir"
        )
    like = engine.abstract()
    parts = checkpoints.restore(step, params=like.weights, training=like.rest())
    state = TrainState.from_parts(parts["params"], parts["training"])
    if progress.base is not None:
        base = Base(**progress.base)
        params = base.load(run.directory, like.base)
        state = dataclasses.replace(state, base=params, lora_scale=base.scale)
    return engine.place(state), progress


def _check_validation(run: Run, texts: dict[str, str]) -> None:
    """Refuse to compare scores of two validation texts, of whichever checkpoints are
    kept.
    """
    config, metric = run.config, run.config.evaluation.best_metric
    checkpoints, records = SavedCheckpoints(run.checkpoints, metric), []
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


def _first_state(
    run: Run, engine: Engine, data: TrainingData, compile_ahead: Callable[[], None]
) -> tuple[TrainState, Progress]:
    """Make the state of a run that begins, from its seed or from another run.

    What is refused is refused before ``compile_ahead`` begins, whose threads end late.
    """
    _refuse_lost_checkpoints(run)
    progress = Progress(vocabulary=run.vocabularies.hash, data=data.hash)
    training = run.config.training
    like = engine.abstract()
    if training.initial_run is None:
        tables = together(lambda: _read_tables(run, like.params))
        compile_ahead()
        state = engine.create()
        if tables:
            state = engine.place(fill_tables(engine.collect(state), tables))
        return state, progress
    params = like.params if like.base is None else like.base
    initial = load_initial(
        training,
        run.vocabularies.hash,
        params,
        like.optimizer,
        text=run.vocabularies.text_hash if run.vocabularies.labels else None,
    )
    compile_ahead()
    state = engine.collect(engine.create())
    # A head that the other run does not have stays as it was drawn.
    params = {**state.params, **initial.params} if initial.drawn else initial.params
    progress.drawn = list(initial.drawn)
    changes: dict[str, PyTree] = {"params": params}
    if initial.base is not None:
        progress.base, changes = initial.base._asdict(), {"base": initial.params}
    elif training.ema_decay is not None:
        changes["average"] = params
    if initial.optimizer is not None:
        changes["optimizer"] = restart_schedule(initial.optimizer)
    state = dataclasses.replace(state, **changes)
    return engine.place(state), progress


def _read_tables(run: Run, params: PyTree) -> dict[str, Rows]:
    """Read the rows that ``data.embeddings`` has for the tables of a model."""
    file, tables = run.config.data.embeddings, {}
    for table in ("embedding", "source_embedding", "target_embedding"):
        if file and table in params:
            side = "target" if table.startswith("target") else "source"
            vocabulary = getattr(run.vocabularies, side)
            rows = read_vectors(file, vocabulary, run.config.model.d_model)
            tables[table], count = rows, f"{len(rows[0]):,} of {vocabulary.size:,}"
            run.report(f"embeddings: {count} rows of {table} are from {file}")
    return tables


def _refuse_lost_checkpoints(run: Run) -> None:
    """Refuse to begin again where a run had a checkpoint: its record would be cut back
    to nothing.

    The folder of checkpoints is made before the first line of the record; a bucket has
    no empty folders. The second save waits for the end of the first, so a line after it
    proves that there was a checkpoint.
    """
    cure = f"put {run.checkpoints} back, or choose another --workdir"
    for name in ("results.json", "averages", "curve.png"):  # made from checkpoints only
        if (run.directory / name).exists():
            raise InputError(
                f"{run.directory} has {name} of a run whose checkpoints are gone:"
                f" {cure}"
            )
    training = run.config.training
    names = ("metrics.jsonl", "samples.jsonl")
    made = max(last_step(run.directory / name) for name in names)
    saved_by = 2 * min(training.evaluate_every, training.checkpoint_every)
    begun = run.checkpoints.is_dir() or bucket.is_mirror(run.directory)
    if made > (saved_by if begun else 0):
        raise InputError(
            f"{run.directory} has the record of {made} steps and no checkpoint: {cure},"
            " or remove metrics.jsonl and samples.jsonl to begin again"
        )


def largest_batch(config: RunConfig, multiple: int) -> dict[str, tuple[int, int]]:
    """Return the batch of a run with the longest rows, whose attention takes most.

    Args:
        config: of the run.
        multiple: of which the rows are one.
    """
    data = config.data
    length = (
        round_up(
            max(data.packed_length or 256, data.max_length),
            data.shape_multiple,
            data.tokens_per_batch,
        )
        if config.packs
        else data.window or data.max_length
    )
    rows = max(round_down(data.tokens_per_batch // length, data.shape_multiple), 1)
    names = ("source", "target", *(SEGMENTS if config.packs else ()))
    if data.one_sided and data.labels_per_text is None:
        names = names[1::2]
    batch: dict[str, tuple[int, int]] = dict.fromkeys(
        names, (-(-rows // multiple) * multiple, length)
    )
    if data.labels_per_text is not None:
        batch["target"] = (batch["target"][0], data.labels_per_text)
    if data.whole_words:
        batch["continues"] = batch.get("source", batch["target"])
    return batch
