"""``attention`` and ``info``: what a run attends to, and what it is made of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import jaxformer
import runs
from jaxformer.models.seq2seq import count_parameters
from jaxformer.runs import config as configuration
from jaxformer.translation.translator import Translator

SENTENCE = 'Open the "file" & <b>close</b> it </script>'


def assert_pictures(directory: Path) -> None:
    for name in ("encoder", "decoder", "cross"):
        content = (directory / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(content) > 2000
    page = (directory / "attention.html").read_text("utf-8")
    assert "<!doctype html>" in page.lower()
    # it needs no network
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    # no sentence ends the page's own program
    assert page.count("<script") == page.count("</script>")


def test_attention(call, tmp_path):
    """Three pictures and one page lie where they are said to lie."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    outcome = call("attention", f"--workdir={run}", SENTENCE)
    assert outcome.code == 0
    assert outcome.err == ""
    names = ["encoder.png", "decoder.png", "cross.png", "attention.html"]
    assert outcome.lines == [str(run / "attention" / name) for name in names]
    assert_pictures(run / "attention")


def test_attention_of_a_given_pair(call, tmp_path):
    """A translation of the user's and a folder of the user's; both sides are on the
    page.
    """
    where = tmp_path / "some" / "folder"
    options = [
        f"--workdir={runs.random_run()}",
        "--target=Datei öffnen 🙂",
        f"--output={where}",
    ]
    assert call("attention", *options, "Open the file.").code == 0
    assert_pictures(where)
    page = (where / "attention.html").read_text("utf-8")
    found = Translator.load(runs.random_run()).attention(
        "Open the file.", "Datei öffnen 🙂"
    )
    for token in {*found.source_tokens, *found.target_tokens}:
        assert (
            json.dumps(token).strip('"').replace("<", "\\u003c").replace(">", "\\u003e")
            in page
        )


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [("", "not blank"), ("  ", "not blank"), ("ab" * 200, "128 positions")],
)
def test_attention_of_what_has_none(sentence, rule, call, tmp_path):
    where = tmp_path / "none"
    error = call(
        "attention", f"--workdir={runs.random_run()}", f"--output={where}", sentence
    ).error
    assert rule in error
    assert not where.exists()


def test_info(call):
    """The configuration, the parameters by part, the checkpoints with their scores."""
    outcome = call("info", f"--workdir={runs.random_run()}")
    assert outcome.code == 0
    assert outcome.err == ""
    record = json.loads(outcome.out)
    params = Translator.load(runs.random_run()).params
    parts = dict(record["parameters"])
    assert parts.pop("total") == sum(parts.values()) == count_parameters(params)
    assert set(parts) == set(params)
    assert record["step"] == 20
    assert record["best"] == 10
    assert record["checkpoints"] == {"10": {"bleu": 5.0}, "20": {"bleu": 4.0}}
    assert record["results"] == {}
    saved = json.loads((runs.random_run() / "config.json").read_text())
    assert saved.pop("version") == jaxformer.__version__
    assert record["config"] == saved


def test_info_after_training_and_evaluation(call, tmp_path):
    """Scores of the validation and of the test are there when they were measured."""
    run = runs.copy(runs.reversal_run(), tmp_path / "run")
    (tmp_path / "source").write_text("a b c\n")
    files = [f"--source={tmp_path / 'source'}", f"--reference={tmp_path / 'source'}"]
    call("evaluate", f"--workdir={run}", *files)
    record = json.loads(call("info", f"--workdir={run}").out)
    assert record["step"] == record["best"] == 200
    assert {"bleu", "chrf", "loss"} <= set(record["checkpoints"]["200"])
    assert list(record["results"]) == [
        f"text:{tmp_path / 'source'},{tmp_path / 'source'}"
    ]


def test_info_of_a_run_that_has_not_trained(call, tmp_path):
    """A run without checkpoints is shown, not refused."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    record = json.loads(call("info", f"--workdir={run}").out)
    assert (record["step"], record["best"], record["checkpoints"]) == (0, None, {})
    assert not (run / "checkpoints").exists()


def test_info_changes_nothing(call, tmp_path):
    """Looking leaves every file as it was."""
    run = runs.copy(runs.random_run(), tmp_path / "run")

    def files():
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = files()
    call("info", f"--workdir={run}")
    assert files() == before
    assert configuration.load(run / "config.json") == configuration.load(
        runs.random_run() / "config.json"
    )
