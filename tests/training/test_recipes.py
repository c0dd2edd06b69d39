"""What a configuration adds to the plain update: parts of a batch, averages, R-Drop,
z-loss, float16, bad steps.
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

from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import update_average
from jaxformer.training.schedules import make_schedule
from jaxformer.training.state import create_state

# Unequal numbers of tokens in every part and on every device, and parts that hold
# padding alone.
LENGTHS = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 0, 0]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"engine": "jit"}, 16),
        ({"engine": "pmap"}, 2),
        ({"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}, 4),
    ],
)
def test_parts_of_a_batch_are_the_batch(
    make_model, make_training, make_batch, changes, parts
):
    """Metrics, gradient and parameters of updates in parts are those of whole batches,
    whatever tokens a part has; a batch is one update of the schedule and of Adam, and
    no part is left over.
    """
    model = make_model()
    whole, whole_state = make_training(model, "jit")
    other, other_state = make_training(model, **changes, accumulation_steps=parts)
    for step in range(3):
        batch = make_batch(step, LENGTHS)
        whole_state, wanted = whole.step(whole_state, batch)
        other_state, metrics = other.step(other_state, other.put(batch))
        assert float(metrics["tokens"]) == sum(LENGTHS)
        assert_trees_close(metrics, wanted, rtol=1e-5)
        found, expected = other.collect(other_state), whole.collect(whole_state)
        if step == 0:
            assert_trees_close(
                found.optimizer[0].mu, expected.optimizer[0].mu, atol=1e-6, rtol=0
            )
    assert_trees_close(
        without_key_biases(found.params),
        without_key_biases(expected.params),
        atol=1e-5,
        rtol=0,
    )
    assert (int(found.step), int(found.updates), int(found.optimizer[0].count)) == (
        3,
        3,
        3,
    )


def test_rows_that_parts_cannot_share(make_model, make_training, make_batch):
    """Rows of padding fill the parts up and change nothing."""
    model = make_model()
    whole, whole_state = make_training(model, "jit")
    parted, parted_state = make_training(model, "jit", accumulation_steps=16)
    batch = make_batch(1, [5, 3, 9, 2, 7], rows=5)
    _, wanted = whole.step(whole_state, batch)
    _, metrics = parted.step(parted_state, batch)
    assert float(metrics.pop("slots")) > float(wanted.pop("slots"))
    assert_trees_close(metrics, wanted, rtol=1e-5)


def test_dropout_differs_between_parts(make_model, make_training, make_batch):
    """Two parts with the same sentence have other losses than twice the one of a
    part: each draws its own masks.
    """
    engine, state = make_training(
        make_model(dropout_rate=0.3), "jit", accumulation_steps=2
    )
    one = make_batch(0, [9], rows=2)

    def loss(rows):
        batch = {
            side: np.where(np.isin(np.arange(2), rows)[:, None], tokens[0], PAD)
            for side, tokens in one.items()
        }
        return float(engine.step(engine.place(state), batch)[1]["loss"])

    first, second, both = loss([0]), loss([1]), loss([0, 1])
    assert first != second
    assert both == pytest.approx(first + second, rel=1e-6)


def test_the_average_follows_the_parameters(make_model, make_training, make_batch):
    """After every update the average is the one of all parameters so far, and it is
    what is evaluated and translated with, while training goes on with the parameters
    themselves.
    """
    model = make_model()
    plain, plain_state = make_training(model, "pmap")
    runs, state = make_training(model, "pmap", ema_decay=0.9)
    average = jax.tree.map(np.asarray, plain.collect(plain_state).params)
    for step in range(3):
        batch = make_batch(step, LENGTHS)
        plain_state, _ = plain.step(plain_state, batch)
        state, _ = runs.step(state, batch)
        params = jax.tree.map(np.asarray, plain.collect(plain_state).params)
        average = update_average(average, params, 0.9, step)
    found = runs.collect(state)
    assert_trees_close(
        without_key_biases(found.params), without_key_biases(params), atol=1e-6, rtol=0
    )
    assert_trees_close(
        without_key_biases(found.average),
        without_key_biases(average),
        atol=1e-6,
        rtol=0,
    )
    assert found.weights is found.average
    sums = plain.evaluate(
        plain.place(
            dataclasses.replace(plain.collect(plain_state), params=found.average)
        ),
        batch,
    )
    assert_trees_close(runs.evaluate(state, batch), sums, rtol=1e-6)
    assert_trees_equal(runs.weights(state), found.average)


def poisoned(state):
    """Return a state one of whose parameters is no number."""
    table = np.array(state.params["embedding"]["table"])
    table[5] = np.nan
    return dataclasses.replace(
        state, params={**state.params, "embedding": {"table": jnp.asarray(table)}}
    )


@pytest.mark.parametrize(
    "changes", [{"ema_decay": 0.5, "gradient_clip": 1.0}, {"accumulation_steps": 2}]
)
def test_a_bad_step_changes_nothing(make_model, make_training, make_batch, changes):
    """A loss that is no number leaves parameters, moments, average and schedule as they
    are, bit for bit; only the count of batches goes on.
    """
    engine, state = make_training(make_model(), "jit", **changes)
    state, _ = engine.step(state, make_batch(0, LENGTHS))
    before = poisoned(engine.collect(state))
    kept = jax.tree.map(np.array, before)
    batch = make_batch(1, LENGTHS)
    batch["source"][0, 0] = 5
    after, metrics = engine.step(engine.place(before), batch)
    assert float(metrics["skipped"]) == 1.0
    assert not np.isfinite(float(metrics["loss"]))
    assert_trees_equal(dataclasses.replace(after, step=kept.step), kept)
    assert (int(after.step), int(after.updates)) == (2, 1)


@pytest.mark.parametrize("engine", ["pmap", "mesh"])
def test_one_bad_device_is_a_bad_step(make_model, make_training, make_batch, engine):
    """All devices skip what one of them could not compute."""
    runs, state = make_training(make_model(), engine)
    before = poisoned(runs.collect(state))
    batch = make_batch(1, [3] * 16)
    for side in batch.values():
        side[side == 5] = 6
    batch["target"][15, 0] = 5
    kept = jax.tree.map(np.array, before)
    after, metrics = runs.step(runs.place(before), batch)
    # The output layer has the same table: every device computes with it.
    assert float(metrics["skipped"]) == 1.0
    assert_trees_equal(dataclasses.replace(runs.collect(after), step=kept.step), kept)


def test_z_loss_is_added_to_the_loss_alone(make_model, make_training, make_batch):
    """What is minimised grows by the weight times the squared logarithm of the
    denominator, a token; nll stays.
    """
    model = make_model()
    batch = make_batch(2, LENGTHS)
    plain, state = make_training(model, "jit")
    logits = np.asarray(
        model.apply({"params": state.params}, *map(jnp.asarray, batch.values())),
        np.float64,
    )
    denominator = np.log(np.exp(logits).sum(-1))[batch["target"] != PAD]
    _, wanted = plain.step(state, batch)
    runs, state = make_training(model, "jit", z_loss=0.5)
    _, metrics = runs.step(state, batch)
    assert float(metrics["nll"]) == pytest.approx(float(wanted["nll"]), rel=1e-6)
    expected = float(wanted["loss"]) + 0.5 * float((denominator**2).sum())
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)


def test_r_drop(make_model, make_training, make_batch):
    """Without dropout both passes agree, and updates are the plain ones; with it their
    divergence is added. Tokens count once.
    """
    batch = make_batch(3, LENGTHS)
    plain, state = make_training(make_model(), "jit")
    after, wanted = plain.step(state, batch)
    runs, state = make_training(make_model(), "jit", r_drop=5.0)
    found, metrics = runs.step(state, batch)
    assert_trees_close(metrics, wanted, rtol=1e-5)
    assert_trees_close(found.optimizer[0].mu, after.optimizer[0].mu, atol=1e-6, rtol=0)
    model = make_model(dropout_rate=0.3)
    losses = []
    for weight in (1e-9, 2.0):
        runs, state = make_training(model, "jit", r_drop=weight)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        params = jax.tree.map(jnp.copy, state.params)
        _, metrics = runs.step(state, batch)
        losses.append(float(metrics["loss"]))
        assert float(metrics["tokens"]) == sum(LENGTHS)
    # Half of Wu et al. (2021), equation 4: alpha times half the sum of both
    # divergences, over two passes.
    rows = [jnp.repeat(jnp.asarray(side), 2, axis=0) for side in batch.values()]
    logits = np.asarray(
        model.apply({"params": params}, *rows, train=True, rngs={"dropout": key}),
        np.float64,
    )
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    one, other = logs[::2], logs[1::2]
    divergence = (
        (np.exp(one) * (one - other) + np.exp(other) * (other - one)).sum(-1) / 2
    )[batch["target"] != PAD]
    assert losses[1] - losses[0] == pytest.approx(
        2.0 * divergence.sum() / 2.0, rel=1e-3
    )


def test_frozen_parameters(make_model, make_training, make_batch):
    """They stay bit for bit, have no moments, and do not count in the gradient's
    norm.
    """
    model = make_model()
    runs, state = make_training(model, "jit", frozen="encoder/*")
    before = jax.tree.map(np.array, state.params)
    plain, plain_state = make_training(model, "jit")
    batch = make_batch(4, LENGTHS)
    after, metrics = runs.step(state, batch)
    found, wanted = plain.step(plain_state, batch)
    assert_trees_equal(after.params["encoder"], before["encoder"])
    assert_trees_close(
        without_key_biases(after.params["decoder"]),
        without_key_biases(found.params["decoder"]),
        atol=1e-7,
        rtol=0,
    )
    moments = {
        name: moment
        for name, moment in found.optimizer[0].mu.items()
        if name != "encoder"
    }
    norm = 10.0 * np.sqrt(
        sum(
            (np.asarray(leaf, np.float64) ** 2).sum()
            for leaf in jax.tree.leaves(moments)
        )
    )
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    assert float(metrics["gradient_norm"]) < float(wanted["gradient_norm"])
    sizes = [leaf.size for leaf in jax.tree.leaves(after.optimizer)]
    assert sum(sizes) < sum(leaf.size for leaf in jax.tree.leaves(found.optimizer))


def test_clipping_is_by_the_norm_over_all_devices(
    make_model, make_training, make_batch
):
    """The first moment of the first update has a tenth of the largest norm, whatever
    the devices' own gradients are; the norm in the metrics is the one before.
    """
    runs, state = make_training(make_model(), "pmap", gradient_clip=0.25)
    after, metrics = runs.step(state, make_batch(5, LENGTHS))
    adam = runs.collect(after).optimizer[1][0]
    norm = np.sqrt(
        sum(
            (np.asarray(leaf, np.float64) ** 2).sum()
            for leaf in jax.tree.leaves(adam.mu)
        )
    )
    assert norm == pytest.approx(0.025, rel=1e-5)
    assert float(metrics["gradient_norm"]) > 0.25


def test_float16_finds_its_scale(make_model, make_training, make_batch):
    """A scale under which the gradient overflows is halved until it does not; the steps
    that were lost move neither schedule nor moments, and the master parameters are
    float32.
    """
    runs, state = make_training(make_model(dtype="float16"), "pmap", loss_scale=2.0**24)
    scales, skipped = [], []
    for step in range(20):
        state, metrics = runs.step(state, make_batch(step, LENGTHS))
        scales.append(float(metrics["loss_scale"]))
        skipped.append(bool(metrics["skipped"]))
    lost = skipped.index(False)
    assert 0 < lost < 20
    assert scales[: lost + 1] == [2.0 ** (24 - n) for n in range(lost + 1)]
    found = runs.collect(state)
    made = 20 - sum(skipped)
    assert (int(found.step), int(found.updates), int(found.optimizer[0].count)) == (
        20,
        made,
        made,
    )
    config = TrainingConfig(warmup_steps=300)
    assert float(metrics["learning_rate"]) == pytest.approx(
        float(make_schedule(config, 8)(made - 1)), rel=1e-6
    )
    kinds = {
        leaf.dtype
        for leaf in jax.tree.leaves(
            (found.params, found.optimizer[0].mu, found.optimizer[0].nu)
        )
    }
    assert kinds == {jnp.dtype("float32")}


def test_float16_grows_its_scale_again(make_model, make_training, make_batch):
    """After 2,000 good steps the scale is doubled."""
    runs, state = make_training(make_model(dtype="float16"), "jit", loss_scale=8.0)
    almost = dataclasses.replace(
        state.loss_scale, good_steps=jnp.asarray(1_998, jnp.int32)
    )
    state = runs.place(dataclasses.replace(state, loss_scale=almost))
    scales = []
    for step in range(3):
        state, metrics = runs.step(state, make_batch(step, LENGTHS))
        scales.append(float(metrics["loss_scale"]))
    assert scales == [8.0, 8.0, 16.0]
    assert int(state.loss_scale.good_steps) == 1


def test_float16_trains_as_float32_does(make_model, make_training, make_batch):
    """The gradient under float16 and its scale is that of float32 to the precision
    of float16.
    """
    one, one_state = make_training(make_model(), "jit")
    half, half_state = make_training(make_model(dtype="float16"), "jit")
    batch = make_batch(6, LENGTHS)
    expected, wanted = one.step(one_state, batch)
    found, metrics = half.step(half_state, batch)
    assert float(metrics["gradient_norm"]) == pytest.approx(
        float(wanted["gradient_norm"]), rel=2e-3
    )
    assert_trees_close(
        found.optimizer[0].mu, expected.optimizer[0].mu, atol=2e-4, rtol=0
    )


def test_scanned_layers_begin_and_learn_as_looped_ones(
    make_model, make_training, make_batch
):
    """The first state is the same but for its form, and so are the losses."""
    many = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    looped, looped_state = make_training(make_model(**many), "jit")
    scanned, scanned_state = make_training(make_model(**many, scan_layers=True), "jit")
    for step in range(3):
        batch = make_batch(step, LENGTHS)
        looped_state, wanted = looped.step(looped_state, batch)
        scanned_state, metrics = scanned.step(scanned_state, batch)
        assert_trees_close(metrics, wanted, rtol=1e-5)


def test_the_state_of_a_checkpoint_and_back(make_model):
    """Weights and rest together are the state, with an average and a scale as
    without.
    """
    for changes, config in (({}, {}), ({"dtype": "float16"}, {"ema_decay": 0.5})):
        state = create_state(make_model(**changes), TrainingConfig(**config))
        again = type(state).from_parts(state.weights, state.rest())
        assert jax.tree.structure(again) == jax.tree.structure(state)
        assert_trees_equal(again, state)
    assert state.params["embedding"]["table"].shape[0] == VOCABULARY
