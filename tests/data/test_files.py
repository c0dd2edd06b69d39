import bz2
import gzip
import io
import itertools
import lzma
import os
import random
import tracemalloc

import pytest

from jaxformer.data import files
from jaxformer.data.files import (
    check_regular,
    expand,
    expand_parallel,
    is_valid,
    open_lines,
    open_parallel,
    read_lines,
    stream_lines,
)
from jaxformer.errors import InputError


def zstd(content):
    compressor = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True)
    return compressor.compress(content)


PACKERS = {
    "": bytes,
    ".gz": lambda content: gzip.compress(content, 1),
    ".bz2": lambda content: bz2.compress(content, 1),
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstd,
}
packed = pytest.mark.parametrize("suffix", list(PACKERS))
archived = pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])


def write(path, content):
    path.write_bytes(content)
    return path


def random_lines(seed, count):
    """Draw lines that no compression makes much smaller, with every kind of
    character that others split at.
    """
    draw = random.Random(seed)
    alphabet = "abcdefgh äöü€😀\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\t"
    return [
        "".join(draw.choices(alphabet, k=draw.randrange(200))) for _ in range(count)
    ]


def refuse(paths, message):
    """Read to the end and return how many lines came before the error."""
    lines = open_lines(paths)
    count = 0
    with pytest.raises(InputError, match=message) as error:  # noqa: PT012
        for _ in lines:
            count += 1
    assert "\n" not in str(error.value)
    return count


@packed
def test_lines_come_back(tmp_path, suffix):
    """Text is split only at line feeds, in any compression and across all buffers. A
    byte that is not UTF-8 is named by its line, however deep in the file.
    """
    lines = random_lines(3, 6_000)
    path = tmp_path / f"f{suffix}"
    write(path, PACKERS[suffix]("\n".join([*lines, ""]).encode()))
    assert path.stat().st_size > files._BLOCK
    assert read_lines(path) == lines
    assert list(open_lines([path, path])) == [*lines, *lines]
    content = [line.encode() for line in lines]
    content[4999] = content[5200] = b"f\xfcnf"
    write(path, PACKERS[suffix](b"\n".join(content)))
    message = rf"f{suffix}, line 5000: not UTF-8 \(.*; 2 such lines\); convert the text"
    refuse([path], message)
    found = [*open_lines([path], strict=False)]
    wrong = [number for number, line in enumerate(found) if not is_valid(line)]
    assert wrong == [4999, 5200]
    assert found[:4999] == lines[:4999]


@packed
def test_line_ends_and_byte_order_marks(tmp_path, suffix):
    """Windows line ends, a byte order mark and a missing last line end change
    nothing, nor in the middle of several files; nor do several parts of an archive.
    """
    pack = PACKERS[suffix]
    for mark in (b"", b"\xef\xbb\xbf"):
        for rest in (b"\nb c\n", b"\nb c", b"\r\nb c\r\n", b"\r\nb c"):
            content = pack(mark + b"a") + pack(rest)
            path = write(tmp_path / f"f{suffix}", content)
            assert list(open_lines([path, path])) == ["a", "b c", "a", "b c"]


def test_a_stream_has_the_lines_of_a_file(tmp_path, monkeypatch):
    """Spaces, carriage returns and marks within a line stay; an empty line counts."""
    monkeypatch.setattr(files, "MOST_BYTES_A_LINE", 1_000)

    def stream(content):
        return stream_lines(io.BytesIO(content), "standard input")

    content = "\ufeff a \t\r\n\n\rb\r\r\n\ufeffc\u2028d".encode()
    lines = list(stream(content))
    assert lines == [" a \t", "", "\rb\r", "\ufeffc\u2028d"]
    assert lines == read_lines(write(tmp_path / "f", content))
    assert list(stream(b"")) == []
    for wrong, message in (
        (b"a\n\xff\nb\n", "not UTF-8"),
        (b"a\n" + bytes(5_000), "longer than 1,000 bytes: split it$"),
    ):
        lines = stream(wrong)
        assert next(lines) == "a"
        with pytest.raises(InputError, match=rf"^standard input, line 2: {message}"):
            next(lines)


