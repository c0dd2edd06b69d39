"""One model trained in both frameworks: both learn the same, and what cannot be
compared is refused.
"""

import dataclasses
import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import LITTLE_RUN, write_corpus

import quality_systems as quality
import runs
from jaxformer.cli import config_file
from jaxformer.errors import InputError
from jaxformer.functional.losses import smoothed_probabilities
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs import config as configuration
from jaxformer.training.run import open_run
from jaxformer.training.train import validation_batches
from quality_systems import OURS, THEIRS, Point

CONFIG = runs.ROOT / "configs" / "quickstart.py"
LITTLE = {
    **LITTLE_RUN,
    "model.norm_order": "post",
    "training.steps": 24,
    "training.evaluate_every": 10,
}


def overrides(folder, **changes):
    folder.mkdir(exist_ok=True)
    given = {**LITTLE, **write_corpus(folder), **changes}
    return [f"{config_file.PREFIX}{key}={value}" for key, value in given.items()]


def open_little(folder, **changes):
    config = configuration.parse(
        config_file.read(str(CONFIG), overrides(folder / "text", **changes))
    )
    return open_run(config, folder / "run")


@pytest.mark.parity
@pytest.mark.parametrize("convention", ["others", "all"])
def test_both_learn_the_same(convention, tmp_path):
    """Without dropout every measured loss agrees, from the first to the last, and the
    parameters go the same way: the same beginning, batches with rows of padding, rates,
    updates and either kind of smoothing.
    """
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    changes = {"model.dropout_rate": 0.0, "training.smoothing_convention": convention}
    run = open_little(tmp_path, **changes)
    quality.check_comparable(run.config)
    data = run.text.load(run.vocabularies, seed=run.config.training.seed)
    systems = quality.make_systems(run.config)
    jax.tree.map(
        np.testing.assert_array_equal,
        systems[THEIRS].parameters(),
        systems[OURS].parameters(),
    )
    before = systems[OURS].parameters()
    steps = quality.measured_steps(run.config)
    # optax raises a float to the power of an integer
    with jax.numpy_dtype_promotion("standard"):
        points = list(
            quality.train_in_turns(systems, data, validation_batches(run, data), steps)
        )
    assert [(point.system, point.step) for point in points] == [
        (name, s) for s in steps for name in (OURS, THEIRS)
    ]
    assert steps == [0, 10, 20, 24]
    for _, difference in quality.relative_difference(points):
        assert abs(difference) < 1e-3
    losses = [point.valid_nll for point in points if point.system == OURS]
    assert losses[-1] < losses[0] - 0.1
    ours, theirs = (
        moved(systems[name].parameters(), before) for name in (OURS, THEIRS)
    )
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(ours)


def moved(after, before):
    """Say how far all parameters went, but those whose gradient is 0 and whose updates
    therefore are rounding's: the biases of keys, which shift all scores of a row alike.
    """
    leaves = jax.tree_util.tree_leaves_with_path(
        jax.tree.map(np.subtract, after, before)
    )
    return np.concatenate(
        [
            x.ravel()
            for path, x in leaves
            if [key.key for key in path[-2:]] != ["key", "bias"]
        ]
    )


@pytest.mark.slow
@pytest.mark.parity
def test_the_script_writes_what_it_measures(tmp_path):
    """With dropout: a line for each measurement, one for the result, which is also
    printed, and a picture.
    """
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    script, workdir = (
        runs.ROOT / "scripts" / "benchmark" / "quality.py",
        tmp_path / "run",
    )
    text = write_corpus(tmp_path)["data.valid"]
    changes = overrides(tmp_path / "text", **{"data.test": text})
    line = [
        sys.executable,
        script,
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        *changes,
    ]
    done = subprocess.run(
        line, capture_output=True, text=True, env=runs.environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    *points, result = [
        json.loads(text)
        for text in (workdir / "quality.jsonl").read_text().splitlines()
    ]
    assert [(point["system"], point["step"]) for point in points] == [
        (name, step) for step in (0, 10, 20, 24) for name in (OURS, THEIRS)
    ]
    assert result["step"] == 24
    assert result["valid_nll"] == {
        point["system"]: point["valid_nll"] for point in points[-2:]
    }
    assert abs(result["relative_difference"]) < 0.05
    assert set(result["bleu"]) == {OURS, THEIRS}
    assert (workdir / "quality.png").read_bytes().startswith(b"\x89PNG")
    assert "after 24 steps the loss of jaxformer is" in done.stdout
    assert "step 24 of 24" in done.stderr


@pytest.mark.slow
@pytest.mark.parity
def test_the_script_ends_when_it_is_interrupted(tmp_path):
    """In one line and with 130, and what was measured is kept."""
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    script, workdir = (
        runs.ROOT / "scripts" / "benchmark" / "quality.py",
        tmp_path / "run",
    )
    text = write_corpus(tmp_path)["data.valid"]
    changes = overrides(
        tmp_path / "text", **{"data.test": text, "training.steps": 100_000}
    )
    line = [
        sys.executable,
        script,
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        *changes,
    ]
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, env=runs.environment()
    ) as process:
        assert process.stderr is not None
        for said in process.stderr:
            if "torch  step 10 of" in said:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert rest[-1].startswith("interrupted; quality.jsonl has what was measured")
    assert not any("Traceback" in said for said in rest)
    steps = [
        json.loads(text)["step"]
        for text in (workdir / "quality.jsonl").read_text().splitlines()
    ]
    assert steps[:4] == [0, 0, 10, 10]


