"""The directory of a run: what lies where, and whether a configuration and a vocabulary belong to it."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

from jaxformer.data.files import check_folder, make_folder
from jaxformer.data.loading import Report, TrainingText, load_evaluation, open_evaluation
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.locks import LOCK, hold
from jaxformer.training import config as configuration
from jaxformer.training.config import RunConfig
from jaxformer.training.hosts import make_once, together


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to train.

    Attributes:
        directory: where everything lies.
        config: complete, with the sizes and ids of the vocabulary.
        vocabularies: of source and target.
        text: the training text, not yet read.
        valid: the validation text.
        valid_language: what it is to be translated into.
    """

    directory: Path
    config: RunConfig
    vocabularies: Vocabularies
    text: TrainingText
    valid: list[Pair]
    valid_language: str

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.directory / "checkpoints"

    def claim(self) -> TextIO:
        """Make the directory this run's, once everything is checked: until then a refused start leaves nothing behind.

        The configuration is written first, since a vocabulary that is missing is trained again just as it was.

        Returns:
            An open file; until it is closed no other process can claim the directory.

        Raises:
            InputError: another process has claimed it.
        """
        make_folder(self.directory, "--workdir")
        lock = hold(
            self.directory,
            f"another process trains in {self.directory}: wait until it ends, or choose another --workdir",
        )
        configuration.save(self.config, self.directory / "config.json")
        self.vocabularies.save(self.directory / "vocabulary")
        return lock

    def check_vocabulary(self, recorded: str, step: int | str) -> None:
        """Refuse to go on with another vocabulary than that of a checkpoint.

        Raises:
            InputError: the hashes differ.
        """
        check_vocabulary(self.directory, self.vocabularies, recorded, step)


def check_vocabulary(directory: Path, vocabularies: Vocabularies, recorded: str, step: int | str) -> None:
    """Refuse a vocabulary that is not the one that a checkpoint was trained with.

    Raises:
        InputError: the hashes differ.
    """
    if recorded != vocabularies.hash:
        raise InputError(
            f"{directory / 'vocabulary'} is not the vocabulary of checkpoint {step}: its hash is "
            f"{vocabularies.hash[:12]}, not {recorded[:12]}; put back the files that the run was trained with"
        )


def open_run(config: RunConfig, directory: Path, *, report: Report = lambda _: None) -> Run:
    """Read the text, get the vocabulary, complete the model's sizes; :meth:`Run.claim` then takes the directory.

    Nothing is written. The test text is looked for and not read.

    Args:
        config: of the run.
        directory: of the run.
        report: is told when a vocabulary is to be trained.

    Raises:
        InputError: the directory holds another run, or the text is missing, empty or broken.
    """
    text, (valid, language) = together(lambda: _look(config, directory))
    folder, initial_run = directory / "vocabulary", config.training.initial_run
    if (directory / "config.json").exists():
        vocabularies = make_once(lambda: text.vocabularies(folder, report=report))
    else:
        vocabularies = make_once(lambda: _first_vocabularies(text, initial_run, report))
    return Run(directory, complete_config(config, vocabularies), vocabularies, text, valid, language)


def _look(config: RunConfig, directory: Path) -> tuple[TrainingText, tuple[list[Pair], str]]:
    """Find the text, read what validates, and make sure that the directory is free or this run's."""
    check_folder(directory, "--workdir")
    saved, data = directory / "config.json", config.data
    text = TrainingText.open(data)
    if saved.exists():
        old = configuration.load(saved)
        _refuse_another(old, config, directory)
        _refuse_end(old, config, directory)
        _refuse_replaced(old, directory / "vocabulary")
    elif directory.exists() and any(path.name not in ("config.tmp", LOCK) for path in directory.iterdir()):
        raise InputError(f"{directory} holds files but no run (no config.json); choose an empty --workdir")
    elif config.training.initial_run is not None and not (Path(config.training.initial_run) / "config.json").is_file():
        raise InputError(
            f"training.initial_run={config.training.initial_run} has no config.json; name the directory of a run"
        )
    try:
        open_evaluation(data.test, data)
    except InputError as error:
        raise InputError(f"data.test: {error}") from None
    return text, load_evaluation(data.valid, data)


def _refuse_end(old: RunConfig, new: RunConfig, directory: Path) -> None:
    """Refuse an end of training that is past, and another one once the rate falls, or would have, towards it."""
    before, after = old.training, new.training
    if (before.steps, before.cooldown_steps) == (after.steps, after.cooldown_steps):
        return
    made = max((int(path.name) for path in (directory / "checkpoints").glob("*") if path.name.isdecimal()), default=0)
    if made > after.steps:
        raise InputError(
            f"training.steps={after.steps} is less than the {made} steps that {directory} has made: ask for as many at "
            "least, or choose another --workdir"
        )
    for training in (before, after):
        if training.cooldown_steps and made > training.steps - training.cooldown_steps:
            raise InputError(
                f"{directory} is at step {made}, within the last training.cooldown_steps={training.cooldown_steps} of "
                f"training.steps={training.steps}: change neither from there on, or choose another --workdir"
            )


def _refuse_replaced(old: RunConfig, folder: Path) -> None:
    """Refuse vocabularies of another size than a run began with; others are known by their hash."""
    if not any(folder.glob("*.model")):
        return  # they are trained again
    found = Vocabularies.load(folder)
    sizes = old.model.source_vocabulary_size or old.model.vocabulary_size, old.model.vocabulary_size
    if (found.source.size, found.target.size) != sizes:
        raise InputError(
            f"{folder} is not the vocabulary of this run: it has {found.source.size} and {found.target.size} pieces of "
            f"source and target, and had {sizes[0]} and {sizes[1]}; put back the files that the run was trained with"
        )


def _first_vocabularies(text: TrainingText, initial_run: str | None, report: Report) -> Vocabularies:
    """Train the vocabularies on the text, or take those of the run whose parameters this one begins with."""
    with tempfile.TemporaryDirectory() as scratch:
        if initial_run is not None:
            for path in (Path(initial_run) / "vocabulary").glob("*.model"):
                shutil.copy(path, scratch)
        return text.vocabularies(Path(scratch), report=report)


def complete_config(config: RunConfig, vocabularies: Vocabularies) -> RunConfig:
    """Give the model the sizes and ids of the vocabularies.

    Raises:
        InputError: the two sides disagree on the id of padding, or the model cannot be made for these vocabularies.
    """
    source, target = vocabularies.source, vocabularies.target
    if source.pad_id != target.pad_id:
        raise InputError(
            f"the source vocabulary pads with id {source.pad_id} and the target vocabulary with {target.pad_id}; "
            "train both with the same pad id"
        )
    model = dataclasses.replace(
        config.model,
        vocabulary_size=target.size,
        source_vocabulary_size=None if config.data.shared_vocabulary else source.size,
        pad_id=target.pad_id,
        bos_id=target.bos_id,
    )
    return dataclasses.replace(config, model=model)


_NAMED = 5  # differences that a refusal names at most


def _refuse_another(old: RunConfig, new: RunConfig, directory: Path) -> None:
    # The vocabulary's own keys are not in a configuration file; they are checked by its hash.
    model = dataclasses.replace(
        new.model, **{name: getattr(old.model, name) for name in configuration.OF_THE_VOCABULARY}
    )
    changed = configuration.differences(old, dataclasses.replace(new, model=model))
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        raise InputError(
            f"{directory} holds a run of another configuration: {', '.join(changed[:_NAMED])}{more}; "
            "go on with the same values or choose another --workdir"
        )
