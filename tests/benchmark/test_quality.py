"""One model trained in both frameworks: both learn the same, and what cannot be
compared is refused.
"""

import dataclasses
import json
import os
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import LITTLE_RUN, write_corpus

import quality
import quality_systems
import runs
from jaxformer.cli import config_file
from jaxformer.errors import InputError
from jaxformer.functional.losses import smoothed_probabilities
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs import config as configuration
from jaxformer.training.run import open_run
from quality_systems import OURS, THEIRS

CONFIG = runs.ROOT / "configs" / "quickstart.py"
LITTLE = {
    **LITTLE_RUN,
    "model.norm_order": "post",
    "training.steps": 24,
    "training.evaluate_every": 10,
}


def overrides(**changes):
    given = {**LITTLE, **changes}
    return [f"{config_file.PREFIX}{key}={value}" for key, value in given.items()]


def configure(**changes):
    return configuration.parse(config_file.read(str(CONFIG), overrides(**changes)))


@pytest.mark.slow
@pytest.mark.parity
def test_both_learn_the_same(tmp_path, monkeypatch, capfd):
    """Without dropout every measured loss agrees and the parameters go the same way;
    each measurement is written at once, and the result is also printed.
    """
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    corpus, workdir = write_corpus(tmp_path), tmp_path / "run"
    corpus["data.test"] = corpus["data.valid"]
    changes = overrides(**corpus, **{"model.dropout_rate": 0.0})
    words = ["quality.py", f"--config={CONFIG}", f"--workdir={workdir}", *changes]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    record, kept, before = workdir / "quality.jsonl", {}, {}

    def train_in_turns(systems, *given):
        before.update({name: systems[name].parameters() for name in systems})
        kept.update(systems)
        for number, point in enumerate(quality_systems.train_in_turns(systems, *given)):
            assert len(record.read_text().splitlines()) == number
            yield point

    monkeypatch.setattr(quality, "train_in_turns", train_in_turns)
    # optax raises a float to the power of an integer
    with jax.numpy_dtype_promotion("standard"):
        quality.main()
    jax.tree.map(np.testing.assert_array_equal, before[THEIRS], before[OURS])
    *points, result = map(json.loads, record.read_text().splitlines())
    assert [(point["system"], point["step"]) for point in points] == [
        (name, step) for step in (0, 10, 20, 24) for name in (OURS, THEIRS)
    ]
    losses = [point["valid_nll"] for point in points]
    np.testing.assert_allclose(losses[::2], losses[1::2], rtol=1e-3)
    assert losses[-2] < losses[0] - 0.1
    ours, theirs = (
        moved(kept[name].parameters(), before[OURS]) for name in (OURS, THEIRS)
    )
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(ours)

    last = {point["system"]: point["valid_nll"] for point in points[-2:]}
    assert (result["step"], result["valid_nll"]) == (24, last)
    difference = last[OURS] / last[THEIRS] - 1
    assert result["relative_difference"] == pytest.approx(difference)
    assert set(result["bleu"]) == {OURS, THEIRS}
    assert (workdir / "quality.png").read_bytes().startswith(b"\x89PNG")
    said = capfd.readouterr()
    assert "after 24 steps the loss of jaxformer is" in said.out
    assert "step 24 of 24" in said.err


def moved(after, before):
    """Return the change of all parameters, without the biases of keys: they shift all
    scores of a row equally, so their gradient is 0 and their updates are rounding's.
    """
    changes = jax.tree.map(np.subtract, after, before)
    return np.concatenate(
        [
            leaf.ravel()
            for path, leaf in jax.tree_util.tree_leaves_with_path(changes)
            if [key.key for key in path[-2:]] != ["key", "bias"]
        ]
    )


def test_the_script_ends_when_it_is_interrupted(monkeypatch, capsys):
    """In one line and with 130."""

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["quality", f"--config={CONFIG}", "--workdir=x"])
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(quality_systems, "check_comparable", interrupt)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="130"):
        runpy.run_path(quality.__file__, run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("interrupted; quality.jsonl has what was measured")


def test_a_test_set_that_cannot_be_translated_is_refused_before_training(tmp_path):
    """The file and the line are named."""
    files = tmp_path / "long.en", tmp_path / "long.de"
    for file in files:
        file.write_text(f"a b\n{'a ' * 40}\n", encoding="utf-8")
    test = {"data.test": f"text:{files[0]},{files[1]}"}
    test["decoding.long_sources"] = "refuse"
    run = open_run(configure(**write_corpus(tmp_path) | test), tmp_path / "run")
    tokens = jnp.ones((1, 4), jnp.int32)
    init = jax.jit(Transformer(run.config.model).init)
    params = init(jax.random.key(0), tokens, tokens)["params"]
    with pytest.raises(InputError, match="the model has 32 positions") as error:
        quality.load_test(run, params)
    assert str(error.value).startswith(f"{files[0]}, line 2 has ")


@pytest.mark.parity
def test_what_pytorch_does_not_do_is_refused():
    """In one line that names the key and the value it must have; so is a vocabulary
    with other ids.
    """
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    for key, value, cure in (
        ("model.norm_order", "pre", "post"),
        ("model.num_decoder_layers", 2, 1),
        ("training.gradient_clip", 1.0, None),
    ):
        with pytest.raises(InputError) as error:
            quality.check_comparable(configure(**{key: value}))
        said = f"and {key}={value} is not: set --config.{key}={cure}"
        assert str(error.value).endswith(said)
    config = configure()
    model = dataclasses.replace(config.model, pad_id=1, bos_id=0)
    said = "pads with 0 and begins with 2, and this vocabulary with 1 and 0"
    with pytest.raises(InputError, match=said):
        quality.check_comparable(dataclasses.replace(config, model=model))


@pytest.mark.parametrize("convention", ["others", "all"])
def test_smoothing_is_translated_for_pytorch(convention):
    """Shared among all, the task's smoothing gives every token the run's
    probability.
    """
    smoothing = {"training.smoothing_convention": convention}
    config = configure(**smoothing, **{"training.label_smoothing": 0.3})
    size, epsilon = config.model.vocabulary_size, config.training.label_smoothing
    expected = smoothed_probabilities(size, epsilon, convention)
    shared = quality_systems.make_task(config).label_smoothing
    assert smoothed_probabilities(size, shared, "all") == pytest.approx(expected)
