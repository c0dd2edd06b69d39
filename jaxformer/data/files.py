"""Read the lines of text files, plain or compressed, a buffer at a time.

The suffix of a file is its compression: ``.gz``, ``.bz2``, ``.xz`` or ``.zst``; other
files are plain text.
"""

from __future__ import annotations

import bz2
import contextlib
import glob
import gzip
import io
import itertools
import lzma
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from jaxformer.errors import InputError, require
from jaxformer.files import check_writable

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 18
# A pattern that matches more, such as /**/*, is a mistake.
_MOST_FILES = 100_000
# Bounds the memory for a text without line ends.
MOST_BYTES_A_LINE = 16 << 20
# A block of zstd may grow 30,000 times: small bites bound the memory.
_ZSTD_BITE = 1 << 10
_ARCHIVES = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
_ZIP = b"PK\x03\x04"
# What Python makes of bytes that are not UTF-8.
_INVALID = re.compile("[\udc80-\udcff]")
# Invisible, although letters and symbols by their category: the Hangul fillers and the
# braille blank.
_BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
# Separators, control and format characters (zero-width space, byte order mark), halves
# of surrogate pairs, and marks, which are invisible without a letter.
_UNSEEN = frozenset(("Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Mn", "Mc", "Me"))


class _InvalidError(Exception):
    """A line is not UTF-8: the number of the first, why, and the text with it."""


class _DamagedError(Exception):
    """A zstd archive cannot be unpacked."""


_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error, _DamagedError)


def expand(pattern: str) -> list[Path]:
    """Return the files that match a shell pattern, in the order of their names.

    ``*``, ``?`` and ``[...]`` match parts of a name, ``**`` folders at any depth. If a
    file has the pattern as its name, it is the only one. Names are compared as text:
    ``part-10`` is before ``part-2``.

    Raises:
        InputError: nothing matches, or more than 100,000 files do.
    """
    if Path(pattern).exists():
        return [Path(pattern)]
    if not glob.has_magic(pattern):
        raise InputError(f"no file {pattern}")
    names = glob.iglob(pattern, recursive=True)
    found = sorted(itertools.islice(names, _MOST_FILES + 1))
    if not found:
        raise InputError(
            f"no file matches {pattern}: give a path, or a pattern with *, ? or **"
        )
    if len(found) > _MOST_FILES:
        raise InputError(f"more than {_MOST_FILES:,} files match {pattern}: name fewer")
    return [Path(path) for path in found]


def check_regular(paths: Iterable[Path]) -> None:
    """Refuse folders, pipes and devices: training text is read several times.

    Raises:
        InputError: a path exists and is neither a file nor a link to one.
    """
    for path in paths:
        if path.exists() and not path.is_file():
            raise InputError(
                f"{path} is a folder, pipe or device, and training text is read several"
                " times: name a file"
            )


def expand_parallel(source: str, target: str) -> tuple[list[Path], list[Path]]:
    """Return the files of two patterns, each source aligned with its translation.

    If both are patterns, files whose wildcards match the same text belong together:
    ``news.en`` and ``news.de`` for ``n*.en`` and ``n*.de``.

    Raises:
        InputError: nothing matches, or a file has no partner.
    """
    sources, targets = expand(source), expand(target)
    left, right = _by_wildcards(source, sources), _by_wildcards(target, targets)
    if not (
        left and right and len(left) == len(sources) and len(right) == len(targets)
    ):
        return sources, targets
    for found, other, pattern in ((left, right, target), (right, left, source)):
        missing = sorted(found.keys() - other.keys())
        if missing:
            raise InputError(
                f"{found[missing[0]]} has no partner among the files of {pattern}: give"
                " each source file its translation"
            )
    return [left[part] for part in sorted(left)], [right[part] for part in sorted(left)]


def _by_wildcards(pattern: str, paths: Sequence[Path]) -> dict[tuple[str, ...], Path]:
    """Return the files by the text that the wildcards match."""
    parts = re.split(r"(\*\*/?|\*|\?|\[!?\]?[^\]]*\])", pattern)
    if len(parts) == 1:
        return {}
    wild = {"**": "(.*)", "**/": "(.*)", "*": "([^/]*)", "?": "([^/])"}
    regex = "".join(
        (
            wild.get(part, f"({part.replace('[!', '[^')})")
            if index % 2
            else re.escape(part)
        )
        for index, part in enumerate(parts)
    )
    matches = ((re.fullmatch(regex, str(path)), path) for path in paths)
    return {match.groups(): path for match, path in matches if match}


