"""``average``: the mean of checkpoints, which every command then takes as a
checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import runs
from jaxformer.translation.translator import Translator

LINES = b"".join(
    f"{line}\n".encode()
    for line in ("Insert a new table.", "Open the document.", "Close all windows.")
)


@pytest.fixture
def run(tmp_path) -> Path:
    return runs.copy(runs.random_run(), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "name", "steps"),
    [
        (["--last=2"], "last-2", [10, 20]),
        (["--last=1"], "last-1", [20]),
        (["--best=1"], "best-1", [10]),
        (["--steps=20,10"], "steps-10-20", [10, 20]),
        (["--steps=10", "--name=first"], "first", [10]),
    ],
)
def test_the_mean_is_kept(options, name, steps, call, run):
    """The command says what it made of what; the translator reads that mean."""
    outcome = call("average", f"--workdir={run}", *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {"checkpoint": f"average/{name}", "steps": steps}
    found = Translator.load(run, "average")
    assert found.checkpoint == f"average/{name}"
    each = [Translator.load(run, str(step)).params for step in steps]
    jax.tree.map(
        lambda mean, *leaves: np.testing.assert_allclose(
            mean, np.mean(leaves, axis=0), rtol=1e-6, atol=1e-7
        ),
        found.params,
        *each,
    )


def test_every_command_takes_it(call, run, tmp_path):
    """Translation, evaluation and info know averages, the newest and those by name."""
    call("average", f"--workdir={run}", "--steps=10", "--name=ten")
    call("average", f"--workdir={run}", "--last=2")
    options = [f"--workdir={run}", "--beam_size=1"]

    def translate(which):
        return call("translate", *options, f"--checkpoint={which}", stdin=LINES).out

    assert translate("average/ten") == translate("10") != translate("20")
    assert translate("average") != translate("10")

    source, target = tmp_path / "source", tmp_path / "target"
    for file in (source, target):
        file.write_bytes(LINES)
    data = [f"--source={source}", f"--reference={target}"]
    record = json.loads(
        call("evaluate", *options, *data, "--checkpoint=average/ten").out
    )
    assert record["checkpoint"] == "average/ten"
    assert json.loads(call("evaluate", *options, *data).out)["checkpoint"] == 10
    results = json.loads((run / "results.json").read_text())
    assert list(results) == [
        f"{record['dataset']} beam_size=1 checkpoint=average/ten",
        f"{record['dataset']} beam_size=1",
    ]
    assert len({entry["hypotheses"] for entry in results.values()}) == 2

    info = json.loads(call("info", f"--workdir={run}").out)
    assert info["averages"] == {"ten": [10], "last-2": [10, 20]}
    assert set(info["checkpoints"]) == {"10", "20"}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ([], "--last=5 asks for 5 checkpoints and"),
        (
            ["--last=3"],
            (
                "holds 2 checkpoints: ask for fewer, or train with a larger"
                " training.keep_latest"
            ),
        ),
        (
            ["--best=3"],
            (
                "holds 2 evaluated checkpoints: ask for fewer, or train with a larger"
                " training.keep_best"
            ),
        ),
        (["--best=0"], "argument --best: must be at least 1, not 0"),
        (["--steps=10,30"], "there is no checkpoint '30' in"),
        (["--steps=10,ten"], "--steps must be numbers separated by commas"),
        (["--steps="], "--steps must be numbers separated by commas"),
        (["--last=1", "--name=a/b"], "--name must be 1 to 150 letters"),
    ],
)
def test_refused(options, rule, call, run):
    """What cannot be averaged is told in one line, and nothing is written."""
    assert rule in call("average", f"--workdir={run}", *options).error
    assert not (run / "averages").exists()


def test_one_choice_at_a_time(call, run):
    """--last, --best and --steps exclude each other: wrong usage."""
    outcome = call("average", f"--workdir={run}", "--last=1", "--best=1")
    assert outcome.code == 2
    assert "not allowed with" in outcome.err


def test_no_average_yet(call, run):
    error = call(
        "translate", f"--workdir={run}", "--checkpoint=average", stdin=LINES
    ).error
    assert (
        error
        == f"{run} holds no average yet; make one: jaxformer average --workdir={run}"
    )
    error = call("average", f"--workdir={run.parent / 'none'}").error
    assert "--workdir must name the directory of a run" in error
