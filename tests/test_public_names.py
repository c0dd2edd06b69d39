"""The public names are those of ``public_names.txt``: a change is seen, and meant."""

from pathlib import Path

import public_names

STORED = Path(__file__).with_name("public_names.txt")


def test_public_names_are_those_that_are_promised():
    """Names, parameters, configuration keys with their defaults, commands and options
    are as they are stored.

    What is new or gone on purpose: ``python tests/public_names.py >
    tests/public_names.txt``, and a line in CHANGELOG.md; what was released keeps
    working for one more release, as its section on compatibility says.
    """
    found, stored = (
        public_names.lines(),
        STORED.read_text(encoding="utf-8").splitlines(),
    )
    assert {
        "new": sorted(set(found) - set(stored)),
        "gone": sorted(set(stored) - set(found)),
    } == {"new": [], "gone": []}
    assert found == stored


def test_names_are_told_by_their_parameters():
    """A parameter that comes, goes, or loses its default changes the line of its
    name.
    """

    def first(a, /, b, *, c, d=None):
        pass

    def second(a, *rest, b=1, **options):
        pass

    assert public_names._parameters(first) == "(a, b, *, c, d=)"
    assert public_names._parameters(second) == "(a, *rest, b=, **options)"