def can_be_seen(text: str) -> bool:
    """Return whether not all is white space, control or invisible characters."""
    return any(
        character not in _BLANKS and unicodedata.category(character) not in _UNSEEN
        for character in text
    )


def is_valid(text: str) -> bool:
    """Return whether a line was UTF-8, of those that were read whether or not."""
    return text.isascii() or not _INVALID.search(text)


def open_lines(
    paths: Iterable[str | Path], *, strict: bool = True, empty: bool = False
) -> Iterator[str]:
    r"""Yield the lines of UTF-8 text files, file after file, read lazily.

    Lines end only at ``\n``, not at other separators of Python's ``splitlines``. A byte
    order mark at the start of a file and the ``\r`` of Windows line ends are removed;
    the last line needs no line end; an empty line counts.

    Args:
        paths: of the files.
        strict: whether lines that are not UTF-8 are refused; otherwise
            :func:`is_valid` finds them.
        empty: whether a file may have no line.

    Raises:
        InputError: a file is missing, unreadable, empty, damaged or cut off (with the
            last whole line), not UTF-8, or has a line of more than 16 MiB (with the
            number of the first bad line).
    """
    for path in paths:
        yield from _lines(Path(path), strict, empty)


def open_parallel(
    sources: Sequence[Path],
    targets: Sequence[Path],
    *,
    strict: bool = True,
    empty: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield aligned lines of source and target files.

    Args:
        sources: the files of one side.
        targets: those of the other, in the same order.
        strict: as of :func:`open_lines`.
        empty: as of :func:`open_lines`.

    Raises:
        InputError: the numbers of files differ, two files have different numbers of
            lines, or :func:`open_lines` refuses a file.
    """
    if len(sources) != len(targets):
        raise InputError(
            f"{len(sources)} source files ({_some(sources)}) and {len(targets)} target"
            f" files ({_some(targets)}): give each source file its translation, in the"
            " same order of names"
        )
    for source, target in zip(sources, targets, strict=True):
        left, right = (_lines(each, strict, empty) for each in (source, target))
        for count, (first, second) in enumerate(itertools.zip_longest(left, right), 1):
            if first is None or second is None:
                has, has_too = (
                    f"{count - (line is None) + sum(1 for _ in rest):,}"
                    for line, rest in ((first, left), (second, right))
                )
                raise InputError(
                    f"{source} has {has} lines and {target} has {has_too}: "
                    "line i of one must translate line i of the other"
                )
            yield first, second


def read_lines(path: str | Path) -> list[str]:
    """Read all lines of a UTF-8 text file, plain or compressed, as :func:`open_lines`
    does.

    Raises:
        InputError: as :func:`open_lines`.
    """
    return list(open_lines([path]))


def check_folder(directory: Path, option: str) -> None:
    """Check that a folder can be made or written, without making it.

    Raises:
        InputError: it is a file, or one of its parents is, or the system refuses;
            ``option`` sets the folder.
    """
    there = next(
        (path for path in (directory, *directory.parents) if path.exists()), directory
    )
    if not there.is_dir():
        raise InputError(f"{there} is a file: choose another {option}")
    check_writable(there)


def make_folder(directory: Path, option: str) -> None:
    """Make a folder and its parents.

    Raises:
        InputError: the system refuses; ``option`` sets the folder.
    """
    check_folder(directory, option)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {directory} ({error.strerror}): choose another"
            f" {option}"
        ) from None


def stream_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 stream as :func:`open_lines` does, without delay.

    Args:
        stream: a binary file.
        name: what an error calls it.

    Raises:
        InputError: it is not UTF-8, or a line has more than 16 MiB (with the number of
            the first bad line).
    """
    count = 0
    while content := stream.readline(MOST_BYTES_A_LINE + 2):  # a line end more
        content = content if count else content.removeprefix(_BOM)
        try:
            lines = _split(content, name, count, True)
        except _InvalidError as error:
            raise _refusal(name, error) from None
        yield from lines
        count += len(lines)


def _some(paths: Sequence[Path]) -> str:
    """Name the first and the last of some files."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"


def _lines(path: Path, strict: bool = True, empty: bool = False) -> Iterator[str]:
    """Return the lines of one file."""
    count, contents = 0, _whole_lines(path)
    try:
        for content in contents:
            content = content if count else content.removeprefix(_BOM)
            lines = _split(content, str(path), count, strict)
            if not count and b"\n" not in content and "\r" in "".join(lines):
                raise InputError(
                    f"{path} has no line feeds, only carriage returns: convert its line"
                    " ends, for example by tr '\\r' '\\n'"
                )
            yield from lines
            count += len(lines)
    except _InvalidError as error:
        # A pipe may stand still.
        raise _refusal(str(path), error, contents if path.is_file() else None) from None
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except EOFError:
        raise InputError(
            f"{path} breaks off after line {count:,}: the archive is not whole; fetch"
            " it again or compress it again"
        ) from None
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(
                f"cannot read {path} after line {count:,}: {error.strerror}"
            ) from None
        if not count and not _is_archive(path):
            raise InputError(
                f"{path} is no {path.suffix} archive: fetch it again, or take"
                f" {path.suffix} off the name of plain text"
            ) from None
        raise InputError(
            f"{path} is damaged after line {count:,} ({error}): fetch it again or"
            " compress it again"
        ) from None
    if not (count or empty):
        raise InputError(f"{path} is empty: it needs one sentence a line")


def _refusal(
    name: str, error: _InvalidError, rest: Iterable[bytes] | None = None
) -> InputError:
    """Return the error of text that is not UTF-8, with its cure.

    Args:
        name: of the text.
        error: has the text with the first bad line.
        rest: of a file, whose bad lines are counted if all of it can be read; None: it
            is no file.
    """
    line, reason, content = error.args
    if line == 1 and content.startswith((*_ARCHIVES, _ZIP)):
        unpacked = next(
            (
                f"end its name with {suffix}"
                for magic, suffix in _ARCHIVES.items()
                if rest is not None and content.startswith(magic)
            ),
            "unpack it first",
        )
        return InputError(
            f"{name}, line 1: not UTF-8 ({reason}); it looks compressed: {unpacked}"
        )
    if rest is not None:
        with contextlib.suppress(InputError, *_UNREADABLE):
            count = sum(
                not is_valid(each)
                for part in itertools.chain([content], rest)
                for each in _split(part, name, 0, False)
            )
            reason += f"; {count:,} such lines"
    return InputError(
        f"{name}, line {line}: not UTF-8 ({reason}); convert the text to UTF-8"
    )


def _is_archive(path: Path) -> bool:
    """Return whether a file begins like an archive of its suffix, as far as it goes."""
    magic = next(magic for magic, suffix in _ARCHIVES.items() if suffix == path.suffix)
    with path.open("rb") as file:
        head = file.read(len(magic))
    return magic.startswith(head)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of whole lines; stop at a line that is too
    long.
    """
    pending: list[bytes] = []
    size = 0
    for block in _blocks(path):
        head, newline, tail = block.rpartition(b"\n")
        if newline:
            yield b"".join([*pending, head, newline])
            pending, size = [], 0
        pending.append(tail)
        size += len(tail)
        if size > MOST_BYTES_A_LINE + 1:
            break
    if any(pending):
        yield b"".join(pending)


def _blocks(path: Path) -> Iterator[bytes]:
    """Read the bytes of a file, unpacked, in pieces of bounded size."""
    with path.open("rb") as file:
        if path.suffix == ".zst":
            yield from _zstd_blocks(file)
            return
        stream: io.BufferedIOBase = file
        if path.suffix == ".gz":
            stream = gzip.GzipFile(fileobj=file, mode="rb")
        elif path.suffix == ".bz2":
            stream = bz2.BZ2File(file)
        elif path.suffix == ".xz":
            stream = lzma.LZMAFile(file)  # noqa: SIM115 (the file beneath is what must be closed)
        # Before damage, read1 returns what it has read; read would lose it.
        while block := stream.read1(_BLOCK):
            yield block


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Unpack zstd frames. The package's own reader ignores an end within a frame."""
    zstandard = require("zstandard", "train")
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    try:
        while bite := file.read(_ZSTD_BITE):
            while bite:
                if frame.eof:
                    frame = decompressor.decompressobj()
                yield frame.decompress(bite)
                bite = frame.unused_data
    except zstandard.ZstdError as error:
        raise _DamagedError(error) from None
    if not frame.eof:
        raise EOFError


def _split(content: bytes, name: str, lines_before: int, strict: bool) -> list[str]:
    """Split a text that starts after ``lines_before`` lines of the file."""
    if len(content) > MOST_BYTES_A_LINE:
        for number, line in enumerate(content.split(b"\n"), lines_before + 1):
            if len(line.removesuffix(b"\r")) > MOST_BYTES_A_LINE:
                raise InputError(
                    f"{name}, line {number}: longer than {MOST_BYTES_A_LINE:,} bytes:"
                    " split it"
                )
    try:
        text = content.decode("utf-8", "strict" if strict else "surrogateescape")
    except UnicodeDecodeError as error:
        line = lines_before + content.count(b"\n", 0, error.start) + 1
        raise _InvalidError(line, error.reason, content) from None
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
