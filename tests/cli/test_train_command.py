"""``train``: configuration files, what the command line changes in them, and what is
refused before it begins.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import runs
from jaxformer.cli import config_file, train
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.training.distributed import Cluster
from jaxformer.training.loop import Outcome

REVERSE = str(runs.ROOT / "configs" / "reverse.py")
CHANGES = """from jaxformer.runs.config import default_config
def get_config():
    config = default_config()
"""
DICTIONARY = (
    "from ml_collections import ConfigDict\ndef get_config():\n    return"
    " ConfigDict({})\n"
)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a configuration file."""

    def write(content: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(content))
        return path

    return write


def read(*overrides: str) -> configuration.RunConfig:
    return configuration.parse(config_file.read(REVERSE, overrides))


def test_overrides():
    """A key set on the command line goes before the file's, whatever its type;
    everything else stays.
    """
    config = read(
        "--config.training.steps=7",
        "--config.decoding.alpha=1",
        "--config.training.learning_rate=2.5e-1",
        "--config.data.source_eos=false",
        "--config.data.train=text:a.en,b=c.de",
        "--config.data.test=text:a.en,b=None",
        "--config.model.d_k=8",
        "--config.training.steps=9",
    )
    assert config.training.steps == 9
    assert config.decoding.alpha == 1.0
    assert config.training.learning_rate == 0.25
    assert config.data.source_eos is False
    assert config.data.train == "text:a.en,b=c.de"
    assert config.data.test == "text:a.en,b=None"
    assert config.model.d_k == 8
    assert config.model.d_model == read().model.d_model == 96
    assert read().training.steps == 1_500


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        (
            "training.stepz=3",
            (
                "there is no configuration key training.stepz; did you mean"
                " training.steps?"
            ),
        ),
        (
            "trainin.steps=3",
            "there is no configuration key trainin.steps; did you mean training.steps?",
        ),
        ("model.num_head=3", "did you mean model.num_heads?"),
        ("steps=3", "there is no configuration key steps; did you mean"),
        ("training=3", "there is no configuration key training; did you mean"),
        (
            "training.steps=abc",
            "--config.training.steps=abc: training.steps must be of type int",
        ),
        ("training.steps=1.5", "training.steps must be of type int"),
        ("decoding.alpha=x", "decoding.alpha must be of type float"),
        ("data.source_eos=maybe", "data.source_eos must be of type bool"),
        ("training.steps=0", "training.steps must be at least 1, not 0"),
        (
            "training.engine=gpu",
            "training.engine must be one of auto, jit, pmap, mesh, not 'gpu'",
        ),
        (
            "model.num_heads=7",
            "model.d_model 96 is not divisible by model.num_heads 7; try",
        ),
        (
            "model.max_length=8",
            "data.max_length 16 is more than the model.max_length 8",
        ),
        ("data.train=synthetic:reverse/trian", "did you mean synthetic:reverse/train?"),
        ("data.train=text:nothing.en,nothing.de", "no file nothing.en"),
        ("data.valid=bundled:en-de/valid", "has no language 'forwards'"),
    ],
)
def test_refused_values(override, rule, call, tmp_path):
    """A key that is not known, with the nearest that is, a wrong type or value: one
    line before anything starts.
    """
    workdir = tmp_path / "run"
    assert (
        rule
        in call(
            "train",
            f"--config={REVERSE}",
            f"--workdir={workdir}",
            f"--config.{override}",
        ).error
    )
    assert not (workdir / "checkpoints").exists()


def test_a_vocabulary_that_the_text_does_not_allow(call, tmp_path):
    done = call(
        "train",
        f"--config={REVERSE}",
        f"--workdir={tmp_path}/run",
        "--config.data.vocabulary_size=500",
    )
    assert (
        done.err
        == "training the vocabulary on synthetic:reverse/train\njaxformer: error:"
        " data.vocabulary_size: a vocabulary of 500 pieces is too large for this"
        " text: it allows at most 57\n"
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("def get_config(:\n", "mine.py, line 1: SyntaxError"),
        ("x = 1\n", "mine.py must define get_config()"),
        ("def get_config():\n    return {}\n", "mine.py must define get_config()"),
        (
            "import nothing_like_this\n",
            "mine.py, line 1: ModuleNotFoundError: No module named 'nothing_like_this'",
        ),
        ("def get_config():\n    return 1 / 0\n", "mine.py, line 2: ZeroDivisionError"),
        ("import sys\nsys.exit()\n", "mine.py, line 2: SystemExit"),
        (
            "import sys\ndef get_config():\n    sys.exit('enough')\n",
            "mine.py, line 3: SystemExit: enough",
        ),
        ("x = 'a\0b'\n", "mine.py: "),
        ("\nimport the_broken\n", "mine.py, line 2: SyntaxError: "),
        (DICTIONARY.format({}), "mine.py must define get_config()"),
        (DICTIONARY.format({"steps": 1}), "mine.py must define get_config()"),
        (
            DICTIONARY.format({"training": {"steps": 1}, "a": None}),
            "mine.py must define get_config()",
        ),
        (
            CHANGES + "    config.training.steps = 'x'\n    return config\n",
            "mine.py, line 4: TypeError",
        ),
        (
            CHANGES + "    config.training.stepz = 3\n    return config\n",
            "did you mean training.steps?",
        ),
    ],
)
def test_broken_configuration_files(content, rule, call, write, tmp_path):
    """A file that fails, ends the program or gives no sections is named, with its line
    where it has one, also when the command line would change a key of it.
    """
    (tmp_path / "the_broken.py").write_text("def f(:\n    pass\n\nx = 1\n")
    arguments = "train", f"--config={write(content)}", f"--workdir={tmp_path / 'run'}"
    assert rule in call(*arguments).error
    assert rule in call(*arguments, "--config.training.steps=3").error


