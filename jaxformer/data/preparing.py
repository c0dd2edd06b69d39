"""From the name of a training set to a prepared folder: read, clean and tokenise once for all."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.cleaning import Counts, summary
from jaxformer.data.config import DataConfig
from jaxformer.data.download import digest
from jaxformer.data.files import expand
from jaxformer.data.loading import TrainingText, refuse_nothing
from jaxformer.data.shards import FILES, VOCABULARY, ShardWriter, is_finished, read_manifest
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError

_TELL_EVERY = 500_000


class Preparation(NamedTuple):
    """What a prepared folder was made of."""

    counts: dict[str, Counts]
    """What was read and dropped, by data set."""
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    """For n = 0, 1, 2, ... how many source and how many target sentences have n tokens, those too long among them."""


def prepare(
    config: DataConfig, output: Path, *, vocabulary: Path | None = None, report: Callable[[str], None] = lambda _: None
) -> Preparation:
    """Tokenise the training text once into a folder that ``prepared:FOLDER`` then names.

    A folder that the same call has finished before, from files of the same content, is left as it is; one that it left
    unfinished is made anew.

    Args:
        config: names the text and how it is cleaned and tokenised.
        output: the folder, empty or missing.
        vocabulary: a folder of vocabularies to use; None: they are trained on the text.
        report: is told how far it is.

    Raises:
        InputError: the text cannot be read, no pair is left, the folder is in use or of another request, or a file has
            changed since it was prepared.
    """
    text = TrainingText.open(config)
    if text.prepared:
        raise InputError(f"data.train={config.train!r} is prepared already: name raw text")
    if any(part.part.weight != 1.0 for part in text.texts) or (len(text.texts) > 1 and config.temperature != 1.0):
        raise InputError(
            f"data.train={config.train!r} has weights or a temperature: prepare each data set into a folder of its "
            "own, with one --vocabulary, and give them to the folders"
        )
    paths = [path for part in text.texts for path in _paths(part.part.name)]
    stamps = {path: _stamp(path) for path in paths}
    request = {
        **config.request,
        "given_vocabulary": None if vocabulary is None else Vocabularies.load(vocabulary).hash,
        FILES: {str(path): _digest(path) for path in stamps},
    }
    if is_finished(output, request):
        report(f"{output} is prepared already")
    else:
        _write(text, output, vocabulary, request, stamps, report)
    manifest = read_manifest(output)
    counts = {name: Counts(**record) for name, record in manifest["counts"].items()}
    source, target = (np.array(numbers, np.int64) for numbers in manifest["lengths"])
    return Preparation(counts, (source, target))


def _write(
    text: TrainingText,
    output: Path,
    vocabulary: Path | None,
    request: Mapping[str, Any],
    stamps: Mapping[Path, tuple[int, int]],
    report: Callable[[str], None],
) -> None:
    writer = ShardWriter(output, request)
    try:
        report(f"vocabulary of {text.config.train}")
        vocabularies = _vocabularies_of(text, output, vocabulary)
        size = max(vocabularies.source.size, vocabularies.target.size)
        counts: dict[str, Counts] = {}
        lengths = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
        for part in text.texts:
            name, told = part.part.name, 0
            counts.setdefault(name, Counts())
            for piece in text.read(part, vocabularies):
                writer.add(piece.pairs, size)
                counts[name] += piece.counts
                lengths = [_added(old, new) for old, new in zip(lengths, piece.lengths, strict=True)]
                if counts[name].read - told >= _TELL_EVERY:
                    told = counts[name].read
                    report(f"{name}: {told:,} pairs read")
            report(f"{name}: {counts[name].read:,} pairs read, {summary(counts[name])}")
        refuse_nothing(sum(count.kept for count in counts.values()), counts)
        for path, stamp in stamps.items():
            if _stamp(path) != stamp:
                raise InputError(f"{path} changed while it was read: remove {output} and prepare it again")
        facts = {
            "vocabulary": vocabularies.hash,
            "counts": {name: dataclasses.asdict(count) for name, count in counts.items()},
            "lengths": [numbers.tolist() for numbers in lengths],
        }
        writer.finish(facts)
    finally:
        writer.close()


def _vocabularies_of(text: TrainingText, output: Path, given: Path | None) -> Vocabularies:
    """Put the vocabularies into the folder: those that are given, or new ones."""
    directory = output / VOCABULARY
    if given is not None:
        vocabularies = Vocabularies.load(given)
        vocabularies.save(directory)
    # Whatever lies there, ours or an interrupted call's, is checked like a run's.
    return text.vocabularies(directory)


def _added(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add histograms of different lengths."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    longer = longer.astype(np.int64)
    longer[: len(shorter)] += shorter
    return longer


def _paths(name: str) -> list[Path]:
    """Find the files of the user's that a data set is read from; one that is not named by its files has none."""
    scheme, _, rest = name.partition(":")
    if scheme == "text":
        patterns = [pattern.replace(r"\,", ",") for pattern in re.split(r"(?<!\\),", rest)]
    elif scheme == "tsv":
        patterns = [re.sub(r"#\d+,\d+\Z", "", rest)]
    else:
        patterns = [rest] if scheme == "jsonl" else []
    return [path for pattern in patterns for path in expand(pattern)]


def _stamp(path: Path) -> tuple[int, int]:
    """Give the size and the time of a file, which differ once somebody has written to it."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; put it back and give the same command again") from None
    return status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    """Hash the bytes of a file as they are stored."""
    try:
        return digest(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; name files that are yours to read") from None
