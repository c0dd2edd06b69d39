"""The folder of a run: the files of training, and checks of its vocabulary."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import LOCK
from jaxformer.runs.config import RunConfig

WRITTEN = (
    *("vocabulary", "checkpoints", "tensorboard", "wandb", "profile", "bad_batches"),
    *("metrics.jsonl", "samples.jsonl", LOCK),
)
"""Names that training writes in place. Other files are replaced whole, and so are
links.
"""


def check_vocabulary(
    directory: Path, vocabularies: Vocabularies, recorded: str, step: int | str
) -> None:
    """Check that a checkpoint was trained with the vocabulary of its run.

    Raises:
        InputError: the hashes differ.
    """
    if recorded != vocabularies.hash:
        raise InputError(
            f"{directory / 'vocabulary'} is not the vocabulary of checkpoint {step}:"
            f" its hash is {vocabularies.hash[:12]}, not {recorded[:12]}; put back the"
            " files that the run was trained with"
        )


def complete_config(config: RunConfig, vocabularies: Vocabularies) -> RunConfig:
    """Return the configuration with the sizes and ids of the vocabularies.

    Raises:
        InputError: the two sides have different ids of padding, or the model does not
            allow these vocabularies.
    """
    source, target = vocabularies.source, vocabularies.target
    if source.pad_id != target.pad_id:
        raise InputError(
            f"the source vocabulary pads with id {source.pad_id} and the target"
            f" vocabulary with {target.pad_id}; train both with the same pad id"
        )
    model = dataclasses.replace(
        config.model,
        vocabulary_size=target.size,
        source_vocabulary_size=None if config.data.shared_vocabulary else source.size,
        pad_id=target.pad_id,
        bos_id=target.bos_id,
    )
    return dataclasses.replace(config, model=model)
