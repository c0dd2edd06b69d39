import gzip
import io
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
    open_lines,
    open_parallel,
    read_lines,
    stream_lines,
)
from jaxformer.errors import InputError


def zstd(content):
    return (
        pytest.importorskip("zstandard")
        .ZstdCompressor(write_checksum=True)
        .compress(content)
    )


PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": zstd,
}
packed = pytest.mark.parametrize("suffix", list(PACKERS))
archived = pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])


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
    """Read to the end and give how many lines came before the error."""
    lines = open_lines(paths)
    count = 0
    with pytest.raises(InputError, match=message) as error:  # noqa: PT012
        for _ in lines:
            count += 1
    assert "\n" not in str(error.value)
    return count


@packed
def test_lines_come_back(tmp_path, suffix):
    """Any text, split only at line feeds, in any compression and across all
    buffers.
    """
    lines = random_lines(3, 20_000)
    path = write(
        tmp_path / f"f{suffix}", PACKERS[suffix]("\n".join([*lines, ""]).encode())
    )
    assert path.stat().st_size > 1 << 19  # several buffers
    assert read_lines(path) == lines
    assert list(open_lines([path, path])) == [*lines, *lines]


@packed
def test_only_newlines_split_lines(tmp_path, suffix):
    """Other separators of lines stay inside a line."""
    line = (
        "one\u2028two\x0bthree\x0cfour\x1cfive\x1dsix\x1eseven\x85eight\u2029nine\rten"
    )
    assert len(line.splitlines()) == 10
    assert read_lines(
        write(tmp_path / f"f{suffix}", PACKERS[suffix](f"{line}\n{line}\n".encode()))
    ) == [line, line]


@packed
@pytest.mark.parametrize(
    "content",
    [
        b"a\nb c\n",
        b"a\nb c",
        b"a\r\nb c\r\n",
        b"a\r\nb c",
        b"\xef\xbb\xbfa\nb c\n",
        b"\xef\xbb\xbfa\r\nb c",
    ],
)
def test_line_ends_and_byte_order_marks(tmp_path, suffix, content):
    """Windows line ends, a byte order mark and a missing last line end change
    nothing.
    """
    path = write(tmp_path / f"f{suffix}", PACKERS[suffix](content))
    assert read_lines(path) == ["a", "b c"]
    # nor in the middle of several files
    assert list(open_lines([path, path])) == ["a", "b c", "a", "b c"]


def test_nothing_else_is_taken_off(tmp_path):
    """Spaces, a carriage return and a mark that are not at the ends belong to the
    line.
    """
    content = " a \t\n\rb\r\r\n\ufeffc\n".encode()
    assert read_lines(write(tmp_path / "f", content)) == [" a \t", "\rb\r", "\ufeffc"]


def test_empty_lines_count(tmp_path):
    """An empty line is a line."""
    assert read_lines(write(tmp_path / "f", b"\na\n\n\n")) == ["", "a", "", ""]
    assert read_lines(write(tmp_path / "g", b"\n")) == [""]


def test_a_line_may_be_longer_than_a_buffer(tmp_path):
    line = "ä" * 1_000_000
    assert read_lines(write(tmp_path / "f", f"a\n{line}\n{line}".encode())) == [
        "a",
        line,
        line,
    ]


def test_a_stream_gives_the_lines_of_a_file(tmp_path):
    content = b"\xef\xbb\xbfa\r\n\nb\xe2\x80\xa8c"
    streamed = list(stream_lines(io.BytesIO(content), "standard input"))
    assert (
        streamed == read_lines(write(tmp_path / "f", content)) == ["a", "", "b\u2028c"]
    )
    assert list(stream_lines(io.BytesIO(b""), "standard input")) == []
    lines = stream_lines(io.BytesIO(b"a\n\xff\nb\n"), "standard input")
    assert next(lines) == "a"
    with pytest.raises(InputError, match=r"^standard input, line 2: not UTF-8"):
        next(lines)


@packed
@pytest.mark.parametrize("line", [1, 3, 9_000, 20_000])
def test_invalid_utf8_is_named_by_file_and_line(tmp_path, suffix, line):
    """A byte that is no UTF-8 stops the reading with its place, however deep in the
    file.
    """
    lines = [line.encode() for line in random_lines(5, 20_000)]
    lines[line - 1] = b"f\xfcnf"
    path = write(tmp_path / f"latin1.de{suffix}", PACKERS[suffix](b"\n".join(lines)))
    refuse(
        [path],
        rf"latin1\.de{suffix}, line {line}: not UTF-8 .*convert the text to UTF-8$",
    )


@archived
def test_an_archive_under_a_plain_name_says_so(tmp_path, suffix):
    path = write(tmp_path / "train.en", PACKERS[suffix](b"one\n" * 100))
    refuse(
        [path],
        r"train\.en, line 1: not UTF-8 .*looks compressed: end its name with"
        rf" \{suffix}$",
    )


