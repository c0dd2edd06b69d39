"""One update and one evaluation: sums over real tokens, divided once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.little import (
    EOS,
    PAD,
    VOCABULARY,
    assert_trees_close,
    assert_trees_equal,
)

from jaxformer.functional.losses import smoothed_probabilities


@pytest.fixture
def make_step(make_training):
    """Return a function that returns the compiled step and evaluation of a model, which
    leave their arguments usable, and a first state.
    """

    def make(model):
        engine, state = make_training(model, "jit")
        return (
            lambda state, batch: engine.step(engine.place(state), batch),
            lambda params, batch: engine.evaluate(state.replace(params=params), batch),
            state,
        )

    return make


@functools.cache
def compiled(model):
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
    target, real = batch["target"], batch["target"] != PAD
    wanted = np.where(np.eye(VOCABULARY)[target], on, off)
    loss = -(wanted * log_probabilities).sum(-1)[real].sum()
    return loss, real.sum(), (logits.argmax(-1) == target)[real].sum()


def first_moment(state):
    """After one update from scratch: a tenth of the gradient."""
    return state.optimizer[0].mu


def counts(state):
    return [int(n) for n in (state.step, state.updates, state.optimizer[0].count)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_metrics_are_sums_over_real_tokens(make_model, make_step, make_batch, dtype):
    """Smoothed loss, plain loss under another name and tokens equal a float64 oracle on
    the logits, also with a model that computes in bfloat16, whose cross-entropy is
    float32. Step and Adam's count go up by one, and the key of dropout stays; without
    dropout the key changes nothing.
    """
    model = make_model(dtype=dtype)
    step, _, state = make_step(model)
    batch = make_batch(0, [6, 2, 9, 5])
    after, metrics = step(state, batch)
    nll, tokens, _ = oracle(model, state.params, batch)
    loss, _, _ = oracle(model, state.params, batch, smoothing=0.1)
    # the compiled step rounds to bfloat16 in other places
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    assert float(metrics["tokens"]) == tokens == 22
    assert float(metrics["nll"]) == pytest.approx(nll, rel=tolerance)
    assert float(metrics["loss"]) == pytest.approx(loss, rel=tolerance)
    assert abs(loss - nll) > 0.01
    kept = (metrics, after.params, after.optimizer[0].mu, after.optimizer[0].nu)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept)} == {jnp.dtype("float32")}
    assert counts(after) == [1, 1, 1]
    np.testing.assert_array_equal(after.key, state.key)
    other = state.replace(key=np.array([0, 99], np.uint32))
    assert_trees_equal(step(other, batch)[0].params, after.params)


def test_accuracy_ignores_padding_and_counts_eos(make_model, make_step, make_batch):
    """Hits are counted at real targets, end of sentence among them, and nowhere else.
    Evaluation is without dropout.
    """
    model = make_model()
    _, evaluate, state = make_step(model)
    hits = 0.0
    for seed in range(20):
        batch = make_batch(seed, [8, 3, 0, 1])
        sums = evaluate(state.params, batch)
        _, tokens, expected = oracle(model, state.params, batch)
        assert (float(sums["correct"]), float(sums["tokens"])) == (expected, tokens)
        hits += expected
    assert hits > 0
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    _, other, _ = make_step(make_model(**dict.fromkeys(rates, 0.5)))
    assert_trees_close(other(state.params, batch), sums, rtol=1e-6)

    # A model that always says the same token: "end of sentence" is right once a
    # sentence, padding never.
    for token, expected in ((EOS, 3), (PAD, 0)):
        params = jax.tree.map(np.zeros_like, state.params)
        params["embedding"]["table"][token] = 1.0
        last = params["decoder"]["layer_0"]["feed_forward_residual"]["norm"]
        last["bias"][:] = 1.0
        assert float(evaluate(params, batch)["correct"]) == expected


def test_dropout_and_padding(make_model, make_step, make_batch):
    """The same batch and parameters give another loss at another step and with another
    key, and the same at the same. Without a real token the loss is 0 and the gradient
    0, not 0 / 0; the first update changes no parameter, and a later one only continues
    with what Adam remembers.
    """
    step, _, state = make_step(make_model(dropout_rate=0.3))
    batch, nothing = make_batch(2, [6, 6, 4, 9]), make_batch(4, [])
    given = [state.replace(step=np.int32(number)) for number in (0, 1, 2, 3, 0)]
    given.append(state.replace(key=np.array([0, 99], np.uint32)))
    losses = [float(step(each, batch)[1]["loss"]) for each in given]
    assert len(set(losses)) == 5
    assert losses[0] == losses[4]

    after, metrics = step(state, nothing)
    found = {name for name, value in metrics.items() if float(value)}
    assert found == {"learning_rate", "slots"}
    assert_trees_equal(after.params, state.params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(first_moment(after)))
    trained, _ = step(state, batch)
    later, metrics = step(trained, nothing)
    assert float(metrics["gradient_norm"]) == 0.0
    remembered = jax.tree.map(lambda m: 0.9 * np.asarray(m), first_moment(trained))
    assert_trees_close(first_moment(later), remembered, rtol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(later.params))


def test_the_gradient_is_that_of_the_mean_over_tokens(
    make_model, make_step, make_batch
):
    """Sentences weigh by their tokens: the gradient of a batch is the mean of those of
    its sentences, weighted by their tokens, and ``gradient_norm`` is its norm.
    """
    step, _, state = make_step(make_model())
    lengths = [9, 1, 4]
    batch = make_batch(6, lengths)
    found, metrics = step(state, batch)

    def only(row):
        kept = np.arange(16)[:, None] == row
        return {side: np.where(kept, tokens, PAD) for side, tokens in batch.items()}

    alone = [first_moment(step(state, only(row))[0]) for row in range(3)]
    expected = jax.tree.map(
        lambda *leaves: np.average(leaves, axis=0, weights=lengths), *alone
    )
    assert_trees_close(first_moment(found), expected, rtol=1e-4, atol=1e-7)
    squares = sum((leaf.astype(float) ** 2).sum() for leaf in jax.tree.leaves(expected))
    norm = pytest.approx(10.0 * squares**0.5, rel=1e-4)
    assert float(metrics["gradient_norm"]) == norm
