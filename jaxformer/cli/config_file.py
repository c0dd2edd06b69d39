"""The configuration file of ``jaxformer train``, and its keys on the command line."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import runpy
import sys
import traceback
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jaxformer
from jaxformer.cli.arguments import wrong_usage
from jaxformer.cli.main import list_rows
from jaxformer.errors import InputError, UsageError, did_you_mean, require
from jaxformer.runs import config as configuration
from jaxformer.runs.config import OF_THE_VOCABULARY, RunConfig

PREFIX = "--config."
_BOOLEANS: dict[str, bool] = {
    **dict.fromkeys(("true", "t", "1"), True),
    **dict.fromkeys(("false", "f", "0"), False),
}
HELP = (
    "a Python file with get_config(), the config.json of a run, or a configuration that"
    " comes with jaxformer, such as quickstart; NAME:VARIANT for one of several in a"
    " file, such as paper/table3:b_dk16; --config.SECTION.KEY=VALUE changes a key"
)


def load(name: str, overrides: Sequence[str]) -> RunConfig:
    """Return the checked configuration of :func:`read`.

    Raises:
        UsageError: anything in it is wrong.
    """
    require("ml_collections", "train")  # no wrong usage
    with wrong_usage():
        return configuration.parse(read(name, overrides))


def read(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Run a configuration file and apply ``--config.SECTION.KEY=VALUE``.

    Args:
        name: of a file, or of a configuration that comes with jaxformer, see
            :func:`find`. After a colon, the variant that ``get_config`` is called with.
            Of a run: its ``config.json``.
        overrides: the arguments that change its keys, in order.

    Raises:
        UsageError: an override has another form.
        InputError: the file is missing or fails (with its line). Unknown keys and types
            are refused by :func:`jaxformer.runs.config.parse`.
    """
    config = _of_run(find(name)) if name.endswith(".json") else _run(name)
    others: dict[str, dict[str, Any]] = {}
    for override in overrides:
        key, equals, text = override.removeprefix(PREFIX).partition("=")
        if not (override.startswith(PREFIX) and equals):
            raise UsageError(
                f"{override!r} sets no key of the configuration: write"
                f" {PREFIX}SECTION.KEY=VALUE as one word, such as"
                f" {PREFIX}training.steps=100"
            )
        section, _, name = key.partition(".")
        if section == "model" and name in OF_THE_VOCABULARY:
            raise InputError(
                f"{override}: {key} follows from the vocabulary: leave it out, or set"
                " data.vocabulary_size"
            )
        value: Any = text
        try:
            kind = config[section].get_type(name)
            if text == "None":
                value = None
            elif kind in (bool, object):  # of an object: a boolean or a word
                value = _BOOLEANS.get(text.lower(), text)
            elif kind is not str:
                value = ast.literal_eval(text)
            config[section][name] = value
        # refused with all other values
        except (AttributeError, KeyError, SyntaxError, TypeError, ValueError):
            others.setdefault(section, {})[name] = value
    values = config.to_dict()
    for section, keys in others.items():
        values.setdefault(section, {}).update(keys)
    return values


def list_keys() -> str:
    """Format the keys of all sections: default, and the first sentence of what their
    declaration says.
    """
    rows: dict[str, dict[str, str]] = {}
    for section, kind in typing.get_type_hints(RunConfig).items():
        parts = map(inspect.getsource, reversed(kind.__mro__[:-1]))
        said = field_comments("".join(parts))
        rows[section] = {
            f"{field.name}={field.default}": field.metadata["help"]
            or re.split(r'(?<=[^l ]\.) (?=[A-Z"`])', said[field.name])[0]
            for field in dataclasses.fields(kind)
            if section != "model" or field.name not in OF_THE_VOCABULARY
        }
    return list_rows(rows)


def field_comments(source: str) -> dict[str, str]:
    """Return the comment above each field of a class, from its source; fields without
    one belong to that of the field before.
    """
    found, said = {}, ""
    for above, name in re.findall(r"((?:^    #.*\n)*)^    (\w+):", source, re.M):
        said = " ".join(re.findall("# (.*)", above)) or said
        found[name] = said
    return found


def find(name: str) -> str:
    """Return the path of a configuration file.

    A file of this name takes precedence. Otherwise ``quickstart``, ``paper/ende_base``
    and so on, or as in a checkout ``configs/quickstart.py``, name the configurations
    that are installed with jaxformer.

    Raises:
        InputError: there is no such configuration.
    """
    if Path(name).is_file():
        return name
    known, folder = shipped(), _folder()
    wanted = name.removeprefix("configs/").removesuffix(".py")
    if wanted in known:
        return str(folder / f"{wanted}.py")
    near = did_you_mean(wanted, known) or f"; jaxformer has {', '.join(known)}"
    raise InputError(f"no configuration file {name}{near}")


def shipped() -> list[str]:
    """List the configurations that come with jaxformer."""
    folder = _folder()
    paths = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    return sorted(path.as_posix() for path in paths)


def _folder() -> Path:
    """Return the folder of the shipped configurations: inside the installed package, or
    next to it in a checkout.
    """
    package = Path(jaxformer.__file__).parent
    within = package / "configs"
    return within if within.is_dir() else package.parent / "configs"


def _of_run(path: str) -> Any:
    """Return the configuration of a run, without what follows from its vocabulary."""
    config = configuration.default_config()
    for key, value in configuration.flatten(configuration.load(Path(path))).items():
        section, _, name = key.partition(".")
        if name in config[section]:
            config[section][name] = value
    return config


def _run(name: str) -> Any:
    """Return what ``get_config()`` of a file returns, called with the variant after
    the colon.
    """
    variant: list[str] = []
    if ":" in name and not Path(name).is_file():
        # A variant may have colons, as the URL of a run has.
        name, *variant = name.split(":", 1)
    path = find(name)
    # As for a script, files of the same folder can be imported: one configuration calls
    # get_config() of another.
    sys.path.insert(0, str(Path(path).parent.absolute()))
    try:
        get_config = runpy.run_path(path).get("get_config", lambda *_: None)
        if variant and not inspect.signature(get_config).parameters:
            raise InputError(f"{path} has no variants: leave out :{variant[0]}")
        config = get_config(*variant)
    except UsageError as error:
        raise InputError(f"{name} has no variant {variant[0]}: {error}") from None
    except InputError:
        raise
    # The user's file may fail in any way.
    except (Exception, SystemExit) as error:
        # where it failed, or where it called what failed
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines.append(error.lineno)
        place = f", line {lines[-1]}" if lines and lines[-1] is not None else ""
        raise InputError(f"{path}{place}: {type(error).__name__}: {error}") from None
    finally:
        del sys.path[0]
    kind = require("ml_collections", "train").ConfigDict
    sections = config.values() if isinstance(config, kind) else ()
    if not sections or not all(isinstance(section, kind) for section in sections):
        raise InputError(
            f"{path} must define get_config() that changes and returns"
            " jaxformer.runs.config.default_config()"
        )
    return config
