"""Whatever a person can give wrongly ends in one line, with exit code 1, before the
work begins.
"""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import runs
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.translation.translator import Translator

BAD_UTF8 = b"one\ntwo\nd\xfcrr\nfour\n"


@pytest.fixture
def workdir() -> str:
    return f"--workdir={runs.random_run()}"


@pytest.fixture
def file(tmp_path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


@pytest.fixture
def damaged(tmp_path) -> Path:
    """Copy a run, to be damaged."""
    return runs.copy(runs.random_run(), tmp_path / "run")


# Text


def test_missing_file(call, workdir, file, tmp_path):
    """A file that is not there is named (for every command that reads text)."""
    nothing, there = tmp_path / "nothing.en", file("there", b"a\n")
    for arguments in (
        ["translate", f"--input={nothing}"],
        ["score", f"--source={there}", f"--target={nothing}"],
        ["evaluate", f"--source={nothing}", f"--reference={there}"],
        ["evaluate", f"--dataset=text:{there},{nothing}"],
    ):
        assert call(*arguments, workdir).error == f"no file {nothing}"


def test_empty_file(call, workdir, file):
    """A file without a line is named."""
    empty, there = file("empty.en", b""), file("there", b"a\n")
    for arguments in (
        ["translate", f"--input={empty}"],
        ["score", f"--source={empty}", f"--target={there}"],
        ["evaluate", f"--source={there}", f"--reference={empty}"],
    ):
        assert f"{empty} is empty" in call(*arguments, workdir).error


def test_unequal_files(call, workdir, file):
    """Both files and both counts are named."""
    three, two = file("three.en", b"a\nb\nc\n"), file("two.de", b"a\nb\n")
    for arguments in (
        ["score", f"--source={three}", f"--target={two}"],
        ["evaluate", f"--source={three}", f"--reference={two}"],
    ):
        assert f"{three} has 3 lines and {two} has 2" in call(*arguments, workdir).error


def test_invalid_utf8(call, workdir, file):
    """The file, or standard input, and the line are named."""
    bad, good = file("latin1.en", BAD_UTF8), file("good", b"a\n" * 4)
    assert call("translate", workdir, stdin=BAD_UTF8).error.startswith(
        "standard input, line 3: not UTF-8"
    )
    for arguments in (
        ["translate", f"--input={bad}"],
        ["score", f"--source={good}", f"--target={bad}"],
        ["evaluate", f"--source={bad}", f"--reference={good}"],
    ):
        assert call(*arguments, workdir).error.startswith(f"{bad}, line 3: not UTF-8")


def test_directory_for_a_file(call, workdir, tmp_path):
    assert str(tmp_path) in call("translate", workdir, f"--input={tmp_path}").error
    assert (
        str(tmp_path)
        in call("translate", workdir, f"--output={tmp_path}", stdin=b"a\n").error
    )


def test_output_without_a_folder(call, workdir, file, tmp_path, monkeypatch):
    """Where to write is looked at before the translation, not after it."""
    monkeypatch.setattr(
        "jaxformer.translation.translator.Translator.load", lambda *_: 1 / 0
    )
    output = tmp_path / "none" / "out"
    rule = f"cannot write {output}: there is no folder {output.parent}; make it first"
    assert call("translate", workdir, f"--output={output}", stdin=b"a\n").error == rule
    there = file("there", b"a\n")
    assert (
        call(
            "score",
            workdir,
            f"--source={there}",
            f"--target={there}",
            f"--output={output}",
        ).error
        == rule
    )


def test_too_long_a_sentence(call, file):
    """The file, the number of the line, its tokens, the positions and the cure are
    named.
    """
    long, workdir = (
        b"ok\n\n" + b"word " * 20_000 + b"\n",
        f"--workdir={runs.refusing_run()}",
    )
    error = call("translate", workdir, stdin=long).error
    assert error.startswith("standard input, line 3 has ")
    rule, cure = error.removeprefix("standard input").split("; ")
    assert rule.endswith(" tokens and the model has 128 positions")
    parts = (
        "translate it in parts (--split_long, decoding.long_sources=split), or give one"
        " sentence a line"
    )
    assert cure == parts
    source, target = file("source", long), file("target", b"a\n" * 3)
    other = "give one sentence a line, or train with a larger model.max_length"
    for arguments, cure in (
        (["translate", f"--input={source}"], parts),
        (["score", f"--source={source}", f"--target={target}"], other),
        (["score", f"--source={target}", f"--target={source}"], other),
        (["evaluate", f"--source={source}", f"--reference={target}"], parts),
        (["evaluate", f"--dataset=text:{source},{target}"], parts),
    ):
        assert call(*arguments, workdir).error == f"{source}{rule}; {cure}"


def test_a_model_whose_weights_are_not_numbers(call, file, monkeypatch):
    """Each command ends with one line that names the first sentence, and writes no
    result.
    """
    load = Translator.load.__func__

    def broken(cls, *arguments) -> Translator:
        translator = load(cls, *arguments)
        params = {
            **translator.params,
            "output": translator.params["output"].at[9].set(np.nan),
        }
        translator.models = translator.models._replace(params=(params,))
        return translator

    monkeypatch.setattr(Translator, "load", classmethod(broken))
    run = runs.copy(runs.random_run(), file("x", b"").parent / "run")
    source = file("source", b"\na\nb\n")
    target = file("target", b"x\ny\nz\n")
    rule = (
        "has probabilities that are not a number (NaN): weights of the model are NaN or"
        " infinite"
    )
    for arguments, line in (
        (["translate", f"--input={source}"], 2),
        (["translate", f"--input={source}", "--beam_size=1"], 2),
        (["score", f"--source={source}", f"--target={target}"], 1),
        (["evaluate", f"--source={source}", f"--reference={target}"], 2),
    ):
        assert call(*arguments, f"--workdir={run}").error.startswith(
            f"{source}, line {line} {rule}"
        )
    assert not (run / "results.json").exists()


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (
            "\tein\n\n日本\tein\n",
            (
                ", line 3 has the {} '日本', which the vocabulary cannot write: leave"
                " it out, or"
            ),
        ),
        (
            f"\n\n{'word ' * 300}\n",
            (
                r" tokens, and its translation has at most \d+ with its end: shorten"
                r" it, or"
            ),
        ),
        (
            "\n\n",
            (
                ", line 3 is missing: there are 2 {}s and more sentences: give one for"
                " each, empty where nothing"
            ),
        ),
        (
            "\n\n\n\n",
            (
                ", line 4 is one too many: there are more {}s than the 3 sentences:"
                " give one for each"
            ),
        ),
    ],
)
def test_lines_that_stand_beside_others(content, rule, call, workdir, file):
    """A line of prefixes or required phrases is named by its own file."""
    for option, word, many in (
        ("prefix", "prefix", "prefixes"),
        ("require", "required phrase", None),
    ):
        beside = file(option, content.encode())
        expected = rule.replace("{}s", many or "lists of required phrases").replace(
            "{}", word
        )
        error = call(
            "translate", workdir, f"--{option}={beside}", stdin=b"a\nb\nc\n"
        ).error
        assert error.startswith(f"{beside}, line ")
        assert re.search(expected, error)


