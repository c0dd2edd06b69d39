"""The one kind of error that a user of jaxformer can mend, the checks of configuration
keys, and the import of optional packages.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import numbers
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")


class InputError(ValueError):
    """Something given to jaxformer is wrong: its one line states the rule, the value
    and the cure.

    The command line prints it as ``jaxformer: error: ...`` without a traceback; any
    other exception is a fault of ours.
    """


class UsageError(InputError):
    """An option of a command has a value that it never takes, or two options contradict
    each other.

    The command line ends with 2, as for an unknown option; for any other
    :class:`InputError` with 1.
    """


class LineError(InputError):
    """One of many texts is wrong; :meth:`within` adds the file that it is a line of."""

    def __init__(self, message: str, *, kind: str, number: int, fault: str) -> None:
        """Word it for a caller who has no file.

        Args:
            message: the rule, the value and the cure, with the number of the text.
            kind: of the texts: ``source``, ``target``, ``prefixes`` or ``required``.
            number: of the text, counted from 1.
            fault: the rest of a sentence that begins with the line, such as "has 300
                tokens: split it".
        """
        super().__init__(message)
        self.kind, self.number, self.fault = kind, number, fault

    def within(self, name: str) -> InputError:
        """Word it for a reader of the file of this name."""
        return InputError(f"{name}, line {self.number} {self.fault}")


class LongSourceWarning(UserWarning):
    """Sources are longer than those that a model was trained on; see
    :class:`~jaxformer.translation.results.LongSources`.
    """


def key(
    default: Value,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Collection[str | bool] | None = None,
    changes: Literal["tokens", "result", "speed"] = "result",
    may_change: bool = False,
    flag: str = "",
    help: str = "",
) -> Value:
    """Declare a key of the configuration: a field of a section's dataclass with what
    is known about it.

    Args:
        default: its default value.
        least: the least value allowed.
        above: a bound that the value must exceed.
        most: the greatest value allowed.
        below: a bound that the value must stay under.
        choices: the only values allowed.
        changes: what another value changes: the tokens that a text becomes, the result,
            or only speed and memory (and the result by rounding).
        may_change: whether a resumed run may have another value than before.
        flag: the letter or word that stands for the value in the help of the command
            line, for a key that is a flag there.
        help: the help of that flag; empty: the key is no flag.

    Example:
        >>> @dataclasses.dataclass
        ... class Section:
        ...     rate: float = key(0.1, least=0, below=1)
        ...     def __post_init__(self):
        ...         check_keys("section", self)
        >>> Section(rate=1)
        Traceback (most recent call last):
        jaxformer.errors.InputError: section.rate must be below 1, not 1
    """
    return dataclasses.field(default=default, metadata=locals())


def check_keys(section: str, instance: DataclassInstance) -> None:
    """Check that each value keeps to what :func:`key` declares. None is always allowed.

    Args:
        section: the name before each key in an error, such as ``model``.
        instance: the section; values of type ``int`` must be whole numbers.

    Raises:
        InputError: a value out of range, a fraction of a whole number, or not one of
            the choices.
    """
    for field in dataclasses.fields(instance):
        value, facts = getattr(instance, field.name), field.metadata
        if value is None:
            continue
        if str(field.type).startswith("int") and not isinstance(
            value, numbers.Integral
        ):
            rule = "a whole number"
        else:
            rule = _broken_rule(value, facts)
        if rule:
            rule += ", or None" if field.default is None else ""
            raise InputError(f"{section}.{field.name} must be {rule}, not {value!r}")


_BOUNDS = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


def _broken_rule(value: Any, facts: Mapping[str, Any]) -> str | None:
    """Return the first rule that a value breaks. NaN breaks every bound."""
    choices = facts.get("choices")
    if choices is not None and value not in choices:
        return f"one of {', '.join(map(str, choices))}"
    for name, (holds, words) in _BOUNDS.items():
        bound = facts.get(name)
        if bound is not None and not holds(value, bound):
            return f"{words} {bound:,}"
    return None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the question that ends an error if one of the names is near, else "".

    Example:
        >>> did_you_mean("wmt41", ["wmt13", "wmt14"])
        '; did you mean wmt14?'
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    line = next(iter(str(error).strip().splitlines()), "").rstrip(".: ")
    return line or type(error).__name__


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build ``__getattr__`` and ``__dir__`` of a package whose public names load their
    modules when they are first used.

    Args:
        package: its ``__name__``.
        modules: the public names of each of its modules, separated by spaces.
    """
    homes = {name: home for home, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        loaded = vars(sys.modules[package])
        return sorted({*loaded, *loaded["__all__"]})

    return load, names


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Raises:
        InputError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, and something that it needs is not
        package = module.split(".")[0]
        raise InputError(
            f"this needs the package {package}, which is not installed: pip install"
            f" 'jaxformer[{extra}]'"
        ) from None


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def escape_controls(text: str) -> str:
    r"""Escape the control characters of a text for a terminal, as JSON does.

    Tabs and line ends stay, and JSON stays the same JSON.

    Example:
        >>> print(escape_controls("\x1b[2Jred\x9b"))
        \u001b[2Jred\u009b
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