@archived
def test_cut_archives_are_never_taken_for_whole(tmp_path, suffix):
    """Wherever an archive breaks off, the whole lines before it come, then an error
    that counts them.
    """
    lines = random_lines(7, 3_000)
    content = PACKERS[suffix]("\n".join([*lines, ""]).encode())
    message = rf"cut{suffix} breaks off after line [\d,]+: .*not whole; fetch it again"
    counts = []
    for cut in (20, len(content) // 2, len(content) - 1):
        path = write(tmp_path / f"cut{suffix}", content[:cut])
        counts.append(refuse([path], message))
        refuse([path], f"after line {counts[-1]:,}:")
    assert counts == sorted(counts)
    assert 0 < counts[1] < len(lines)


@archived
def test_damaged_archives_are_refused(tmp_path, suffix):
    """A wrong checksum, a file that is no archive, and one under a plain name."""
    content = bytearray(PACKERS[suffix]("\n".join(random_lines(9, 1_000)).encode()))
    middle = len(content) // 2
    content[{".gz": -6, ".bz2": middle, ".xz": middle, ".zst": -2}[suffix]] ^= 0xFF
    path = write(tmp_path / f"bad{suffix}", bytes(content))
    refuse([path], rf"bad{suffix} is damaged after line [\d,]+ \(.*\): fetch it again")
    path = write(tmp_path / f"page{suffix}", b"<html>404 Not Found</html>\n" * 100)
    message = f"is no {suffix} archive: fetch it again, or take {suffix} off"
    assert refuse([path], message) == 0
    path = write(tmp_path / "train.en", PACKERS[suffix](b"one\n" * 100))
    message = r"train\.en, line 1: not UTF-8 .*looks compressed: end its name with"
    refuse([path], rf"{message} \{suffix}$")


COMPRESSED = "looks compressed: unpack it first"


@archived
def test_a_stream_that_is_compressed_is_called_so(suffix):
    with pytest.raises(InputError, match=COMPRESSED):
        list(stream_lines(io.BytesIO(PACKERS[suffix](b"one\n" * 100)), "input"))


@pytest.mark.parametrize("name", ["corpus.zip", "corpus.en"])
def test_a_zip_archive_is_called_so(tmp_path, name):
    refuse([write(tmp_path / name, b"PK\x03\x04\xff")], COMPRESSED)


@packed
def test_text_without_line_feeds_is_called_so(tmp_path, suffix):
    """A carriage return within a line that has a line feed is text."""
    path = write(tmp_path / f"f{suffix}", PACKERS[suffix](b"a b\rc d\re f\r"))
    refuse([path], "has no line feeds, only carriage returns: convert its line ends")
    for content, lines in (
        (b"a\rb\nc\n", ["a\rb", "c"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\rb\r\n", ["a\rb"]),
        (b"a\nb\rc", ["a", "b\rc"]),
        (b"a\r", ["a"]),
    ):
        path = write(tmp_path / f"f{suffix}", PACKERS[suffix](content))
        assert read_lines(path) == lines


def test_missing_empty_and_unreadable_files(tmp_path):
    refuse([tmp_path / "missing"], r"^no file .*missing$")
    empty = {"a": b"", "b": b"\xef\xbb\xbf", "c.gz": b"", "d.gz": gzip.compress(b"")}
    for name, content in empty.items():
        path = write(tmp_path / name, content)
        refuse([path], rf"{name} is empty: it needs one sentence a line")
    refuse([tmp_path], "cannot read .*directory")


@archived
def test_memory_stays_flat(tmp_path, suffix):
    """Reading a corpus of 2 x 50 MB takes a few buffers; a fault after the lines that
    are taken is not met.
    """
    line = b"%d: " + b"a sentence and another " * 200
    part = PACKERS[suffix](b"".join(line % number + b"\n" for number in range(220)))
    whole = [write(tmp_path / f"f{suffix}", part * 50), tmp_path / "none"]
    tracemalloc.start()
    taken = itertools.islice(open_parallel(whole, whole), 11_000)
    total = sum(len(source) + len(target) for source, target in taken)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 100_000_000
    assert peak < 20_000_000


def test_patterns_name_files_in_order(tmp_path):
    names = ["part-2.en", "part-10.en", "part-1.en", "part-1.de", "deep/part-3.en"]
    (tmp_path / "deep").mkdir()
    for name in (*names, "a[1].en"):
        write(tmp_path / name, b"x\n")
    for pattern, found in {
        "part-*.en": ["part-1.en", "part-10.en", "part-2.en"],
        "part-?.en": ["part-1.en", "part-2.en"],
        "**/part-*.en": ["deep/part-3.en", "part-1.en", "part-10.en", "part-2.en"],
        "part-1.de": ["part-1.de"],
        "a[1].en": ["a[1].en"],  # a file has this name
        "part-[2].en": ["part-2.en"],
    }.items():
        assert expand(f"{tmp_path}/{pattern}") == [tmp_path / name for name in found]
    for pattern, message in {
        "/part-*.fr": r"^no file matches .*part-\*\.fr: give a path",
        "/part-3.en": r"^no file .*part-3\.en$",
    }.items():
        with pytest.raises(InputError, match=message):
            expand(f"{tmp_path}{pattern}")


@pytest.mark.parametrize(("left", "right"), [(3, 2), (1, 9)])
def test_unequal_files_are_refused_with_both_counts(tmp_path, left, right):
    """Of several files the two that disagree are named."""
    for name, count in {"a.en": 4, "a.de": 4, "b.en": left, "b.de": right}.items():
        write(tmp_path / name, b"x\n" * count)
    pairs = open_parallel(expand(f"{tmp_path}/?.en"), expand(f"{tmp_path}/?.de"))
    message = rf"b\.en has {left} lines and .*b\.de has {right}: line i of one must"
    with pytest.raises(InputError, match=message):
        list(pairs)
    message = r"2 source files \(.*a\.en to .*b\.en\) and 1 target files \(.*a\.de\)"
    with pytest.raises(InputError, match=message):
        next(open_parallel(expand(f"{tmp_path}/?.en"), [tmp_path / "a.de"]))


def test_files_are_paired_by_their_wildcards(tmp_path):
    """The order of names would align ``news.dev.en`` with ``news.de``."""
    for stem in ("news", "news.dev", "news.test"):
        for language in ("en", "de"):
            write(tmp_path / f"{stem}.{language}", b"x\n")
    patterns = f"{tmp_path}/news*.en", f"{tmp_path}/news*.de"
    sources, targets = expand_parallel(*patterns)
    assert [path.stem for path in sources] == [path.stem for path in targets]
    assert len(sources) == 3
    (tmp_path / "news.dev.de").rename(tmp_path / "news.other.de")
    message = r"news\.dev\.en has no partner among the files of .*news\*\.de"
    with pytest.raises(InputError, match=message):
        expand_parallel(*patterns)


@packed
def test_a_line_without_end_is_refused_in_bounded_memory(tmp_path, suffix, monkeypatch):
    """The file is not read or unpacked as a whole. Line ends do not count."""
    monkeypatch.setattr(files, "MOST_BYTES_A_LINE", 1_000_000)
    content = b"x" * 1_000_000 + b"\r\nb\n"
    path = write(tmp_path / f"f{suffix}", PACKERS[suffix](content))
    assert [len(line) for line in read_lines(path)] == [1_000_000, 1]
    path.write_bytes(PACKERS[suffix](content + bytes(60_000_000)))
    tracemalloc.start()
    message = rf"f{suffix}, line 3: longer than 1,000,000 bytes: split it$"
    count = refuse([path], message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count in (0, 2)
    # One frame of zstd unpacks 1 KiB to at most 32 MiB.
    assert peak < (100_000_000 if suffix == ".zst" else 10_000_000)


def test_a_pipe_is_not_training_text(tmp_path):
    """Nor is a folder. Text that is read once may come from a pipe."""
    os.mkfifo(tmp_path / "pipe.en")
    for pattern in ("pipe.en", "*.en", ""):
        with pytest.raises(InputError, match="is a folder, pipe or device, and"):
            check_regular(expand(str(tmp_path / pattern)))
