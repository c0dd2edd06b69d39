"""Every fenced block of the pages: Python runs, the real parsers read command lines,
JSON is JSON.
"""

import json
import re

import jax
import pytest
from command_lines import WrongLineError, check_command, fill_in, read_commands
from pages import Block, all_blocks, read_blocks

import runs
from jaxformer.data.files import read_lines

BLOCKS = all_blocks()
KINDS = {"python", "sh", "console", "text", "json"}

# Names that the blocks of a page use and do not define.
GIVEN = {
    "docs/decoding.md": "import jaxformer as jf\n",
    "docs/evaluation.md": (
        "first, second, references = (['Ein Haus.', 'Das Tor.'] for _ in range(3))\n"
    ),
}
OURS = ("jaxformer ", "make ", "python ", "$ ", ".venv/")


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def check_all(commands: list[list[str]]) -> None:
    for words in commands:
        check_command(words)


def below(block: Block) -> str | None:
    """Return the text right below a block, after an empty line."""
    begin = block.line + block.text.count("\n") + 3
    return next(
        (
            x.text
            for x in BLOCKS
            if (x.page, x.line, x.kind) == (block.page, begin, "text")
        ),
        None,
    )


def of_kind(*kinds: str) -> list[Block]:
    """Return the blocks of these kinds, except parts of examples (test_examples)."""
    return [
        block
        for block in BLOCKS
        if block.kind in kinds and not (block.file and block.kind == "python")
    ]


def test_blocks_are_of_known_kinds():
    """Each block is Python, shell, a session, text or JSON. Only Python may be left
    unrun, for a reason. Only examples and their output name a file.
    """
    assert [where(block) for block in BLOCKS if block.kind not in KINDS] == []
    files = {block.file for block in BLOCKS if block.file}
    assert files == {
        f"docs/examples/{path.name}"
        for path in (runs.ROOT / "docs" / "examples").glob("*.py")
    }
    assert [
        where(block) for block in BLOCKS if block.reason and block.kind != "python"
    ] == []
    assert {block.kind for block in BLOCKS} == KINDS


def test_every_fence_is_read():
    """As many blocks are found as fences open and close."""
    text = (
        "a\n```sh\nmake\n```\n\n<!-- not run: why -->\n```python\nx\n```\n- b\n\n   "
        " ```text\n    y\n    ```\n"
    )
    assert read_blocks("p", text) == [
        Block("p", 3, "sh", "make\n", None),
        Block("p", 8, "python", "x\n", "why"),
        Block("p", 13, "text", "y\n", None),
    ]
    assert read_blocks("p", "no block\n") == []


@pytest.mark.parametrize("block", of_kind("sh"), ids=where)
def test_commands_can_be_typed(block):
    """The parser of its program accepts every command of a shell block: command, flags,
    keys and values exist.
    """
    before = [
        other.text
        for other in of_kind("sh")
        if other.page == block.page and other.line < block.line
    ]
    text = fill_in(block.text, "".join(before))
    found = list(read_commands(text))
    assert found or not text.strip()
    check_all(found)


@pytest.mark.parametrize("block", of_kind("console"), ids=where)
def test_sessions_can_be_typed(block):
    """The parser of its program accepts every command of a session, after its prompt."""
    typed = "".join(re.findall(r"^\$ ((?:.*\\\n)*.*\n)", block.text, re.MULTILINE))
    found = list(read_commands(typed))
    assert found
    check_all(found)


@pytest.mark.parametrize("block", of_kind("text", "json"), ids=where)
def test_shown_output_holds_no_commands(block):
    """Text and data contain no unchecked command; complete JSON is valid."""
    assert [
        line for line in block.text.splitlines() if line.lstrip().startswith(OURS)
    ] == []
    if block.kind == "json" and "..." not in block.text:
        json.loads(block.text)


@pytest.mark.parametrize("block", of_kind("python"), ids=where)
def test_python_compiles(block):
    """Every block of Python is Python."""
    compile(block.text, where(block), "exec")


