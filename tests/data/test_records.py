import doctest
import importlib
from pathlib import Path

import pytest

from jaxformer import data
from jaxformer.data.records import pair_of
from jaxformer.errors import InputError


def test_bytes_and_languages():
    """Fields at the top are preferred. What is not UTF-8 is refused, not replaced."""
    record = {"translation": {"en": b"", "de": "b"}, "de": "ü\u2028".encode()}
    assert pair_of(record, ("en", "de"), "x") == ("", "b")
    assert pair_of({**record, "en": "a"}, ("de", "en"), "x") == ("ü\u2028", "a")
    for wrong in (b"\xfc", "\ud800"):
        with pytest.raises(
            InputError, match=r"^line 1: field 'en' is not UTF-8 \(.*\);"
        ):
            pair_of({"en": wrong, "de": ""}, ("en", "de"), "line 1")


def test_the_examples_of_the_docstrings():
    """Of every module of the room."""
    for path in Path(data.__file__).parent.glob("*.py"):
        if ">>> " in path.read_text(encoding="utf-8"):
            module = importlib.import_module(f"jaxformer.data.{path.stem}")
            assert doctest.testmod(module).failed == 0, module
