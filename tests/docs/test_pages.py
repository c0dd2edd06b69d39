"""Links of the pages lead to files, and the README is short."""

import re

import pytest
from pages import NAMES, ROOT, WIDEST, all_blocks

WITHOUT_BLOCKS = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_page_names_exists(name):
    """Pictures, relative links as a code host resolves them, configurations and
    scripts, but for those of another commit (COMMIT:PATH); no placeholder is left.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", WITHOUT_BLOCKS.sub("", text))
    links = [link.split("#")[0] for link in links if not re.match("https?://", link)]
    links = set(links) - {"", "changelog.md"}  # made by docs/_site/pages.py
    folder = (ROOT / name).parent
    assert [link for link in links if not (folder / link).exists()] == []
    assert not re.search(r"@[A-Z]+@|TODO|TBD", text)
    path = (
        r"(?<![\w/.:])((?:configs|scripts)/[\w/]+\.(?:py|sh|sbatch)|configs/\w+/(?!\w))"
    )
    assert [one for one in re.findall(path, text) if not (ROOT / one).exists()] == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 60
    assert text.count("](") > 10


def test_no_code_scrolls_sideways():
    """Lines of code fit a window of 1,300 pixels."""
    lines = [line for block in all_blocks() for line in block.text.splitlines()]
    assert [line for line in lines if len(line.expandtabs()) > WIDEST] == []