@archived
def test_cut_archives_are_never_taken_for_whole(tmp_path, suffix):
    """Wherever an archive breaks off, the whole lines before it come, then an error
    that counts them.
    """
    lines = random_lines(7, 3_000)
    content = PACKERS[suffix]("\n".join([*lines, ""]).encode())
    counts = []
    for cut in (20, len(content) // 3, len(content) // 2, len(content) - 1):
        path = write(tmp_path / f"cut{suffix}", content[:cut])
        counts.append(
            refuse(
                [path],
                rf"cut{suffix} breaks off after line [\d,]+: .*not whole; fetch it"
                r" again",
            )
        )
        with pytest.raises(InputError, match=f"after line {counts[-1]:,}:"):
            list(open_lines([path]))
    assert counts == sorted(counts)
    assert 0 < counts[2] < len(lines)


@archived
def test_damaged_archives_are_refused(tmp_path, suffix):
    """A checksum that does not fit, and what is no archive at all, end in one line."""
    content = bytearray(PACKERS[suffix]("\n".join(random_lines(9, 3_000)).encode()))
    content[{".gz": -6, ".xz": len(content) // 2, ".zst": -2}[suffix]] ^= 0xFF
    path = write(tmp_path / f"bad{suffix}", bytes(content))
    refuse([path], rf"bad{suffix} is damaged after line [\d,]+ \(.*\): fetch it again")
    path = write(tmp_path / f"page{suffix}", b"<html>404 Not Found</html>\n" * 100)
    assert (
        refuse(
            [path],
            rf"page{suffix} is no {suffix} archive: fetch it again, or take"
            rf" {suffix} off",
        )
        == 0
    )


@archived
def test_archives_of_several_parts_are_read_to_the_end(tmp_path, suffix):
    """Archives that were joined by `cat` are one text."""
    parts = [PACKERS[suffix](text) for text in (b"a\nb", b"c\n", b"d\ne\n")]
    assert read_lines(write(tmp_path / f"f{suffix}", b"".join(parts))) == [
        "a",
        "bc",
        "d",
        "e",
    ]


def test_missing_empty_and_unreadable_files(tmp_path):
    """Each has its own clear line."""
    refuse([tmp_path / "missing"], r"^no file .*missing$")
    for name, content in {
        "a": b"",
        "b": b"\xef\xbb\xbf",
        "c.gz": b"",
        "d.gz": gzip.compress(b""),
    }.items():
        refuse(
            [write(tmp_path / name, content)],
            rf"{name} is empty: it needs one sentence a line",
        )
    refuse([tmp_path], "cannot read .*directory")


@archived
def test_memory_stays_flat(tmp_path, suffix):
    """Reading a corpus of 2 x 200 MB takes no more than a few buffers."""
    line = b"%d: " + b"a sentence and another " * 200
    part = PACKERS[suffix](b"".join(line % number + b"\n" for number in range(220)))
    for name in ("f.en", "f.de"):
        write(tmp_path / f"{name}{suffix}", part * 200)
    tracemalloc.start()
    try:
        size = count = 0
        for source, target in open_parallel(
            [tmp_path / f"f.en{suffix}"], [tmp_path / f"f.de{suffix}"]
        ):
            size += len(source) + len(target)
            count += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 44_000
    assert size > 400_000_000
    assert peak < 0.05 * size


def test_reading_waits_until_asked(tmp_path):
    """A fault after the lines that are taken is not met."""
    write(tmp_path / "f", b"a\nb\n")
    lines = open_lines([tmp_path / "f", tmp_path / "missing"])
    assert [next(lines), next(lines)] == ["a", "b"]


def test_patterns_name_files_in_order(tmp_path):
    for name in (
        "part-2.en",
        "part-10.en",
        "part-1.en",
        "part-1.de",
        "deep/part-3.en",
        "a[1].en",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, b"x\n")

    def names(pattern):
        found = expand(f"{tmp_path}/{pattern}")
        return [str(path.relative_to(tmp_path)) for path in found]

    assert names("part-*.en") == ["part-1.en", "part-10.en", "part-2.en"]
    assert names("part-?.en") == ["part-1.en", "part-2.en"]
    assert names("**/part-*.en") == [
        "deep/part-3.en",
        "part-1.en",
        "part-10.en",
        "part-2.en",
    ]
    assert names("part-1.de") == ["part-1.de"]
    assert names("a[1].en") == ["a[1].en"]  # a file of that very name
    assert names("part-[2].en") == ["part-2.en"]
    with pytest.raises(
        InputError, match=r"^no file matches .*part-\*\.fr: give a path"
    ):
        expand(f"{tmp_path}/part-*.fr")
    with pytest.raises(InputError, match=r"^no file .*part-3\.en$"):
        expand(f"{tmp_path}/part-3.en")


@pytest.mark.parametrize(("left", "right"), [(3, 2), (2, 3), (1, 9), (9, 1)])
def test_unequal_files_are_refused_with_both_counts(tmp_path, left, right):
    """No pairing by the shorter file; of several, the two that disagree are named."""
    write(tmp_path / "a.en", b"one\n" * 4)
    write(tmp_path / "a.de", b"eins\n" * 4)
    write(tmp_path / "b.en", b"one\n" * left)
    write(tmp_path / "b.de", b"eins\n" * right)
    pairs = open_parallel(expand(f"{tmp_path}/?.en"), expand(f"{tmp_path}/?.de"))
    with pytest.raises(
        InputError,
        match=rf"b\.en has {left} lines and .*b\.de has {right}: line i of one must",
    ):
        list(pairs)


def test_unequal_numbers_of_files_are_refused(tmp_path):
    """A missing part is noticed before a line is read."""
    for name in ("a.en", "b.en", "a.de"):
        write(tmp_path / name, b"x\n")
    pairs = open_parallel(expand(f"{tmp_path}/*.en"), expand(f"{tmp_path}/*.de"))
    with pytest.raises(
        InputError,
        match=r"2 source files \(.*a\.en to .*b\.en\) and 1 target files \(.*a\.de\)",
    ):
        next(pairs)


def test_files_belong_together_by_their_wildcards(tmp_path):
    """The order of names would align ``news.dev.en`` with ``news.de``."""
    for stem in ("news", "news.dev", "news.test"):
        for language in ("en", "de"):
            (tmp_path / f"{stem}.{language}").write_text(f"{stem}\n")
    sources, targets = expand_parallel(f"{tmp_path}/news*.en", f"{tmp_path}/news*.de")
    assert [path.stem for path in sources] == [path.stem for path in targets]
    assert len(sources) == 3
    (tmp_path / "news.dev.de").rename(tmp_path / "news.other.de")
    with pytest.raises(
        InputError,
        match=r"news\.dev\.en has no partner among the files of .*news\*\.de",
    ):
        expand_parallel(f"{tmp_path}/news*.en", f"{tmp_path}/news*.de")


@packed
@pytest.mark.parametrize("end", [b"", b"\nlast\n"])
def test_a_line_without_end_is_refused_in_bounded_memory(
    tmp_path, suffix, end, monkeypatch
):
    """Its file, number and bound are named before it is read or unpacked as a whole."""
    monkeypatch.setattr(files, "MOST_BYTES_A_LINE", 1_000_000)
    path = write(
        tmp_path / f"f{suffix}", PACKERS[suffix](b"a\r\nb\n" + bytes(60_000_000) + end)
    )
    tracemalloc.start()
    count = refuse(
        [path], rf"f{suffix}, line 3: longer than 1,000,000 bytes: split it$"
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count in (0, 2)
    # One frame of zstd unpacks 1 KiB to at most 32 MiB.
    assert peak < (100_000_000 if suffix == ".zst" else 10_000_000)


def test_a_stream_without_line_ends_is_refused(monkeypatch):
    """So does standard input."""
    monkeypatch.setattr(files, "MOST_BYTES_A_LINE", 1_000)
    lines = stream_lines(io.BytesIO(b"a\n" + bytes(5_000)), "standard input")
    assert next(lines) == "a"
    with pytest.raises(
        InputError, match=r"^standard input, line 2: longer than 1,000 bytes: split it$"
    ):
        next(lines)


@packed
def test_a_line_may_have_as_many_bytes_as_the_bound(tmp_path, suffix, monkeypatch):
    """Line ends do not count."""
    monkeypatch.setattr(files, "MOST_BYTES_A_LINE", 1_000)
    content = (b"x" * 1_000 + b"\r\n") * 3
    assert (
        read_lines(write(tmp_path / f"f{suffix}", PACKERS[suffix](content)))
        == ["x" * 1_000] * 3
    )
    assert (
        list(stream_lines(io.BytesIO(content), "standard input")) == ["x" * 1_000] * 3
    )


def test_a_pipe_is_no_training_text(tmp_path):
    """Training text is read several times: what cannot be is refused before anything
    waits for it.
    """
    os.mkfifo(tmp_path / "pipe.en")
    for pattern in ("pipe.en", "*.en"):
        # text that is read once may come from a pipe
        paths = expand(str(tmp_path / pattern))
        with pytest.raises(
            InputError,
            match=(
                r"pipe\.en is a pipe or device, and training text is read several times"
            ),
        ):
            check_regular(paths)
    with pytest.raises(InputError, match="is a folder: name a file"):
        expand(str(tmp_path))


def test_a_pattern_of_a_whole_disk_is_refused(tmp_path, monkeypatch):
    """It ends with the first file too many."""
    monkeypatch.setattr(files, "_MOST_FILES", 5)
    for number in range(6):
        write(tmp_path / f"{number}.en", b"a\n")
    assert len(expand(f"{tmp_path}/[0-4].en")) == 5
    with pytest.raises(InputError, match=r"^more than 5 files match .*: name fewer$"):
        expand(f"{tmp_path}/**/*")
