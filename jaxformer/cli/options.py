"""What several commands have in common: the arguments that choose a model, and text
in and out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from jaxformer.cli.output import open_output
from jaxformer.data.files import open_lines, stream_lines
from jaxformer.errors import InputError, LineError, UsageError
from jaxformer.files import check_writable
from jaxformer.search.ensemble import check_weights
from jaxformer.translation import shortlist
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Translator

_STANDARD_INPUT = "standard input"


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from ``least`` to
    ``most``.
    """

    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,}, not {value}")
        return value

    parse.__name__ = "whole number"  # argparse names it for text that is no number
    return parse


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare which run and which checkpoint."""
    parser.add_argument(
        "--workdir",
        required=True,
        type=Path,
        metavar="DIR",
        help="directory of a trained run",
    )
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, average (the newest) or average/NAME",
    )
    parser.add_argument(
        "--target_language",
        metavar="CODE",
        help="what to translate into, for a run of several languages",
    )


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Declare which runs or checkpoints predict together with that of
    :func:`add_model`.
    """
    parser.add_argument(
        "--ensemble",
        action="append",
        default=[],
        metavar="DIR[@WHICH]",
        help=(
            "a run of the same vocabulary that predicts each token together with the"
            " first, and which checkpoint (default: its best); may be repeated"
        ),
    )
    parser.add_argument(
        "--ensemble_weights",
        metavar="W,W",
        help=(
            "how much each model counts, that of --workdir first, such as 2,1 (default:"
            " all alike)"
        ),
    )


def load_translator(
    options: argparse.Namespace, target_language: str | None
) -> Translator:
    """Read what :func:`add_model` and :func:`add_ensemble` name, and the shortlist of
    :func:`~jaxformer.cli.search_options.add_search`.

    Raises:
        InputError: there is no such run, checkpoint or shortlist, or they do not go
            together.
    """
    weights = _read_weights(options.ensemble_weights, options.ensemble)
    first = Translator.load(options.workdir, options.checkpoint, target_language)
    others = [
        load_named("--ensemble", name, target_language) for name in options.ensemble
    ]
    translator = Translator.ensemble([first, *others], weights)
    if vars(options).get("shortlist"):
        vocabularies = translator.vocabularies
        sizes = vocabularies.source.size, vocabularies.target.size
        translator.shortlist = Shortlist.load(
            options.workdir / shortlist.FILE, vocabularies.hash, sizes
        )
    return translator


def _read_weights(text: str | None, others: Sequence[str]) -> list[float] | None:
    """Read the weights of an ensemble, before its models are read."""
    if text is None:
        return None
    if not others:
        raise UsageError(
            "--ensemble_weights weighs the models of an ensemble: add --ensemble, or"
            " leave it out"
        )
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            "--ensemble_weights needs numbers with commas between, such as 2,1, not"
            f" {text!r}"
        ) from None
    check_weights(weights, 1 + len(others))
    return weights


def load_named(
    option: str, name: str, target_language: str | None = None
) -> Translator:
    """Read the run that ``DIR`` or ``DIR@CHECKPOINT`` names; a directory that is there
    goes before.

    Args:
        option: that names it, for an error.
        name: of the run.
        target_language: what to translate into; None: as the run says.

    Raises:
        InputError: there is no such run or checkpoint.
    """
    directory, _, checkpoint = name.rpartition("@")
    if Path(name).is_dir() or not directory:
        directory, checkpoint = name, "best"
    if not directory or not Path(directory, "config.json").exists():
        raise InputError(
            f"{Path(directory, 'config.json')} does not exist; {option} must name the"
            " directory of a run"
        )
    return Translator.load(directory, checkpoint, target_language)


def read_input(path: Path | None) -> Iterator[str]:
    """Read the lines of a file, or of standard input, as they are asked for.

    Raises:
        InputError: see :func:`~jaxformer.data.files.open_lines`.
    """
    if path is not None:
        return open_lines([path])
    if sys.stdin is None:
        raise InputError("standard input is closed: name a file by --input")
    return stream_lines(sys.stdin.buffer, _STANDARD_INPUT)


def name_input(path: Path | None) -> str:
    """Say what an error calls the text that :func:`read_input` reads."""
    return _STANDARD_INPUT if path is None else str(path)


@contextlib.contextmanager
def name_lines(**files: str | Path | None) -> Iterator[None]:
    """Let an error of a single line say which file it is a line of.

    Args:
        **files: by the kinds of :class:`~jaxformer.errors.LineError`; None: the text is
            of no file.
    """
    try:
        yield
    except LineError as error:
        name = files.get(error.kind)
        if name is None:
            raise
        raise error.within(str(name)) from None


def warn(text: str) -> None:
    """Say something that does not end the command in one line on standard error."""
    sys.stderr.write(f"jaxformer: warning: {text}\n")


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Check before the work that its result can be written, and does not replace what
    is read.

    Raises:
        InputError: the folder of the file is missing or cannot be written, the file is
            itself a folder, or it is one of the inputs.
    """
    for given in inputs:
        if (
            path is not None
            and given is not None
            and path.is_file()
            and given.exists()
            and path.samefile(given)
        ):
            raise InputError(f"{path} is the file that is read: name another to write")
    if path is not None and not path.parent.is_dir():
        raise InputError(
            f"cannot write {path}: there is no folder {path.parent}; make it first"
        )
    if path is not None and path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if path is not None and (path.is_file() or not path.exists()):
        check_writable(Path(os.path.realpath(path)).parent)


def write_output(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines as :func:`~jaxformer.cli.output.open_output` does, once all are
    there.

    Raises:
        InputError: the file or standard output cannot be written.
    """
    made = list(lines)
    with open_output(path) as write:
        if made:
            write("\n".join(made))
