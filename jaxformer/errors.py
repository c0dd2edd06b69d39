"""The one kind of error that a person who uses jaxformer can mend, and the loading of optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType


class InputError(ValueError):
    """Something given to jaxformer is wrong: its one line states the rule, the value and the cure.

    The command line prints it as ``jaxformer: error: ...`` without a traceback; any other exception is a fault of ours.
    """


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
