"""Keys of the configuration declare the ranges and choices that they are checked by."""

from __future__ import annotations

import dataclasses
import math

import pytest

from jaxformer.errors import InputError, check_keys, key


@dataclasses.dataclass
class Section:
    steps: int = key(10, least=1, most=10**9)
    rate: float = key(0.1, least=0, below=1)
    scale: float = key(1.0, above=0, most=1e30, changes="speed", may_change=True)
    limit: int | None = key(None, least=8)
    engine: str = key("auto", choices=("auto", "mesh"))
    name: str = "free"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("steps", 0, "at least 1, not 0"),
        ("steps", 10**9 + 1, "at most 1,000,000,000, not 1000000001"),
        ("steps", 2.5, "a whole number, not 2.5"),
        ("rate", -0.1, "at least 0, not -0.1"),
        ("rate", 1.0, "below 1, not 1.0"),
        ("rate", math.nan, "at least 0, not nan"),
        ("scale", 0, "above 0, not 0"),
        ("scale", math.inf, r"at most 1e\+30, not inf"),
        ("limit", 7, "at least 8, or None, not 7"),
        ("engine", "fast", "one of auto, mesh, not 'fast'"),
    ],
)
def test_a_value_that_breaks_its_keys_rule_is_refused(name, value, rule):
    """The error names the key, the rule and the value."""
    with pytest.raises(InputError, match=rf"^section\.{name} must be {rule}$"):
        check_keys("section", Section(**{name: value}))


def test_values_at_their_bounds_and_none_are_allowed():
    """A field that is no declared key has no rule."""
    check_keys("section", Section())
    check_keys("section", Section(steps=1, rate=0, limit=8, engine="mesh", name=""))
