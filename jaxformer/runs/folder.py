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


def check_objective(directory: Path, config: RunConfig, wanted: str) -> None:
    """Check that a run was trained for an objective.

    Raises:
        InputError: it was trained for another one.
    """
    found = config.training.objective
    if found != wanted:
        uses = {"translation": "translate", "causal": "generate"}
        raise InputError(
            f"{directory} was trained for training.objective={found}, and this needs"
            f" {wanted}: use jaxformer {uses.get(found, 'predict')}"
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
        InputError: the two sides have different ids of padding, masked words have no
            mask, there is one label, or the model does not allow these vocabularies.
    """
    source, target = vocabularies.source, vocabularies.target
    labels = vocabularies.labels
    if labels is None and source.pad_id != target.pad_id:
        raise InputError(
            f"the source vocabulary pads with id {source.pad_id} and the target"
            f" vocabulary with {target.pad_id}; train both with the same pad id"
        )
    rows = source.size, target.size
    if vocabularies.template is not None and known is not None:
        size = known.model.vocabulary_size
        own = known.model.text_vocabulary_size
        rows = max(own, rows[0]), max(size, rows[1]) if labels is None else rows[1]
    shared = config.data.shared_vocabulary and labels is None
    ids = {
        "pad_id": source.pad_id,
        "bos_id": make_frame(vocabularies, config.data.languages).start
        if labels is None
        else source.bos_id,
    }
    if not config.model.num_decoder_layers:
        ids |= {"eos_id": source.eos_id, "mask_id": source.mask_id}
    if config.training.masks and source.mask_id is None:
        raise InputError(
            "the vocabulary has no piece <mask>, which"
            f" training.objective={config.training.objective} needs: train it with"
            f" data.kind={config.data.kind}, or begin with a run that has it"
        )
    if config.data.kind in ("labelled", "tagged") and target.size < 2:
        raise InputError(
            f"training.objective={config.training.objective} needs two labels or more,"
            f" not {target.size}: name them by data.labels"
        )
    model = dataclasses.replace(
        config.model,
        vocabulary_size=rows[1],
        source_vocabulary_size=None if shared else rows[0],
        **ids,
    )
    return dataclasses.replace(config, model=model)
