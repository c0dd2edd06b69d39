"""LoRA: what a step trains, what a checkpoint holds, and what reads it."""

from __future__ import annotations

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from training.little import (
    assert_same_run,
    assert_trees_close,
    assert_trees_equal,
    read_checkpoint,
    steps_of,
)

from jaxformer.checkpoints import folder
from jaxformer.checkpoints.average import save_average
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.errors import InputError
from jaxformer.models.lora import Adapted
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import train as training
from jaxformer.training.engines import make_engine
from jaxformer.training.step import make_loss
from jaxformer.translation.translator import Translator
from runs import call

LENGTHS = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 0, 0]
LORA = {"initial_run": "any", "lora_rank": 2, "lora_alpha": 3.0}
LORA |= {"lora_kernels": "*/query/kernel,*/value/kernel,decoder/*/outer/kernel"}
SIZES = {"d_k": 4, "d_v": 2}
RUN = {f"training.{name}": value for name, value in LORA.items()}
RUN |= {"training.lora_dropout": 0.1, "training.ema_decay": 0.9}
RUN |= {"training.optimizer": "muon"}


def begun(state):
    """Give every B of a state numbers of its own: at zero A has no gradient."""
    draw = np.random.default_rng(0).normal
    params = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(0.3 * draw(size=leaf.shape), leaf.dtype),
        state.params,
    )
    return dataclasses.replace(state, params=params, average=params)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "jit"},
        pytest.param(
            {"engine": "pmap", "accumulation_steps": 2}, marks=pytest.mark.slow
        ),
        {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2, "shard_moments": True},
    ],
    ids=lambda changes: changes["engine"],
)
def test_the_gradient_of_a_step(make_model, make_training, make_batch, changes):
    """On every engine, looped or scanned, with heads of free widths, the gradient of
    the factors follows by the chain rule from that of the merged kernels: s G B^T and
    s A^T G. The base stays bit for bit, and only adapters have moments and an average.
    """
    # XLA's CPU devices may wait for each other forever in scanned layers on a mesh.
    scan = changes["engine"] != "mesh"
    model = make_model(**SIZES, scan_layers=scan)
    engine, state = make_training(model, **changes, ema_decay=0.9, **LORA)
    start = begun(jax.tree.map(np.asarray, engine.collect(state)))
    kept = jax.tree.map(np.array, start)
    batch = make_batch(3, LENGTHS)
    loss = make_loss(model, TrainingConfig(), lambda params: params)
    whole = Adapted(kept.base, kept.params, 1.5).merge()
    key = jax.random.key(0)
    slopes = jax.jit(jax.grad(loss, has_aux=True))(whole, batch, key)[0]
    kernels = flatten_dict(jax.tree.map(lambda x: np.asarray(x) / sum(LENGTHS), slopes))

    before = flatten_dict(kept.params)
    after, metrics = engine.step(engine.place(start), batch)
    after = jax.tree.map(np.asarray, engine.collect(after))
    assert_trees_equal(after.base, kept.base)
    mu = flatten_dict(after.optimizer[0].mu)
    assert mu.keys() == flatten_dict(after.average).keys() == before.keys()
    assert {path[-3] for path in mu} == {"query", "value", "outer"}
    for *path, factor in mu:
        slope = kernels[tuple(path)]
        layers = slope.shape[0] if scan else 1
        a, b = before[*path, "lora_a"], before[*path, "lora_b"]
        a, b = a.reshape(layers, -1, 2), b.reshape(layers, 2, -1)
        slope = slope.reshape(layers, a.shape[1], -1)
        expected = {
            "lora_a": 1.5 * slope @ b.swapaxes(1, 2),
            "lora_b": 1.5 * a.swapaxes(1, 2) @ slope,
        }[factor]
        found = 10 * mu[*path, factor].reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    norm = 10 * np.sqrt(sum((leaf**2).sum() for leaf in mu.values()))
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_rank": 9}, "lora_rank=9 must be at most 8, the smaller side of"),
        (
            {"lora_kernels": "*/query/bias"},
            "lora_kernels: no kernel matches '*/query/bias'; the nearest is",
        ),
        ({"lora_kernels": "embedding/*"}, "no kernel matches 'embedding/*'"),
        ({"initial_run": None}, "lora_rank=2 adapts a trained model: name its run as"),
        ({"initial_optimizer": True}, "lora_rank=2 trains none of the parameters that"),
        ({"frozen": "encoder/*"}, "leave out training.frozen=encoder/*, and choose"),
        ({"lora_rank": None}, "lora_alpha=3.0 is of adapters: set training.lora_rank"),
    ],
)
def test_what_makes_no_sense(make_model, changes, message):
    """It is refused in one line before anything is written."""
    with pytest.raises(InputError) as caught:
        make_engine(make_model(), TrainingConfig(engine="jit", **{**LORA, **changes}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def adapted(train, straight, tmp_path):
    """Return a run of six steps with adapters for a copy of the little run."""
    base = shutil.copytree(straight, tmp_path / "base")
    few = {"training.steps": 6, "training.keep_latest": 3}
    train("run", {**RUN, **few, "training.initial_run": str(base)})
    return tmp_path / "run"


def merged_by_hand(run, step):
    """Merge the average of a checkpoint with the best parameters of its base."""
    base = run.parent / "base"
    best = read_checkpoint(base, Translator.load(base).checkpoint)["params"]
    kernels = flatten_dict(best)
    factors = flatten_dict(read_checkpoint(run, step)["params"])
    for path in {path[:-1] for path in factors}:
        a, b = factors[*path, "lora_a"], factors[*path, "lora_b"]
        axes = a.ndim - 1
        product = np.tensordot(a.astype(np.float64), b, 1)
        assert product.ndim == kernels[path].ndim > axes
        kernels[path] = kernels[path] + 1.5 * product
    return kernels


def test_a_run_of_adapters(train, adapted, straight, tmp_path):
    """A checkpoint holds adapters and nothing of the base. What translates, averages
    and continues training reads them merged, and so does the evaluation in training. A
    run that is stopped and resumed is the same bit for bit.
    """
    saved = adapted / "checkpoints" / "6"
    names = jax.tree_util.tree_leaves_with_path(folder.read_shapes(saved, "params"))
    assert {path[-1].key for path, _ in names} == {"lora_a", "lora_b"}
    found = Translator.load(adapted, "latest")
    expected = merged_by_hand(adapted, 6)
    assert_trees_close(flatten_dict(found.params), expected, rtol=1e-6, atol=1e-7)
    size = sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(found.params))
    samples = (adapted / "samples.jsonl").read_text().splitlines()
    assert json.loads(samples[-1])["translation"] == str(size)

    record = json.loads(call("info", f"--workdir={adapted}").out)
    base = str(tmp_path / "base")
    assert (record["base"]["run"], record["base"]["scale"]) == (base, 1.5)
    assert record["base"]["checkpoint"] == Translator.load(base).checkpoint

    steps = steps_of(adapted)
    save_average(adapted, "all", SavedCheckpoints(adapted / "checkpoints"), steps)
    factors = [read_checkpoint(adapted, step)["params"] for step in steps]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0, np.float64), *factors)
    average = folder.read_shapes(adapted / "averages" / "all", "params")
    average = folder.restore(adapted / "averages" / "all", {"params": average})
    assert_trees_close(average["params"], mean, rtol=1e-6, atol=1e-9)
    changed = Translator.load(adapted, "average").params
    base = Translator.load(tmp_path / "base").params
    merged = Adapted(base, average["params"], 1.5).merge()
    assert_trees_equal(changed, merged)

    again = {**RUN, "training.initial_run": str(tmp_path / "base")}
    train("run", {**again, "training.keep_latest": 3})
    train("straight", again)
    assert_same_run(adapted, tmp_path / "straight")


