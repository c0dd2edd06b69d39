import doctest
import subprocess
import sys

import pytest

from jaxformer.data import load, read_lines, reversal, sources, split_lines
from jaxformer.errors import InputError


def write(path, content):
    path.write_bytes(content)
    return path


def test_only_newlines_split_lines(tmp_path):
    """Other separators of lines stay inside a line (statement 64)."""
    line = "one\u2028two\x0bthree\x0cfour\x1cfive\x1dsix\x1eseven\x85eight\u2029nine\rten"
    assert len(line.splitlines()) == 10
    assert read_lines(write(tmp_path / "f", f"{line}\n{line}\n".encode())) == [line, line]


@pytest.mark.parametrize(
    "content",
    [b"a\nb c\n", b"a\nb c", b"a\r\nb c\r\n", b"a\r\nb c", b"\xef\xbb\xbfa\nb c\n", b"\xef\xbb\xbfa\r\nb c"],
)
def test_line_ends_and_byte_order_marks(tmp_path, content):
    """Windows line ends, a byte order mark and a missing last line end change nothing (statement 65)."""
    assert read_lines(write(tmp_path / "f", content)) == ["a", "b c"]


def test_nothing_else_is_taken_off(tmp_path):
    """Spaces, and a carriage return that is not the line end's, belong to the line (statement 65)."""
    assert read_lines(write(tmp_path / "f", b" a \t\n\rb\r\r\n")) == [" a \t", "\rb\r"]


def test_empty_lines_count(tmp_path):
    """An empty line is a line (statement 63)."""
    assert read_lines(write(tmp_path / "f", b"\na\n\n\n")) == ["", "a", "", ""]
    assert read_lines(write(tmp_path / "g", b"\n")) == [""]


def test_invalid_utf8_is_named_by_file_and_line(tmp_path):
    """A byte that is no UTF-8 stops the reading, with its place (statement 65)."""
    path = write(tmp_path / "latin1.de", b"eins\nzwei\nf\xfcnf\n")
    with pytest.raises(InputError, match=r"latin1\.de, line 3: not UTF-8"):
        read_lines(path)


def test_splitting_bytes_equals_reading_a_file(tmp_path):
    content = b"\xef\xbb\xbfa\r\n\nb\xe2\x80\xa8c"
    assert split_lines(content, "standard input") == read_lines(write(tmp_path / "f", content)) == ["a", "", "b\u2028c"]
    assert split_lines(b"", "standard input") == []
    with pytest.raises(InputError, match=r"^standard input, line 2: not UTF-8"):
        split_lines(b"a\n\xff", "standard input")


def test_missing_empty_and_unreadable_files(tmp_path):
    """Each has its own clear line (statement 65)."""
    with pytest.raises(InputError, match=r"no file .*missing"):
        read_lines(tmp_path / "missing")
    for content in (b"", b"\xef\xbb\xbf"):
        with pytest.raises(InputError, match="empty"):
            read_lines(write(tmp_path / "empty", content))
    with pytest.raises(InputError, match="cannot read"):
        read_lines(tmp_path)


def test_text_files_stay_aligned(tmp_path):
    """Line i of one file is with line i of the other, whatever is empty (statement 63)."""
    write(tmp_path / "a.en", b"one\n\nthree\nfour\n")
    write(tmp_path / "a.de", b"eins\nzwei\n\nvier")
    pairs = load(f"text:{tmp_path}/a.en,{tmp_path}/a.de", "en", "de")
    assert list(pairs) == [("one", "eins"), ("", "zwei"), ("three", ""), ("four", "vier")]


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    """No pairing by the shorter file (statement 65)."""
    write(tmp_path / "a.en", b"one\ntwo\nthree\n")
    write(tmp_path / "a.de", b"eins\nzwei\n")
    with pytest.raises(InputError, match=r"a\.en has 3 lines .*a\.de has 2"):
        load(f"text:{tmp_path}/a.en,{tmp_path}/a.de", "en", "de")


@pytest.mark.parametrize("name", ["text:", "text:one", "text:one,", "text:one,two,three"])
def test_text_needs_two_files(name):
    with pytest.raises(InputError, match="text:SOURCE,TARGET"):
        load(name, "en", "de")


def test_the_bundled_corpus_in_both_directions():
    assert [len(load(f"bundled:en-de/{split}", "en", "de")) for split in ("train", "valid", "test")] == [
        18_315,
        500,
        500,
    ]
    forward, backward = load("bundled:en-de/test", "en", "de"), load("bundled:en-de/test", "de", "en")
    assert [(pair.target, pair.source) for pair in forward] == list(backward)
    assert any("ü" in pair.target for pair in forward)
    assert not any("ü" in pair.source for pair in forward)


@pytest.mark.parametrize(
    ("name", "source", "target", "message"),
    [
        ("bundled:en-de/dev", "en", "de", r"bundled:en-de/train, bundled:en-de/valid, bundled:en-de/test"),
        ("bundled:en-de", "en", "de", r"did you mean bundled:en-de/"),
        ("bundled:en-fr/train", "en", "fr", r"there are bundled:en-de/train"),
        ("bundled:../data/en-de/train", "en", "de", r"there are bundled:en-de/train"),
        ("bundled:en-de/train", "en", "fr", r"no language 'fr': it has en and de"),
        ("bundled:en-de/train", "de", "de", r"both 'de'"),
        ("synthetic:reverse", "en", "de", r"synthetic:reverse/train"),
        ("synthetic:copy/train", "en", "de", r"synthetic:reverse/train"),
        ("bundeld:en-de/train", "en", "de", r"did you mean bundled:\?"),
        ("train.en", "en", "de", r"bundled: or text: or synthetic:"),
        ("", "en", "de", r"bundled: or text: or synthetic:"),
    ],
)
def test_an_unknown_name_names_what_exists(name, source, target, message):
    with pytest.raises(InputError, match=message) as error:
        load(name, source, target)
    assert "\n" not in str(error.value)


def test_the_reversal_task():
    splits = {
        split: load(f"synthetic:reverse/{split}", "forwards", "backwards") for split in ("train", "valid", "test")
    }
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 20_000, "valid": 500, "test": 500}
    everything = [pair for pairs in splits.values() for pair in pairs]
    assert len({pair.source for pair in everything}) == 21_000  # nothing tested was trained on, nothing occurs twice
    assert all(pair.target == pair.source[::-1] for pair in everything)
    for pairs in splits.values():
        lengths = {len(pair.source.split(" ")) for pair in pairs}
        assert lengths <= set(range(1, 13))
        assert set(range(3, 13)) <= lengths
        assert {letter for pair in pairs for letter in pair.source} == set("abcdefghijklmnopqrstuvwxyz ")


def test_the_reversal_task_is_the_same_in_every_process():
    """Nothing depends on the hash seed or on what ran before."""
    code = "import jaxformer.data as d; print(hash(0), [p.source for p in d.reversal('valid')] )"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert str([pair.source for pair in reversal("valid")]) in runs.pop()


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(sources).failed == 0
