"""What the promise of compatibility is about: names of Python, keys of the
configuration with their defaults, and commands with their options.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import types
import typing

from jaxformer.cli.main import COMMANDS
from jaxformer.runs.config import RunConfig

PACKAGES = ("data", "functional", "kernels", "models", "nn", "search", "training")


def names() -> list[str]:
    """List the names of Python that the packages offer."""
    found = []
    for package in ("jaxformer", *(f"jaxformer.{package}" for package in PACKAGES)):
        module = importlib.import_module(package)
        values = {name: getattr(module, name) for name in module.__all__}
        found += [
            f"{package}.{name}"
            for name, value in values.items()
            if not isinstance(value, types.ModuleType)
        ]
    return sorted(found)


def keys() -> list[str]:
    """List the keys of the configuration."""
    return [
        f"{section}.{field.name}={field.default}"
        for section, kind in typing.get_type_hints(RunConfig).items()
        for field in dataclasses.fields(kind)
    ]


def commands() -> list[str]:
    """List the commands."""
    found = []
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(f"jaxformer.cli.{command}").configure(parser)
        options = [(x.option_strings or [x.dest])[-1] for x in parser._actions]
        found.append(" ".join([command, *options]))
    return found
