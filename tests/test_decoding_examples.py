"""``docs/decoding-examples.md``: every option is shown, every command is one, and
the script repeats them.
"""

import argparse
import importlib
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

import runs
from jaxformer.errors import InputError
from jaxformer.translation.translator import Translator

SCRIPT = runs.ROOT / "scripts" / "decoding_examples.py"

WITHOUT_EXAMPLE = {
    "help",
    "output",
    "window",
    "batch_size",
    "tokens_per_batch",
    "target_language",
    "no_unknown",
}
"""Options that say where text goes and how much of it is worked on at a time, that of
runs of several languages, and one against what the page's model never writes.
"""


@pytest.fixture(scope="module")
def script():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("decoding_examples_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["decoding_examples_script"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["decoding_examples_script"]


@pytest.fixture(scope="module")
def page(script) -> str:
    """Return the page."""
    return script.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def commands(script, page) -> list[str]:
    """Return all commands of its examples."""
    return [
        command
        for block in script.BLOCK.findall(page)
        for command in script.commands_of(block)
    ]


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the arguments of a command of jaxformer."""
    parser = argparse.ArgumentParser(name, exit_on_error=False, allow_abbrev=False)
    importlib.import_module(f"jaxformer.cli.{name}").configure(parser)
    return parser


def outputs_of(script, block: str) -> list[tuple[str, str]]:
    """Give each command of a block with what the page says that it prints."""
    return list(
        zip(script.commands_of(block), script.COMMAND.split(block)[1:], strict=True)
    )


def is_ours(script, command: str) -> bool:
    """Return whether jaxformer has a part in a command."""
    return any(stage[0] == "jaxformer" for stage in script.split(command)[0])


def test_every_command_of_the_page_is_one(script, commands):
    """Each program of the page is a command of jaxformer with arguments that it
    takes, or a usual one of a shell.
    """
    stages = [stage for command in commands for stage in script.split(command)[0]]
    ours = [stage for stage in stages if stage[0] == "jaxformer"]
    assert len(ours) > 30
    assert {stage[0] for stage in stages} <= {
        "jaxformer",
        "echo",
        "printf",
        "seq",
        "tr",
        "cut",
        "grep",
        "head",
    }
    for _, name, *arguments in ours:
        parser_of(name).parse_args(arguments)


def test_every_option_of_a_search_has_an_example(commands):
    """The page shows each option of ``jaxformer translate`` that may change what
    comes out.
    """
    options = set(
        re.findall(
            r"--(\w+)", parser_of("translate").format_help().partition("examples:")[0]
        )
    )
    shown = set(re.findall(r"--(\w+)", "\n".join(commands)))
    assert options - shown == WITHOUT_EXAMPLE


def test_options_change_what_they_are_shown_to_change(script, page):
    """Each command of jaxformer in a block prints something, and the first something
    else than all that follow it.
    """
    for block in script.BLOCK.findall(page):
        printed = [
            output
            for command, output in outputs_of(script, block)
            if is_ours(script, command) and script.split(command)[1] is None
        ]
        assert printed
        assert "" not in printed
        assert printed[0] not in printed[1:], block


def test_the_page_is_a_fixed_point_of_its_form(script, page):
    """Commands and outputs put together again are the page: none of it is lost when
    the script writes it.
    """
    blocks = script.BLOCK.findall(page)
    assert len(blocks) == page.count("```console")
    for block in blocks:
        assert (
            "".join(
                f"$ {command}\n{output}"
                for command, output in outputs_of(script, block)
            )
            == block
        )


@pytest.mark.parametrize(
    ("command", "stages", "target"),
    [
        ("echo 'a | b > c'", [["echo", "a | b > c"]], None),
        (
            "echo a | jaxformer translate --workdir=x",
            [["echo", "a"], ["jaxformer", "translate", "--workdir=x"]],
            None,
        ),
        ("cat x.en \\\n    y.en > z", [["cat", "x.en", "y.en"]], Path("z")),
        (r"printf '1\t2\n'>z", [["printf", r"1\t2\n"]], Path("z")),
    ],
)
def test_the_words_of_a_command(script, command, stages, target):
    """Quotes hold words together, a backslash at the end of a line goes on, and a
    file comes last.
    """
    assert script.split(command) == (stages, target)


def test_a_page_is_played_again(script, tmp_path, monkeypatch):
    """Examples print what their commands print; what is no example stays, and a
    second time changes nothing.
    """
    sentence = runs.sentences(1)[0]
    expected = Translator.load(runs.random_run()).translate([sentence], beam_size=2)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(runs.random_run())
    translate = "jaxformer translate \\\n      --workdir=run --beam_size=2"
    page = (
        "# Page\n\n```sh\n$ no example\n```\n\n```console\n$ printf '1\\n2\\n' | cut"
        f" -c 1 | tr 2 3\nold\nolder\n$ echo {shlex.quote(sentence)} > text\n$ cat text"
        f" | {translate}\n```\nend\n"
    )
    played = script.replay(page)
    assert played == page.replace("old\nolder\n", "1\n3\n").replace(
        f"{translate}\n", f"{translate}\n{expected}\n"
    )
    assert script.replay(played) == played


def test_a_failure_is_printed_as_it_is(script):
    """What a command says on standard error is shown with what it prints."""
    printed = script.run("jaxformer translate --workdir=none")
    assert printed.startswith("jaxformer: error: none/config.json does not exist")


def test_a_file_and_a_pipe_get_what_is_printed_alone(script, tmp_path, monkeypatch):
    """As in a shell: what a command says on standard error is shown, whatever
    becomes of its output.
    """
    monkeypatch.chdir(tmp_path)
    for rest in ("> text", "| cat", "| cat > text"):
        said = script.run(f"jaxformer translate --workdir=none {rest}")
        assert said.startswith("jaxformer: error: none/config.json does not exist"), (
            rest
        )
        assert said.count("\n") == 1
    assert (tmp_path / "text").read_bytes() == b""


def test_a_missing_run_is_refused(script, tmp_path):
    """Without the run of the quickstart one line says how to make it."""
    with (
        pytest.raises(InputError, match="make quickstart"),
        script.working_copy(tmp_path),
    ):
        pass


@pytest.mark.parametrize("name", ["train", "decoding-examples"])
def test_links_lead_to_files_and_headings(name):
    """Every relative link of the pages leads to a file, and what follows # to a
    heading of it.
    """
    path = runs.ROOT / "docs" / f"{name}.md"
    for link in re.findall(
        r"\]\((?!https:)([^)]+)\)", path.read_text(encoding="utf-8")
    ):
        file, _, heading = link.partition("#")
        leads = path.parent / file if file else path
        assert leads.exists(), link
        titles = (
            re.findall(r"^#+ (.*)$", leads.read_text(encoding="utf-8"), re.MULTILINE)
            if heading
            else ()
        )
        assert heading in {
            "",
            *(
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
                for title in titles
            ),
        }, link


def test_commands_of_the_walk_are_commands():
    """Each command of jaxformer in the walk through training takes its arguments."""
    text = (runs.ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^(?:\$ )?(?:.* \| )?(jaxformer (?:.*\\\n)*.*)$", text, re.MULTILINE
    )
    assert len(found) > 5
    for command in found:
        _, name, *arguments = shlex.split(command.replace("\\\n", ""), comments=True)
        parser_of(name).parse_args(
            [argument for argument in arguments if not argument.startswith("--config.")]
        )
