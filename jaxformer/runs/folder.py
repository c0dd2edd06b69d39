"""The folder of a run: the files of training, and checks of its vocabulary."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxformer.data.frame import make_frame
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


def complete_config(
    config: RunConfig, vocabularies: Vocabularies, known: RunConfig | None = None
) -> RunConfig:
    """Return the configuration with the sizes and ids of the vocabularies.

    Args:
        config: of the run.
        vocabularies: of source and target.
        known: of the run that this one continues or begins with: the tables of an
            imported model may have more rows than its vocabularies have pieces.

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
    rows = source.size, target.size
    if vocabularies.template is not None and known is not None:
        size = known.model.vocabulary_size
        own = known.model.source_vocabulary_size or size
        rows = max(own, rows[0]), max(size, rows[1])
    model = dataclasses.replace(
        config.model,
        vocabulary_size=rows[1],
        source_vocabulary_size=None if config.data.shared_vocabulary else rows[0],
        pad_id=target.pad_id,
        bos_id=make_frame(vocabularies, config.data.languages).start,
    )
    return dataclasses.replace(config, model=model)
