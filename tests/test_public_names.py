"""Public names are written down in ``public_names.txt``, and documented."""

import re
from pathlib import Path

import public_names

STORED = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8")
ROOT = Path(__file__).parents[1]
MOST = 130


def test_public_names_are_those_that_are_promised():
    """Names, keys with their defaults, and commands with their options are as they are
    written.

    What was released keeps working for one more release, as CHANGELOG.md says under
    "Compatibility".
    """
    parts = [part.strip().splitlines()[1:] for part in STORED.split("\n\n")]
    found = public_names.names(), public_names.keys(), public_names.commands()
    for part, expected in zip(found, parts, strict=True):
        new, gone = sorted({*part} - {*expected}), sorted({*expected} - {*part})
        assert {"new": new, "gone": gone} == {"new": [], "gone": []}
        assert part == expected


def test_public_names_are_few_and_used():
    """Each is in README, docs/reuse.md or an example."""
    names = {name.split(".")[-1] for name in public_names.names()}
    pages = ROOT / "README.md", ROOT / "docs" / "reuse.md"
    texts = [*pages, *(ROOT / "docs" / "examples").glob("*.py")]
    words = {
        word
        for path in texts
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    assert names - words == set()
    assert len(names) <= MOST
