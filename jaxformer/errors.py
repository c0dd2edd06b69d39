"""The one kind of error that a person who uses jaxformer can mend, and the loading
of optional packages.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType


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
    """One of many texts is wrong. Whoever knows which file it is a line of says so
    by :meth:`within`.
    """

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


def check_most(values: object, most: Mapping[str, float], prefix: str = "") -> None:
    """Refuse numbers above a bound. None has no bound.

    Args:
        values: has each number as an attribute.
        most: the greatest value allowed of each attribute.
        prefix: before the name of an attribute in the error, such as ``model.``.

    Raises:
        InputError: a number is above its bound.
    """
    for name, bound in most.items():
        value = getattr(values, name)
        if value is not None and value > bound:
            # Python writes no integer of more than 4,300 digits.
            digits = (
                int(value.bit_length() * 0.30103) + 1 if isinstance(value, int) else 0
            )
            shown = f"a number of {digits:,} digits" if digits > 30 else value
            raise InputError(f"{prefix}{name} must be at most {bound:,}, not {shown}")


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
