import doctest
import importlib
from pathlib import Path

import pytest

from jaxformer import data
from jaxformer.data.records import did_you_mean, pair_of
from jaxformer.errors import InputError


def test_the_languages_choose_the_direction():
    for record in (
        {"de": "a", "x": 1, "en": "b"},
        {"translation": {"en": "b", "de": "a"}, "de": "no"},
    ):
        assert pair_of(record, "en", "de") == ("b", "a")
        assert pair_of(record, "de", "en") == ("a", "b")


def test_a_language_may_be_called_translation():
    """Fields at the top are preferred."""
    assert pair_of({"en": "a", "translation": "b"}, "en", "translation") == ("a", "b")


def test_bytes_are_utf8():
    """What is not UTF-8 is refused and never replaced."""
    assert pair_of({"en": "ü\u2028".encode(), "de": b""}, "en", "de") == ("ü\u2028", "")
    message = r"field 'en' is not UTF-8 \(invalid start byte\)"
    with pytest.raises(InputError, match=message):
        pair_of({"en": b"\xfc", "de": b""}, "en", "de")


def test_only_near_names_are_proposed():
    names = ["wmt14", "wmt14/full"]
    assert did_you_mean("wmt14/ful", names) == "; did you mean wmt14/full?"
    assert did_you_mean("quite different", names) == did_you_mean("a", []) == ""


def test_the_examples_of_the_docstrings():
    """Of every module of the room."""
    for path in Path(data.__file__).parent.glob("*.py"):
        if ">>> " in path.read_text(encoding="utf-8"):
            module = importlib.import_module(f"jaxformer.data.{path.stem}")
            assert doctest.testmod(module).failed == 0, module
