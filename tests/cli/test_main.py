"""What all commands have in common: help, usage, exit codes, and what they need installed."""

from __future__ import annotations

import builtins
import importlib
import signal
import subprocess
import sys
import time
import tomllib

import pytest

import jaxformer
import jaxformer as jf
import runs
from jaxformer.cli import main as main_module
from jaxformer.cli.main import COMMANDS
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError


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
        ["train", "--config=configs/reverse.py", "--workdir=x", "--config.training.steps"],
        ["train", "--config=configs/reverse.py", "--workdir=x", "--config.training.steps", "3"],
    ],
)
def test_wrong_usage(arguments, call):
    """Unknown commands and arguments, and missing ones, end with 2 and a usage line, and nothing is done."""
    outcome = call(*arguments)
    assert outcome.code == 2
    assert outcome.out == b""
    assert "usage: jaxformer" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_misspelt_option_is_named(call):
    """Before the one that is missing for it."""
    assert "unrecognized arguments: --workdri; the following arguments are required: --workdir" in " ".join(
        call("evaluate", "--workdri=x").err.split()
    )


def test_a_wrong_option_before_the_command(call):
    """It is named too."""
    outcome = call("--verbose", "train")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "jaxformer: error: unrecognized arguments: --verbose"


def test_the_version(call):
    """It is that of the package."""
    outcome = call("--version")
    assert (outcome.code, outcome.out.decode()) == (0, f"jaxformer {jaxformer.__version__}\n")


def test_the_package_is_a_program_too():
    """``python -m jaxformer`` is the same command line."""
    process = subprocess.run(
        [sys.executable, "-m", "jaxformer", "--version"],
        capture_output=True,
        text=True,
        env=runs.environment(),
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, f"jaxformer {jaxformer.__version__}\n")


def test_interrupted(monkeypatch, call):
    """Ctrl-C ends a command with 130 and without a traceback."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Translator, "load", interrupt)
    assert call("translate", "--workdir=x", stdin=b"a\n") == (130, b"", "")


EARLY = """
import sys
from jaxformer.cli import main