def test_a_test_set_that_cannot_be_translated_is_refused_before_training(tmp_path):
    """The file and the line are named, and nothing has been learnt by then."""
    files = tmp_path / "long.en", tmp_path / "long.de"
    for file in files:
        file.write_text(f"a b\n{'a ' * 40}\n", encoding="utf-8")
    test = f"text:{files[0]},{files[1]}"
    run = open_little(
        tmp_path, **{"data.test": test, "decoding.long_sources": "refuse"}
    )
    params = Transformer(run.config.model).init(
        jax.random.key(0), *jnp.ones((2, 1, 4), jnp.int32)
    )["params"]
    with pytest.raises(InputError, match="the model has 32 positions") as error:
        quality.load_test(run, params)
    assert str(error.value).startswith(f"{files[0]}, line 2 has ")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model.norm_order": "pre"},
            "and model.norm_order=pre is not: set --config.model.norm_order=post",
        ),
        (
            {"model.num_decoder_layers": 2},
            "and model.num_decoder_layers=2 is not: set --config.model.num_decoder_l",
        ),
        (
            {"model.dtype": "float16"},
            "and model.dtype=float16 is not: set --config.model.dtype=float32",
        ),
        ({"training.gradient_clip": 1.0}, "set --config.training.gradient_clip=None"),
        ({"data.packing": True}, "set --config.data.packing=False"),
    ],
)
def test_what_pytorch_does_not_do_is_refused(changes, said, tmp_path):
    """In one line that names the key and the value it must have."""
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    config = configuration.parse(
        config_file.read(str(CONFIG), overrides(tmp_path, **changes))
    )
    with pytest.raises(InputError) as error:
        quality.check_comparable(config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parity
def test_another_vocabulary_than_the_references_is_refused(tmp_path):
    """The reference's padding and beginning are fixed."""
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    config = configuration.parse(config_file.read(str(CONFIG), overrides(tmp_path)))
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, pad_id=1, bos_id=0)
    )
    with pytest.raises(
        InputError,
        match="pads with 0 and begins with 2, and this vocabulary with 1 and 0",
    ):
        quality.check_comparable(config)


@pytest.mark.parametrize("convention", ["others", "all"])
def test_smoothing_is_said_in_pytorchs_words(convention, tmp_path):
    """Shared among all, what the task says gives every token the probability that
    the run gives it.
    """
    changes = {
        "training.smoothing_convention": convention,
        "training.label_smoothing": 0.3,
    }
    config = configuration.parse(
        config_file.read(str(CONFIG), overrides(tmp_path, **changes))
    )
    size, training = config.model.vocabulary_size, config.training
    expected = smoothed_probabilities(size, training.label_smoothing, convention)
    assert smoothed_probabilities(
        size, quality.make_task(config).label_smoothing, "all"
    ) == pytest.approx(expected)


def test_differences_are_relative_to_pytorch():
    """Above it is positive, at each step that both have."""
    points = [
        Point(name, step, nll, 0.0)
        for step in (0, 5)
        for name, nll in ((OURS, 2.0 + step), (THEIRS, 4.0))
    ]
    assert quality.relative_difference(points) == [(0, -0.5), (5, 0.75)]
