"""Parallel text out of the archives in which it is published.

Nothing is unpacked under a name that an archive gives: the members that a corpus needs
are read as streams, found by their exact names, and written as lines into files that
the caller names. So neither ``../``, nor an absolute name, nor a link or a device in an
archive reaches any place on the disk, whatever else the archive holds.

The forms in which the corpora of the WMT come:

- two members, one a language (:class:`Files`): plain text, also gzipped, or the SGML of
  the test sets,
- one table with a column a language (:class:`Table`),
- a translation memory (:class:`Memory`).
"""

from __future__ import annotations

import gzip
import hashlib
import html.entities
import io
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from jaxformer.data.files import MOST_BYTES_A_LINE
from jaxformer.errors import InputError

# The largest archive of the WMT here holds about 25 GB; more than this is no corpus but
# a mistake or an attack.
MOST_BYTES = 64 << 30
_MOST_BYTES_OF_SGML = 64 << 20
_CHUNK = 1 << 20

_BOM = b"\xef\xbb\xbf"
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_SEGMENT = re.compile(r"<seg\b([^>]*)>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
_SEGMENT_START = re.compile(r"<seg\b", re.IGNORECASE)
_SEGMENT_ID = re.compile(r"""\bid\s*=\s*["']?([^"'\s]+)""", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]*));")
_BLANKS = re.compile(r"[ \t\r\n]+")