def test_lists_that_cannot_be_read(call, file):
    """The file, or standard input, and the line are named, also where a control
    character stands in a text.
    """
    good, bad = (
        b'{"source": "a", "translations": [{"text": "b", "score": -1}]}\n',
        b'{"source": "a\x01"}\n',
    )
    lists = file("lists", good + bad)
    rule = (
        ", line 2 is no object with source and translations: give what translate"
        " --format=jsonl wrote"
    )
    assert call("rerank", f"--input={lists}").error == f"{lists}{rule}"
    assert call("rerank", stdin=good + bad).error == f"standard input{rule}"


def test_more_translations_than_hypotheses(call, workdir):
    error = call(
        "translate", workdir, "--beam_size=2", "--n_best=3", stdin=b"a\n"
    ).error
    assert error == "--n_best must be at most the beam of 2, not 3: widen --beam_size"


# Runs

COMMANDS = (
    ["translate"],
    ["evaluate", "--dataset=bundled:en-de/valid"],
    ["attention", "a"],
    ["info"],
)


@pytest.mark.parametrize("arguments", COMMANDS)
def test_no_run(arguments, call, tmp_path):
    """A directory that is not there, an empty one, and a file are no runs."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "empty", "file"):
        error = call(*arguments, f"--workdir={tmp_path / name}", stdin=b"a\n").error
        assert str(tmp_path / name / "config.json") in error


@pytest.mark.parametrize("arguments", COMMANDS[:3])
def test_no_checkpoint(arguments, call, damaged):
    """A run that has not saved anything yet is told so, and nothing is made in it."""
    for path in (damaged / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert (
        "holds no checkpoint yet; train the run first"
        in call(*arguments, f"--workdir={damaged}", stdin=b"a\n").error
    )
    (damaged / "checkpoints").rmdir()
    assert (
        "holds no checkpoint yet; train the run first"
        in call(*arguments, f"--workdir={damaged}", stdin=b"a\n").error
    )
    assert not (damaged / "checkpoints").exists()


@pytest.mark.parametrize("which", ["30", "newest", "-1", "²", ""])
def test_unknown_checkpoint(which, call, workdir):
    """What there is is listed."""
    error = call("translate", workdir, f"--checkpoint={which}", stdin=b"a\n").error
    assert f"there is no checkpoint {which!r}" in error
    assert "best, latest, 10, 20" in error


def test_vocabulary_of_another_run(call, damaged):
    """A vocabulary that was replaced is refused, not used for nonsense."""
    texts = [text for pair in runs.pairs()[:100] for text in pair]
    Vocabulary.train(texts, 300).save(damaged / "vocabulary" / "shared.model")
    for arguments in COMMANDS[:3]:
        error = call(*arguments, f"--workdir={damaged}", stdin=b"a\n").error
        assert (
            f"{damaged / 'vocabulary'} is not the vocabulary of checkpoint 10" in error
        )


def test_damaged_vocabulary(call, damaged):
    (damaged / "vocabulary" / "shared.model").write_bytes(b"nothing")
    error = call("translate", f"--workdir={damaged}", stdin=b"a\n").error
    assert (
        f"{damaged / 'vocabulary' / 'shared.model'}: not a SentencePiece model" in error
    )
    (damaged / "vocabulary" / "shared.model").unlink()
    error = call("translate", f"--workdir={damaged}", stdin=b"a\n").error
    assert f"no vocabulary in {damaged / 'vocabulary'}" in error


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b'{"model": {"depth": 3}}',
        b'{"modle": {}}',
        b"[]",
        b"3",
        b'{"model": 3}',
        b'{"model": "\xff"}',
    ],
)
def test_damaged_configuration(content, call, damaged):
    """A configuration that is none, or of another version, is named."""
    (damaged / "config.json").write_bytes(content)
    for command in ("info", "translate"):
        error = call(command, f"--workdir={damaged}", stdin=b"a\n").error
        assert (
            "config.json is not a configuration" in error
            or "there is no configuration key" in error
        )


def test_configuration_of_another_model(call, damaged):
    """Parameters of other shapes than the configuration asks for are not loaded."""
    path = damaged / "config.json"
    path.write_text(path.read_text().replace('"d_ff": 64', '"d_ff": 96'))
    assert (
        "is of another model"
        in call("translate", f"--workdir={damaged}", stdin=b"a\n").error
    )


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_results(content, call, damaged):
    (damaged / "results.json").write_text(content)
    assert "results.json" in call("info", f"--workdir={damaged}").error


def test_the_run_that_is_missing_is_named_by_its_option(call, workdir, file):
    """Not by --workdir, which is right."""
    lists = file(
        "lists", b'{"source": "a", "translations": [{"text": "b", "score": -1}]}\n'
    )
    rule = "nowhere/config.json does not exist; {} must name the directory of a run"
    error = call("translate", workdir, "--ensemble=nowhere", stdin=b"a\n").error
    assert error == rule.format("--ensemble")
    for option in ("--reverse", "--language_model"):
        for name in ("nowhere", "nowhere@20"):
            assert call(
                "rerank", f"--input={lists}", f"{option}={name}"
            ).error == rule.format(option)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--data.train", "x"], "--data.train x; did you mean --config.data.train=x?"),
        (
            ["--data.train=a b"],
            "--data.train=a b; did you mean '--config.data.train=a b'?",
        ),
        (
            ["--config.data.train", "x"],
            "--config.data.train x; did you mean --config.data.train=x?",
        ),
        (
            ["--config.data.train"],
            "--config.data.train; did you mean --config.data.train=VALUE?",
        ),
        (["--bogus"], "--bogus"),
    ],
)
def test_wrong_arguments_among_right_ones(arguments, wrong, call):
    """Only the wrong ones are listed, and what they were meant to be."""
    right = ["--config=x.py", "--config.training.steps=3", "--workdir=x"]
    outcome = call("train", *right, *arguments, "--config.data.max_length=9")
    assert outcome.code == 2
    assert outcome.err.startswith("usage: jaxformer train [-h]")
    assert (
        outcome.err.splitlines()[-1]
        == f"jaxformer train: error: unrecognized arguments: {wrong}"
    )


@pytest.mark.parametrize("name", ["file", "file/x", "/proc/x"])
def test_a_directory_that_cannot_be_made(call, tmp_path, name):
    """The line names the option."""
    (tmp_path / "file").write_text("")
    config = f"--config={runs.ROOT}/configs/reverse.py"
    for command, option in (("train", "--workdir"), ("prepare", "--output")):
        outcome = call(
            command,
            config,
            f"{option}={tmp_path / name}",
            "--config.data.train=synthetic:reverse/valid",
        )
        assert outcome.code == 1
        last = outcome.err.splitlines()[-1]
        assert last.endswith(f"choose another {option}")
        assert str(tmp_path / "file" if name.startswith("file") else name) in last


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train --config=configs/quickstart.py", "--workdir"),
        ("prepare --config=configs/quickstart.py", "--output"),
        ("translate", "--workdir"),
        ("translate --workdir=x", "--output"),
        ("attention --workdir=x a", "--output"),
        ("plot", "--workdir"),
        ("compare a b", "--html"),
        ("info", "--workdir"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    command, option, call, tmp_path, monkeypatch
):
    """It is wrong usage, before anything is read or written."""
    monkeypatch.chdir(tmp_path)
    outcome = call(*command.split(), f"{option}=")
    assert (outcome.code, outcome.out) == (2, b"")
    assert (
        f"error: argument {option}: the path is empty: name a file or a folder"
        in outcome.err
    )
    assert list(tmp_path.iterdir()) == []


def test_an_empty_run_of_an_ensemble(call, workdir, monkeypatch):
    monkeypatch.chdir(runs.random_run())
    assert (
        "--ensemble must name the directory of a run"
        in call("translate", workdir, "--ensemble=", stdin=b"").error
    )


@pytest.mark.parametrize("command", ["evaluate", "average --last=1", "shortlist"])
def test_a_run_that_cannot_be_written_is_found_before_the_work(
    command, call, damaged, monkeypatch
):
    """Hours of work do not end at the last line."""

    def refuse(*_, dir, **__):
        raise OSError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(
        "jaxformer.translation.translator.Translator.load", lambda *_: 1 / 0
    )
    name, *more = command.split()
    rule = (
        f"cannot write {damaged}: Permission denied; change its permissions, or choose"
        " another place"
    )
    assert call(name, f"--workdir={damaged}", *more).error == rule


@pytest.mark.parametrize(
    ("name", "command"),
    [("attention", "attention a"), ("averages", "average --last=1")],
)
def test_commands_write_through_no_link_in_a_run(
    name, command, call, damaged, tmp_path
):
    """What a link in the run points to is left as it was."""
    (tmp_path / "outside").mkdir()
    (damaged / name).symlink_to(tmp_path / "outside")
    first, *more = command.split()
    error = call(first, f"--workdir={damaged}", *more).error
    assert error.startswith(
        f"{damaged / name} is a symbolic link, and nothing is written through links: "
    )
    assert list((tmp_path / "outside").iterdir()) == []


def test_an_error_gives_a_terminal_no_orders(call, tmp_path):
    """Names and text in it are escaped."""
    assert (
        "\\u001b[2J"
        in call("translate", f"--workdir={tmp_path}/\x1b[2J", stdin=b"").error
    )


# Input without bound.


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"),
    ],
)
def test_memory_that_is_used_up(call, workdir, monkeypatch, error):
    """It ends in one line that names what to lower."""

    def fail(options):
        raise error

    monkeypatch.setattr("jaxformer.cli.translate.run", fail)
    assert call("translate", workdir).error.startswith(
        "there is not enough memory: lower "
    )


def test_other_faults_of_the_runtime_stay_faults(call, workdir, monkeypatch):
    """They are not passed off as want of memory."""

    def fail(options):
        raise RuntimeError("INTERNAL: something else")

    monkeypatch.setattr("jaxformer.cli.translate.run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        call("translate", workdir)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["translate", "--beam_size=100000"],
            "--beam_size must be at most 10,000, not 100000",
        ),
        (
            ["translate", "--n_best=100000000", "--sample"],
            "argument --n_best: must be at most 10,000, not 100000000",
        ),
        (["translate", "--sample", f"--seed={10**23}"], "--seed must be"),
        (["translate", f"--window={10**23}"], "a window must have from 1 to"),
        (["shortlist", f"--best={10**23}"], "a shortlist needs at least 1 and at most"),
    ],
)
def test_absurd_numbers(arguments, rule, call, workdir):
    """They are refused by a bound, before anything computes with them."""
    assert rule in call(*arguments, workdir, stdin=b"a\n").error


def test_absurd_resamples(call, file):
    """The tests of a comparison end."""
    text = file("a.de", b"ein Satz\n")
    error = call(
        "compare", f"--reference={text}", text, text, f"--resamples={10**12}"
    ).error
    assert error == "resamples must be at most 1,000,000, not 1000000000000"


@pytest.mark.parametrize("content", ["[" * 100_000, "1" * 5_000], ids=["deep", "long"])
@pytest.mark.parametrize("name", ["config.json", "results.json"])
def test_json_of_a_run_that_no_run_wrote(content, name, call, damaged):
    """Brackets without end and numbers without end are refused with the file's name."""
    (damaged / name).write_text(content)
    assert str(damaged / name) in call("info", f"--workdir={damaged}").error


def test_lists_with_half_a_character(call, file):
    """Text that UTF-8 cannot hold is refused where it is read."""
    line = b'{"source": "a", "translations": [{"text": "\\ud800", "score": -1.0}]}\n'
    lists = file("lists.jsonl", line)
    assert (
        "lists.jsonl, line 1 is no object with source and translations"
        in call("rerank", f"--input={lists}").error
    )
