import dataclasses
import re
from pathlib import Path

import pytest

from jaxformer.data import DataConfig
from jaxformer.errors import InputError
from jaxformer.runs.config import parse


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocabulary_size", 0),
        ("vocabulary_model", "words"),
        ("train", ""),
        ("source_language", " "),
    ],
)
def test_a_wrong_value_is_named_with_its_key(key, value):
    with pytest.raises(InputError, match=rf"^data\.{key} ") as error:
        DataConfig(**{key: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocabulary_size", "8000"),
        ("vocabulary_size", True),
        ("source_vocabulary_size", 1.5),
        ("shared_vocabulary", 1),
        ("test", None),
    ],
)
def test_a_value_of_another_type_is_refused_where_a_configuration_is_read(key, value):
    with pytest.raises(InputError, match=rf"^data\.{key} must be of type "):
        parse({"data": {key: value}})


def test_keys_that_do_not_fit_together_are_refused():
    config = DataConfig(shared_vocabulary=False, source_vocabulary_size=500)
    assert config.source_vocabulary_size == 500
    message = r"data\.source_vocabulary_size=500 needs data\.shared_vocabulary=False"
    with pytest.raises(InputError, match=message):
        DataConfig(source_vocabulary_size=500)
    with pytest.raises(InputError, match=r"data\.source_language"):
        DataConfig(source_language="de")


def test_the_documentation_has_every_key():
    """With its default, and whether a prepared folder has its own value."""
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    table = text.split("## All keys")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`( P)? \| `?([^|`]+?)`? \| .+ \|$", table, re.M)
    fixed = set(DataConfig().request) - {"train", "max_length"}
    assert rows == [
        (field.name, " P" if field.name in fixed else "", str(field.default))
        for field in dataclasses.fields(DataConfig)
    ]
