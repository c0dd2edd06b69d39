"""What a configuration adds to the plain update: parts of a batch, averages, clipping,
R-Drop, z-loss, float16, bad steps.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import (
    PAD,
    VOCABULARY,
    assert_trees_close,
    assert_trees_equal,
    without_key_biases,
)

from jaxformer.functional.losses import smoothed_probabilities
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.schedules import make_schedule

# Unequal numbers of tokens in every part and on every device, and parts that hold only
# padding.
LENGTHS = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 0, 0]
RECIPE = {"ema_decay": 0.9, "gradient_clip": 0.25}
IN_PARTS = {
    "jit": {"engine": "jit"},
    "pmap": {"engine": "pmap", "accumulation_steps": 2},
    "mesh": {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}
    | {"accumulation_steps": 4},
}


def norm(tree):
    leaves = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree))
    return np.sqrt(sum((leaf**2).sum() for leaf in leaves))


def assert_params_close(found, expected, **tolerance):
    assert_trees_close(
        without_key_biases(found), without_key_biases(expected), rtol=0, **tolerance
    )


@pytest.mark.parametrize(
    "parts", [pytest.param("pmap", marks=pytest.mark.slow), "mesh"]
)
def test_parts_of_a_batch_are_the_batch(make_model, make_training, make_batch, parts):
    """Metrics, gradient, parameters and their average of updates in parts are those of
    whole batches, whatever tokens a part has. A batch is one update of the schedule and
    of Adam. Rows of padding fill up what the parts do not divide.
    """
    model = make_model()
    whole, whole_state = make_training(model, **IN_PARTS["jit"], **RECIPE)
    other, other_state = make_training(model, **IN_PARTS[parts], **RECIPE)
    for step in range(3):
        batch = make_batch(step, LENGTHS)
        whole_state, wanted = whole.step(whole_state, batch)
        rows = {side: rows[: 14 if step else 16] for side, rows in batch.items()}
        other_state, metrics = other.step(other_state, other.put(rows))
        assert float(metrics["tokens"]) == sum(LENGTHS)
        assert_trees_close(metrics, wanted, rtol=1e-5)
        found, expected = other.collect(other_state), whole.collect(whole_state)
        adam = found.optimizer[1][0]
        if step == 0:
            # Clipped by the norm over all devices: the first moment is a tenth of it.
            assert norm(adam.mu) == pytest.approx(0.025, rel=1e-5)
            assert float(metrics["gradient_norm"]) > 0.25
            assert_trees_close(adam.mu, expected.optimizer[1][0].mu, atol=1e-6, rtol=0)
    assert_params_close(found.params, expected.params, atol=1e-5)
    assert_params_close(found.average, expected.average, atol=1e-5)
    assert {int(count) for count in (found.step, found.updates, adam.count)} == {3}


def test_dropout_differs_between_parts(make_model, make_training, make_batch):
    """Two parts with the same sentence have other losses than twice the one of a
    part: each draws its own masks.
    """
    model = make_model(dropout_rate=0.3)
    engine, state = make_training(model, "jit", accumulation_steps=2)
    one = make_batch(0, [9], rows=2)

    def loss(rows):
        kept = np.isin(np.arange(2), rows)[:, None]
        batch = {side: np.where(kept, tokens[0], PAD) for side, tokens in one.items()}
        return float(engine.step(engine.place(state), batch)[1]["loss"])

    first, second, both = loss([0]), loss([1]), loss([0, 1])
    assert first != second
    assert both == pytest.approx(first + second, rel=1e-6)


@pytest.mark.parametrize("parts", IN_PARTS)
def test_a_bad_step_changes_nothing(make_model, make_training, make_batch, parts):
    """A loss that is no number leaves parameters, moments, average and schedule as they
    are on all devices, bit for bit; only the count of batches continues.
    """
    engine, state = make_training(make_model(), **IN_PARTS[parts], **RECIPE)
    state, _ = engine.step(state, make_batch(0, LENGTHS))
    before = engine.collect(state)
    table = np.array(before.params["embedding"]["table"])
    table[5] = np.nan
    before = dataclasses.replace(
        before, params={**before.params, "embedding": {"table": jnp.asarray(table)}}
    )
    kept = jax.tree.map(np.array, before)
    after, metrics = engine.step(engine.place(before), make_batch(1, LENGTHS))
    assert float(metrics["skipped"]) == 1.0
    assert not np.isfinite(float(metrics["loss"]))
    after = engine.collect(after)
    assert (int(after.step), int(after.updates)) == (2, 1)
    assert_trees_equal(dataclasses.replace(after, step=kept.step), kept)


def test_r_drop_and_z_loss(make_model, make_training, make_batch):
    """What is minimised is the mean of two passes with different dropout, plus the
    weighted half of their divergence and the squared logarithm of the denominator;
    ``nll`` has neither and tokens count once.
    """
    model, batch = make_model(dropout_rate=0.3), make_batch(3, LENGTHS)
    runs, state = make_training(model, "jit", r_drop=2.0, z_loss=0.5)
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
    before = jax.tree.map(np.array, state.params)
    _, metrics = runs.step(state, batch)

    rows = [np.repeat(side, 2, axis=0) for side in batch.values()]
    apply = jax.jit(
        lambda params, *rows: model.apply(
            {"params": params}, *rows, train=True, rngs={"dropout": key}
        )
    )
    logits = np.asarray(apply(before, *rows), np.float64)
    denominator = np.log(np.exp(logits).sum(-1, keepdims=True))
    logs, real = logits - denominator, rows[1] != PAD
    on, off = smoothed_probabilities(VOCABULARY, 0.1, "others")
    hits = np.eye(VOCABULARY)[rows[1]]
    loss = -(np.where(hits, on, off) * logs).sum(-1)[real].sum() / 2
    loss += 0.5 * (denominator[real] ** 2).sum() / 2
    # Half of Wu et al. (2021), equation 4: alpha times half the sum of both
    # divergences, over two passes.
    one, two = logs[::2], logs[1::2]
    divergence = (np.exp(one) * (one - two) + np.exp(two) * (two - one)).sum(-1) / 2
    loss += 2.0 * divergence[real[::2]].sum() / 2
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-5)
    nll = -(hits * logs).sum(-1)[real].sum() / 2
    assert float(metrics["nll"]) == pytest.approx(nll, rel=1e-5)
    assert float(metrics["tokens"]) == sum(LENGTHS)


def test_float16(make_model, make_training, make_batch):
    """The gradient under float16 and its scale is that of float32 to the precision of
    float16. A scale under which the gradient overflows is halved until it does not; the
    steps that were lost move neither schedule nor moments, and master parameters and
    moments are float32. After 2,000 good steps the scale is doubled.
    """
    runs, state = make_training(make_model(dtype="float16"), "jit", loss_scale=2.0**24)
    start = jax.tree.map(np.array, runs.collect(state))
    one, one_state = make_training(make_model(), "jit")

    def at(scale, good_steps=0):
        scale = dataclasses.replace(
            start.loss_scale, scale=np.float32(scale), good_steps=np.int32(good_steps)
        )
        return runs.place(dataclasses.replace(start, loss_scale=scale))

    batch = make_batch(6, LENGTHS)
    expected, wanted = one.step(one_state, batch)
    half, metrics = runs.step(at(2.0**15), batch)
    gradient_norm = pytest.approx(float(wanted["gradient_norm"]), rel=2e-3)
    assert float(metrics["gradient_norm"]) == gradient_norm
    mu, expected_mu = half.optimizer[0].mu, expected.optimizer[0].mu
    assert_trees_close(mu, expected_mu, atol=2e-4, rtol=0)

    scales, skipped = [], []
    for step in range(20):
        state, metrics = runs.step(state, make_batch(step, LENGTHS))
        scales.append(float(metrics["loss_scale"]))
        skipped.append(bool(metrics["skipped"]))
    lost = skipped.index(False)
    assert 0 < lost < 20
    assert scales[: lost + 1] == [2.0 ** (24 - n) for n in range(lost + 1)]
    found, made = runs.collect(state), 20 - sum(skipped)
    adam = found.optimizer[0]
    assert [int(n) for n in (found.step, found.updates, adam.count)] == [20, made, made]
    rate = make_schedule(TrainingConfig(warmup_steps=300), 8)(made - 1)
    assert float(metrics["learning_rate"]) == pytest.approx(float(rate), rel=1e-6)
    kept = jax.tree.leaves((found.params, adam.mu, adam.nu))
    assert {leaf.dtype for leaf in kept} == {jnp.dtype("float32")}

    state, scales = at(8.0, 1_998), []
    for step in range(3):
        state, metrics = runs.step(state, make_batch(step, LENGTHS))
        scales.append(float(metrics["loss_scale"]))
    assert scales == [8.0, 8.0, 16.0]
    assert int(state.loss_scale.good_steps) == 1
