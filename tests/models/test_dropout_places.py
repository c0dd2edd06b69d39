"""Where dropout acts in the whole model: on sub-layer outputs and on the sums of
embeddings and positions.
"""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer.functional import layers
from jaxformer.functional.kernels import random_bits

S, T, D, WIDTH, HEADS = 5, 4, 8, 12, 2


def draws(model, params, source, target, **options):
    """Count the masks that a pass draws, by their shape."""
    shapes = []

    def record(key, shape):
        shapes.append(shape)
        return random_bits(key, shape)

    def run(key):
        return model.apply(
            {"params": params}, source, target, rngs={"dropout": key}, **options
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "random_bits", record)
        jax.eval_shape(run, jax.random.key(0))
    return collections.Counter(shapes)


SOURCE_SIDE, TARGET_SIDE = (2, S, D), (2, T, D)
PLACES = {
    # one sum of embeddings and positions a side, two sub-layers an encoder layer, three
    # a decoder layer
    "dropout_rate": {SOURCE_SIDE: 1 + 2 * 2, TARGET_SIDE: 1 + 3 * 1},
    "attention_dropout_rate": {
        (2, HEADS, S, S): 2,
        (2, HEADS, T, T): 1,
        (2, HEADS, T, S): 1,
    },
    "activation_dropout_rate": {(2, S, WIDTH): 2, (2, T, WIDTH): 1},
}


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("name", PLACES)
def test_each_rate_drops_its_tensors_and_no_others(
    make_model, make_sentences, name, order
):
    """The program under train=True draws one mask for each place of the paper, by
    shape and number.
    """
    rates = dict.fromkeys(PLACES, 0.0) | {name: 0.3}
    model, params = make_model(
        0, num_encoder_layers=2, num_decoder_layers=1, norm_order=order, **rates
    )
    source, target = make_sentences(1, [S, 2]), make_sentences(2, [2, T])
    assert draws(model, params, source, target, train=True) == PLACES[name]
    assert not draws(model, params, source, target)


def test_rate_zero_draws_nothing(make_model, make_sentences):
    """With every rate 0, training is the plain forward pass and needs no key."""
    model, params = make_model(3)
    source, target = make_sentences(4, [S, 2]), make_sentences(5, [2, T])
    assert not draws(model, params, source, target, train=True)
    train, plain = (
        jax.jit(
            lambda p, train=train: model.apply(
                {"params": p}, source, target, train=train
            )
        )(params)
        for train in (True, False)
    )
    np.testing.assert_array_equal(train, plain)


@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_mask_that_drops_everything_leaves_the_norms_alone(
    make_model, make_sentences, order, monkeypatch
):
    """With everything dropped, norms of nothing remain: LN(LN(LN(0))), or LN(0)
    under pre.
    """
    model, params = make_model(
        6, num_decoder_layers=2, norm_order=order, dropout_rate=0.4
    )
    source, target = make_sentences(7, [S, 2]), make_sentences(8, [2, T])
    monkeypatch.setattr(
        layers, "random_bits", lambda key, shape: jnp.zeros(shape, jnp.uint32)
    )
    logits = jax.jit(
        lambda p: model.apply(
            {"params": p},
            source,
            target,
            train=True,
            rngs={"dropout": jax.random.key(0)},
        )
    )(params)
    decoder = params["decoder"]
    norms = [decoder["norm"]] if order == "pre" else []
    if order == "post":
        for layer in (decoder["layer_0"], decoder["layer_1"]):
            norms += [
                layer[f"{name}_residual"]["norm"]
                for name in ("self_attention", "cross_attention", "feed_forward")
            ]
    x = jnp.zeros(D)
    for norm in norms:
        x = F.layer_norm(x, norm["scale"], norm["bias"])
    expected = np.asarray(params["embedding"]["table"]) @ np.asarray(x)
    np.testing.assert_allclose(
        logits, np.broadcast_to(expected, logits.shape), rtol=1e-5, atol=1e-5
    )


def test_a_mask_that_keeps_everything_scales_by_the_rate(
    make_model, make_sentences, monkeypatch
):
    """Kept values are divided by 1 - rate, as if embeddings and last kernels were."""
    model, params = make_model(
        9, dropout_rate=0.2, positions="learned", tied_embeddings="none"
    )
    source, target = make_sentences(10, [S, 2]), make_sentences(11, [2, T])
    monkeypatch.setattr(
        layers, "random_bits", lambda key, shape: jnp.full(shape, 2**32 - 1, jnp.uint32)
    )
    logits = jax.jit(
        lambda p: model.apply(
            {"params": p},
            source,
            target,
            train=True,
            rngs={"dropout": jax.random.key(0)},
        )
    )(params)

    def scaled(path, leaf):
        # the last linear map of each sub-layer, and whatever is added up before the
        # first layer
        ends = any(key.key in ("output", "outer") for key in path) and len(path) > 1
        begins = path[0].key.endswith(("_embedding", "_positions"))
        return leaf / 0.8 if ends or begins else leaf

    expected = jax.jit(model.apply)(
        {"params": jax.tree_util.tree_map_with_path(scaled, params)}, source, target
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_masks_differ_between_places_and_between_keys(
    make_model, make_sentences, monkeypatch
):
    """No two places share a mask; another key, as of another step, draws every mask
    anew.
    """
    model, params = make_model(
        12, num_encoder_layers=2, num_decoder_layers=2, dropout_rate=0.5
    )
    # all masks of one shape
    source, target = make_sentences(13, [T, T]), make_sentences(14, [T, T])
    draw, recorded = layers.random_bits, []

    def record(key, shape):
        bits = draw(key, shape)
        recorded.append(bits < jnp.uint32(2**31))  # as a rate of a half has it
        return bits

    @jax.jit
    def run(key):
        recorded.clear()
        logits = model.apply(
            {"params": params}, source, target, train=True, rngs={"dropout": key}
        )
        return logits, jnp.stack(recorded)

    def masks(seed):
        return tuple(np.asarray(x) for x in run(jax.random.key(seed)))

    monkeypatch.setattr(layers, "random_bits", record)
    (logits, first), (again, repeated), (other, second) = masks(0), masks(0), masks(1)
    np.testing.assert_array_equal(first, repeated)
    np.testing.assert_array_equal(logits, again)
    assert (logits != other).any()
    assert len(first) == 2 + 2 * 2 + 2 * 3
    both = np.concatenate([first, second])
    assert len({mask.tobytes() for mask in both}) == len(both)
    # also the rows of a batch, so that two sentences never share a mask
    assert len({row.tobytes() for mask in both for row in mask}) == 2 * len(both)


def test_training_without_a_key_is_an_error(make_model, make_sentences):
    """Dropout never goes missing in silence: train=True without the stream raises."""
    model, params = make_model(15, dropout_rate=0.5)
    with pytest.raises(Exception, match="dropout"):
        jax.eval_shape(
            lambda: model.apply(
                {"params": params},
                make_sentences(16, [3]),
                make_sentences(17, [3]),
                train=True,
            )
        )
