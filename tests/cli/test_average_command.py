"""``average``: the mean of checkpoints, which every command takes as a checkpoint."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from cli.text import encode, write

import runs
from jaxformer.translation.translator import Translator


@pytest.mark.parametrize(
    ("options", "name", "steps"),
    [
        (["--last=2"], "last-2", [10, 20]),
        (["--best=1"], "best-1", [10]),
        (["--steps=20,10"], "steps-10-20", [10, 20]),
    ],
)
def test_the_mean_is_kept(options, name, steps, call, run):
    """The command prints what it made; the translator reads that mean."""
    outcome = call("average", f"--workdir={run}", *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {"checkpoint": f"average/{name}", "steps": steps}
    found = Translator.load(run, "average")
    assert found.checkpoint == f"average/{name}"
    trees = [Translator.load(run, str(step)).params for step in steps]
    close = {"rtol": 1e-6, "atol": 1e-7}
    for mean, *leaves in zip(
        *map(jax.tree.leaves, (found.params, *trees)), strict=True
    ):
        np.testing.assert_allclose(mean, np.mean(leaves, axis=0), **close)


def test_every_command_takes_it(call, run, tmp_path):
    """Translation, evaluation and info know averages, the newest and those by name."""
    call("average", f"--workdir={run}", "--steps=10", "--name=ten")
    call("average", f"--workdir={run}", "--last=2")
    options, lines = [f"--workdir={run}", "--beam_size=1"], runs.sentences(3)

    def translate(which):
        given = f"--checkpoint={which}"
        return call("translate", *options, given, stdin=encode(lines)).out

    assert translate("average/ten") == translate("10") != translate("20")
    assert translate("average") != translate("10")
    text = write(tmp_path / "text", lines)
    data = [f"--source={text}", f"--reference={text}", "--checkpoint=average/ten"]
    record = json.loads(call("evaluate", *options, *data).out)
    assert record["checkpoint"] == "average/ten"
    (name,) = json.loads((run / "results.json").read_text())
    assert name == f"{record['dataset']} beam_size=1 checkpoint=average/ten"
    info = json.loads(call("info", f"--workdir={run}").out)
    assert info["averages"] == {"ten": [10], "last-2": [10, 20]}
    assert set(info["checkpoints"]) == {"10", "20"}


def test_fewer_checkpoints_than_the_default(call, run):
    """All of them are averaged, and the command says so; one is refused."""
    outcome = call("average", f"--workdir={run}")
    assert json.loads(outcome.out) == {
        "checkpoint": "average/last-2",
        "steps": [10, 20],
    }
    assert outcome.err.startswith(f"averaging all 2 checkpoints of {run}; --last=N")
    shutil.rmtree(run / "checkpoints" / "10")
    error = call("average", f"--workdir={run}").error
    assert error == f"{run} has one checkpoint: nothing to average"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--best=3"], "holds 2 evaluated checkpoints: ask for fewer, or train with a"),
        (["--steps=10,30"], "there is no checkpoint '30' in"),
        (["--steps=10,10"], "--steps names 10 twice"),
        (["--last=0"], "argument --last: must be at least 1, not 0"),
        (["--steps=10,ten"], "argument --steps: must be numbers separated by commas"),
        (["--last=1", "--name=a/b"], "--name must be 1 to 150 letters"),
    ],
)
def test_refused(options, rule, call, run):
    """Nothing is written."""
    assert rule in call("average", f"--workdir={run}", *options).error
    assert not (run / "averages").exists()