@dataclass(frozen=True)
class Files:
    """Two members of an archive, line i of one the translation of line i of the other;
    language to name.

    A name that ends in ``.gz`` is gzipped once more, one that ends in ``.sgm`` is SGML.
    """

    members: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A gzipped text with a column for each language, in this order, and tabs
    between them.
    """

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """A gzipped translation memory (TMX 1.4), from which these two languages are
    taken.
    """

    languages: tuple[str, str]


Form = Files | Table | Memory


@dataclass(frozen=True)
class Unpacked:
    """What came out of an archive.

    Attributes:
        pairs: lines of either file.
        skipped: rows or units that are no pair (another number of columns, a language
            that is missing).
        sha256: the digest of each file that was written, by language.
    """

    pairs: int
    skipped: int
    sha256: dict[str, str]


def unpack(
    archive: Path,
    form: Form,
    outputs: Mapping[str, Path],
    *,
    most_bytes: int = MOST_BYTES,
) -> Unpacked:
    r"""Write the parallel text of an archive as one file a language, line i of each the
    translation of the others.

    Lines end with ``\n`` alone, and a byte order mark is taken off; else plain text and
    tables stay as they are, with their empty lines. The files are on the disk when this
    returns; whatever fails leaves none of them.

    Args:
        archive: a ``.tgz``, ``.tar.gz``, ``.tar``, ``.zip`` or ``.gz`` file.
        form: how it holds the text.
        outputs: the file to write for each language.
        most_bytes: what the archive may hold, unpacked.

    Raises:
        InputError: the archive is truncated, damaged, larger than ``most_bytes`` or
            lacks a member; a member is no regular file or no UTF-8; the two sides do
            not match; or the disk refuses.
    """
    with ExitStack() as stack:
        stack.enter_context(_faults(archive))
        sides = {
            language: stack.enter_context(_Side(path))
            for language, path in outputs.items()
        }
        match form:
            case Files():
                skipped = _write_files(archive, form, sides, most_bytes)
            case Table():
                skipped = _write_table(archive, form, sides, most_bytes)
            case Memory():
                skipped = _write_memory(archive, sides, most_bytes)
        for side in sides.values():
            side.finish()
    pairs = next(iter(sides.values())).lines
    return Unpacked(
        pairs,
        skipped,
        {language: side.digest.hexdigest() for language, side in sides.items()},
    )


def read_segments(content: bytes, name: str) -> list[tuple[str, str]]:
    """Read the segments of an SGML test set, in order: their ids and their text.

    The test sets are no well-formed XML (a bare ``&`` occurs), so this looks for ``<seg
    id="...">`` and ``</seg>`` alone. Entities that are whole (``&amp;``, ``&#233;``)
    are decoded once, line ends within a segment become spaces.

    Raises:
        InputError: not UTF-8, no segment, a segment without an id, or one that does not
            end.
    """
    try:
        text = content.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}, line {line}: not UTF-8 ({error.reason})") from None
    segments = []
    starts = [match.start() for match in _SEGMENT_START.finditer(text)]
    for start, end in zip(starts, [*starts, len(text)][1:], strict=True):
        # up to the next: segments that do not end take linear time
        match = _SEGMENT.match(text, start, end)
        if match is None and end == len(text):
            break
        identifier = match and _SEGMENT_ID.search(match[1])
        if match is None or identifier is None:
            line = text.count("\n", 0, start) + 1
            fault = "does not end before the next" if match is None else "has no id"
            raise InputError(
                f"{name}, line {line}: a <seg> {fault}, which a test set's must"
            )
        segments.append(
            (identifier[1], _BLANKS.sub(" ", _decode_entities(match[2])).strip(" "))
        )
    if not segments:
        raise InputError(
            f"{name} holds no <seg id=...> ... </seg>, of which a test set consists"
        )
    if len(segments) != len(starts):
        raise InputError(
            f"{name}: the last <seg> does not end, which a test set's must"
        )
    return segments


def _decode_entities(text: str) -> str:
    """Decode each entity that ends with a semicolon; what is no entity stays
    (``R&D``, ``&unknown;``).
    """

    def decode(match: re.Match[str]) -> str:
        decimal, hexadecimal, name = match.groups()
        if name:
            return html.entities.html5.get(f"{name};", match[0])
        code = int(decimal) if decimal else int(hexadecimal, 16)
        if not 0 < code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return match[0]  # no character
        return chr(code)

    return _ENTITY.sub(decode, text)


def _write_files(
    archive: Path, form: Files, sides: Mapping[str, _Side], most_bytes: int
) -> int:
    languages = {name: language for language, name in form.members.items()}
    ids: dict[str, list[str]] = {}
    for name, stream in _open_members(archive, list(languages), most_bytes):
        side = sides[languages[name]]
        label = f"{archive}: {name}"
        if name.endswith(".sgm"):
            content = stream.read(_MOST_BYTES_OF_SGML + 1)
            if len(content) > _MOST_BYTES_OF_SGML:
                raise InputError(
                    f"{label} is larger than {_MOST_BYTES_OF_SGML:,} bytes: no test"
                    " set is"
                )
            segments = read_segments(content, label)
            ids[name] = [identifier for identifier, _ in segments]
            side.write(text for _, text in segments)
        else:
            side.write(_lines(stream, label))
    if len({side.lines for side in sides.values()}) > 1:
        counts = [
            f"{name} has {sides[language].lines:,} lines"
            for name, language in languages.items()
        ]
        raise InputError(
            f"{archive}: {' and '.join(counts)}, they must translate each other line by"
            " line"
        )
    _check_segments(archive, ids)
    return 0


def _check_segments(archive: Path, ids: Mapping[str, list[str]]) -> None:
    """Refuse two sides of a test set whose segments of the same number have other
    ids.
    """
    if not ids:
        return
    (one, first), (other, second) = ids.items()
    for number, (left, right) in enumerate(zip(first, second, strict=True), start=1):
        if left != right:
            raise InputError(
                f"{archive}: segment {number:,} of {one} is {left!r} and of {other} is"
                f" {right!r}, they must be the same"
            )


def _write_table(
    archive: Path, form: Table, sides: Mapping[str, _Side], most_bytes: int
) -> int:
    skipped = 0
    with _open_gzip(archive, most_bytes) as stream:
        for line in _lines(stream, str(archive)):
            row = line.split("\t")
            if len(row) != len(form.columns):
                skipped += 1
                continue
            for language, text in zip(form.columns, row, strict=True):
                sides[language].write((text,))
    return skipped


def _write_memory(archive: Path, sides: Mapping[str, _Side], most_bytes: int) -> int:
    skipped = 0
    with _open_gzip(archive, most_bytes) as stream:
        for unit in _units(stream):
            texts = dict(_variants(unit))
            if not all(language in texts for language in sides):
                skipped += 1
                continue
            for language, side in sides.items():
                side.write((texts[language],))
    return skipped


def _units(stream: IO[bytes]) -> Iterator[ElementTree.Element]:
    """Return the translation units of a TMX file, each to be used before the next,
    holding one at a time.
    """
    body = None
    for event, element in ElementTree.iterparse(stream, events=("start", "end")):
        if event == "start":
            body = element if element.tag == "body" else body
        elif element.tag == "tu":
            yield element
            if body is not None:
                body.clear()  # else the tree grows with the file


def _variants(unit: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Return language and text of what a translation unit holds; ``en`` for
    ``EN-GB``.
    """
    for variant in unit.iterfind("tuv"):
        language = variant.get(_XML_LANG) or variant.get("lang") or ""
        segment = variant.find("seg")
        if segment is not None:
            yield (
                language.lower().split("-")[0],
                _BLANKS.sub(" ", "".join(segment.itertext())),
            )


class _Side:
    """One file of a parallel text while it is written; it is removed unless
    :meth:`finish` was reached.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.digest = hashlib.sha256()
        self._finished = False

    def __enter__(self) -> _Side:
        self._file = self.path.open("wb")
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._file.close()
        finally:
            if not self._finished:
                self.path.unlink(missing_ok=True)

    def write(self, lines: Iterable[str]) -> None:
        for line in lines:
            content = line.encode() + b"\n"
            self._file.write(content)
            self.digest.update(content)
            self.lines += 1

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._finished = True


def _lines(stream: IO[bytes], name: str) -> Iterator[str]:
    r"""Read lines that end at ``\n`` alone, without their ends, whole, as UTF-8."""
    number = 0
    while content := stream.readline(MOST_BYTES_A_LINE + 1):
        number += 1
        if len(content) > MOST_BYTES_A_LINE:
            raise InputError(
                f"{name}, line {number}: longer than {MOST_BYTES_A_LINE:,} bytes, no"
                " sentence is"
            )
        if number == 1:
            content = content.removeprefix(_BOM)
        try:
            yield content.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: not UTF-8 ({error.reason})"
            ) from None


def _open_members(
    archive: Path, names: list[str], most_bytes: int
) -> Iterator[tuple[str, IO[bytes]]]:
    """Give each member of these names once, in the order of the archive, as a stream
    to read before the next.
    """
    missing = set(names)
    opened = _open_zip_members if archive.name.endswith(".zip") else _open_tar_members
    for name, stream in opened(archive, missing, most_bytes):
        missing.remove(name)
        if name.endswith(".gz"):
            stream = io.BufferedReader(
                _Bounded(gzip.GzipFile(fileobj=stream), most_bytes, archive)
            )
        yield name, stream
    if missing:
        raise InputError(
            f"{archive} has no member {', '.join(sorted(missing))}; remove it, and it"
            " is fetched again"
        )


def _open_tar_members(
    archive: Path, names: set[str], most_bytes: int
) -> Iterator[tuple[str, IO[bytes]]]:
    with ExitStack() as stack:
        plain = archive.name.endswith(".tar")
        content = stack.enter_context(
            archive.open("rb") if plain else gzip.GzipFile(archive)
        )
        # As a stream, from the beginning to the end: seeking back in a gzip file
        # unpacks it anew.
        bounded = _Bounded(content, most_bytes, archive)
        tar = stack.enter_context(tarfile.open(fileobj=bounded, mode="r|"))
        for member in tar:
            name = member.name.removeprefix("./")
            if name not in names:
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise InputError(
                    f"{archive}: {name} is a link, a device or a folder, not a file"
                )
            yield name, stream
        while bounded.read(_CHUNK):
            pass  # to the end, where gzip's checksum stands


def _open_zip_members(
    archive: Path, names: set[str], most_bytes: int
) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            name = member.filename.removeprefix("./")
            if name not in names:
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            if member.is_dir() or kind not in (0, stat.S_IFREG):
                raise InputError(
                    f"{archive}: {name} is a link, a device or a folder, not a file"
                )
            with content.open(member) as stream:
                yield name, io.BufferedReader(_Bounded(stream, most_bytes, archive))


@contextmanager
def _open_gzip(archive: Path, most_bytes: int) -> Iterator[IO[bytes]]:
    with gzip.GzipFile(archive) as content:
        yield io.BufferedReader(_Bounded(content, most_bytes, archive))


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than a number of bytes, so that a small
    archive cannot fill a disk.
    """

    def __init__(
        self, stream: IO[bytes] | gzip.GzipFile, most_bytes: int, archive: Path
    ) -> None:
        self._stream, self._left, self._most_bytes, self._archive = (
            stream,
            most_bytes,
            most_bytes,
            archive,
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        content = self._stream.read(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise InputError(
                f"{self._archive} holds more than {self._most_bytes:,} bytes, unpacked:"
                " no corpus does"
            )
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _faults(archive: Path) -> Iterator[None]:
    """Word what is wrong with an archive or with the disk as one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"no file {error.filename}") from None
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(
            f"{archive} is truncated or damaged ({error}); remove it, and it is fetched"
            " again"
        ) from None
    except ElementTree.ParseError as error:
        raise InputError(
            f"{archive} is no translation memory ({error}); remove it, and it is"
            " fetched again"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot unpack {archive}: {error.strerror}; make room or choose another"
            " directory, and run again"
        ) from None
