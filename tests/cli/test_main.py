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
from jaxformer.runs import config as configuration


def test_help(call, monkeypatch):
    """``--help`` lists the commands; that of each has its summary and an example, in 80
    columns; that of ``train`` each key and its default.
    """
    monkeypatch.setenv("COLUMNS", "80")
    listed = " ".join(call("--help").out.decode().split())
    for command, summary in COMMANDS.items():
        assert f"{command} {summary}" in listed
        outcome = call(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        text = outcome.out.decode()
        assert max(map(len, text.splitlines())) <= 80
        assert f"{summary[1:]}." in " ".join(text.split())
        example = importlib.import_module(f"jaxformer.cli.{command}").EXAMPLE.strip()
        assert " ".join(example.split()) in " ".join(text.split())
        assert f"\n  jaxformer {command} " in example
    keys = call("train", "--help").out.decode().split()
    for key, value in configuration.flatten(configuration.parse({})).items():
        section, _, name = key.partition(".")
        if section != "model" or name not in configuration.OF_THE_VOCABULARY:
            assert f"{name}={value}" in keys


TRAIN = "train --config=reverse --workdir=x"


@pytest.mark.parametrize(
    ("line", "code", "rule"),
    [
        ("", 2, "required: COMMAND"),
        ("trian", 2, "there is no command trian; did you mean train?"),
        ("--verbose train", 2, "there is no flag --verbose"),
        ("evaluate --workdri=x", 2, "--workdri; did you mean --workdir?"),
        ("translate --workdir=x --beam-sze=4", 2, "did you mean --beam_size?"),
        ("translate --workdir=x --config.decoding.alpha=1", 2, "no flag --config.deco"),
        (f"{TRAIN} --steps=9", 2, "did you mean --config.training.steps=VALUE?"),
        (f"{TRAIN} --config.d-model=64", 2, "key d_model; did you mean model.d_model?"),
        ("translate --workdir=x --window=0", 2, "must be at least 1, not 0"),
        ("translate --workdir=x --mbr", 2, "--mbr chooses among several"),
        (f"{TRAIN} --data.train x", 2, "did you mean --config.data.train=VALUE?"),
        (f"{TRAIN} --config.data.train x", 2, "write --config.SECTION.KEY=VALUE as o"),
        ("train --workdir=x", 2, "--config is missing, and x has no run to continue"),
        (f"{TRAIN} --distributed_timeout=3", 2, "is for several hosts"),
        ("info --config=reverse --config.model.d_model=0", 2, "model.d_model must be"),
        ("info --config=qickstart", 2, "no configuration file qickstart; did you m"),
        ("compare a b", 1, "no file a"),
        ("reproduce 3 --run xx=R", 2, "table 3 has no row 'xx'"),
        ("translate --workdir=x --alignment_layer=1", 2, "is for --alignment: add"),
    ],
)
def test_exit_codes_follow_one_rule(line, code, rule, call, tmp_path, monkeypatch):
    """2: the command line is wrong, or the configuration that it names, and a second
    line names its help. 1: a file or a run is. A misspelt flag, command or key is
    followed by the nearest.
    """
    monkeypatch.chdir(tmp_path)
    outcome = call(*line.split(), stdin=b"")
    assert outcome.code == code
    assert rule in outcome.error if rule else outcome.error
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