main.huge_pages.use = lambda: print("begun", flush=True)
sys.argv = ["jaxformer", "translate", "--workdir={run}"]
sys.exit(main.start())
"""


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3])
def test_interrupted_while_libraries_load(delay):
    """Ctrl-C ends with 130 and without a traceback however early it comes; here JAX loads, or has just been loaded."""
    line = [sys.executable, "-c", EARLY.format(run=runs.random_run())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, cwd=runs.ROOT, env=runs.environment(), **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)  # with its input open till now: there is nothing else that ends it
    assert (process.returncode, out, err) == (130, b"", b"")


def test_an_interruption_during_the_work_can_be_caught(monkeypatch):
    """Once libraries are loaded Ctrl-C is Python's own again."""
    monkeypatch.setattr("sys.argv", ["jaxformer", "translate", "--workdir=x"])
    before, found = signal.getsignal(signal.SIGINT), []

    def load(*_):
        found.append(signal.getsignal(signal.SIGINT))
        raise InputError("none")

    monkeypatch.setattr(Translator, "load", load)
    monkeypatch.setattr(main_module.huge_pages, "use", lambda: found.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setattr(main_module.freed_memory, "manage", lambda: None)  # this process goes on
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert main_module.start() == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert found == [main_module._end, signal.default_int_handler]


def test_faults_of_ours_are_not_hidden(monkeypatch, call):
    """Only what a person can mend becomes one line; another exception keeps its traceback."""
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("translate", "--workdir=x", stdin=b"a\n")


def test_the_installed_command():
    """``jaxformer`` is this command line."""
    scripts = tomllib.loads((runs.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, name = scripts["jaxformer"].split(":")
    assert getattr(importlib.import_module(module), name) is main_module.start


def test_memory_is_managed_in_a_process_of_the_command(monkeypatch, capsys):
    """Who calls a command within another program keeps that program's memory as it is."""
    done = []
    monkeypatch.setattr(main_module.freed_memory, "manage", lambda: done.append("managed"))
    for alone in (False, True):
        assert main_module.main(["info", "--workdir=nowhere"], alone=alone) == main_module.FAILED
        assert done == ["managed"] * alone
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "given", "arguments", "large"),
    [
        ((), ["train", "--config=a b"], ["train", "--config=a b"], True),
        (("translate",), ["--workdir=x"], ["translate", "--workdir=x"], True),
        ((), ["info"], ["info"], False),
        ((), [], [], False),
    ],
)
def test_arguments_of_the_process(before, given, arguments, large, monkeypatch):
    """A script puts its command before them; what may compute for long begins with large pages."""
    done = []
    monkeypatch.setattr(main_module.huge_pages, "use", lambda: done.append("large pages"))
    monkeypatch.setattr(main_module, "main", lambda found, alone: done.append((found, alone)) or 7)
    monkeypatch.setattr("sys.argv", ["jaxformer", *given])
    assert main_module.start(*before) == 7
    assert done == [*(["large pages"] if large else []), (arguments, True)]


def test_translator_by_its_short_name():
    """``import jaxformer as jf`` is enough for ``jf.Translator``; another name is an AttributeError."""
    assert jf.Translator is Translator
    with pytest.raises(AttributeError, match="Translater"):
        _ = jf.Translater


# Packages that are not there


@pytest.fixture
def block(monkeypatch):
    """Give a function that makes a package look as if it was not installed."""

    def block(package: str) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        original = builtins.__import__

        def blocked(name, *arguments, **keywords):
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return original(name, *arguments, **keywords)

        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.split(".")[0] == package:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.setattr(builtins, "__import__", blocked)
        monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])

    return block


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("sentencepiece", ["translate"]),
        ("sentencepiece", ["evaluate", "--dataset=bundled:en-de/valid"]),
        ("matplotlib", ["attention", "Open the file."]),
        ("ml_collections", ["train", "--config=configs/reverse.py"]),
    ],
)
def test_missing_package_names_the_extra(package, arguments, call, block, monkeypatch, tmp_path):
    """A command whose package is missing says what to install, in one line."""
    monkeypatch.chdir(runs.ROOT)
    run = runs.copy(runs.random_run(), tmp_path / "run")
    block(package)
    error = call(*arguments, f"--workdir={run}", stdin=b"a\n").error
    message = error.removeprefix(f"{run}/vocabulary/shared.model: ")
    assert message == f"this needs the package {package}, which is not installed: pip install 'jaxformer[train]'"


BLOCKED = """
import sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Finder)
{then}
"""
OPTIONAL = ("absl", "matplotlib", "ml_collections", "orbax", "rich", "sacrebleu", "sentencepiece", "tensorboardX")


def test_commands_without_any_optional_package(tmp_path):
    """With the core alone every command shows its help, and the rest says what to install (statement 73)."""
    # Flax brings orbax and rich itself; that they are installed with it is no business of ours.
    packages = tuple(name for name in OPTIONAL if name not in ("absl", "orbax", "rich"))
    then = f"""
from jaxformer.cli.main import COMMANDS, main
import contextlib, io
for command in COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([command, "--help"])
main(["train", "--config=configs/reverse.py", "--workdir={tmp_path}/none"])
main(["translate", "--workdir={runs.random_run()}"])
assert not {{"tensorflow", "torch"}} & set(sys.modules)
"""
    line = [sys.executable, "-c", BLOCKED.format(packages=packages, then=then)]
    done = subprocess.run(line, capture_output=True, check=False, cwd=runs.ROOT, env=runs.environment(), input=b"a\n")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    for package, line in zip(("ml_collections", "sentencepiece"), lines, strict=True):
        assert line.startswith("jaxformer: error: ")
        assert line.endswith(
            f"this needs the package {package}, which is not installed: pip install 'jaxformer[train]'"
        )


def test_compiled_programs_are_kept(monkeypatch, tmp_path):
    """Without a word of the user's, compiled programs go to the cache folder of the system."""
    kept: dict[str, object] = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("jax.config.update", kept.__setitem__)
    main_module._keep_compilations()
    assert kept["jax_compilation_cache_dir"] == str(tmp_path / "jaxformer" / "xla")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    kept.clear()
    main_module._keep_compilations()
    assert "jax_compilation_cache_dir" not in kept
