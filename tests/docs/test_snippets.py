"""Every fenced block of the pages: Python runs, the real parsers read command lines."""

import re

import jax
import pytest
from command_lines import check_command, fill_in, read_commands
from pages import all_blocks

import runs
from jaxformer.data.files import read_lines

BLOCKS = all_blocks()
KINDS = {"python", "sh", "console", "text"}

# Names that the blocks of a page use and do not define.
GIVEN = {
    "docs/decoding.md": "import jaxformer as jf\n",
    "docs/evaluation.md": (
        "first, second, references = (['Ein Haus.', 'Das Tor.'] for _ in range(3))\n"
    ),
}
OURS = ("jaxformer ", "make ", "python ", "$ ", ".venv/")


def where(block):
    return f"{block.page}:{block.line}"


def check_all(text):
    """Check every command of a text, and return them."""
    found = list(read_commands(text))
    for words in found:
        check_command(words)
    return found


def below(block):
    """Return the text right below a block, after an empty line."""
    place = (block.page, block.line + block.text.count("\n") + 3, "text")
    return next((x.text for x in BLOCKS if (x.page, x.line, x.kind) == place), None)


def of_kind(*kinds):
    """Return the blocks of these kinds, except parts of other files (test_examples)."""
    blocks = [block for block in BLOCKS if block.kind in kinds]
    return [block for block in blocks if not (block.file and block.kind == "python")]


def test_blocks_are_of_known_kinds():
    """Only Python may be left unrun, for a reason. Only examples, their output and
    included code have a title.
    """
    assert {block.kind for block in BLOCKS} == KINDS
    examples = (runs.ROOT / "docs" / "examples").glob("*.py")
    names = {f"docs/examples/{path.name}" for path in examples}
    assert {block.file for block in BLOCKS if "/" in (block.file or "")} == names
    assert {block.kind for block in BLOCKS if block.reason} <= {"python"}


PAGES = sorted({block.page for block in BLOCKS})


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_they_say(page):
    """The parser of its program accepts every command of a shell block or a session.
    Other text holds no command, and Python compiles.
    """
    before = ""
    for block in (block for block in BLOCKS if block.page == page):
        if block.kind == "sh":
            text = fill_in(block.text, before)
            assert check_all(text) or not text.strip()
            before += block.text
        elif block.kind == "console":
            typed = re.findall(r"^\$ ((?:.*\\\n)*.*\n)", block.text, re.MULTILINE)
            assert check_all("".join(typed)), where(block)
        elif block.kind == "python":
            if block.file:  # a part of it
                continue
            compile(block.text, where(block), "exec")
        else:
            lines = block.text.splitlines()
            assert [line for line in lines if line.lstrip().startswith(OURS)] == []


SLOW = [f"docs/{name}.md" for name in ("decoding", "families", "reuse")]
SLOW += ["docs/the-paper.md", "docs/the-paper-by-hand.md"]


def pages_that_run():
    """Return the pages whose Python runs."""
    blocks = [block for block in of_kind("python") if not block.reason]
    for page in sorted({block.page for block in blocks}):
        yield pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW))


@pytest.mark.parametrize("page", [*pages_that_run()])
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    """From top to bottom, without a warning, where the runs that it names exist; text
    right below a block is what the block prints.
    """
    for name in ("quickstart", "mine", "first", "a", "b", "ende", "base"):
        runs.copy(runs.random_run(), tmp_path / "runs" / name)
    lines = "".join(f"{line}\n" for line in runs.sentences(3, longest=20))
    for name in ("test.en", "text.en"):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(runs.ROOT / "docs" / "figures")
    names = {}
    exec(GIVEN.get(page, ""), names)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in of_kind("python"):
            if block.page == page and not block.reason:
                exec(compile(block.text, where(block), "exec"), names)
                printed = capsys.readouterr().out
                assert below(block) in (None, printed), where(block)
    assert len(read_lines(tmp_path / "test.en")) == 3


def test_shown_output_is_found():
    """The pages about the paper show the output of each block."""
    blocks = of_kind("python")
    assert any(below(block) for block in blocks if block.page == "docs/compare.md")
    assert all(below(block) for block in blocks if "/the-paper" in block.page)
