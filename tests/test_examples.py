"""``docs/decoding-examples.md`` shows every option, and the script repeats it. Included
code is that of the package.
"""

import argparse
import importlib
import inspect
import re
import shlex

import pytest

import runs
from jaxformer import functional
from jaxformer.cli import translate
from jaxformer.errors import InputError
from jaxformer.translation.translator import Translator

# Where text goes, how much of it is worked on at a time, languages, and what the
# page's model never writes.
WITHOUT_EXAMPLE = {"help", "output", "window", "batch_size", "tokens_per_batch"}
WITHOUT_EXAMPLE |= {"target_language", "to", "from", "no_unknown", "distinct"}


@pytest.fixture
def examples(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(runs.ROOT / "scripts")
    return importlib.import_module("examples")


def test_the_page_shows_every_option(examples):
    """Each option of ``jaxformer translate`` that may change what comes out is shown.
    Each block prints something, first something other than after it. Commands and
    outputs put together again are the page.
    """
    page = (runs.ROOT / "docs" / "decoding-examples.md").read_text(encoding="utf-8")
    blocks, commands = examples.BLOCK.findall(page), []
    assert len(blocks) == page.count("```console")
    for block in blocks:
        own = examples.commands_of(block)
        outputs = list(zip(own, examples.COMMAND.split(block)[1:], strict=True))
        assert "".join(f"$ {command}\n{output}" for command, output in outputs) == block
        printed = [
            output
            for command, output in outputs
            if "jaxformer " in command and not re.search(r"> \w+", command)
        ]
        assert printed
        assert "" not in printed
        assert printed[0] not in printed[1:], block
        commands += own
    parser = argparse.ArgumentParser("translate")
    translate.configure(parser)
    text = parser.format_help().partition("examples:")[0]
    shown = set(re.findall(r"--(\w+)", "\n".join(commands)))
    assert set(re.findall(r"--(\w+)", text)) - shown == WITHOUT_EXAMPLE


def test_a_page_is_replayed(examples, tmp_path, monkeypatch):
    """Examples print what their commands print; other blocks stay, and a second time
    changes nothing.
    """
    sentence = runs.sentences(1)[0]
    expected = Translator.load(runs.random_run()).translate([sentence], beam_size=2)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(runs.random_run())
    # The random model ends no translation, which standard error says.
    words = "jaxformer translate \\\n      --workdir=run --beam_size=2 2> log"
    page = (
        "# Page\n\n```sh\n$ no example\n```\n\n```console\n$ printf '1\\n2\\n' | cut"
        f" -c 1 | tr 2 3\nold\nolder\n$ echo {shlex.quote(sentence)} > text\n$ cat text"
        f" | {words}\n```\nend\n"
    )
    replayed = examples.replay(page)
    assert replayed == page.replace("old\nolder\n", "1\n3\n").replace(
        f"{words}\n", f"{words}\n{expected}\n"
    )
    assert examples.replay(replayed) == replayed


def test_included_code_is_that_of_the_package(examples):
    """A block that names a function shows it without docstring, and replaces other
    code.
    """
    for path in examples.PAGES:
        page = path.read_text(encoding="utf-8")
        assert examples.include(page) == page, path
    signature, _, body = inspect.getsource(functional.causal_mask).split('"""')
    block = '```python title="functional.masks.causal_mask"\n{}```\n'
    expected = block.format(signature.rstrip(" ") + body[1:])
    assert examples.include(block.format("old\n")) == expected


def test_failures_are_shown(examples, tmp_path, monkeypatch):
    """Standard error is printed wherever the output goes, as in a shell. Without the
    run of the quickstart one line says how to make it.
    """
    monkeypatch.chdir(tmp_path)
    said = examples.run("jaxformer translate --workdir=none | cat > text")
    assert said.startswith("jaxformer: error: none/config.json does not exist")
    assert (tmp_path / "text").read_bytes() == b""
    copy = examples.working_copy(tmp_path)
    with pytest.raises(InputError, match="make quickstart"), copy:
        pass
