"""Parallel text by name: the bundled corpus, files of the user's, and the synthetic reversal task.

A data set has a name of the form ``scheme:rest`` wherever a person names one:

=========================== =======================================================================
name                        data
=========================== =======================================================================
``bundled:en-de/train``     the corpus that comes with the package; also ``/valid`` and ``/test``
``text:train.en,train.de``  two files of the same number of lines, source first
``synthetic:reverse/train`` letters to be written backwards; also ``/valid`` and ``/test``
=========================== =======================================================================
"""

from __future__ import annotations

import difflib
import functools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxformer.errors import InputError

SCHEMES = ("bundled", "text", "synthetic")
SPLITS = ("train", "valid", "test")

_BUNDLED = Path(__file__).parent / "bundled"
_BOM = b"\xef\xbb\xbf"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LONGEST_REVERSAL = 12
_REVERSALS = {"train": 20_000, "valid": 500, "test": 500}


class Pair(NamedTuple):
    """A sentence and its translation, as raw text."""

    source: str
    target: str


def load(name: str, source_language: str, target_language: str) -> Sequence[Pair]:
    """Read the data set that ``name`` names, in its own order.

    The languages choose the direction of a bundled corpus; for ``text:`` (source file first) and ``synthetic:`` they
    are names only.

    Example:
        >>> load("bundled:en-de/valid", "en", "de")[1].source
        'Two different Python modules are called.'

    Raises:
        InputError: no such data set, or a file that :func:`read_lines` refuses, or files of unequal length.
    """
    scheme, _, rest = name.partition(":")
    if scheme == "bundled":
        return _load_bundled(name, rest, source_language, target_language)
    if scheme == "text":
        return _load_text(name, rest)
    if scheme == "synthetic":
        return _load_synthetic(name, rest)
    known = [f"{scheme}:" for scheme in SCHEMES]
    raise InputError(f"no data set {name!r}: a name starts with {' or '.join(known)}{_nearest(f'{scheme}:', known)}")


def read_lines(path: str | Path) -> list[str]:
    r"""Read the lines of a UTF-8 text file, split at ``\n`` alone.

    Other characters at which Python's ``splitlines`` would split (U+2028, U+0085, vertical tab, file separator) stay
    within their line. A byte order mark and the ``\r`` of Windows line ends are taken off; the last line needs no line
    end; an empty line counts.

    Raises:
        InputError: the file is missing, unreadable, empty, or not UTF-8 (with the number of the first bad line).
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if not content.removeprefix(_BOM):
        raise InputError(f"{path} is empty: it needs one sentence a line")
    return split_lines(content, str(path))


def split_lines(content: bytes, name: str) -> list[str]:
    """Split the bytes of a UTF-8 text into lines as :func:`read_lines` does; no bytes give no line.

    Args:
        content: the whole text.
        name: what an error calls it.

    Raises:
        InputError: it is not UTF-8 (with the number of the first bad line).
    """
    content = content.removeprefix(_BOM)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}, line {line}: not UTF-8 ({error.reason}); convert the text to UTF-8") from None
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]


def _load_bundled(name: str, rest: str, source_language: str, target_language: str) -> list[Pair]:
    corpora = sorted(path.name for path in _BUNDLED.iterdir() if path.is_dir() and not path.name.startswith("_"))
    names = [f"bundled:{corpus}/{split}" for corpus in corpora for split in SPLITS]
    if name not in names:
        raise _unknown(name, names)
    corpus, split = rest.split("/")
    languages = corpus.split("-")
    for language in (source_language, target_language):
        if language not in languages:
            raise InputError(f"{name} has no language {language!r}: it has {' and '.join(languages)}")
    if source_language == target_language:
        raise InputError(f"the source and the target language of {name} are both {source_language!r}")
    return _parallel(_BUNDLED / corpus / f"{split}.{source_language}", _BUNDLED / corpus / f"{split}.{target_language}")


def _load_text(name: str, rest: str) -> list[Pair]:
    paths = rest.split(",")
    if len(paths) != 2 or not all(paths):
        raise InputError(f"{name!r} must name one source and one target file: text:SOURCE,TARGET")
    return _parallel(Path(paths[0]), Path(paths[1]))


def _parallel(source: Path, target: Path) -> list[Pair]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise InputError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,}: "
            "line i of one must translate line i of the other"
        )
    return list(map(Pair, sources, targets))


def _load_synthetic(name: str, rest: str) -> list[Pair]:
    names = [f"synthetic:reverse/{split}" for split in SPLITS]
    if name not in names:
        raise _unknown(name, names)
    return reversal(rest.split("/")[1])


def reversal(split: str) -> list[Pair]:
    """Give the reversal task: one to twelve letters of 26, between spaces, to be written backwards.

    There are 20,000 pairs for ``train`` and 500 each for ``valid`` and ``test``; no sequence occurs twice, so what a
    model is tested on it has never seen. The same on every machine.

    With ``data.vocabulary_size=57`` each letter with its space is one token, for BPE and unigram alike: 4 special
    pieces, 26 letters, the space, and the 26 joins of space and letter. 57 is also the most that the text allows.

    Example:
        >>> reversal("test")[0]
        Pair(source='f d g k w w b r b o k', target='k o b r b w w k g d f')
    """
    start = sum(_REVERSALS[earlier] for earlier in SPLITS[: SPLITS.index(split)])
    sequences = _reversal_sequences()[start : start + _REVERSALS[split]]
    return [Pair(" ".join(letters), " ".join(reversed(letters))) for letters in sequences]


@functools.cache
def _reversal_sequences() -> list[str]:
    """Draw the distinct sequences of all splits, in an order that mixes lengths."""
    # Only Random.random is promised to stay the same over versions of Python: everything here derives from it.
    draw = random.Random(2017).random
    drawn: dict[str, float] = {}
    while len(drawn) < sum(_REVERSALS.values()):
        length = 1 + int(draw() * _LONGEST_REVERSAL)
        letters = "".join(_LETTERS[int(draw() * len(_LETTERS))] for _ in range(length))
        # Short sequences run out while drawing; sorting by a second draw spreads them over the splits.
        drawn.setdefault(letters, draw())
    return sorted(drawn, key=drawn.__getitem__)


def _unknown(name: str, names: Sequence[str]) -> InputError:
    return InputError(f"no data set {name!r}: there are {', '.join(names)}{_nearest(name, names)}")


def _nearest(name: str, names: Iterable[str]) -> str:
    """Word the question that an error ends with when one of the names is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
