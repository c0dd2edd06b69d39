"""What a process was not given: packages, a home, a device, open files, streams."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys

import pytest

import runs
from jaxformer.cli import main as main_module
from jaxformer.translation.translator import Translator


@pytest.fixture
def block(monkeypatch):
    """Return a function that makes a package look as if it was not installed."""

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
def test_missing_package_names_the_extra(
    package, arguments, call, block, monkeypatch, tmp_path
):
    """A command whose package is missing says what to install, in one line."""
    monkeypatch.chdir(runs.ROOT)
    run = runs.copy(runs.random_run(), tmp_path / "run")
    block(package)
    error = call(*arguments, f"--workdir={run}", stdin=b"a\n").error
    message = error.removeprefix(f"{run}/vocabulary/shared.model: ")
    assert (
        message
        == f"this needs the package {package}, which is not installed: pip install"
        " 'jaxformer[train]'"
    )


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
OPTIONAL = (
    "absl",
    "matplotlib",
    "ml_collections",
    "orbax",
    "rich",
    "sacrebleu",
    "sentencepiece",
    "tensorboardX",
)


def test_commands_without_any_optional_package(tmp_path):
    """With the core alone every command shows its help, and the rest says what to
    install.
    """
    # Flax brings orbax and rich itself; that they are installed with it is no business
    # of ours.
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
    done = subprocess.run(
        line,
        capture_output=True,
        check=False,
        cwd=runs.ROOT,
        env=runs.environment(),
        input=b"a\n",
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    for package, line in zip(("ml_collections", "sentencepiece"), lines, strict=True):
        assert line.startswith("jaxformer: error: ")
        assert line.endswith(
            f"this needs the package {package}, which is not installed: pip install"
            " 'jaxformer[train]'"
        )


def test_compiled_programs_are_kept(monkeypatch, tmp_path):
    """Without a word of the user's, compiled programs go to the cache folder of the
    system.
    """
    kept: dict[str, object] = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("jax.config.update", kept.__setitem__)
    main_module._keep_compilations()
    assert kept["jax_compilation_cache_dir"] == str(
        tmp_path / "jaxformer" / "xla" / main_module._name_machine()
    )
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    kept.clear()
    main_module._keep_compilations()
    assert "jax_compilation_cache_dir" not in kept


def test_another_cpu_has_another_folder_of_compiled_programs(monkeypatch):
    """A program compiled for one CPU may crash on another."""
    here = main_module._name_machine()
    assert main_module._name_machine() == here
    monkeypatch.setattr("platform.machine", lambda: "another")
    assert main_module._name_machine() != here


def test_compiled_programs_have_a_bound(tmp_path):
    """The least recently used are removed, also those of other versions; other files
    stay.
    """
    (tmp_path / "old").mkdir()
    for place, name in enumerate(["old/a-cache", "b-cache", "c-cache", "other"]):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 + place, 1000 + place))
    main_module._prune(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "b-cache",
        "c-cache",
        "other",
    ]


def test_without_a_home_nothing_is_kept(monkeypatch):
    """A user whom the system does not know has no cache folder, and no error either."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    kept: dict[str, object] = {}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", home)
    monkeypatch.setattr("jax.config.update", kept.__setitem__)
    main_module._keep_compilations()
    assert "jax_compilation_cache_dir" not in kept


def test_a_device_that_is_not_there(monkeypatch, call):
    """One line says which platform is asked for, and the cure."""
    words = "Unable to initialize backend 'cuda': no such device"
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(
        Translator, "load", lambda *_: (_ for _ in ()).throw(RuntimeError(words))
    )
    assert (
        "JAX_PLATFORMS=cuda asks for a device"
        in call("translate", "--workdir=x", stdin=b"a\n").error
    )


@pytest.mark.parametrize(
    "error",
    [OSError(24, "Too many open files"), ValueError("open: Too many open files [x]")],
)
def test_too_few_open_files(error, monkeypatch, call):
    """One line names the limit, also where a library words the error."""

    def load(*_):
        raise error

    monkeypatch.setattr(Translator, "load", load)
    assert "ulimit -n" in call("translate", "--workdir=x", stdin=b"a\n").error


def test_names_that_are_no_utf8(call):
    """They are refused before the work: no JSON could hold them."""
    for line in (
        ["train", "--config=configs/reverse.py", "--workdir=a\udcff"],
        ["score", "--workdir=a\udcff"],
    ):
        rest = ["--source=x", "--target=y"] if line[0] == "score" else []
        assert r"must be UTF-8, not '--workdir=a\udcff'" in call(*line, *rest).error


def test_a_platform_whose_plugin_is_missing():
    """JAX says nothing about it; the line says which platform was asked for."""
    line = [
        sys.executable,
        "-m",
        "jaxformer",
        "attention",
        f"--workdir={runs.random_run()}",
        "Open the file.",
    ]
    environment = {**runs.environment(), "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        cwd=runs.ROOT,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        "jaxformer: error: JAX_PLATFORMS=cuda asks for a device"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("stream", "cure"), [("stdin", "--input"), ("stdout", "redirect it")]
)
def test_closed_streams(stream, cure, monkeypatch, capfd):
    """A closed standard input or output is named, with the cure."""
    monkeypatch.setattr(sys, stream, None)
    monkeypatch.setattr(Translator, "load", lambda *_: runs.translator())
    monkeypatch.setattr(main_module, "_keep_compilations", lambda: None)
    assert main_module.main(["translate", "--workdir=x"]) == 1
    error = capfd.readouterr().err
    assert error.startswith(f"jaxformer: error: standard {stream[3:]}put is closed")
    assert cure in error
