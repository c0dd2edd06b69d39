"""One update and one evaluation: sums over real tokens, divided once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import EOS, PAD, VOCABULARY, assert_trees_close, assert_trees_equal

from jaxformer.functional.losses import smoothed_probabilities


@pytest.fixture
def make_step(make_training):
    """Return a function that gives the compiled step of a model, which leaves its
    argument usable, and a first state.
    """

    def make(model):
        engine, state = make_training(model, "jit")
        return lambda state, batch: engine.step(engine.place(state), batch), state

    return make


@pytest.fixture
def make_evaluation(make_training):
    """Return a function that gives the compiled evaluation of a model: parameters and
    batch to sums.
    """

    def make(model):
        engine, state = make_training(model, "jit")
        return lambda params, batch: engine.evaluate(
            dataclasses.replace(state, params=params), batch
        )

    return make


@functools.cache
def compiled(model):
    """Return the compiled logits of a model."""
    return jax.jit(
        lambda params, batch: model.apply(
            {"params": params}, batch["source"], batch["target"]
        )
    )


def oracle(model, params, batch, smoothing=0.0):
    """Sum the cross-entropy and count tokens and hits, in float64, from the model's
    logits.
    """
    logits = np.asarray(compiled(model)(params, batch), np.float64)
    logits -= logits.max(-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    on, off = smoothed_probabilities(VOCABULARY, smoothing, "others")
    target = batch["target"]
    loss = tokens = hits = 0.0
    for place in map(tuple, np.argwhere(target != PAD)):
        wanted = np.full(VOCABULARY, off)
        wanted[target[place]] = on
        loss -= float(wanted @ log_probabilities[place])
        tokens += 1
        hits += logits[place].argmax() == target[place]
    return loss, tokens, hits


def first_moment(state):
    """After one update from scratch: a tenth of the gradient."""
    return state.optimizer[0].mu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_metrics_are_sums_over_real_tokens(make_model, make_step, make_batch, dtype):
    """Smoothed loss, plain loss under another name and tokens equal a float64 oracle on
    the logits, also with a model that computes in bfloat16, whose cross-entropy is
    float32.
    """
    model = make_model(dtype=dtype)
    step, state = make_step(model)
    batch = make_batch(0, [6, 2, 9, 5])
    _, metrics = step(state, batch)
    nll, tokens, _ = oracle(model, state.params, batch)
    loss, _, _ = oracle(model, state.params, batch, smoothing=0.1)
    # the compiled step rounds to bfloat16 in other places
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    assert float(metrics["tokens"]) == tokens == (batch["target"] != PAD).sum()
    assert float(metrics["nll"]) == pytest.approx(nll, rel=tolerance)
    assert float(metrics["loss"]) == pytest.approx(loss, rel=tolerance)
    assert abs(loss - nll) > 0.01
    assert {value.dtype for value in metrics.values()} == {jnp.dtype("float32")}


def test_accuracy_ignores_padding_and_counts_eos(
    make_model, make_training, make_evaluation, make_batch
):
    """Hits are counted at real targets, end of sentence among them, and nowhere
    else.
    """
    model = make_model()
    evaluate = make_evaluation(model)
    _, state = make_training(model, "jit")
    hits = 0.0
    for seed in range(20):
        batch = make_batch(seed, [8, 3, 0, 1])
        sums = evaluate(state.params, batch)
        _, tokens, expected = oracle(model, state.params, batch)
        assert (float(sums["correct"]), float(sums["tokens"])) == (expected, tokens)
        hits += expected
    assert hits > 0

    # A model that always says the same token: "end of sentence" is right once a
    # sentence, padding never.
    def saying(token):
        params = jax.tree.map(jnp.zeros_like, state.params)
        params["embedding"]["table"] = params["embedding"]["table"].at[token].set(1.0)
        last = params["decoder"]["layer_0"]["feed_forward_residual"]["norm"]
        last["bias"] = jnp.ones_like(last["bias"])
        return params

    sums = {
        token: evaluate(saying(token), make_batch(0, [8, 3, 0, 1]))
        for token in (EOS, PAD)
    }
    assert (float(sums[EOS]["correct"]), float(sums[EOS]["tokens"])) == (3, 12)
    assert float(sums[PAD]["correct"]) == 0


def test_evaluation_is_deterministic(
    make_model, make_training, make_evaluation, make_batch
):
    """Evaluation needs no random key, whatever the dropout, and twice gives the same
    bits.
    """
    batch = make_batch(1, [5, 7, 0, 9])
    params = make_training(make_model(), "jit")[1].params
    evaluate = make_evaluation(
        make_model(
            dropout_rate=0.5, attention_dropout_rate=0.5, activation_dropout_rate=0.5
        )
    )
    assert_trees_equal(evaluate(params, batch), evaluate(params, batch))
    assert_trees_close(
        evaluate(params, batch), make_evaluation(make_model())(params, batch), rtol=1e-6
    )


def test_without_dropout_the_key_changes_nothing(make_model, make_step, make_batch):
    """At rate 0 an update does not depend on the random key, bit for bit."""
    step, state = make_step(make_model())
    batch = make_batch(1, [5, 7, 0, 9])
    other = state.replace(key=jax.random.key_data(jax.random.key(99)))
    assert_trees_equal(step(other, batch)[0].params, step(state, batch)[0].params)


def test_dropout_differs_between_steps_and_seeds(make_model, make_step, make_batch):
    """The same batch and parameters give another loss at another step, and the same
    at the same.
    """
    step, state = make_step(make_model(dropout_rate=0.3))
    batch = make_batch(2, [6, 6, 4, 9])
    losses = [
        float(step(state.replace(step=jnp.int32(number)), batch)[1]["loss"])
        for number in (0, 1, 2, 3, 0)
    ]
    assert len(set(losses)) == 4
    assert losses[0] == losses[-1]
    other = state.replace(key=jax.random.key_data(jax.random.key(99)))
    assert float(step(other, batch)[1]["loss"]) != losses[0]


def test_padding_weighs_nothing(make_model, make_step, make_batch):
    """More columns and rows of padding leave loss, gradient and parameters alone."""
    step, state = make_step(make_model())
    narrow = make_batch(3, [6, 2, 5], rows=8, width=7)
    padded = {
        side: np.pad(rows, ((0, 8), (0, 2)), constant_values=PAD)
        for side, rows in narrow.items()
    }
    found, metrics = step(state, padded)
    expected, wanted = step(state, narrow)
    assert float(metrics["tokens"]) == float(wanted["tokens"]) == 13
    assert (float(metrics.pop("slots")), float(wanted.pop("slots"))) == (
        16 * 18,
        8 * 14,
    )
    assert_trees_close(metrics, wanted, rtol=1e-5)
    assert_trees_close(
        first_moment(found), first_moment(expected), rtol=1e-4, atol=1e-7
    )


def test_a_batch_of_padding_alone_does_nothing(make_model, make_step, make_batch):
    """Without a real token the loss is 0 and the gradient 0, not 0 / 0; the first
    update changes no parameter, and a later one only goes on with what Adam remembers.
    """
    step, state = make_step(make_model(dropout_rate=0.3))
    nothing = make_batch(4, [])
    after, metrics = step(state, nothing)
    assert {name for name, value in metrics.items() if float(value)} == {
        "learning_rate",
        "slots",
    }
    assert_trees_equal(after.params, state.params)
    assert all(
        (np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(first_moment(after))
    )
    trained, _ = step(state, make_batch(5, [6, 2, 5, 9]))
    later, metrics = step(trained, nothing)
    assert float(metrics["gradient_norm"]) == 0.0
    assert_trees_close(
        first_moment(later),
        jax.tree.map(lambda m: 0.9 * m, first_moment(trained)),
        rtol=1e-6,
    )
    assert all(
        np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(later.params)
    )


def test_the_gradient_is_that_of_the_mean_over_tokens(
    make_model, make_step, make_batch
):
    """Sentences weigh by their tokens: the gradient of a batch is the mean of those of
    its sentences, weighted by their tokens, and ``gradient_norm`` is its norm.
    """
    step, state = make_step(make_model())
    lengths = [9, 1, 4]
    batch = make_batch(6, lengths)
    found, metrics = step(state, batch)

    def only(row):
        kept = np.arange(len(batch["target"]))[:, None] == row
        return {side: np.where(kept, tokens, PAD) for side, tokens in batch.items()}

    alone = [first_moment(step(state, only(row))[0]) for row in range(len(lengths))]
    expected = jax.tree.map(
        lambda *leaves: (
            sum(n * leaf for n, leaf in zip(lengths, leaves, strict=True)) / 14
        ),
        *alone,
    )
    assert_trees_close(first_moment(found), expected, rtol=1e-4, atol=1e-7)
    norm = np.sqrt(
        sum(
            (100.0 * np.asarray(leaf, np.float64) ** 2).sum()
            for leaf in jax.tree.leaves(expected)
        )
    )
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)


def test_a_step_counts_one_update(make_model, make_step, make_batch):
    """Step and Adam's count go up by one, and the key of dropout stays."""
    step, state = make_step(make_model())
    after, _ = step(state, make_batch(7, [3, 1, 2, 9]))
    assert (int(after.step), int(after.updates), int(after.optimizer[0].count)) == (
        1,
        1,
        1,
    )
    np.testing.assert_array_equal(after.key, state.key)
