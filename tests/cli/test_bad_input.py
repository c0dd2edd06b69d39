"""What a person can give wrongly ends in one line, with exit code 1, before the work
begins.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import tempfile

import pytest
from cli.text import write

import runs
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.translation.translator import Translator

LONG = "line 3 has .* tokens and the model has 128 positions; "
LONG += "(translate it in parts|give one sentence a line)"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (None, "no file {bad}$"),
        (b"", "({bad} is empty|.*{bad} has 0( lines|:))"),
        (b"a\nb\nd\xfcrr\n", "{bad}, line 3: not UTF-8"),
        (b"a\nb\n" + b"word " * 300, "{bad}, " + LONG),
    ],
)
def test_bad_text(content, rule, call, tmp_path):
    """Every command that reads text names the file, and the line."""
    bad, good = tmp_path / "bad.en", write(tmp_path / "good", ["a"] * 3)
    if content is not None:
        bad.write_bytes(content)
    commands = (
        ["translate", f"--input={bad}"],
        ["score", "--strict", f"--source={good}", f"--target={bad}"],
        ["score", "--strict", f"--source={bad}", f"--target={good}"],
        ["evaluate", f"--source={bad}", f"--reference={good}"],
        ["evaluate", f"--dataset=text:{bad},{good}"],
    )
    for arguments in commands[content == b"" :]:  # no sentence needs no translation
        error = call(*arguments, f"--workdir={runs.refusing_run()}").error
        assert re.match(rule.format(bad=bad), error), error


@pytest.mark.parametrize(
    ("option", "content", "rule"),
    [
        ("prefix", "\tein\n\n日本\tein\n", "3 has the .* '日本', which the vocabulary"),
        ("require", "\n\n", "3 is missing: give one for each sentence, empty where"),
    ],
)
def test_lines_for_each_sentence(option, content, rule, call, workdir, tmp_path):
    """A line of prefixes or required phrases is named by its own file."""
    (tmp_path / "lines").write_text(content)
    given = f"--{option}={tmp_path / 'lines'}"
    error = call("translate", workdir, given, stdin=b"a\nb\nc\n").error
    assert re.match(f"{tmp_path / 'lines'}, line {rule}", error), error


@pytest.mark.parametrize("command", ["translate", "attention a", "info"])
def test_no_run(command, call, tmp_path):
    """A directory without a run, and a file, are no runs."""
    (tmp_path / "file").touch()
    for name in (tmp_path, tmp_path / "file"):
        error = call(*command.split(), f"--workdir={name}", stdin=b"a\n").error
        assert str(name / "config.json") in error


def test_a_run_that_cannot_be_used(call, run):
    """A vocabulary of another run, and checkpoints that are missing, are named."""
    arguments = ("translate", f"--workdir={run}")
    texts = [text for pair in runs.pairs()[:100] for text in pair]
    Vocabulary.train(texts, 300).save(run / "vocabulary" / "shared.model")
    error = call(*arguments, stdin=b"a\n").error
    assert f"{run / 'vocabulary'} is not the vocabulary of checkpoint 10" in error
    error = call(*arguments, "--checkpoint=30", stdin=b"a\n").error
    assert "there is no checkpoint '30'" in error
    assert "best, latest, 10, 20" in error
    shutil.rmtree(run / "checkpoints")
    error = call(*arguments, stdin=b"a\n").error
    assert "holds no checkpoint yet; train the run first" in error
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize("name", ["config.json", "results.json"])
def test_damaged_files(name, call, run):
    (run / name).write_bytes(b"{")
    assert name in call("info", f"--workdir={run}").error


@pytest.mark.parametrize("command", ["train --workdir", "prepare --output"])
def test_a_directory_that_cannot_be_made(command, call, tmp_path):
    """The line names the option."""
    (tmp_path / "file").touch()
    command, option = command.split()
    config = f"--config={runs.ROOT}/configs/reverse.py"
    data = "--config.data.train=synthetic:reverse/valid"
    outcome = call(command, config, f"{option}={tmp_path / 'file' / 'x'}", data)
    assert outcome.code == 1
    last = outcome.err.splitlines()[-1]
    assert last.endswith(f"choose another {option}")
    assert str(tmp_path / "file") in last


@pytest.mark.parametrize("command", ["plot --workdir", "compare a b --html"])
def test_an_empty_path_is_not_the_current_folder(command, call, tmp_path, monkeypatch):
    """It is wrong usage, before anything is read or written."""
    monkeypatch.chdir(tmp_path)
    outcome = call(*f"{command}=".split())
    assert (outcome.code, outcome.out) == (2, b"")
    assert "the path is empty: name a file or a folder" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _no_writing(monkeypatch):
    """Refuse files in any folder."""

    def refuse(*_, dir, **__):
        raise OSError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)


@pytest.mark.usefixtures("_no_writing")
@pytest.mark.parametrize("command", ["average --last=1", "shortlist", "attention x"])
def test_a_run_that_cannot_be_written_is_found_first(command, call, run, monkeypatch):
    """What becomes a part of the run is refused before the work."""
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    error = call(*command.split(), f"--workdir={run}").error
    assert error.startswith(f"cannot write {run}: Permission denied; change its perm")


@pytest.mark.usefixtures("_no_writing")
def test_a_result_is_printed_where_it_cannot_be_kept(call, run):
    """``evaluate`` of a run that cannot be written says so and prints the result."""
    before = sorted(run.rglob("*"))
    given = ["--dataset=synthetic:reverse/valid", "--beam_size=1"]
    outcome = call("evaluate", f"--workdir={run}", *given)
    assert outcome.code == 0
    assert json.loads(outcome.out)["sentences"] == 500
    assert outcome.err.startswith(f"jaxformer: warning: cannot write {run}: Permission")
    assert outcome.err.endswith("; the result is printed and not kept\n")
    assert sorted(run.rglob("*")) == before


def test_an_error_cannot_control_a_terminal(call, tmp_path):
    error = call("translate", f"--workdir={tmp_path}/\x1b[2J", stdin=b"").error
    assert "\\u001b[2J" in error


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("--beam_size=100000", "--beam_size must be at most 10,000, not 100000"),
        ("--n_best=3 --beam_size=2", "at most the beam of 2, not 3"),
        ("--sample --beam-size=3", "--beam_size is for a search: leave it out"),
        ("--length_penalty=none --alpha=1", "--alpha has no effect with length_pen"),
        ("--top_k=5", "--top_k is for drawing at random: add --sample, or leave"),
        ("--output=/none/out", "cannot write /none/out: there is no folder /none"),
        ("--ensemble=RUN --ensemble_weights=1,x", "such as 2,1, not '1,x'"),
        ("--ensemble=RUN --ensemble_weights=1,2,3", "3 weights for an ensemble of 2"),
        (
            "--ensemble=",
            "config.json does not exist; --ensemble must name the directory",
        ),
        ("--shortlist", "make one: jaxformer shortlist"),
    ],
)
def test_wrong_options_of_translate(command, rule, call, workdir):
    given = command.replace("RUN", str(runs.random_run())).split()
    assert rule in call("translate", *given, workdir, stdin=b"a\n").error
