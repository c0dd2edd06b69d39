"""``docs/decoding-examples.md`` shows every option, and the script repeats it."""

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
# Where text goes, how much of it is worked on at a time, languages, and what the
# page's model never writes.
WITHOUT_EXAMPLE = {"help", "output", "window", "batch_size", "tokens_per_batch"}
WITHOUT_EXAMPLE |= {"target_language", "no_unknown"}
SHELL = {"echo", "printf", "seq", "tr", "cut", "grep", "head"}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("decoding_examples_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["decoding_examples_script"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["decoding_examples_script"]


def parser_of(name):
    parser = argparse.ArgumentParser(name, exit_on_error=False, allow_abbrev=False)
    importlib.import_module(f"jaxformer.cli.{name}").configure(parser)
    return parser


def test_the_page_has_valid_commands_and_shows_every_option(script):
    """Each option of ``jaxformer translate`` that may change what comes out is shown.
    Each block prints something, first something other than after it. Commands and
    outputs put together again are the page.
    """
    page = script.PAGE.read_text(encoding="utf-8")
    blocks, commands = script.BLOCK.findall(page), []
    assert len(blocks) == page.count("```console")
    for block in blocks:
        own = script.commands_of(block)
        outputs = list(zip(own, script.COMMAND.split(block)[1:], strict=True))
        assert "".join(f"$ {command}\n{output}" for command, output in outputs) == block
        printed = [
            output
            for command, output in outputs
            for stages, target in [script.split(command)]
            if target is None and any(stage[0] == "jaxformer" for stage in stages)
        ]
        assert printed
        assert "" not in printed
        assert printed[0] not in printed[1:], block
        commands += own
    stages = [stage for command in commands for stage in script.split(command)[0]]
    ours = [stage for stage in stages if stage[0] == "jaxformer"]
    assert len(ours) > 30
    assert {stage[0] for stage in stages} <= {"jaxformer", *SHELL}
    for _, name, *arguments in ours:
        parser_of(name).parse_args(arguments)
    text = parser_of("translate").format_help().partition("examples:")[0]
    shown = set(re.findall(r"--(\w+)", "\n".join(commands)))
    assert set(re.findall(r"--(\w+)", text)) - shown == WITHOUT_EXAMPLE


@pytest.mark.parametrize(
    ("command", "stages", "target"),
    [
        ("echo 'a | b > c'", [["echo", "a | b > c"]], None),
        ("echo a | tr --x=y", [["echo", "a"], ["tr", "--x=y"]], None),
        ("cat x.en \\\n    y.en > z", [["cat", "x.en", "y.en"]], Path("z")),
        (r"printf '1\t2\n'>z", [["printf", r"1\t2\n"]], Path("z")),
    ],
)
def test_the_words_of_a_command(script, command, stages, target):
    assert script.split(command) == (stages, target)


def test_a_page_is_replayed(script, tmp_path, monkeypatch):
    """Examples print what their commands print; other blocks stay, and a second time
    changes nothing.
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
    replayed = script.replay(page)
    assert replayed == page.replace("old\nolder\n", "1\n3\n").replace(
        f"{translate}\n", f"{translate}\n{expected}\n"
    )
    assert script.replay(replayed) == replayed


def test_failures_are_shown(script, tmp_path, monkeypatch):
    """Standard error is printed wherever the output goes, as in a shell. Without the
    run of the quickstart one line says how to make it.
    """
    monkeypatch.chdir(tmp_path)
    for rest in ("", "> text", "| cat", "| cat > text"):
        said = script.run(f"jaxformer translate --workdir=none {rest}")
        assert said.startswith("jaxformer: error: none/config.json does not exist")
        assert said.count("\n") == 1
    assert (tmp_path / "text").read_bytes() == b""
    copy = script.working_copy(tmp_path)
    with pytest.raises(InputError, match="make quickstart"), copy:
        pass


@pytest.mark.parametrize("name", ["train", "decoding-examples"])
def test_links_lead_to_files_and_headings(name):
    path = runs.ROOT / "docs" / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https:)([^)]+)\)", text):
        file, _, heading = link.partition("#")
        leads = path.parent / file if file else path
        assert leads.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", leads.read_text("utf-8"), re.MULTILINE)
            titles = [re.sub(r"[^\w -]", "", title.lower()) for title in titles]
            assert heading in {title.replace(" ", "-") for title in titles}, link


def test_commands_of_the_training_page_are_valid():
    text = (runs.ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    pattern = r"^(?:\$ )?(?:.* \| )?(jaxformer (?:.*\\\n)*.*)$"
    found = re.findall(pattern, text, re.MULTILINE)
    assert len(found) > 5
    for command in found:
        _, name, *arguments = shlex.split(command.replace("\\\n", ""), comments=True)
        known = [each for each in arguments if not each.startswith("--config.")]
        parser_of(name).parse_args(known)
