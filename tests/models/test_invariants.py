"""What padding, the future, dropout and types may and may not change."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.models import count_parameters


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, source, target):
    return model.apply({"params": params}, source, target)


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, source, target):
    return model.apply({"params": params}, source, target, method="forward")


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(model, params, source, target):
    def loss(params):
        logits = model.apply({"params": params}, source, target)
        return (
            F.cross_entropy(
                logits, target, target != model.config.pad_id, smoothing=0.1
            )[0],
            logits,
        )

    (value, logits), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    return value, gradient, logits


def trace(model, params, source, target):
    """Run what happens before any computation: the tokens are known, nothing is
    compiled.
    """
    return jax.eval_shape(lambda: model.apply({"params": params}, source, target))


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing(make_model, make_sentences):
    """Wider batches and other neighbours change no logits, loss or gradients."""
    model, params = make_model(0, positions="learned")
    source, target = make_sentences(1, [4, 2]), make_sentences(2, [3, 5])
    wide_source, wide_target = (
        jnp.pad(source, ((0, 0), (0, 5))),
        jnp.pad(target, ((0, 0), (0, 3))),
    )
    value, gradient, logits = loss_and_gradient(model, params, source, target)
    wide_value, wide_gradient, wide_logits = loss_and_gradient(
        model, params, wide_source, wide_target
    )
    same(wide_logits[0, :3], logits[0, :3])
    same(wide_logits[1, :5], logits[1, :5])
    same(wide_value, value)
    jax.tree.map(same, wide_gradient, gradient)
    neighbour = jnp.concatenate([make_sentences(3, [4]), source[1:]])
    _, _, other = loss_and_gradient(model, params, neighbour, target)
    np.testing.assert_array_equal(other[1], logits[1])
    assert (np.asarray(other[0]) != np.asarray(logits[0])).any()


def test_what_padding_holds_is_never_seen(make_model, make_sentences):
    """Any content of padded source positions gives the same logits to the last bit."""
    model, params = make_model(3, tied_embeddings="target")
    source, target = make_sentences(4, [4, 2]), make_sentences(5, [3, 5])
    clean = apply(model, params, source, target)
    for content in (0.0, -3.0, 1e10):
        table = params["source_embedding"]["table"].at[0].set(content)
        dirty = params | {"source_embedding": {"table": table}}
        np.testing.assert_array_equal(apply(model, dirty, source, target), clean)


def test_a_target_token_is_seen_from_the_next_position_on(make_model, make_sentences):
    """Token t changes no logit up to t and some at t + 1."""
    model, params = make_model(6)
    source, target = make_sentences(7, [4, 3]), make_sentences(8, [5, 5])
    clean = apply(model, params, source, target)
    for t in range(5):
        other = np.array(target)
        other[:, t] = 3 + (other[:, t] - 2) % 10
        changed = np.abs(
            np.asarray(apply(model, params, source, jnp.asarray(other)))
            - np.asarray(clean)
        ).max((0, 2))
        assert (changed[: t + 1] == 0.0).all()
        assert t == 4 or changed[t + 1] > 1e-3


def test_no_gradient_flows_from_a_position_to_later_inputs(make_model, make_sentences):
    """The loss at t has gradient exactly 0 at the learned positions of decoder
    inputs behind t.
    """
    model, params = make_model(9, positions="learned")
    source, target = make_sentences(10, [4]), make_sentences(11, [5])

    def losses(table):
        logits = model.apply(
            {"params": params | {"target_positions": {"table": table}}}, source, target
        )[0]
        return optax.softmax_cross_entropy_with_integer_labels(logits, target[0])

    flow = np.abs(
        np.asarray(jax.jit(jax.jacobian(losses))(params["target_positions"]["table"]))
    ).max(2)
    np.testing.assert_array_equal(flow > 0.0, np.tri(5, 16, dtype=bool))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_filler_sentences_add_nothing(make_model, make_sentences, dtype):
    """Pairs of only padding change no loss or gradient, and all stay finite, also where
    the score of a masked key would be infinite in the compute dtype.
    """
    model, params = make_model(12, dtype=dtype)
    source, target = make_sentences(13, [4, 2]), make_sentences(14, [3, 5])
    filled = [jnp.pad(x, ((0, 2), (0, 0))) for x in (source, target)]
    with_filler, without = (
        loss_and_gradient(model, params, *pair)[:2]
        for pair in (filled, (source, target))
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(with_filler))
    jax.tree.map(same, with_filler, without)
    # nor does a target whose source is missing make anything infinite
    nothing = jnp.zeros_like(source), jnp.zeros_like(target)
    sourceless = loss_and_gradient(model, params, nothing[0], target)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(sourceless))
    value, gradient, _ = loss_and_gradient(model, params, *nothing)
    assert float(value) == 0.0
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(gradient))


def test_an_unknown_token_is_attended_to(make_model, make_sentences):
    """Id 1, unknown, is no padding: it has weight, and its embedding counts."""
    model, params = make_model(15, tied_embeddings="target")
    source, target = (
        make_sentences(16, [4, 2]).at[0, 2].set(1),
        make_sentences(17, [3, 5]),
    )
    _, weights = forward(model, params, source, target)
    assert (np.asarray(weights.cross[0])[0, ..., 2] > 0.0).all()
    table = params["source_embedding"]["table"].at[1].add(1.0)
    other = params | {"source_embedding": {"table": table}}
    assert (
        np.abs(
            np.asarray(
                apply(model, other, source, target)
                - apply(model, params, source, target)
            )
        ).max()
        > 1e-3
    )


def test_padding_before_a_token_is_refused(make_model, make_sentences):
    """Sentences that are padded on the left raise on either side, and name the row."""
    model, params = make_model(18)
    left, right = make_sentences(19, [4, 2])[:, ::-1], make_sentences(20, [4, 2])
    for source, target in ((left, right), (right, left)):
        with pytest.raises(
            InputError,
            match=(
                r"pad sequences on the right: row 1 has a token after padding \(id 0\)"
            ),
        ):
            trace(model, params, source, target)


def test_three_uses_of_one_table(make_model, make_sentences):
    """Tied three ways: one array, whose gradient is the sum of its three uses', and
    which all see.
    """
    tied, params = make_model(21)
    untied, untied_params = make_model(22, tied_embeddings="none")
    source, target = make_sentences(23, [4, 2]), make_sentences(24, [3, 5])
    assert (
        next(p for p in jax.tree.leaves(params) if p.shape == (13, 8))
        is params["embedding"]["table"]
    )
    assert sum(p.shape == (13, 8) for p in jax.tree.leaves(params)) == 1
    assert sum(p.shape == (13, 8) for p in jax.tree.leaves(untied_params)) == 3

    def spread(params):
        table = params["embedding"]["table"]
        rest = {name: part for name, part in params.items() if name != "embedding"}
        return rest | {
            "source_embedding": {"table": table},
            "target_embedding": {"table": table},
            "output": table,
        }

    assert jax.tree.structure(spread(params)) == jax.tree.structure(untied_params)
    value, gradient, _ = loss_and_gradient(tied, params, source, target)
    untied_value, untied_gradient, _ = loss_and_gradient(
        untied, spread(params), source, target
    )
    same(value, untied_value)
    uses = [
        untied_gradient[n]["table"] for n in ("source_embedding", "target_embedding")
    ] + [untied_gradient["output"]]
    assert all(np.abs(np.asarray(use)).max() > 1e-2 for use in uses)
    same(gradient["embedding"]["table"], sum(np.asarray(use) for use in uses))
    jax.tree.map(same, gradient["encoder"], untied_gradient["encoder"])
    # after a step of the optimizer, the tied model still is the untied one with one
    # table in three places
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    same(
        apply(tied, stepped, source, target),
        apply(untied, spread(stepped), source, target),
    )


def test_target_and_output_may_share_a_table_alone(make_model, make_sentences):
    """Two tables of different sizes: the source's, and the one of target and output."""
    model, params = make_model(25, tied_embeddings="target", source_vocabulary_size=17)
    assert params["source_embedding"]["table"].shape == (17, 8)
    assert params["target_embedding"]["table"].shape == (13, 8)
    assert "output" not in params
    assert apply(
        model, params, make_sentences(26, [3], size=17), make_sentences(27, [2])
    ).shape == (1, 2, 13)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_sentences_longer_than_the_model_are_refused(make_model, positions):
    """max_length tokens pass on either side; one more raises with both numbers, in
    jit too.
    """
    model, params = make_model(28, positions=positions, max_length=4)
    four, five = jnp.full((1, 4), 3), jnp.full((1, 5), 3)
    assert np.isfinite(apply(model, params, four, four)).all()
    for source, target in ((five, four), (four, five)):
        with pytest.raises(
            InputError, match="5 tokens is longer than the model's 4 positions"
        ):
            trace(model, params, source, target)
        with pytest.raises(
            InputError, match="5 tokens is longer than the model's 4 positions"
        ):
            apply(model, params, source, target)


