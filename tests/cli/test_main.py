"""What all commands have in common: help, usage and exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib

import pytest

import jaxformer
import runs
from jaxformer.cli.main import COMMANDS


def test_help(call):
    """``--help`` lists the commands; that of each has its summary and an example."""
    listed = " ".join(call("--help").out.decode().split())
    for command, summary in COMMANDS.items():
        assert f"{command} {summary}" in listed
        outcome = call(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        text = outcome.out.decode()
        assert f"{summary[1:]}." in " ".join(text.split())
        example = importlib.import_module(f"jaxformer.cli.{command}").EXAMPLE.strip()
        assert example in text
        assert f"\n  jaxformer {command} " in example


TRAIN = "train --config=reverse --workdir=x"


@pytest.mark.parametrize(
    ("line", "code", "rule"),
    [
        ("", 2, "required: COMMAND"),
        ("translat", 2, "invalid choice: 'translat'"),
        ("--verbose train", 2, "jaxformer: error: unrecognized arguments: --verbose"),
        (
            "evaluate --workdri=x",
            2,
            ": --workdri; the following arguments are required",
        ),
        ("translate --workdir=x --beam=4", 2, "unrecognized arguments: --beam=4"),
        ("translate --workdir=x --config.decoding.alpha=1", 2, "unrecognized"),
        ("translate --workdir=x --window=0", 2, "must be at least 1, not 0"),
        ("translate --workdir=x --mbr", 2, "--mbr chooses among several"),
        (
            f"{TRAIN} --data.train x",
            2,
            "--data.train x; a key is set by --config.SECTI",
        ),
        (f"{TRAIN} --config.data.train", 2, "; a key is set by --config.SECTION.KEY"),
        (f"{TRAIN} --distributed_timeout=3", 2, "is for several hosts"),
        ("average --workdir=x --last=a", 2, "invalid whole number value: 'a'"),
        ("info --config=reverse --config.model.d_model=0", 1, "model.d_model must be"),
        ("info --config=nowhere", 1, "no configuration file nowhere"),
        ("average --workdir=x", 1, "x/config.json"),
        ("compare a b", 1, ""),
    ],
)
def test_exit_codes_follow_one_rule(line, code, rule, call, tmp_path, monkeypatch):
    """2: the command line is wrong whatever files there are, and the usage is shown, or
    one line. 1: a file, a run or a configuration is.
    """
    monkeypatch.chdir(tmp_path)
    outcome = call(*line.split(), stdin=b"")
    assert outcome.code == code
    assert rule in f"{outcome.err.splitlines()[-1]}"
    assert outcome.error
    assert list(tmp_path.iterdir()) == []


def test_the_program():
    """``python -m jaxformer`` and the installed command are this command line; its
    version is that of the package.
    """
    line = [sys.executable, "-m", "jaxformer", "--version"]
    done = subprocess.run(
        line, capture_output=True, text=True, env=runs.environment(), check=False
    )
    assert (done.returncode, done.stdout) == (0, f"jaxformer {jaxformer.__version__}\n")
    settings = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"jaxformer": "jaxformer.cli.main:start"}
