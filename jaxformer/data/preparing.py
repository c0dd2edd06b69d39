"""Prepare a folder: encode the training text once, for training to map."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.cleaning import summary
from jaxformer.data.config import WITH_LABELS, DataConfig
from jaxformer.data.corpus import (
    NEEDS_TEXT,
    Preparation,
    TrainingText,
    check_not_empty,
)
from jaxformer.data.files import make_folder
from jaxformer.data.prepared import MANIFEST, VOCABULARY, Manifest, Report, digest
from jaxformer.data.store import LENGTHS, TokenWriter, token_files
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_training import load_or_train, with_labels
from jaxformer.errors import InputError
from jaxformer.files import LOCK, check_writable, hold, write_whole

FILES = "files"
"""The key of a request for the files of the text, each with its SHA-256."""

_UNFINISHED, _REQUEST = ".unfinished", "request.json"


def prepare(
    config: DataConfig,
    output: Path,
    *,
    vocabulary: Path | None = None,
    report: Report = lambda _: None,
) -> Preparation:
    """Encode the training text once, into a folder for ``prepared:FOLDER``.

    A folder that the same call finished before, from files of the same content, stays
    as it is. A call that fails leaves nothing; one that is interrupted leaves its
    vocabulary for the same call.

    Args:
        config: names the text and how it is cleaned and encoded.
        output: the folder, empty or missing.
        vocabulary: a folder of vocabularies to use; None: train them on the text.
        report: gets lines of progress.

    Raises:
        InputError: the text cannot be read, no pair is left, the folder is in use,
            damaged or of another request, or a file has changed since it was prepared.
    """
    text = TrainingText.open(config)
    _check_preparable(text)
    given = None
    if vocabulary is not None:
        Vocabularies.load(vocabulary)  # what is missing is not trained
        if config.kind in WITH_LABELS:
            given = with_labels(vocabulary, config, text.kept(report=report))
        else:
            given = load_or_train(vocabulary, config, ())
    files = [path for corpus in text.corpora for path in corpus.files]
    digests = {str(path): digest(path) for path in files}
    request = {
        **config.request,
        "given_vocabulary": None if given is None else given.hash,
        FILES: digests,
    }
    done = find_finished(output, request)
    if done is not None:
        report(f"{output} is prepared already")
        source, target = (np.array(numbers, np.int64) for numbers in done.lengths)
        return Preparation(dict(done.counts), (source, target))
    with new_folder(output, json.dumps(request)) as folder:
        return _write(text, given, request, folder, report)


def _write(
    text: TrainingText,
    given: Vocabularies | None,
    request: Mapping[str, Any],
    folder: Path,
    report: Report,
) -> Preparation:
    """Write the vocabularies, the tokens and the manifest."""
    if given is not None:
        given.save(folder / VOCABULARY)
    vocabularies = given or text.vocabularies(folder / VOCABULARY, report=report)
    config, tokenizers = text.config, text.tokenizers(vocabularies, report=report)
    with TokenWriter(vocabularies, folder, one_sided=config.one_sided) as writer:
        _, found = text.encode(tokenizers, writer, report=report)
        pairs_hash = writer.finish().hash
    for name, count in found.counts.items():
        report(f"{name}: {count.read:,} {config.examples} read, {summary(count)}")
    check_not_empty(found.counts)
    source, target = (numbers.tolist() for numbers in found.lengths)
    Manifest(
        folder,
        request=request,
        vocabulary=vocabularies.hash,
        counts=found.counts,
        lengths=(source, target),
        hash=pairs_hash,
        sha256={
            name: digest(folder / name)
            for name in (*token_files(config.one_sided), LENGTHS)
        },
    ).save()
    return found


def find_finished(directory: Path, request: Mapping[str, Any]) -> Manifest | None:
    """Return the manifest of a folder that was prepared for this request; None if
    nothing was prepared there.

    Raises:
        InputError: it was prepared for another request or from other text, or is
            damaged.
    """
    if not (directory / MANIFEST).exists():
        return None
    manifest = Manifest.load(directory)
    then = manifest.request
    others = [key for key in {**then, **request} if then.get(key) != request.get(key)]
    if others:
        raise InputError(
            f"{directory} was prepared with other {', '.join(others)}: choose another"
            " --output, or remove it and prepare it again"
        )
    manifest.check_files()
    manifest.read_vocabularies()
    return manifest


@contextlib.contextmanager
def new_folder(directory: Path, request: str = "") -> Iterator[Path]:
    """Make a folder whole or not at all: what the block writes into the folder that it
    is given moves to ``directory`` at the end, the manifest last.

    If the block fails nothing is left. Of a block that was interrupted the vocabulary
    is left, which the next one finds if its ``request`` is the same.

    Raises:
        InputError: the folder has other files, another process prepares it, or it
            cannot be made.
    """
    made, unfinished = not directory.exists(), directory / _UNFINISHED
    make_folder(directory, "--output")
    with hold(
        directory,
        f"another process prepares {directory}: wait until it ends, or choose another"
        " folder",
    ):
        try:
            check_writable(directory)
            if {path.name for path in directory.iterdir()} - {LOCK, _UNFINISHED}:
                raise InputError(
                    f"{directory} holds other files: choose an empty --output"
                )
            mark = unfinished / _REQUEST
            if not mark.exists() or mark.read_text("utf-8") != request:
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                write_whole(mark, request)
            yield unfinished
            mark.unlink()
            for path in sorted(
                unfinished.iterdir(), key=lambda path: path.name == MANIFEST
            ):
                path.rename(directory / path.name)
            unfinished.rmdir()
        except BaseException as error:
            vocabulary = Vocabularies.exist(unfinished / VOCABULARY)
            if isinstance(error, Exception) or not vocabulary:
                shutil.rmtree(unfinished, ignore_errors=True)
            for path in unfinished.glob("*.bin"):
                path.unlink()
            raise
        finally:
            (directory / LOCK).unlink(missing_ok=True)
            if made:
                with contextlib.suppress(OSError):  # not empty: the block succeeded
                    directory.rmdir()


def _check_preparable(text: TrainingText) -> None:
    """Refuse text that is prepared already, weighted, or segmented in each epoch."""
    config = text.config
    if not text.corpora:
        raise InputError(
            f"data.train={config.train!r} is prepared already: name raw text"
        )
    if any(part.weight != 1.0 for part in text.parts) or (
        len(text.parts) > 1 and config.temperature != 1.0
    ):
        raise InputError(
            f"data.train={config.train!r} has weights or a temperature: prepare each"
            " data set in its own folder, with one --vocabulary, and weight the folders"
        )
    if config.segmentation_alpha is not None:
        raise InputError(NEEDS_TEXT)
