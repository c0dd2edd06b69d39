"""Bad input of runs of one stack: one line from each command, which says what to do."""

from __future__ import annotations

import pytest
from kinds import LINES, drawn_run, shared_data, shared_run

import runs
from jaxformer.translation.generator import Generator

MASKED = f"{runs.ROOT}/configs/masked_language_model.py"


@pytest.mark.parametrize(
    ("config", "changes", "rule"),
    [
        (
            MASKED,
            {"training.objective": "causal"},
            "training.objective=causal needs a decoder-only model",
        ),
        (
            MASKED,
            {"training.objective": "masked_and_next"},
            "training.objective=masked_and_next needs model.head=words_and_next",
        ),
        (
            MASKED,
            {
                "training.objective": "masked_and_next",
                "model.head": "words_and_next",
                "data.kind": "documents",
                "data.vocabulary_size": 400,
            },
            "data.kind=documents needs at least two documents of two lines",
        ),
        (
            f"{MASKED}:language",
            {
                "training.objective": "regression",
                "evaluation.best_metric": "accuracy",
            },
            "training.objective=regression has no evaluation.best_metric=accuracy",
        ),
        (
            f"{MASKED}:language",
            {"data.labels": "en,fr"},
            "no label 'de': the labels are en, fr",
        ),
    ],
)
def test_what_does_not_fit(call, tmp_path, config, changes, rule):
    """An objective, a head, a kind of data, windows or labels: before anything is
    trained.
    """
    given = [f"--config.{key}={value}" for key, value in changes.items()]
    found = call("train", f"--config={config}", f"--workdir={tmp_path}/run", *given)
    before, _, line = found.err.partition("jaxformer: error: ")
    assert found.code
    assert rule in line.splitlines()[0]
    assert all(x.startswith("training the vocabulary") for x in before.splitlines())


def test_a_mask_that_a_vocabulary_lacks(call, tmp_path):
    """That of a language model has none."""
    given = {
        "training.initial_run": shared_run("text"),
        "data.vocabulary_size": 250,
        "data.train": shared_data()["masked"],
        "data.valid": shared_data()["masked"],
    }
    flags = [f"--config.{key}={value}" for key, value in given.items()]
    arguments = f"--config={MASKED}", f"--workdir={tmp_path}/run", *flags
    error = call("train", *arguments).error
    assert error.startswith("the vocabulary has no piece <mask>, which training.objec")


def test_labels_outside_the_set(call, tmp_path):
    file = tmp_path / "labels.tsv"
    file.write_text("a text\t7\n")
    arguments = f"--workdir={shared_run('labelled')}", f"--dataset=tsv:{file}"
    error = call("evaluate", *arguments).error
    assert error.startswith("'a text': no label '7'")


def test_prompts_that_are_too_long(call, tmp_path):
    """The line names the file and the prompt."""
    file = tmp_path / "prompts"
    file.write_text(f"a\n{' '.join(LINES)}\n", "utf-8")
    given = f"--workdir={shared_run('text')}", f"--input={file}", "--max_tokens=2"
    error = call("generate", *given).error
    assert error.startswith(f"{file}, line 2 has ")
    assert error.endswith("tokens and the model has 128 positions: shorten it")
    # Nothing is printed before.
    error = call("generate", given[0], " ".join(LINES)).error
    assert error.startswith("prompt 1 has ")


def test_a_prompt_of_the_command_line(call):
    """It is printed without the blank that SentencePiece does not read, and its
    continuation follows: also with the beam of 4 of this run.
    """
    ((own,),) = Generator.load(shared_run("text")).generate(["Ein Hund "], most=2)
    given = f"--workdir={shared_run('text')}", "Ein Hund ", "--max_tokens=2"
    assert call("generate", *given).out.decode() == f"Ein Hund{own.text}\n"


def test_a_head_that_was_newly_drawn(call, tmp_path):
    run = tmp_path / "run"
    record = {"drawn": ["classifier"]}
    drawn_run("labelled", shared_data()["labelled"], run, step=0, record=record)
    for command in ("predict", "evaluate"):
        error = call(command, f"--workdir={run}", stdin=b"a\n").error
        assert "was newly drawn and never trained" in error


def test_commands_of_other_runs(call, tmp_path):
    """Each names the command for the run, or the option to leave out."""
    file = tmp_path / "text"
    file.write_text("a b\n")
    both = f"--source={file}", f"--target={file}"
    for kind in ("labelled", "masked"):
        directory = f"--workdir={shared_run(kind)}"
        for given in (both, both[1:]):
            error = call("score", directory, *given).error
            assert "training.objective=" in error
            assert "predict" in error
        assert "training.objective=" in call("translate", directory, stdin=b"a\n").error
        assert "training.objective=" in call("generate", directory, "a").error
    directory = f"--workdir={shared_run('text')}"
    assert "predict is for" in call("predict", directory).error
    for option in ("from=en", "ensemble=run"):
        found = call("score", directory, both[1], f"--{option}")
        assert found.code == 2
        assert f"--{option.partition('=')[0]} is for translations" in found.err


@pytest.mark.parametrize("option", ["max_target_length", "coverage_penalty"])
def test_a_prompt_has_no_options_of_a_source(call, option):
    found = call("generate", "--workdir=run", f"--{option}=3", "a")
    assert found.code == 2
    assert option in found.err
    shown = call("generate", "--help").out.decode()
    assert "--min_length" in shown
    assert not any(each in shown for each in (option, "source", "translation"))
