"""Every fenced block of the pages: Python is run, command lines are read by the real
parsers, data are data.
"""

import json
import subprocess
import sys

import pytest
from command_lines import WrongLineError, check_command, fill_in, read_commands
from pages import Block, all_blocks, read_blocks

import runs
from jaxformer.data.files import read_lines

BLOCKS = all_blocks()
KINDS = {"python", "sh", "console", "text", "json"}

# What a page takes for granted, beyond what its own earlier blocks define.
GIVEN = {
    "docs/decoding.md": "import jaxformer as jf\n",
    "docs/evaluation.md": (
        "first, second, references = (['Ein Haus.', 'Das Tor.'] for _ in range(3))\n"
    ),
}
END = "-- end of block --"
OURS = ("jaxformer ", "make ", "python ", "$ ", ".venv/")


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def check_all(commands: list[list[str]]) -> None:
    for words in commands:
        check_command(words)


def below(block: Block) -> str | None:
    """Return the text that a page shows right below a block, with nothing but an empty
    line between.
    """
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
    """Return the blocks of these kinds but parts of files, which are tested as a whole
    (test_examples).
    """
    return [
        block
        for block in BLOCKS
        if block.kind in kinds and not (block.file and block.kind == "python")
    ]


def test_blocks_are_of_known_kinds():
    """No block is passed over: each is Python, shell, a session, text or JSON; only
    Python may be left unrun, for a reason, and only examples of Python and their output
    are parts of files.
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
    """Every command of a shell block is one that the program named reads: command,
    flags, keys and values exist.
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
    """Every command of a session, behind its prompt, is one that the program named
    reads.
    """
    typed = "".join(
        line.removeprefix("$ ")
        for line in block.text.splitlines(keepends=True)
        if line.startswith("$ ")
    )
    found = list(read_commands(typed))
    assert found
    check_all(found)


@pytest.mark.parametrize("block", of_kind("text", "json"), ids=where)
def test_shown_output_holds_no_commands(block):
    """What a page shows as text or data is no command that would stay unchecked;
    JSON that is whole can be read.
    """
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
    """Return the pages whose Python runs; one that writes a model for another library
    needs that library.
    """
    blocks = [block for block in of_kind("python") if not block.reason]
    peers = {
        block.page
        for block in blocks
        if "from jaxformer.interop import ctranslate2" in block.text
    }
    pages = sorted({block.page for block in blocks})
    return [
        pytest.param(page, marks=[pytest.mark.parity] * (page in peers))
        for page in pages
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_that_run())
def test_python_runs(page, tmp_path):
    """The Python of a page runs from top to bottom, without a warning, where the runs
    that it names are there; what the page shows right below a block is what the block
    prints.
    """
    for name in ("quickstart", "mine", "first", "a", "b", "ende", "base"):
        runs.copy(runs.random_run(), tmp_path / "runs" / name)
    lines = "".join(f"{line}\n" for line in runs.sentences(3, longest=20))
    for name in ("test.en", "text.en"):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    blocks = [
        block
        for block in BLOCKS
        if block.page == page and block.kind == "python" and not block.reason
    ]
    program = "\n".join(
        [GIVEN.get(page, ""), *(f"{block.text}\nprint({END!r})" for block in blocks)]
    )
    folders = runs.ROOT, runs.ROOT / "docs" / "figures"
    environment = {**runs.environment(), "PYTHONPATH": ":".join(map(str, folders))}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program],
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert len(read_lines(tmp_path / "test.en")) == 3
    *printed, rest = done.stdout.decode().split(f"{END}\n")
    assert (len(printed), rest) == (len(blocks), "")
    shown = {
        block: text
        for block, text in zip(blocks, printed, strict=True)
        if below(block) is not None
    }
    assert {where(block): text for block, text in shown.items()} == {
        where(block): below(block) for block in shown
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
    """A command that does not exist, a flag, a key, a value, a file, a target: each
    is refused by its name.
    """
    found = list(read_commands(line))
    with pytest.raises(WrongLineError, match=word):
        check_all(found)


def test_shown_output_is_found():
    """What stands right below a block belongs to it; the page about the paper shows
    what each of its blocks prints.
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
    """Comments, redirections, pipes, continued lines, variables and quotation marks
    are the shell's.
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