@pytest.mark.parametrize("sealed", [True, False])
def test_a_base_that_is_missing_moved_or_changed(
    adapted, tmp_path, sealed, monkeypatch
):
    """Adapters find their base at its place or next to their run, also where its
    checkpoint has no checksums, and from a folder in the run. Without it, or with other
    parameters, one line says what they need and where to put it.
    """
    base, run = tmp_path / "base", adapted
    step = Translator.load(base).checkpoint
    saved = base / "checkpoints" / str(step)
    if not sealed:
        (saved / folder.CHECKSUMS).unlink()
    expected = Translator.load(run).params
    needs = f"{run} has only adapters for checkpoint {step} of {base}"

    def refused(words):
        with pytest.raises(InputError) as caught:
            Translator.load(run)
        assert str(caught.value).startswith(f"{needs}, {words}")
        assert "\n" not in str(caught.value)

    base.rename(tmp_path / "away")
    refused(f"which is not there: put that run back, or next to {run}")
    (tmp_path / "elsewhere").mkdir()
    for name, source in (("run", run), ("base", tmp_path / "away")):
        shutil.copytree(source, tmp_path / "elsewhere" / name)
    moved = tmp_path / "elsewhere"
    assert_trees_equal(Translator.load(moved / "run").params, expected)
    for inside, path in ((".", "."), ("checkpoints", "..")):
        monkeypatch.chdir(moved / "run" / inside)
        assert_trees_equal(Translator.load(path).params, expected)
    (tmp_path / "away").rename(base)
    other = next(each for each in steps_of(base) if each != step)
    saved.rename(tmp_path / "saved")
    refused(f"and {base} has no such checkpoint: put it back from a copy")
    shutil.copytree(base / "checkpoints" / str(other), saved)
    refused(f"and {base} has other parameters there: put those back that")


def test_a_run_begins_with_merged_adapters(train, adapted, monkeypatch):
    """A run without LoRA whose first parameters are those of a run with it begins with
    the merged ones, on a mesh in its shardings too; and adapters may be for a run that
    has only adapters itself.
    """
    states = []
    monkeypatch.setattr(
        training,
        "run_loop",
        lambda parts, state, _: states.append(parts.engine.collect(state)),
    )
    run = {"training.initial_run": str(adapted)}
    mesh = {"training.engine": "mesh", "training.mesh_fsdp": 2}
    train("plain", run)
    train("mesh", {**run, **mesh})
    train("twice", {**RUN, **run})
    expected = Translator.load(adapted).params
    for params in (states[0].params, states[2].base):
        assert_trees_equal(params, expected)
    assert_trees_close(states[1].params, expected, rtol=1e-6, atol=1e-7)
