"""Links of the pages lead to files, and the README is short."""

import re

import pytest
from pages import NAMES, ROOT, WIDEST, all_blocks

WITHOUT_BLOCKS = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name):
    """Every picture and relative link of a page exists, as a code host resolves it."""
    folder = (ROOT / name).parent
    text = WITHOUT_BLOCKS.sub("", (ROOT / name).read_text(encoding="utf-8"))
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    relative = [
        link for link in links if link and not link.startswith(("https://", "http://"))
    ]
    made = {"changelog.md"}  # by docs/_site/pages.py
    assert [
        link for link in relative if link not in made and not (folder / link).exists()
    ] == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_to_fill_in(name):
    """No placeholder is left, and the configurations and scripts that a page names
    exist.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"@[A-Z]+@|TODO|TBD", text)
    named = set(
        re.findall(r"(?<![\w/.])(?:configs|scripts)/[\w/]+\.(?:py|sh|sbatch)", text)
    )
    named |= set(re.findall(r"(?<![\w/.])configs/\w+/(?!\w)", text))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_is_short():
    """The README has at most 60 lines and more than ten links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 60
    assert text.count("](") > 10


def test_no_code_scrolls_sideways():
    """Lines of code fit a window of 1,300 pixels."""
    wide = [
        f"{block.page}:{block.line + number}"
        for block in all_blocks()
        for number, line in enumerate(block.text.splitlines())
        if len(line.expandtabs()) > WIDEST
    ]
    assert wide == []
