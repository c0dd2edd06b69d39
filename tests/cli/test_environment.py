"""What a process was not given: packages, a home, a device, memory, files, streams."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import runs
from jaxformer.cli import main as main_module
from jaxformer.translation.translator import Translator

BLOCKED = """
import contextlib, io, sys
from jaxformer.cli.main import COMMANDS, main

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        packages = "matplotlib ml_collections sacrebleu sentencepiece tensorboardX"
        if name.split(".")[0] in packages.split():
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Finder)
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([command, "--help"])
run = sys.argv[1]
main(["train", "--config=configs/reverse.py", f"--workdir={run}/none"])
main(["translate", f"--workdir={run}"])
main(["evaluate", f"--workdir={run}", "--dataset=bundled:en-de/valid"])
main(["plot", f"--workdir={run}"])
assert not {"tensorflow", "torch"} & set(sys.modules)
"""


def test_commands_without_any_optional_package(run):
    """Every command shows its help; otherwise it names what to install in one line."""
    (run / "metrics.jsonl").write_text('{"step": 1, "train/nll": 1.0}\n')
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, run],
        capture_output=True,
        text=True,
        check=False,
        cwd=runs.ROOT,
        env=runs.environment(),
        input="a\n",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    packages = ("ml_collections", "sentencepiece", "sentencepiece", "matplotlib")
    for package, line in zip(packages, lines, strict=True):
        assert line.startswith("jaxformer: error: ")
        rule = f"this needs the package {package}, which is not installed: pip install"
        assert line.endswith(f"{rule} 'jaxformer[train]'")


def test_compiled_programs_are_kept(monkeypatch, tmp_path):
    """They go to a folder of the CPU in the system's cache, unless the user names one.
    A user without a home has none, nor has one whose home cannot be written.
    """

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    kept: dict[str, object] = {}
    monkeypatch.setattr("jax.config.update", kept.__setitem__)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main_module.keep_programs()
    here = main_module.name_machine()
    folder = tmp_path / "jaxformer" / "xla" / here
    assert kept["jax_compilation_cache_dir"] == str(folder)
    monkeypatch.setattr("platform.machine", lambda: "another")
    assert main_module.name_machine() != here
    kept.clear()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", no_home)
    main_module.keep_programs()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/fdinfo")  # for no user
    main_module.keep_programs()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    main_module.keep_programs()
    assert "jax_compilation_cache_dir" not in kept


def test_compiled_programs_have_a_bound(tmp_path):
    """The least recently used are removed, also those of other versions; other files
    stay.
    """
    (tmp_path / "old").mkdir()
    for place, name in enumerate(["old/a-cache", "b-cache", "c-cache", "other"]):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 + place, 1000 + place))
    main_module.prune_programs(tmp_path, 20)
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["b-cache", "c-cache", "other"]


NO_BACKEND = "Unable to initialize backend 'cuda': no such device"


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (RuntimeError(NO_BACKEND), "JAX_PLATFORMS=cuda asks for a device"),
        (AssertionError(), "JAX_PLATFORMS=cuda asks for a device"),
        (ValueError("open: Too many open files [x]"), "ulimit -n"),
        (MemoryError(), "there is not enough memory: lower "),
        (RuntimeError("RESOURCE_EXHAUSTED: x"), "there is not enough memory: lower "),
    ],
)
def test_what_is_missing_is_one_line(error, rule, monkeypatch, call):
    def load(*_, **__):
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(Translator, "load", load)
    assert rule in call("attention", "--workdir=x", "a").error


def test_other_faults_keep_their_traceback(monkeypatch, call):
    monkeypatch.setattr(Translator, "load", lambda *_, **__: 1 / 0)
    outcome = call("attention", "--workdir=x", "a")
    assert outcome.code == 1
    first, *_, last = outcome.err.splitlines()
    assert first.startswith("Traceback ")
    assert last.startswith("ZeroDivisionError: ")
