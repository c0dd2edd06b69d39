"""Reads the shell lines of the pages without running them: each by the parser of the
program that it names.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from pages import ROOT

from jaxformer.cli import config_file, main
from jaxformer.cli.arguments import choose_search
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.search.config import DecodingConfig

TOOLS = {
    *("awk", "cat", "comet-score", "cd", "cp", "curl", "cut", "docker", "echo"),
    *(
        "export",
        "gcloud",
        "git",
        "grep",
        "gunzip",
        "head",
        "hf",
        "kill",
        "ls",
        "mkdir",
        "paste",
    ),
    *("mkdir", "paste", "printf", "sbatch", "sed", "seq", "shuf", "sort", "source"),
    *("ssh-add", "tail", "tar", "tensorboard", "tr", "unzip", "wc", "wget", "zcat"),
}
"""Programs of others, whose arguments are theirs."""

OWN_SCRIPTS = {
    "scripts/train.py": "train",
    "scripts/translate.py": "translate",
    "scripts/evaluate.py": "evaluate",
}
_LOOP = re.compile(r"^for (\w+) in (.*?); do\s(.*?)\bdone$", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"\w+=.*")
_VARIABLE = re.compile(r'^(\w+)="([^"]*)"$', re.MULTILINE)


class WrongLineError(Exception):
    """A line of a page that could not be typed as it stands."""


def fill_in(text: str, before: str) -> str:
    """Put the values of variables, which earlier blocks of the page or this one set
    in lines of their own, in place.
    """
    for name, value in _VARIABLE.findall(before + text):
        text = re.sub(rf"\${name}\b", " ".join(value.split()), text)
    return _VARIABLE.sub("", text)


def read_commands(text: str) -> Iterator[list[str]]:
    """Return the words of each simple command of a shell text, loops unrolled, without
    redirections and comments.
    """
    text = re.sub(r"\\\n| 2(?=>)", " ", text)
    text = _LOOP.sub(
        lambda loop: "\n".join(
            loop[3].replace(f"${loop[1]}", value) for value in shlex.split(loop[2])
        ),
        text,
    )
    for line in text.splitlines():
        line = without_comment(line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[str] = []
        redirected = False
        for word in (*lexer, ";"):
            if redirected:
                redirected = False
            elif set(word) <= set("|&;"):
                if words:
                    yield words
                words = []
            elif set(word) <= set("<>"):
                redirected = True
            else:
                words.append(word)


def without_comment(line: str) -> str:
    """Cut a line where a comment begins: at a ``#`` behind a blank that no quotation
    marks surround.
    """
    quote = ""
    for place, letter in enumerate(line):
        if letter == "#" and not quote and (place == 0 or line[place - 1].isspace()):
            return line[:place]
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
    return line


def check_command(words: Sequence[str]) -> None:
    """Read a command as the program that it names would.

    Raises:
        WrongLineError: the program is not known, or would refuse its arguments.
    """
    words = list(words)
    while words and _ASSIGNMENT.fullmatch(words[0]):
        del words[0]
    if not words:
        return
    own = re.compile(r"(configs|scripts|jaxformer/|tests|docs)/")
    missing = [w for w in words if own.match(w) and not (ROOT / w).exists()]
    if missing:
        raise WrongLineError(f"there is no {missing[0]}")
    program, rest = Path(words[0]).name, words[1:]
    if program == "jaxformer":
        check_jaxformer(rest)
    elif program == "make":
        check_make(rest)
    elif program in ("python", "python3"):
        check_python(rest)
    elif program == "pip":
        check_pip(rest)
    elif program.endswith((".sh", ".sbatch")):
        if not (ROOT / words[0]).exists():
            raise WrongLineError(f"there is no {words[0]}")
    elif program not in TOOLS:
        raise WrongLineError(
            f"no check for the program {program}: add one to {Path(__file__).name}"
        )


def check_jaxformer(arguments: Sequence[str]) -> None:
    """Read a command line of ours, and the keys and values of the configuration that
    it sets.
    """
    given: list[str] = []
    for word in arguments:  # the page leaves out what stands elsewhere on it
        given += ["--config=...", "--workdir=..."] if word == "..." else [word]
    try:
        options = _exits(lambda: main.parse(given))
        if options.overrides or getattr(options, "config", None):
            check_config(str(options.config), options.overrides)
        if hasattr(options, "beam_size") and hasattr(options, "no_unknown"):
            choose_search(options, DecodingConfig())
    except InputError as error:
        raise WrongLineError(str(error)) from None


def check_config(path: str, overrides: Sequence[str]) -> None:
    """Read a configuration with what is set in it; a file of the reader's own stands
    for the quickstart's, or for that of an encoder.
    """
    if path.startswith("configs/") and not (ROOT / path.partition(":")[0]).is_file():
        raise WrongLineError(f"there is no {path}")
    encoder = any("objective=classification" in each for each in overrides)
    own = "configs/masked_language_model.py" if encoder else "configs/quickstart.py"
    file = ROOT / (path if path.startswith("configs/") else own)
    try:
        configuration.parse(config_file.read(str(file), overrides))
    except InputError as error:
        raise WrongLineError(str(error)) from None


def check_make(targets: Sequence[str]) -> None:
    """Look targets up."""
    known = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    unknown = [name for name in targets if "=" not in name and name not in known]
    if unknown:
        raise WrongLineError(f"make knows no {unknown[0]}")


def check_pip(arguments: Sequence[str]) -> None:
    """Look extras up."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for word in arguments:
        found = re.fullmatch(r"(?:jaxformer|\.|[A-Z_]+)\[([\w,]+)\]", word)
        for extra in found[1].split(",") if found else ():
            if extra not in extras:
                raise WrongLineError(f"pyproject.toml has no extra {extra}")


