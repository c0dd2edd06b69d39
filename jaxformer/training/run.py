"""The directory of a run, and whether a configuration and a vocabulary belong to it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxformer import bucket
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data.batching import Batch, plan_buckets
from jaxformer.data.corpus import (
    Report,
    TrainingText,
    check_text,
    load_evaluation,
    open_evaluation,
)
from jaxformer.data.encoding import encode_evaluation
from jaxformer.data.examples import encode_validation
from jaxformer.data.files import check_folder, make_folder
from jaxformer.data.frame import FILE, Template, make_frame
from jaxformer.data.packing import RowShape, plan_rows
from jaxformer.data.pipeline import TrainingData, evaluation_batches
from jaxformer.data.records import Pair
from jaxformer.data.sources import IMPORTED
from jaxformer.data.store import Encoded
from jaxformer.data.vocabulary import LABELS, Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.files import LOCK, TEMPORARY, check_writable, hold
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.folder import WRITTEN, complete_config
from jaxformer.training.hosts import make_once, together
from jaxformer.training.warm_start import read_initial_config

# Most batches of validation for which one shape, however long, is taken: another one
# would take longer to compile.
_FEW = 64
_OF_A_START = {"config.json", "wandb_id", *WRITTEN}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to train.

    Attributes:
        directory: of the run.
        config: complete, with the sizes and ids of the vocabulary.
        vocabularies: of source and target.
        text: the training text, not yet read.
        valid: the validation text.
        valid_languages: what it is to be translated from and into.
        report: says a line in the log.
    """

    directory: Path
    config: RunConfig
    vocabularies: Vocabularies
    text: TrainingText
    valid: list[Pair]
    valid_languages: tuple[str, str]
    report: Report = lambda _: None

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.directory / "checkpoints"

    @functools.cached_property
    def encoded_valid(self) -> Encoded:
        """The validation text as tokens; a window of text is a row."""
        config = self.config
        if config.data.kind != "pairs":
            return encode_validation(
                self.valid, self.vocabularies, config.data, config.model.max_length
            ).pairs
        return encode_evaluation(
            self.valid,
            self.vocabularies,
            source_eos=config.data.source_eos,
            tag=self.valid_languages[1] if config.data.language_tags else None,
            languages=self.valid_languages,
            max_length=config.model.max_length,
        )

    @contextlib.contextmanager
    def claim(self, is_begun: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Make the directory this run's, once everything is checked; no other process
        can claim it within the block.

        The configuration is written first, since a vocabulary that is missing is
        trained again just as it was.

        Args:
            is_begun: whether a step was made. Where the block of a new run ends with an
                error before the first step, what it has written is removed, and the
                directory if it was made here.

        Raises:
            InputError: another process has claimed it, or it cannot be written.
        """
        made = not self.directory.exists()
        new = not (self.directory / "config.json").exists()
        make_folder(self.directory, "--workdir")
        refusal = (
            f"another process trains in {self.directory}: wait until it ends, or choose"
            " another --workdir"
        )
        with hold(self.directory, refusal):
            try:
                configuration.save(self.config, self.directory / "config.json")
                self.vocabularies.save(self.directory / "vocabulary")
                bucket.push(self.directory)
                yield
            except BaseException as error:
                if new and not is_begun():
                    self._withdraw(made)
                if isinstance(error, Exception):
                    with contextlib.suppress(InputError):  # the first error is told
                        bucket.push(self.directory)
                raise
            bucket.push(self.directory)

    def _withdraw(self, made: bool) -> None:
        """Remove what a start has written, if there is nothing else, and the
        directory if it was made here.
        """
        written = list(self.directory.iterdir())
        if any(self.checkpoints.glob("*")) or not (
            {path.name for path in written} <= _OF_A_START
        ):
            return
        for path in written:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        if made:
            self.directory.rmdir()


def open_run(
    config: RunConfig, directory: Path, *, report: Report = lambda _: None
) -> Run:
    """Read the text, get the vocabulary, complete the model's sizes; :meth:`Run.claim`
    then takes the directory.

    Nothing is written. The test text is looked for, and checked where it is files.

    Args:
        config: of the run.
        directory: of the run.
        report: says a line in the log, such as that a vocabulary is to be trained.

    Raises:
        InputError: the directory holds another run, or the text is missing, empty or
            broken.
    """
    text, (valid, languages) = together(lambda: _look(config, directory))
    folder, initial_run = directory / "vocabulary", config.training.initial_run
    if (directory / "config.json").exists():
        vocabularies = _share(lambda: text.vocabularies(folder, report=report))
        known = configuration.load(directory / "config.json")
    else:
        vocabularies = _share(lambda: _first_vocabularies(text, initial_run, report))
        known = None if initial_run is None else read_initial_config(initial_run)
    complete = complete_config(config, vocabularies, known)
    for languages_of in (*(part.languages for part in text.parts), languages):
        _check_start(complete, vocabularies, languages_of)
    return Run(directory, complete, vocabularies, text, valid, languages, report)


def _look(
    config: RunConfig, directory: Path
) -> tuple[TrainingText, tuple[list[Pair], tuple[str, str]]]:
    """Find the text, read what validates, and make sure that the directory is free
    or this run's.
    """
    check_folder(directory, "--workdir")
    if directory.exists():
        check_writable(directory)
    saved, data = directory / "config.json", config.data
    old = configuration.load(saved) if saved.exists() else None
    if old and old.data.train.startswith(IMPORTED):
        raise InputError(
            f"{directory} was imported and has no training to continue: begin a new"
            f" --workdir with --config=finetune:{directory}"
        )
    text = TrainingText.open(dataclasses.replace(data, packing=config.packs))
    if old:
        _refuse_another(old, config, directory)
        _refuse_end(old, config, directory)
    elif any(
        path.name != LOCK and path.suffix != TEMPORARY for path in directory.glob("*")
    ):
        raise InputError(
            f"{directory} holds files but no run (no config.json); choose an empty"
            " --workdir"
        )
    elif config.training.initial_run is not None:
        read_initial_config(config.training.initial_run)
    try:
        check_text(open_evaluation(data.test, data)[0], data.kind)
    except InputError as error:
        raise InputError(f"data.test: {error}") from None
    return text, load_evaluation(data.valid, data)


def _check_start(
    config: RunConfig, vocabularies: Vocabularies, languages: tuple[str, str]
) -> None:
    """Refuse a direction whose targets begin with another first input of the decoder,
    of which a model has one while it is trained.
    """
    tag = languages[1] if config.data.language_tags else None
    if vocabularies.template is None or config.data.kind != "pairs":
        return
    frame = make_frame(vocabularies, languages, tag=tag)
    if frame.start != config.model.bos_id:
        raise InputError(
            f"this model is trained in one direction: {'-'.join(config.data.languages)}"
            f" and {'-'.join(languages)} differ in the decoder's first input; set"
            " data.target_language, and leave out other directions"
        )


def _refuse_end(old: RunConfig, new: RunConfig, directory: Path) -> None:
    """Refuse an end of training that is past, and another one once the rate falls,
    or would have, towards it.
    """
    before, after = old.training, new.training
    if (before.steps, before.cooldown_steps) == (after.steps, after.cooldown_steps):
        return
    made = max(SavedCheckpoints(directory / "checkpoints").steps, default=0)
    if made > after.steps:
        raise InputError(
            f"training.steps={after.steps} is less than the {made} steps that"
            f" {directory} has made: ask for as many at least, or choose another"
            " --workdir"
        )
    for training in (before, after):
        if training.cooldown_steps and made > training.steps - training.cooldown_steps:
            raise InputError(
                f"{directory} is at step {made}, within the last"
                f" training.cooldown_steps={training.cooldown_steps} of"
                f" training.steps={training.steps}: change neither from there on, or"
                " choose another --workdir"
            )


def validation_batches(run: Run, data: TrainingData) -> list[Batch]:
    """Put every validation pair into a batch once.

    All have one shape, packed where training is, unless the longest of many pairs would
    make it wasteful. Where words are masked, ``row`` has the number of each row, which
    is one text.

    Raises:
        InputError: a sentence is longer than the model has positions for.
    """
    config = run.config
    try:
        encoded = run.encoded_valid
    except InputError as error:
        raise InputError(f"data.valid ({config.data.valid}): {error}") from None
    lengths = encoded.source_lengths, encoded.target_lengths
    budget, multiple = config.data.tokens_per_batch, config.data.shape_multiple
    if isinstance(data.shape, RowShape) and not config.training.masks:
        shape = plan_rows(
            *lengths,
            tokens_per_batch=budget,
            packed_length=config.data.packed_length,
            shape_multiple=multiple,
        )
    else:
        slots = len(encoded) * max(int(side.max()) for side in lengths)
        shape = plan_buckets(
            *lengths,
            num_buckets=1 if slots <= _FEW * budget else config.data.num_buckets,
            tokens_per_batch=min(budget, slots),
            shape_multiple=multiple,
            max_length=config.model.max_length,
            labels=config.data.labels_per_text is not None,
        )
    batches = evaluation_batches(encoded, shape)
    if not config.training.masks:
        return [batch for batch, _ in batches]
    return [
        {**batch, "row": np.resize(numbers, (len(batch["target"]), 1)).astype(np.int32)}
        for batch, numbers in batches
    ]


def _share(make: Callable[[], Vocabularies]) -> Vocabularies:
    """Call ``make`` on the first host, and send the files to all."""

    def encode() -> list[dict[str, str]]:
        made = make()
        shared = made.source is made.target
        frame = made.template and {FILE: made.template.to_json().encode()}
        parts = [made.source.files, made.target.files, frame or {}]
        return [
            {end: base64.b64encode(file).decode("ascii") for end, file in files.items()}
            for files in parts[shared:]
        ]

    *sides, frame = [
        {ending: base64.b64decode(text) for ending, text in files.items()}
        for files in make_once(encode)
    ]
    parts = [Vocabulary.from_files(files) for files in sides]
    template = Template.from_json(frame[FILE]) if frame else None
    return Vocabularies(parts[0], parts[-1], template)


def _first_vocabularies(
    text: TrainingText, initial_run: str | None, report: Report
) -> Vocabularies:
    """Train the vocabularies on the text, or take those of the run whose parameters
    this one begins with. The labels of another kind of data are not this run's.
    """
    with tempfile.TemporaryDirectory() as scratch:
        if initial_run is not None:
            folder = bucket.open_directory(initial_run) / "vocabulary"
            same = read_initial_config(initial_run).data.kind == text.config.kind
            for path in folder.glob("*.*"):
                if same or not path.name.endswith(LABELS):
                    shutil.copy(path, scratch)
        try:
            return text.vocabularies(Path(scratch), report=report)
        except InputError as error:
            line = str(error).replace(scratch, f"{initial_run}/vocabulary")
            raise InputError(line) from None


def _refuse_another(old: RunConfig, new: RunConfig, directory: Path) -> None:
    # The vocabulary's own keys are not in a configuration file; they are checked by its
    # hash.
    model = dataclasses.replace(
        new.model,
        **{name: getattr(old.model, name) for name in configuration.OF_THE_VOCABULARY},
    )
    changed = configuration.differences(old, dataclasses.replace(new, model=model))
    if changed:
        named = changed[:5] + [f"and {len(changed) - 5} more"] * (len(changed) > 5)
        cure = "continue with the same values or choose another --workdir"
        if "training.steps: " in str(changed):
            cure += (
                f"; training.schedule={old.training.schedule} ends at training.steps:"
                f" --config.training.initial_run={directory} trains on in another"
            )
        raise InputError(
            f"{directory} holds a run of another configuration: {', '.join(named)};"
            f" {cure}"
        )
