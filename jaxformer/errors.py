"""The one kind of error that a person who uses jaxformer can mend, and the loading of optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """Something given to jaxformer is wrong: its one line states the rule, the value and the cure.

    The command line prints it as ``jaxformer: error: ...`` without a traceback; any other exception is a fault of ours.
    """


class LineError(InputError):
    """One of many texts is wrong. Whoever knows which file it is a line of says so by :meth:`within`."""

    def __init__(self, message: str, *, kind: str, number: int, fault: str) -> None:
        """Word it for a caller who has no file.

        Args:
            message: the rule, the value and the cure, with the number of the text.
            kind: of the texts: ``source``, ``target``, ``prefixes`` or ``required``.
            number: of the text, counted from 1.
            fault: the rest of a sentence that begins with the line, such as "has 300 tokens: split it".
        """
        super().__init__(message)
        self.kind, self.number, self.fault = kind, number, fault

    def within(self, name: str) -> InputError:
        """Word it for a reader of the file of this name."""
        return InputError(f"{name}, line {self.number} {self.fault}")


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
            f"this needs the package {package}, which is not installed: pip install 'jaxformer[{extra}]'"
        ) from None