def test_missing_configuration_file(call, tmp_path):
    error = call(
        "train", f"--config={tmp_path / 'no.py'}", f"--workdir={tmp_path / 'run'}"
    ).error
    assert error.startswith(f"no configuration file {tmp_path / 'no.py'}")


def test_files_beside_a_configuration(write, tmp_path):
    """One configuration calls another's ``get_config``, wherever it is started."""
    (tmp_path / "the_base.py").write_text(Path(REVERSE).read_text())
    path = write("""
        import the_base

        def get_config():
            config = the_base.get_config()
            config.training.steps = 5
            return config
        """)
    values = config_file.read(str(path), ["--config.training.warmup_steps=2"])
    assert values["training"]["steps"] == 5
    assert values["training"]["warmup_steps"] == 2
    assert values["model"]["d_model"] == 96


@pytest.mark.parametrize(
    "path", sorted((runs.ROOT / "configs").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_configurations_of_the_project(path):
    """Each can be read, and its docstring says how to run it."""
    config = configuration.parse(config_file.read(str(path), []))
    assert config.training.steps >= 1
    assert "\nCommand: " in path.read_text()
    assert "\nHardware: " in path.read_text()


def test_workdir_of_something_else(call, tmp_path):
    """A directory with other files, and a run of another configuration, are left
    alone.
    """
    (tmp_path / "thesis.txt").write_text("years")
    error = call("train", f"--config={REVERSE}", f"--workdir={tmp_path}").error
    assert "holds files but no run" in error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    error = call(
        "train", f"--config={REVERSE}", f"--workdir={runs.reversal_run()}"
    ).error
    assert "holds a run of another configuration: model.d_model: 64 -> 96" in error


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
    assert found.code == code
    assert found.out == b""
    assert said in found.err
    assert (tmp_path / "curve.png").exists() == outcome.finished


ALL = ("--coordinator=127.0.0.1:4321", "--num_processes=2", "--process_id=0")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ALL[:1],
            (
                "--coordinator, --num_processes and --process_id go together: give"
                " --num_processes and --process_id"
            ),
        ),
        (ALL[:2], "go together: give --process_id too"),
        (
            ("--process_id=0",),
            "go together: give --coordinator and --num_processes too",
        ),
        (
            ("--coordinator=here", *ALL[1:]),
            "--coordinator must be HOST:PORT, such as 10.0.0.1:4321, not 'here'",
        ),
        (
            (*ALL[:2], "--process_id=2"),
            "--process_id must be from 0 to 1 with --num_processes=2, not 2",
        ),
        (
            ("--distributed", *ALL),
            (
                "--distributed asks the cluster for what --coordinator,"
                " --num_processes and"
            ),
        ),
        (
            ("--distributed_timeout=9",),
            (
                "--distributed_timeout is for several hosts: give --distributed, or"
                " --coord"
            ),
        ),
        (
            ("--distributed", "--distributed_timeout=inf"),
            "--distributed_timeout is at most 1e6 seconds, not inf",
        ),
        (
            ("--distributed", "--distributed_timeout=0"),
            "--distributed_timeout must be above 0 seconds, not 0",
        ),
    ],
)
def test_several_hosts_that_do_not_go_together(arguments, rule, call, tmp_path):
    """Arguments that are missing, wrong or too many are refused with one line before
    anything is connected.
    """
    assert (
        rule
        in call(
            "train", f"--config={REVERSE}", f"--workdir={tmp_path / 'run'}", *arguments
        ).error
    )
    assert not (tmp_path / "run").exists()


def test_several_hosts(call, monkeypatch, tmp_path):
    """What the command line says of the processes is what is started; the defaults
    ask the cluster.
    """
    started = []

    def run_together(cluster, seconds, work, report):
        started.append((cluster, seconds))
        return 130

    monkeypatch.setattr(train, "run_together", run_together)
    given = ("train", f"--config={REVERSE}", f"--workdir={tmp_path / 'run'}")
    assert call(*given, *ALL, "--distributed_timeout=7").code == 130
    assert call(*given, "--distributed").code == 130
    assert started == [(Cluster("127.0.0.1:4321", 2, 0), 7.0), (Cluster(), 300.0)]


@pytest.mark.slow
def test_no_cluster_here(tmp_path):
    """Where there is no cluster, ``--distributed`` says so and what to give instead."""
    found = runs.command(
        "train", f"--config={REVERSE}", f"--workdir={tmp_path / 'run'}", "--distributed"
    )
    assert found.returncode == 1
    (line,) = found.stderr.decode().splitlines()
    assert line.startswith(
        "jaxformer: error: --distributed finds no Slurm, Open MPI, Kubernetes or Cloud"
        " TPU here ("
    )
    assert line.endswith("give --coordinator, --num_processes and --process_id instead")
    assert not (tmp_path / "run").exists()


def test_reading_a_configuration_needs_its_packages(monkeypatch):
    """A package that is missing is said as it is, not as a fault of the file."""

    def missing(*_):
        raise InputError("this needs the package ml_collections")

    monkeypatch.setattr(configuration, "require", missing)
    with pytest.raises(InputError, match=r"^this needs the package ml_collections$"):
        read()
