"""What several commands have in common: the arguments that choose a model, and text in and out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxformer.data.files import open_lines, stream_lines
from jaxformer.decoding import shortlist
from jaxformer.decoding.shortlist import Shortlist
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare which run and which checkpoint."""
    parser.add_argument("--workdir", required=True, type=Path, metavar="DIR", help="directory of a trained run")
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, average (the newest) or average/NAME",
    )
    parser.add_argument(
        "--target_language", metavar="CODE", help="what to translate into, for a run of several languages"
    )


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Declare which runs or checkpoints predict together with that of :func:`add_model`."""
    parser.add_argument(
        "--ensemble",
        action="append",
        default=[],
        metavar="DIR[@WHICH]",
        help="a run of the same vocabulary that predicts each token together with the first, and which checkpoint "
        "(default: its best); may be repeated",
    )


def load_translator(options: argparse.Namespace, target_language: str | None) -> Translator:
    """Read what :func:`add_model` and :func:`add_ensemble` name, and the shortlist of :func:`add_search`.

    Raises:
        InputError: there is no such run, checkpoint or shortlist, or they do not go together.
    """
    first = Translator.load(options.workdir, options.checkpoint, target_language)
    translator = Translator.ensemble([first, *(load_named(name, target_language) for name in options.ensemble)])
    if vars(options).get("shortlist"):
        translator.shortlist = Shortlist.load(options.workdir / shortlist.FILE, translator.vocabularies.hash)
    return translator


def load_named(name: str, target_language: str | None = None) -> Translator:
    """Read the run that ``DIR`` or ``DIR@CHECKPOINT`` names; a directory that is there goes before.

    Raises:
        InputError: there is no such run or checkpoint.
    """
    directory, _, checkpoint = name.rpartition("@")
    if Path(name).is_dir() or not directory:
        directory, checkpoint = name, "best"
    return Translator.load(directory, checkpoint, target_language)


def read_input(path: Path | None) -> Iterator[str]:
    """Read the lines of a file, or of standard input, as they are asked for.

    Raises:
        InputError: see :func:`~jaxformer.data.files.open_lines`.
    """
    return stream_lines(sys.stdin.buffer, "standard input") if path is None else open_lines([path])


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Find out before the work that its result could not be written, or would take the place of what is read.

    Raises:
        InputError: the folder of the file is missing, it is itself a folder, or it is one of the inputs.
    """
    for given in inputs:
        if path is not None and given is not None and path.is_file() and given.exists() and path.samefile(given):
            raise InputError(f"--output {path} is the file that is read: name another")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if path is not None and path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")


def write_output(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines as UTF-8 to a file, or to standard output."""
    content = "".join(line + "\n" for line in lines).encode("utf-8")
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        path.write_bytes(content)