def check_python(arguments: Sequence[str]) -> None:
    """Read what stands behind ``python``: a script of ours, a module, or a program
    in quotation marks.
    """
    if arguments[0] == "-c":
        compile(arguments[1], "-c", "exec")
    elif arguments[0] == "-m":
        if importlib.util.find_spec(arguments[1]) is None:
            raise WrongLineError(f"there is no module {arguments[1]}")
    elif arguments[0] in OWN_SCRIPTS:
        check_jaxformer([OWN_SCRIPTS[arguments[0]], *arguments[1:]])
    elif arguments[0].startswith(("scripts/", "docs/figures")):
        check_script(arguments[0], arguments[1:])
    elif not (ROOT / arguments[0]).is_file():
        raise WrongLineError(f"there is no {arguments[0]}")


class _ReadError(Exception):
    """Ends a script once it has read its arguments."""


def check_script(path: str, arguments: Sequence[str]) -> None:
    """Let a script, or a folder with one, read its arguments, and stop it then."""
    rest: list[str] = []

    def parse_known_args(parser, args=None, namespace=None):
        rest.extend(known(parser, args, namespace)[1])
        raise _ReadError

    def parse_args(parser, args=None, namespace=None):
        unknown = known(parser, args, namespace)[1]
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        raise _ReadError

    known = argparse.ArgumentParser.parse_known_args
    if (ROOT / path / "__main__.py").is_file():  # a folder: `python docs/figures`
        path += "/__main__.py"
    spec = importlib.util.spec_from_file_location("script_of_a_page", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with (
        mock.patch.dict(sys.modules, {spec.name: module}),
        mock.patch.object(sys, "argv", [path, *arguments]),
        mock.patch.object(sys, "path", [str((ROOT / path).parent), *sys.path]),
    ):
        spec.loader.exec_module(module)
        stops = {"parse_args": parse_args, "parse_known_args": parse_known_args}
        patched = mock.patch.multiple(argparse.ArgumentParser, **stops)
        with patched, contextlib.suppress(_ReadError):
            _exits(module.main)
    unknown = [word for word in rest if not word.startswith("--config.")]
    if unknown:
        raise WrongLineError(f"{path} knows no {unknown[0]}")
    check_config("", rest)


def _exits(read):
    """Call what ends with a message on standard error where it refuses."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read()
    except SystemExit as stopped:
        if stopped.code in (0, None):
            return None
        raise WrongLineError(said.getvalue().strip().rpartition("\n")[2]) from None
