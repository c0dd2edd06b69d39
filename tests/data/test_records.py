import doctest
import importlib
from pathlib import Path

import pytest

from jaxformer import data
from jaxformer.data.records import did_you_mean, pair_of
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


def test_a_field_has_any_code_of_its_language():
    """Its own first; at the top or under ``translation``; a script that differs is
    another language.
    """
    codes = ("eng_Latn", "zho_Hans")
    record = {"translation": {"en": "a", "zh": "b"}, "id": 7}
    assert pair_of(record, codes, "x") == ("a", "b")
    assert pair_of({**record, "en_XX": "c", "zh_CN": "d"}, codes, "x") == ("c", "d")
    with pytest.raises(InputError, match="no language 'zho_Hant': the fields are en"):
        pair_of(record, ("eng_Latn", "zho_Hant"), "x")


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
