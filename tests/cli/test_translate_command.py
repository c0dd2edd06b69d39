"""``translate`` of input without end: lazily, with nothing saved harmed, and what it
says beside its lines.
"""

from __future__ import annotations

import contextlib
import doctest
import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import runs
from jaxformer.cli import output, progress
from jaxformer.cli.output import check_output, open_output, write_output
from jaxformer.errors import InputError
from jaxformer.translation.translator import Translator


@pytest.fixture(scope="module")
def workdir():
    return f"--workdir={runs.random_run()}"


@pytest.fixture(scope="module")
def translator():
    return Translator.load(runs.random_run())


def encode(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


MOST_MODULES = 60
LIST_MODULES = """
import sys
from jaxformer.cli.main import main
code = main(sys.argv[1:])
print(*(name for name in sys.modules if name.split(".")[0] == "jaxformer"))
sys.exit(code)
"""


def test_a_translation_loads_few_modules(tmp_path):
    """A process that translates a sentence loads only what a reader of that path needs
    to open.
    """
    (tmp_path / "in").write_text("Open the file.\n")
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
    done = subprocess.run(
        [
            *(sys.executable, "-c", LIST_MODULES, "translate"),
            *(f"--workdir={runs.random_run()}", *files),
        ],
        capture_output=True,
        text=True,
        cwd=runs.ROOT,
        env=runs.environment(),
        check=True,
    )
    modules = done.stdout.split()
    assert (tmp_path / "out").read_text().count("\n") == 1
    assert len(modules) <= MOST_MODULES, modules


# Files and streams


def test_a_process_answers_line_by_line():
    """With a window of one, each line is answered before the next is given."""
    line = [
        sys.executable,
        "-m",
        "jaxformer.cli.main",
        "translate",
        f"--workdir={runs.random_run()}",
        "--window=1",
    ]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(
        [*line, "--beam_size=1"], cwd=runs.ROOT, env=runs.environment(), **pipes
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        texts = ["Open the file.", "", "one\rtwo", "Open the file."]
        answers = []
        for text in texts:
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            answers.append(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait() == 0
    assert answers == encode(
        Translator.load(runs.random_run()).translate(texts, beam_size=1)
    ).splitlines(keepends=True)


def test_long_lines_are_told_of_once(call, workdir, tmp_path):
    """A line of many sentences comes out as they do one a line; files and pipes have
    one warning for all windows.
    """
    sentences = [
        f"{text}."
        for text in runs.sentences(24, longest=16, shortest=12)
        if text[0].isupper()
    ]
    alone = call("translate", workdir, stdin=encode(sentences))
    assert alone.err == ""
    long = encode([" ".join(sentences), "a"] * 2)
    (tmp_path / "in").write_bytes(long)
    for arguments in ([], [f"--input={tmp_path / 'in'}", "--window=1"]):
        outcome = call("translate", workdir, *arguments, stdin=long)
        assert (
            outcome.lines[0] == outcome.lines[2] == " ".join(filter(None, alone.lines))
        )
        assert (
            outcome.err == "jaxformer: warning: sources of more than 64 tokens: "
            "2 translated in parts, split at sentence ends\n"
        )
    assert call("translate", workdir, "--paragraphs", stdin=long).err == ""
    whole = call(
        "translate",
        f"--workdir={runs.refusing_run()}",
        stdin=encode([" ".join(sentences[:6])]),
    )
    assert whole.err.count("\n") == 1
    assert (
        "1 translated whole, of which text may be missing: add --split_long"
        in whole.err
    )


def test_a_bad_line_of_a_file_is_found_before_anything_is_written(call, tmp_path):
    """However far behind it stands: too long, no UTF-8, or without a prefix."""
    lines, workdir = ["a"] * 30, f"--workdir={runs.refusing_run()}"
    for bad, rule in (
        (b"word " * 300, "in, line 31 has"),
        (b"\xff", "in, line 31: not UTF-8"),
    ):
        (tmp_path / "in").write_bytes(encode(lines) + bad + b"\n")
        (tmp_path / "out").write_text("saved\n")
        given = [f"--input={tmp_path / 'in'}", "--window=5"]
        assert rule in call("translate", workdir, *given).error
        assert (
            rule
            in call("translate", workdir, *given, f"--output={tmp_path / 'out'}").error
        )
        assert (tmp_path / "out").read_text() == "saved\n"
        assert not (tmp_path / "out.part").exists()
    (tmp_path / "in").write_bytes(encode(lines))
    (tmp_path / "prefix").write_bytes(encode(["", ""]))
    error = call("translate", workdir, f"--prefix={tmp_path / 'prefix'}", *given).error
    assert error.startswith(
        f"{tmp_path / 'prefix'}, line 3 is missing: there are 2 prefixes and more"
        " sentences"
    )


def test_a_bad_line_of_a_stream_ends_it_at_its_window(call, translator, tmp_path):
    """What stands before its window is written; the line is named; an older file
    stays.
    """
    workdir = f"--workdir={runs.refusing_run()}"
    lines = runs.sentences(12)
    stdin = encode(lines) + b"word " * 300 + b"\n" + encode(lines)
    expected = encode(translator.translate(lines[:10], beam_size=1))
    outcome = call("translate", workdir, "--window=5", "--beam_size=1", stdin=stdin)
    assert (outcome.code, outcome.out) == (1, expected)
    assert "standard input, line 13 has" in outcome.err
    (tmp_path / "out").write_text("saved\n")
    given = ["--window=5", "--beam_size=1", f"--output={tmp_path / 'out'}"]
    outcome = call("translate", workdir, *given, stdin=stdin)
    assert outcome.code == 1
    first, second = outcome.err.splitlines()
    assert (
        first
        == f"the first 10 lines are in {tmp_path / 'out.part'}; out is not written"
    )
    assert second.startswith("jaxformer: error: standard input, line 13 has")
    assert (tmp_path / "out").read_text() == "saved\n"
    assert (tmp_path / "out.part").read_bytes() == expected


def test_an_interruption_leaves_what_was_saved(call, workdir, tmp_path, monkeypatch):
    """Ctrl-C ends with 130; the file is as it was, and what is translated stays
    beside it.
    """
    stream = Translator.stream

    def interrupted(*arguments, **keywords):
        found = stream(*arguments, **keywords)
        yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "stream", interrupted)
    (tmp_path / "out").write_text("saved\n")
    outcome = call("translate", workdir, f"--output={tmp_path / 'out'}", stdin=b"\nb\n")
    assert outcome.code == 130
    assert (tmp_path / "out").read_text() == "saved\n"
    assert (tmp_path / "out.part").read_text() == "\n"


def test_a_file_keeps_its_mode_and_its_link(tmp_path):
    """What replaces a file stands where a link to it leads, and may be read by the
    same people.
    """
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_output(tmp_path / "link") as write:
        write("new")
        assert (tmp_path / "file").read_text() == "old\n"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new\n"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_lines_of_an_interrupted_output_replace_nothing(tmp_path, capsys):
    """They get a name that is free; a link of that name is not followed."""
    for name in ("out", "out.part", "outside"):
        (tmp_path / name).write_text("of somebody else\n")
    (tmp_path / "out.part2").symlink_to(tmp_path / "outside")
    with contextlib.suppress(KeyboardInterrupt), open_output(tmp_path / "out") as write:
        write("new")
        raise KeyboardInterrupt
    assert (
        capsys.readouterr().err
        == f"the first 1 lines are in {tmp_path / 'out.part3'}; out is not written\n"
    )
    assert (tmp_path / "out.part3").read_text() == "new\n"
    for name in ("out", "out.part", "outside"):
        assert (tmp_path / name).read_text() == "of somebody else\n"
    assert len(list(tmp_path.iterdir())) == 5


def test_no_name_is_made_for_an_output_without_lines(tmp_path):
    """Neither an empty file of the given name nor one of unfinished lines is left."""
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "out"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_old_file_and_is_named(tmp_path, monkeypatch, capsys):
    """The lines that were written stay, and the error states the file and the cure."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "out").write_text("old\n")
    with pytest.raises(
        InputError,
        match=r"^cannot write .*/out: No space left on device; free some space$",
    ):
        write_output(tmp_path / "out", ["new"])
    assert (tmp_path / "out").read_text() == "old\n"
    assert (tmp_path / "out.part").read_text() == "new\n"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("path", [None, Path("/dev/full")])
def test_a_full_device_is_named(path, monkeypatch):
    """Standard output too; nothing fails a second time when it is closed."""
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(InputError) as caught:
            write_output(path, ["new"])
    name = path or "standard output"
    assert (
        str(caught.value)
        == f"cannot write {name}: No space left on device; free some space"
    )


def test_an_output_that_cannot_be_written_is_found_before_the_work(
    tmp_path, monkeypatch
):
    """The folder is tried, and left as it was."""

    def refuse(*_, dir, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    (tmp_path / "link").symlink_to(tmp_path / "folder" / "out")
    (tmp_path / "folder").mkdir()
    check_output(tmp_path / "link")
    assert list((tmp_path / "folder").iterdir()) == []
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        InputError,
        match=r"^cannot write .*/folder: Read-only file system; choose a place",
    ):
        check_output(tmp_path / "link")


def test_pipes_are_read_and_written_as_they_are(call, workdir, translator, tmp_path):
    """Neither can be read twice or replaced."""
    lines, pipes = runs.sentences(6), [tmp_path / "in", tmp_path / "out"]
    for pipe in pipes:
        os.mkfifo(pipe)
    found = []
    threads = [
        threading.Thread(
            target=lambda: pipes[0].write_bytes(encode(lines)), daemon=True
        ),
        threading.Thread(
            target=lambda: found.append(pipes[1].read_bytes()), daemon=True
        ),
    ]
    for thread in threads:
        thread.start()
    outcome = call(
        "translate",
        workdir,
        "--beam_size=1",
        f"--input={pipes[0]}",
        f"--output={pipes[1]}",
    )
    assert outcome == (0, b"", "")
    for thread in threads:
        thread.join(60)
    assert found == [encode(translator.translate(lines, beam_size=1))]
    assert pipes[1].is_fifo()


def test_a_reader_that_goes_ends_the_command():
    """It fails without a word, as the reader wanted, and nothing follows when the
    process ends.
    """
    line = [
        sys.executable,
        "-m",
        "jaxformer.cli.main",
        "translate",
        f"--workdir={runs.random_run()}",
        "--beam_size=1",
    ]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(
        [*line, "--window=1"], cwd=runs.ROOT, env=runs.environment(), **pipes
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(b"a\n" * 20)
    assert process.returncode == 1
    assert err == b""


# What comes with a translation


def test_alignments(call, workdir, translator):
    """They are parts of the JSON lines: Pharaoh's form, and the weights where they
    are asked for.
    """
    lines = ["", *runs.sentences(6)]
    found = translator.search(lines, beam_size=1, alignment=True)
    for option, soft in (("--alignment", False), ("--alignment=soft", True)):
        outcome = call(
            "translate",
            workdir,
            "--beam_size=1",
            "--format=jsonl",
            option,
            stdin=encode(lines),
        )
        records = [json.loads(line)["translations"] for line in outcome.lines]
        for (record,), (best,) in zip(records, found, strict=True):
            assert {**record, "weights": 0} == {
                **best.to_json(soft_alignment=True),
                "weights": 0,
            }
            assert ("weights" in record) == soft
    error = call("translate", workdir, "--alignment", stdin=b"a\n").error
    assert error == "--alignment is a part of --format=jsonl: add that, or leave it out"
    given = ["--format=jsonl", "--alignment", "--alignment_layer=9"]
    assert (
        "the decoder has layers 1 to 1, not 9"
        in call("translate", workdir, *given, stdin=b"a\n").error
    )


def test_paragraphs(call, workdir, translator):
    """A line of sentences gives theirs, with the white space that was between them."""
    sentences = [
        text
        for text in runs.sentences(9, shortest=4)
        if text.endswith(".") and "." not in text[:-1]
    ][:3]
    assert len(sentences) == 3
    line = "  ".join(sentences)
    (found,) = call(
        "translate", workdir, "--paragraphs", "--beam_size=1", stdin=encode([line])
    ).lines
    assert found == "  ".join(
        filter(None, translator.translate(sentences, beam_size=1))
    )
    assert [found] == translator.translate([line], paragraphs=True, beam_size=1)


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch) -> Terminal:
    """Let standard error be a terminal; within a test, since pytest puts its own in
    place between fixture and test.
    """
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_no_bar_without_a_terminal(call, workdir):
    assert call("translate", workdir, stdin=b"\n\n").err == ""


def test_a_bar_counts_sentences(monkeypatch, tmp_path):
    """On a terminal, if the translations go elsewhere."""
    shown = terminal(monkeypatch)
    with progress.show_progress(4, tmp_path) as advance:
        advance(1)
        advance(3)
    assert "4/4 sentences" in shown.getvalue()


def test_no_bar_among_translations(monkeypatch):
    """Where they go to the same terminal there is none."""
    shown, output = terminal(monkeypatch), Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    with progress.show_progress(None, None) as advance:
        advance(1)
    assert shown.getvalue() == output.getvalue() == ""


def test_the_examples_run():
    for module in (progress, output):
        assert not doctest.testmod(module).failed
    assert doctest.testmod(progress).attempted