def pages_that_run() -> list:
    """Return the pages whose Python runs; one that exports a model needs the other
    library.
    """
    blocks = [block for block in of_kind("python") if not block.reason]
    peers = {
        block.page
        for block in blocks
        if "from jaxformer.interop import ctranslate2" in block.text
    }
    pages = sorted({block.page for block in blocks})
    return [
        pytest.param(
            page,
            marks=[
                *[pytest.mark.parity] * (page in peers),
                *[pytest.mark.slow] * (page == "docs/the-paper.md"),
            ],
        )
        for page in pages
    ]


@pytest.mark.parametrize("page", pages_that_run())
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    """The Python of a page runs from top to bottom, without a warning, where the runs
    that it names exist; text right below a block is what the block prints.
    """
    for name in ("quickstart", "mine", "first", "a", "b", "ende", "base"):
        runs.copy(runs.random_run(), tmp_path / "runs" / name)
    lines = "".join(f"{line}\n" for line in runs.sentences(3, longest=20))
    for name in ("test.en", "text.en"):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(runs.ROOT / "docs" / "figures")
    names: dict[str, object] = {}
    exec(GIVEN.get(page, ""), names)
    printed = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in of_kind("python"):
            if block.page == page and not block.reason:
                exec(compile(block.text, where(block), "exec"), names)
                printed[block] = capsys.readouterr().out
    assert len(read_lines(tmp_path / "test.en")) == 3
    shown = {block: text for block in printed if (text := below(block)) is not None}
    assert {where(block): printed[block] for block in shown} == {
        where(block): text for block, text in shown.items()
    }


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (
            "jaxformer trane --config=configs/quickstart.py --workdir=runs/a",
            "invalid choice",
        ),
        ("jaxformer train --config=configs/quickstart.py", "--workdir"),
        (
            "jaxformer train --config=configs/slowstart.py --workdir=runs/a",
            "configs/slowstart.py",
        ),
        ("jaxformer train ... --config.training.stepz=3", "stepz"),
        ("jaxformer train ... --config.training.steps=many", "steps"),
        ("jaxformer translate --workdir=runs/a --beam=4", "--beam"),
        ("jaxformer translate --workdir=runs/a --beam_size=0", "beam_size"),
        ("cat a.en | jaxformer translate --wordir=runs/a > b.de", "--workdir"),
        (
            (
                "for s in --beam_size=1 --bean_size=2; do\n    jaxformer evaluate"
                " --workdir=runs/a $s\ndone"
            ),
            "--bean_size=2",
        ),
        (
            fill_in("jaxformer info $OURS", 'OURS="--workdir=a\n    --wordir=b"\n'),
            "--wordir",
        ),
        ("make quickstop", "quickstop"),
        ("pip install '.[trian]'", "trian"),
        ("python scripts/nothing.py", "scripts/nothing.py"),
        ("python scripts/ablations --output=runs/a --seed=1", "--seed=1"),
        ("python -m no_such_module", "no_such_module"),
        ("perl -e 1", "perl"),
    ],
)
def test_a_planted_mistake_is_found(line, word):
    """An unknown command, flag, key, value, file or target is refused by its name."""
    found = list(read_commands(line))
    with pytest.raises(WrongLineError, match=word):
        check_all(found)


def test_shown_output_is_found():
    """Text right below a block is its output; the page about the paper shows the output
    of each block.
    """
    blocks = of_kind("python")
    assert any(
        below(block) is not None for block in blocks if block.page == "docs/compare.md"
    )
    assert all(below(block) for block in blocks if block.page == "docs/the-paper.md")
    assert [
        where(block)
        for block in of_kind("sh")
        if block.page == "README.md" and below(block) is not None
    ] == []


def test_how_lines_are_read():
    """Comments, redirections, pipes, continued lines, variables and quotes are the
    shell's.
    """
    text = (
        "A=1 make test  # all; of it, don't\necho 'a # b' \"c d\" | head -n 1 > out.txt"
        " && cp a \\\n   b\n# alone\n"
    )
    assert list(read_commands(text)) == [
        ["A=1", "make", "test"],
        ["echo", "a # b", "c d"],
        ["head", "-n", "1"],
        ["cp", "a", "b"],
    ]
