"""The configuration file of ``jaxformer train``, and its keys on the command line."""

from __future__ import annotations

import difflib
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jaxformer
from jaxformer.errors import InputError, require

PREFIX = "--config."
HELP = (
    "a Python file with get_config(), or a configuration that comes with jaxformer,"
    " such as quickstart; NAME:VARIANT for one of several in a file, such as"
    " paper/table3:b_dk16"
)


def read(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Run a configuration file and apply ``--config.SECTION.KEY=VALUE``.

    Args:
        name: of a file, or of a configuration that comes with jaxformer, see
            :func:`find`. After a colon, the variant that ``get_config`` is called with.
        overrides: the arguments that change its keys, in order.

    Raises:
        InputError: the file is missing or fails (with its line), an override has
            another form, or a key or the type of a value is unknown.
    """
    for override in overrides:
        if not override.startswith(PREFIX) or "=" not in override:
            raise InputError(
                f"{override!r} sets no key of the configuration: write"
                f" {PREFIX}SECTION.KEY=VALUE as one word, such as"
                f" {PREFIX}training.steps=100"
            )
    config = _run(*_split(name))
    flags = require("absl.flags", "train")
    config_flags = require("ml_collections.config_flags", "train")
    for override in overrides:
        section, key = _find(config, override)
        # Which keys may be None is checked with all other values.
        if override.partition("=")[2] == "None":
            config[section][key] = None
            continue
        values, arguments = flags.FlagValues(), ["jaxformer train", override]
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=values, sys_argv=arguments
        )
        try:
            values(arguments)
        except (flags.Error, AttributeError, TypeError, ValueError):
            kind = config[section].get_type(key).__name__
            raise InputError(
                f"{override}: {section}.{key} must be of type {kind}"
            ) from None
    return dict(config.to_dict())


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
    raise InputError(
        f"no configuration file {name}; --config names a Python file, or one of those"
        f" that come with jaxformer: {_listed(known)}"
    )


def shipped() -> list[str]:
    """List the configurations that come with jaxformer."""
    folder = _folder()
    paths = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")]
    return sorted(
        (path.as_posix() for path in paths), key=lambda name: ("/" in name, name)
    )


def _folder() -> Path:
    """Return the folder of the shipped configurations: inside the installed package, or
    next to it in a checkout.
    """
    package = Path(jaxformer.__file__).parent
    within = package / "configs"
    return within if within.is_dir() else package.parent / "configs"


def _listed(names: Sequence[str]) -> str:
    """Write names as in a shell, those of a folder in braces."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, own = name.rpartition("/")
        folders.setdefault(folder, []).append(own)
    return ", ".join(
        f"{folder}/{{{','.join(group)}}}" if folder else ", ".join(group)
        for folder, group in folders.items()
    )


def _split(name: str) -> tuple[str, str | None]:
    """Return the path of a configuration file and the variant after its colon."""
    stem, colon, variant = name.rpartition(":")
    if colon and not Path(name).is_file():
        return find(stem), variant
    return find(name), None


def _run(path: str, variant: str | None) -> Any:
    """Return what the file's ``get_config()`` returns."""
    # As for a script, files of the same folder can be imported: one configuration calls
    # get_config() of another.
    sys.path.insert(0, str(Path(path).parent.absolute()))
    try:
        get_config = runpy.run_path(path).get("get_config")
        config = None if get_config is None else _call(get_config, path, variant)
    except InputError:
        raise
    # The user's file may fail in any way.
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{path}{_line(path, error)}: {type(error).__name__}: {error}"
        ) from None
    finally:
        del sys.path[0]
    if not _has_sections(config):
        raise InputError(
            f"{path} must define get_config() that changes and returns"
            " jaxformer.runs.config.default_config()"
        )
    return config


def _call(get_config: Callable[..., Any], path: str, variant: str | None) -> Any:
    """Call ``get_config`` with the variant, if one was named."""
    if variant is None:
        return get_config()
    if not inspect.signature(get_config).parameters:
        raise InputError(f"{path} has no variants: leave out :{variant}")
    return get_config(variant)


def _has_sections(config: Any) -> bool:
    """Return whether these are sections of keys, at least one."""
    kind = require("ml_collections", "train").ConfigDict
    return (
        isinstance(config, kind)
        and len(config) > 0
        and all(isinstance(section, kind) for section in config.values())
    )


def _line(path: str, error: BaseException) -> str:
    """Return the line of the file where it failed, or where it called what failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines and lines[-1] is not None else ""


def _find(config: Any, override: str) -> tuple[str, str]:
    """Return the section and the key that ``--config.SECTION.KEY=VALUE`` names."""
    name = override.removeprefix(PREFIX).partition("=")[0]
    known = [f"{section}.{key}" for section in config for key in config[section]]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InputError(
            f"there is no configuration key {name}; did you mean {near[0]}?"
        )
    section, _, key = name.partition(".")
    return section, key
