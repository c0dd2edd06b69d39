"""From the name of a training set to a prepared folder: read, clean and tokenise
once for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.cleaning import Counts, summary
from jaxformer.data.config import DataConfig
from jaxformer.data.download import digest
from jaxformer.data.loading import Report, TrainingText, refuse_nothing
from jaxformer.data.manifests import FILES
from jaxformer.data.shards import (
    VOCABULARY,
    ShardWriter,
    check_whole,
    is_finished,
    read_manifest,
)
from jaxformer.data.vocabulary import Vocabularies, load_or_train
from jaxformer.errors import InputError


class Preparation(NamedTuple):
    """What a prepared folder was made of."""

    counts: dict[str, Counts]
    """What was read and dropped, by data set."""
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    """For n = 0, 1, 2, ... how many source and how many target sentences have n
    tokens, those too long among them.
    """


def prepare(
    config: DataConfig,
    output: Path,
    *,
    vocabulary: Path | None = None,
    report: Report = lambda _: None,
) -> Preparation:
    """Tokenise the training text once into a folder that ``prepared:FOLDER`` then
    names.

    A folder that the same call has finished before, from files of the same content, is
    left as it is; one that it left unfinished is made anew. A call that is refused
    leaves nothing behind.

    Args:
        config: names the text and how it is cleaned and tokenised.
        output: the folder, empty or missing.
        vocabulary: a folder of vocabularies to use; None: they are trained on the text.
        report: is told how far it is.

    Raises:
        InputError: the text cannot be read, no pair is left, the folder is in use,
            damaged or of another request, or a file has changed since it was prepared.
    """
    text = TrainingText.open(config)
    if text.prepared:
        raise InputError(
            f"data.train={config.train!r} is prepared already: name raw text"
        )
    if any(part.part.weight != 1.0 for part in text.texts) or (
        len(text.texts) > 1 and config.temperature != 1.0
    ):
        raise InputError(
            f"data.train={config.train!r} has weights or a temperature: prepare each"
            " data set into a folder of its own, with one --vocabulary, and give them"
            " to the folders"
        )
    if config.segmentation_alpha is not None:
        raise InputError(
            f"data.segmentation_alpha={config.segmentation_alpha} segments the text"
            " anew in each epoch, which a prepared folder cannot: train straight from"
            " the text, or set data.segmentation_alpha=None"
        )
    given = None if vocabulary is None else _given(config, vocabulary)
    stamps = {path: _stamp(path) for part in text.texts for path in part.corpus.files}
    request = {
        **config.request,
        "given_vocabulary": None if given is None else given.hash,
        FILES: {str(path): _digest(path) for path in stamps},
    }
    if is_finished(output, request):
        check_whole(output)
        report(f"{output} is prepared already")
    else:
        _write(text, output, given, request, stamps, report)
    manifest = read_manifest(output)
    counts = {name: Counts(**record) for name, record in manifest["counts"].items()}
    source, target = (np.array(numbers, np.int64) for numbers in manifest["lengths"])
    return Preparation(counts, (source, target))


def _write(
    text: TrainingText,
    output: Path,
    given: Vocabularies | None,
    request: Mapping[str, Any],
    stamps: Mapping[Path, tuple[int, int]],
    report: Report,
) -> None:
    writer = ShardWriter(output, request)
    try:
        vocabularies = _vocabularies_of(text, output, given, report)
        size = max(vocabularies.source.size, vocabularies.target.size)
        counts: dict[str, Counts] = {}
        lengths = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        for part in text.texts:
            name = part.part.name
            counts.setdefault(name, Counts())
            for piece in text.read(part, vocabularies, report=report):
                writer.add(piece.pairs, size)
                counts[name] += piece.counts
                lengths = [
                    _added(old, new)
                    for old, new in zip(lengths, piece.lengths, strict=True)
                ]
            report(f"{name}: {counts[name].read:,} pairs read, {summary(counts[name])}")
        refuse_nothing(sum(count.kept for count in counts.values()), counts)
        for path, stamp in stamps.items():
            if _stamp(path) != stamp:
                raise InputError(
                    f"{path} changed while it was read: give the same command again"
                )
        facts = {
            "vocabulary": vocabularies.hash,
            "counts": {
                name: dataclasses.asdict(count) for name, count in counts.items()
            },
            "lengths": [numbers.tolist() for numbers in lengths],
        }
        writer.finish(facts)
    # the same call would fail again, and the mended one is of another request
    except InputError:
        writer.abandon()
        raise
    finally:
        writer.close()


def _given(config: DataConfig, folder: Path) -> Vocabularies:
    """Read the vocabularies that are given; they have the sizes that the
    configuration says.
    """
    Vocabularies.load(folder)  # nothing is trained in the place of what is missing
    return load_or_train(folder, config, ())


def _vocabularies_of(
    text: TrainingText, output: Path, given: Vocabularies | None, report: Report
) -> Vocabularies:
    """Put the vocabularies into the folder: those that are given, or new ones."""
    directory = output / VOCABULARY
    if given is None:
        return text.vocabularies(directory, report=report)
    given.save(directory)
    return given


def _added(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add histograms of different lengths."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    longer = longer.astype(np.int64)
    longer[: len(shorter)] += shorter
    return longer


def _stamp(path: Path) -> tuple[int, int]:
    """Return the size and the time of a file, which differ once somebody has written
    to it.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; put it back and give the same"
            " command again"
        ) from None
    return status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    """Hash the bytes of a file as they are stored."""
    try:
        return digest(path)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; name files that are yours to read"
        ) from None
