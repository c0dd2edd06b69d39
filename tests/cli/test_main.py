"""What all commands have in common: help, usage and exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib

import pytest

import jaxformer
import jaxformer as jf
import runs
from jaxformer.cli import main as main_module
from jaxformer.cli.main import COMMANDS
from jaxformer.translation.translator import Translator


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command, call):
    """``--help`` ends well, explains every argument and holds an example to type."""
    outcome = call(command, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    text = outcome.out.decode()
    assert any(
        f"jaxformer {command} {words}" in text
        for words in ("--workdir=", "--config=", "--input=", "--model=", "runs/", "3")
    )
    assert "example" in text
    assert COMMANDS[command][1:] + "." in " ".join(text.split())
    module = importlib.import_module(f"jaxformer.cli.{command}")
    for line in module.EXAMPLE.strip().splitlines():
        assert line in text


def test_help_lists_the_commands(call):
    outcome = call("--help")
    assert outcome.code == 0
    for command, summary in COMMANDS.items():
        assert command in outcome.out.decode()
        assert summary in " ".join(outcome.out.decode().split())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["translat"],
        ["--workdir=x"],
        ["--", "translate"],
        ["translate"],
        ["translate", "--workdir=x", "--beam=4"],
        ["translate", "--workdir=x", "--bogus"],
        ["translate", "--workdir=x", "more"],
        ["translate", "--workdir=x", "--beam_size=four"],
        ["translate", "--workdir=x", "--format=xml"],
        ["translate", "--workdir=x", "--config.decoding.beam_size=4"],
        ["score", "--workdir=x", "--source=a"],
        ["attention", "--workdir=x"],
        ["info", "--workdir=x", "--checkpoint=best"],
        ["train", "--workdir=x"],
        ["train", "--config=configs/reverse.py"],
        ["train", "--config=configs/reverse.py", "--workdir=x", "--bogus=3"],
        ["train", "--config=configs/reverse.py", "--workdir=x", "more"],
        [
            "train",
            "--config=configs/reverse.py",
            "--workdir=x",
            "--config.training.steps",
        ],
        [
            "train",
            "--config=configs/reverse.py",
            "--workdir=x",
            "--config.training.steps",
            "3",
        ],
    ],
)
def test_wrong_usage(arguments, call):
    """Unknown commands and arguments, and missing ones, end with 2 and a usage line,
    and nothing is done.
    """
    outcome = call(*arguments)
    assert outcome.code == 2
    assert outcome.out == b""
    assert "usage: jaxformer" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_misspelt_option_is_named(call):
    """Before the one that is missing for it."""
    assert (
        "unrecognized arguments: --workdri; the following arguments are required:"
        " --workdir" in " ".join(call("evaluate", "--workdri=x").err.split())
    )


def test_a_wrong_option_before_the_command(call):
    """It is named too."""
    outcome = call("--verbose", "train")
    assert outcome.code == 2
    assert (
        outcome.err.splitlines()[-1]
        == "jaxformer: error: unrecognized arguments: --verbose"
    )


def test_the_version(call):
    """It is that of the package."""
    outcome = call("--version")
    assert (outcome.code, outcome.out.decode()) == (
        0,
        f"jaxformer {jaxformer.__version__}\n",
    )


def test_the_package_is_a_program_too():
    """``python -m jaxformer`` is the same command line."""
    process = subprocess.run(
        [sys.executable, "-m", "jaxformer", "--version"],
        capture_output=True,
        text=True,
        env=runs.environment(),
        check=False,
    )
    assert (process.returncode, process.stdout) == (
        0,
        f"jaxformer {jaxformer.__version__}\n",
    )


def test_faults_of_ours_are_not_hidden(monkeypatch, call):
    """Only what a person can mend becomes one line; another exception keeps its
    traceback.
    """
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("translate", "--workdir=x", stdin=b"a\n")


def test_the_installed_command():
    """``jaxformer`` is this command line."""
    scripts = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"][
        "scripts"
    ]
    module, name = scripts["jaxformer"].split(":")
    assert getattr(importlib.import_module(module), name) is main_module.start


@pytest.mark.parametrize(
    ("before", "given", "arguments"),
    [
        ((), ["train", "--config=a b"], ["train", "--config=a b"]),
        (("translate",), ["--workdir=x"], ["translate", "--workdir=x"]),
        ((), ["info"], ["info"]),
        ((), [], []),
    ],
)
def test_arguments_of_the_process(before, given, arguments, monkeypatch, ends):
    """A script puts its command before the arguments of the process."""
    done = []
    monkeypatch.setattr(
        main_module, "main", lambda found, patience: done.append(found) or 7
    )
    monkeypatch.setattr("sys.argv", ["jaxformer", *given])
    found = main_module.start(*before)
    assert [found] == [7] if arguments[:1] == ["train"] else ends == [7]
    assert done == [arguments]


def test_translator_by_its_short_name():
    """``import jaxformer as jf`` is enough for ``jf.Translator``; another name is an
    AttributeError.
    """
    assert jf.Translator is Translator
    with pytest.raises(AttributeError, match="Translater"):
        _ = jf.Translater


def test_errors_name_the_flag_that_was_given(monkeypatch, call):
    """A value of a flag is refused by the flag's name, not by the key that it sets."""
    monkeypatch.setattr(Translator, "load", lambda *_: runs.translator())
    error = call("translate", "--workdir=x", "--beam_size=0", stdin=b"a\n").error
    assert error.startswith("--beam_size must be at least 1")
    error = call(
        "translate", "--workdir=x", "--n_best=9", "--beam_size=2", stdin=b"a\n"
    ).error
    assert error == "--n_best must be at most the beam of 2, not 9: widen --beam_size"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("average --workdir=x --last=0", 2),
        ("average --workdir=x --last=a", 2),
        ("translate --workdir=x --n_best=0", 2),
        ("translate --workdir=x --window=0", 2),
        ("translate --workdir=x --alignment", 2),
        ("translate --workdir=x --mbr", 2),
        ("translate --workdir=x --beam", 2),
        ("translate", 2),
        ("info --config=reverse --devices=0", 2),
        ("info --workdir=x --devices=2", 2),
        ("reproduce 5", 2),
        ("reproduce 3 --run base", 2),
        ("compare a b --examples=-1", 2),
        ("train --config=reverse --workdir=x --process_id=-1", 2),
        ("train --config=reverse --workdir=x --distributed_timeout=3", 2),
        ("info --config=reverse --config.model.d_model=0", 1),
        ("info --config=reverse --config.model.width=8", 1),
        ("info --config=nowhere", 1),
        ("info --workdir=x", 1),
        ("average --workdir=x", 1),
        ("compare a b", 1),
    ],
)
def test_exit_codes_follow_one_rule(line, code, call, tmp_path, monkeypatch):
    """2: the command line is wrong whatever files there are. 1: a file, a run or a
    configuration is.
    """
    monkeypatch.chdir(tmp_path)
    outcome = call(*line.split(), stdin=b"")
    assert outcome.code == code
    assert outcome.error
