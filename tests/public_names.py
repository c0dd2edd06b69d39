"""What the promise of compatibility is about, a line for each name: Python,
configuration keys, the command line.

    python tests/public_names.py > tests/public_names.txt

A parameter with a default is written ``name=``. Keys of a configuration stand with
their defaults, which a run of an earlier version takes for what it does not have.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterator

import flax.linen

from jaxformer.cli.main import COMMANDS
from jaxformer.runs.config import RunConfig

# What their __all__ names.
PACKAGES = (
    "jaxformer",
    "jaxformer.data",
    "jaxformer.search",
    "jaxformer.functional",
    "jaxformer.models",
    "jaxformer.nn",
    "jaxformer.paper",
    "jaxformer.training",
)
# What the documentation shows besides.
SHOWN = {
    "jaxformer.data.sources": ("escape", "load"),
    "jaxformer.translation.options": ("ResultOptions", "SearchOptions"),
    "jaxformer.evaluation.predictor": ("Predictor",),
    "jaxformer.translation.results": (
        *("Alignment", "Attention", "Hypothesis", "PairScore"),
    ),
    "jaxformer.evaluation.choice": ("choose_metrics",),
    "jaxformer.evaluation.comparison": (
        *("Comparison", "ComparisonConfig", "Result", "compare"),
    ),
    "jaxformer.evaluation.metrics": (
        *("BLEU", "CHRF", "CHRF_PLUS_PLUS", "TER", "SacreMetric"),
        *("score", "tokenizing_bleu"),
    ),
    "jaxformer.evaluation.statistics": ("Metric", "Score", "SentenceStatistics"),
    "jaxformer.interop.ctranslate2": ("Tokens", "save"),
    "jaxformer.interop.huggingface": ("Imported", "read", "write"),
    "jaxformer.interop.huggingface.seq2seq": ("from_model", "from_state"),
    "jaxformer.runs.config": (
        *("EvaluationConfig", "RunConfig", "default_config", "load", "parse", "save"),
    ),
    "jaxformer.training.train": ("train",),
}


def lines() -> list[str]:
    """List everything."""
    return [*_python(), "", *_keys(), "", *_commands()]


def _python() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield from _described(f"{package}.{name}", getattr(module, name))
    for path, names in SHOWN.items():
        module = importlib.import_module(path)
        for name in names:
            yield from _described(f"{path}.{name}", getattr(module, name))


def _described(name: str, thing: object) -> Iterator[str]:
    """Describe a function in a line, and a class in one for itself and one for each
    of its methods.
    """
    if isinstance(thing, types.ModuleType):
        return
    if typing.is_typeddict(thing):
        keys = thing.__required_keys__ | thing.__optional_keys__
        yield f"{name}: {', '.join(sorted(keys))}"
    elif inspect.isclass(thing):
        bare = issubclass(thing, BaseException | enum.Enum)
        bare |= getattr(thing, "_is_protocol", False)
        yield name if bare else f"{name}{_parameters(thing)}"
        bases = [x for x in thing.__mro__ if x.__module__.startswith("jaxformer")]
        members = {k: v for base in reversed(bases) for k, v in vars(base).items()}
        for key, value in sorted(members.items()):
            # Flax calls setup, and nobody else
            if (key.startswith("_") and key != "__call__") or key == "setup":
                continue
            if isinstance(value, property):
                yield f"{name}.{key}"
            elif isinstance(value, types.FunctionType | classmethod | staticmethod):
                yield f"{name}.{key}{_parameters(getattr(thing, key))}"
    else:
        function = isinstance(thing, types.FunctionType)
        yield f"{name}{_parameters(thing)}" if function else name


def _parameters(thing: typing.Any) -> str:
    # Flax gives each of its modules these two.
    module = inspect.isclass(thing) and issubclass(thing, flax.linen.Module)
    own = ("parent", "name") if module else ()
    words, keywords = [], False
    for name, parameter in inspect.signature(thing).parameters.items():
        if name in own:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            words.append("*")
        keywords |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        default = "" if parameter.default is parameter.empty else "="
        words.append(f"{stars.get(parameter.kind, '')}{name}{default}")
    return f"({', '.join(words)})"


def _keys() -> Iterator[str]:
    for section, kind in typing.get_type_hints(RunConfig).items():
        for field in dataclasses.fields(kind):
            has_default = field.default is not dataclasses.MISSING
            default = f"={field.default}" if has_default else ""
            yield f"--config.{section}.{field.name}{default}"


def _commands() -> Iterator[str]:
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(f"jaxformer.cli.{command}").configure(parser)
        options = [
            action.option_strings[-1] if action.option_strings else action.dest
            for action in parser._actions
        ]
        yield f"jaxformer {command} {' '.join(options)}"


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in lines()))
