"""Pairs of sentences and what the tests of outside data sets do with them."""

import os
import subprocess
import sys

import pytest

from jaxformer.data import load
from jaxformer.errors import InputError

CODES = ("de", "en")


def texts(count):
    """Make pairs with characters that other tools take for ends of lines."""
    return [
        (f"Satz {n} über\u2028Äpfel", f"sentence {n}\x85 on apples")
        for n in range(count)
    ]


def refuse(name, message, languages=CODES):
    """A data set is refused in one line."""
    with pytest.raises(InputError, match=message) as error:
        list(load(name, *languages))
    assert "\n" not in str(error.value)


def run(code, **environment):
    """Run a program in a process of its own, as variables that packages read at
    import need it.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "error", **environment}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found
