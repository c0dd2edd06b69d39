"""The README leads to what is there, and is short."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_to_files():
    """Every picture and relative link of the README exists."""
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not link.startswith("https://")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_nothing_is_left_to_fill_in():
    """No placeholder is left, and the page stays under 250 lines."""
    assert not re.search(r"@[A-Z]+@|TODO|TBD", TEXT)
    assert TEXT.count("\n") < 250


def test_the_configurations_named_exist():
    """Every configuration and script that the README names exists."""
    names = set(re.findall(r"(?:configs|scripts)/[\w/]+\.py", TEXT))
    names |= set(re.findall(r"configs/\w+/(?!\w)", TEXT))
    assert len(names) >= 6
    assert [name for name in names if not (ROOT / name).exists()] == []
