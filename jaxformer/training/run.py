"""The directory of a run: what lies where, and whether a configuration and a vocabulary belong to it."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TextIO

from jaxformer.data.loading import TrainingText, load_evaluation
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.locks import LOCK, hold
from jaxformer.training import config as configuration
from jaxformer.training.config import RunConfig
from jaxformer.training.hosts import make_once


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
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = hold(
            self.directory,
            f"another process trains in {self.directory}: wait until it ends, or choose another --workdir",
        )
        configuration.save(self.config, self.directory / "config.json")
        self.vocabularies.save(self.directory / "vocabulary")
        return lock

    def check_vocabulary(self, recorded: str, step: int) -> None:
        """Refuse to go on with another vocabulary than that of a checkpoint.

        Raises:
            InputError: the hashes differ.
        """
        check_vocabulary(self.directory, self.vocabularies, recorded, step)


def check_vocabulary(directory: Path, vocabularies: Vocabularies, recorded: str, step: int) -> None:
    """Refuse a vocabulary that is not the one that a checkpoint was trained with.

    Raises:
        InputError: the hashes differ.
    """
    if recorded != vocabularies.hash:
        raise InputError(
            f"{directory / 'vocabulary'} is not the vocabulary of checkpoint {step}: its hash is "
            f"{vocabularies.hash[:12]}, not {recorded[:12]}; put back the files that the run was trained with"
        )


def open_run(config: RunConfig, directory: Path) -> Run:
    """Read the text, get the vocabulary, complete the model's sizes; :meth:`Run.claim` then takes the directory.

    Nothing is written.

    Raises:
        InputError: the directory holds another run, or the text is missing, empty or broken.
    """
    data = config.data
    text = TrainingText.open(data)
    valid, language = load_evaluation(data.valid, data)
    saved = directory / "config.json"
    if saved.exists():
        _refuse_another(configuration.load(saved), config, directory)
        vocabularies = make_once(lambda: text.vocabularies(directory / "vocabulary"))
    else:
        if directory.exists() and any(path.name not in ("config.tmp", LOCK) for path in directory.iterdir()):
            raise InputError(f"{directory} holds files but no run (no config.json); choose an empty --workdir")
        vocabularies = make_once(lambda: _train_vocabularies(text))
    return Run(directory, complete_config(config, vocabularies), vocabularies, text, valid, language)


def _train_vocabularies(text: TrainingText) -> Vocabularies:
    with tempfile.TemporaryDirectory() as scratch:
        return text.vocabularies(Path(scratch))


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


def _refuse_another(old: RunConfig, new: RunConfig, directory: Path) -> None:
    # The vocabulary's own keys are not in a configuration file; they are checked by its hash.
    model = dataclasses.replace(
        new.model, **{name: getattr(old.model, name) for name in configuration.OF_THE_VOCABULARY}
    )
    changed = configuration.differences(old, dataclasses.replace(new, model=model))
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise InputError(
            f"{directory} holds a run of another configuration: {changed[0]}{more}; "
            "go on with the same values or choose another --workdir"
        )