def test_tokens_outside_the_vocabulary_are_refused(make_model):
    """A bad id raises on either side, against the side's own vocabulary, before
    anything is computed.
    """
    model, params = make_model(29, tied_embeddings="none", source_vocabulary_size=17)
    good = jnp.full((1, 3), 5)
    for source, target, line in (
        (good.at[0, 1].set(17), good, "token id 17 is not in 0 to 16"),
        (good.at[0, 1].set(-1), good, "token id -1 is not in 0 to 16"),
        (good, good.at[0, 1].set(13), "token id 13 is not in 0 to 12"),
        # the last token never enters the decoder, and is a target all the same
        (good, good.at[0, 2].set(-2), "token id -2 is not in 0 to 12"),
    ):
        with pytest.raises(InputError, match=line):
            trace(model, params, source, target)


def test_without_training_nothing_is_random(make_model, make_sentences):
    """Two calls are bit-identical, whatever key they are given, and equal a model
    without dropout.
    """
    rates = {
        "dropout_rate": 0.5,
        "attention_dropout_rate": 0.5,
        "activation_dropout_rate": 0.5,
    }
    model, params = make_model(30, **rates)
    source, target = make_sentences(31, [4, 2]), make_sentences(32, [3, 5])
    plain, _ = make_model(30)
    expected = apply(plain, params, source, target)
    np.testing.assert_array_equal(apply(model, params, source, target), expected)
    applied = jax.jit(
        lambda rngs: model.apply({"params": params}, source, target, rngs=rngs)
    )
    one, again, other = (applied({"dropout": jax.random.key(k)}) for k in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, other)
    same(one, expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.025)]
)
def test_half_precision_computes_near_float32_with_the_same_parameters(
    make_model, make_sentences, dtype, tolerance
):
    """Parameters, gradients, logits and attention weights are float32, between is
    half precision.
    """
    full, _ = make_model(33)
    half, params = make_model(33, dtype=dtype)
    source, target = make_sentences(34, [4, 2]), make_sentences(35, [3, 5])
    drawn = jax.eval_shape(half.init, jax.random.key(0), source, target)["params"]
    assert {x.dtype for x in jax.tree.leaves(drawn)} == {jnp.dtype("float32")}
    found, weights = forward(half, params, source, target)
    assert {x.dtype for x in jax.tree.leaves((found, weights))} == {
        jnp.dtype("float32")
    }
    encoded, _, _ = jax.eval_shape(
        lambda: half.apply({"params": params}, source, method="encode")
    )
    assert encoded.dtype == jnp.dtype(dtype)
    expected = apply(full, params, source, target)
    difference = np.abs(np.asarray(found) - expected)[np.asarray(target) != 0]
    # a rounding of 2^-9 or 2^-12 at some twenty places, of values below 4
    assert 0.0 < difference.max() < tolerance
    value, gradient, _ = loss_and_gradient(half, params, source, target)
    assert value.dtype == jnp.float32
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(leaf).all()


def test_a_model_whose_target_begins_with_padding_starts_well(
    make_model, make_sentences
):
    """Where bos_id is pad_id, the first input is attended to all the same: weight 1
    at position 0.
    """
    model, params = make_model(36, bos_id=0)
    source, target = make_sentences(37, [4, 2]), make_sentences(38, [3, 5])
    _, weights = forward(model, params, source, target)
    np.testing.assert_allclose(
        np.asarray(weights.decoder[0])[:, :, 0, 0], 1.0, rtol=1e-6
    )


def test_parameters_are_counted():
    """count_parameters sums the sizes of all leaves."""
    assert count_parameters({"a": jnp.zeros((2, 3)), "b": {"c": jnp.zeros(())}}) == 7
