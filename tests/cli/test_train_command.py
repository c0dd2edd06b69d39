"""``train``: configuration files, what the command line changes in them, and what is
refused before it begins.
"""

from __future__ import annotations

import dataclasses

import pytest

import runs
from jaxformer.cli import config_file, train
from jaxformer.data.config import EARLIER
from jaxformer.runs import config as configuration
from jaxformer.training.loop import Outcome

REVERSE = f"{runs.ROOT}/configs/reverse.py"
START = """from jaxformer.runs.config import default_config
def get_config():
    config = default_config()
"""
DICTIONARY = "from ml_collections import ConfigDict\ndef get_config():\n    return "
DICTIONARY += "ConfigDict({})\n"


@pytest.fixture
def refused(call, tmp_path):
    """Return a function that expects one line, and no run."""

    def refuse(*arguments, config=REVERSE):
        run = tmp_path / "run"
        given = ("train", f"--config={config}", f"--workdir={run}", *arguments)
        error = call(*given).error
        assert not run.exists()
        return error

    return refuse


def test_overrides():
    """A key set on the command line goes before the file's, whatever its type;
    everything else stays.
    """
    changes = {
        "training.learning_rate": 0.25,
        "training.steps": 9,
        "decoding.alpha": 1.0,
        "data.source_eos": False,
        "data.train": "text:a.en,b=c.de",
        "data.test": "text:a.en,b=None",
        "model.d_k": 8,
    }
    given = [f"--config.{key}={value}" for key, value in changes.items()]
    given.insert(0, "--config.training.steps=7")
    before, after = (
        configuration.flatten(configuration.parse(config_file.read(REVERSE, overrides)))
        for overrides in ([], given)
    )
    assert after == {**before, **changes}


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("training.steps=1.5", "training.steps must be of type int"),
        ("training.steps=0", "training.steps must be at least 1, not 0"),
        ("data.valid=bundled:en-de/valid", "has no language 'forwards'"),
    ],
)
def test_refused_values(override, rule, refused):
    """A wrong type or value."""
    assert rule in refused(f"--config.{override}")


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("def get_config(:\n", "mine.py, line 1: SyntaxError"),
        ("x = 1\n", "mine.py must define get_config()"),
        ("\nimport the_broken\n", "mine.py, line 2: SyntaxError: "),
        (DICTIONARY.format({"a": {}, "c": None}), "mine.py must define get_config()"),
        (f"{START}    return config.stepz\n", "mine.py, line 4: AttributeError"),
    ],
)
def test_broken_configuration_files(content, rule, refused, tmp_path):
    """A file that fails, ends the program or returns no sections is named, with its
    line where it has one.
    """
    (tmp_path / "the_broken.py").write_text("def f(:\n    pass\n\nx = 1\n")
    (tmp_path / "mine.py").write_text(content)
    error = refused("--config.training.steps=3", config=tmp_path / "mine.py")
    assert rule in error


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (Outcome(5, True, None), 0, "next: jaxformer evaluate --workdir="),
        (Outcome(3, False, "SIGTERM"), 130, ""),
    ],
)
def test_exit_codes(outcome, code, said, call, monkeypatch, tmp_path):
    """0 when the run is finished, 130 when it was interrupted after saving; what to
    do next is on standard error.
    """
    monkeypatch.setattr(train, "train", lambda *_: outcome)
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "train/nll": 1.0}\n')
    found = call("train", f"--config={REVERSE}", f"--workdir={tmp_path}")
    assert (found.code, found.out) == (code, b"")
    assert said in found.err
    assert (tmp_path / "curve.png").exists() == outcome.finished


@pytest.fixture
def trained(monkeypatch):
    """Return the list of the configurations that are trained by."""
    found = []

    def note(config, *_):
        found.append(config)
        return Outcome(1, False, "SIGTERM")

    monkeypatch.setattr(train, "train", note)
    return found


@pytest.mark.parametrize(("given", "expected"), [([], 3), (["=1"], 1), (["=5"], 5)])
def test_a_run_keeps_an_earlier_default(
    given, expected, call, monkeypatch, trained, tmp_path
):
    """The same command continues a run of the time when a key had another default; a
    value that the command line sets is taken, and may then be refused.
    """
    monkeypatch.setitem(EARLIER, "shape_multiple", 3)
    earlier = configuration.parse({"data": {"shape_multiple": 3}})
    configuration.save(earlier, tmp_path / "config.json")
    override = [f"--config.data.shape-multiple{value}" for value in given]
    call("train", "--config=quickstart", f"--workdir={tmp_path}", *override)
    assert trained[0].data.shape_multiple == expected


def test_a_run_is_a_configuration(call, trained, tmp_path):
    """``--workdir`` alone names the run that continues; its ``config.json`` trains the
    same again elsewhere. The command line changes keys of either.
    """
    quickstart = configuration.parse(config_file.read("quickstart", []))
    configuration.save(quickstart, tmp_path / "config.json")
    again = (f"--config={tmp_path}/config.json", f"--workdir={tmp_path}/again")
    for given in ((f"--workdir={tmp_path}",), again):
        call("train", *given)
        assert trained.pop() == quickstart
        call("train", *given, "--config.training.steps=9")
        changed = dataclasses.replace(quickstart.training, steps=9)
        assert trained.pop() == dataclasses.replace(quickstart, training=changed)


ALL = "--coordinator=127.0.0.1:4321 --num_processes=2 --process_id=0"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ("--process_id=0", "go together: give --coordinator and --num_processes too"),
        ("--coordinator=a:1", "give --num_processes and --process_id too"),
        (ALL.replace("4321", "70000"), "must be HOST:PORT, such as 10.0.0.1:4321, not"),
        (f"{ALL[:-1]}2", "must be from 0 to 1 with --num_processes=2, not 2"),
        (f"{ALL} --distributed", "--distributed asks the cluster for what --coord"),
    ],
)
def test_hosts_that_do_not_go_together(arguments, rule, refused):
    """They are refused before anything is connected."""
    assert rule in refused(*arguments.split())


@pytest.mark.slow
def test_no_cluster_here(tmp_path):
    """``--distributed`` says what it looked for and what to give instead."""
    given = (f"--config={REVERSE}", f"--workdir={tmp_path / 'run'}", "--distributed")
    found = runs.command("train", *given)
    assert found.returncode == 1
    (line,) = found.stderr.decode().splitlines()
    rule = "--distributed finds no Slurm, Open MPI, Kubernetes or Cloud TPU here ("
    assert line.startswith(f"jaxformer: error: {rule}")
    assert line.endswith("give --coordinator, --num_processes and --process_id instead")
    assert not (tmp_path / "run").exists()
