import dataclasses
import re
from pathlib import Path

import pytest

from jaxformer.data.config import DataConfig
from jaxformer.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_model": "words"}, "vocabulary_model must be one of bpe, unigram"),
        ({"source_language": " "}, "source_language is empty"),
        ({"target_language": "../de"}, "target_language='../de': the code of a"),
        (
            {"source_language": "de"},
            "source_language and data.target_language are both",
        ),
        (
            {"source_vocabulary_size": 500},
            "source_vocabulary_size=500 needs data.shared",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_key(options, message):
    with pytest.raises(InputError, match=rf"^data\.{message}") as error:
        DataConfig(**options)
    assert "\n" not in str(error.value)
    DataConfig(shared_vocabulary=False, source_vocabulary_size=500)


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
