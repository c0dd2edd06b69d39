"""Layers and stacks: residuals, norms and dropout stand where the paper has them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerConfig,
    LayerNorm,
    Residual,
)

RATE_FREE = {"d_model": 8, "num_heads": 2, "d_ff": 12, "dropout_rate": 0.0}


def draw(seed, *shape):
    return jnp.asarray(
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    )


def draw_parameters(module, seed, *inputs):
    """Draw every parameter of a module, biases and scales included, without running
    its initialisation.
    """
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape).astype(np.float32) * 0.5), shapes
    )


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def norm(params, x):
    return F.layer_norm(x, params["norm"]["scale"], params["norm"]["bias"])


X, MEMORY = draw(0, 2, 4, 8), draw(1, 2, 5, 8)
CAUSAL = F.causal_mask(4)
MEMORY_MASK = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)[:, None, None]


def test_post_layer_norm_is_the_paper_s():
    """LN(x + f(x)) around each of the three sub-layers, and nothing behind the last
    layer.
    """
    decoder = Decoder(LayerConfig(**RATE_FREE), 2)
    inputs = (X, MEMORY, CAUSAL, MEMORY_MASK)
    params = draw_parameters(decoder, 2, *inputs)
    assert set(params) == {"layer_0", "layer_1"}

    @jax.jit
    def expected(params):
        x = X
        for layer in (params["layer_0"], params["layer_1"]):
            attended, _ = F.multi_head_attention(layer["self_attention"], x, x, CAUSAL)
            x = norm(layer["self_attention_residual"], x + attended)
            attended, weights = F.multi_head_attention(
                layer["cross_attention"], x, MEMORY, MEMORY_MASK
            )
            x = norm(layer["cross_attention_residual"], x + attended)
            x = norm(
                layer["feed_forward_residual"],
                x + F.feed_forward(layer["feed_forward"], x),
            )
        return x, weights

    output, weights = jax.jit(decoder.apply)({"params": params}, *inputs)
    same(output, expected(params)[0])
    same(weights[1][1], expected(params)[1])


def test_pre_layer_norm_has_a_final_norm():
    """x + f(LN(x)) around each sub-layer, the memory itself not normalised again,
    and one final norm.
    """
    decoder = Decoder(LayerConfig(**RATE_FREE, norm_order="pre", activation="gelu"), 2)
    inputs = (X, MEMORY, CAUSAL, MEMORY_MASK)
    params = draw_parameters(decoder, 3, *inputs)
    assert set(params) == {"layer_0", "layer_1", "norm"}

    @jax.jit
    def expected(params):
        x = X
        for layer in (params["layer_0"], params["layer_1"]):
            y = norm(layer["self_attention_residual"], x)
            x = x + F.multi_head_attention(layer["self_attention"], y, y, CAUSAL)[0]
            y = norm(layer["cross_attention_residual"], x)
            x = (
                x
                + F.multi_head_attention(
                    layer["cross_attention"], y, MEMORY, MEMORY_MASK
                )[0]
            )
            y = norm(layer["feed_forward_residual"], x)
            x = x + F.feed_forward(layer["feed_forward"], y, activation="gelu")
        return norm(params, x)

    same(jax.jit(decoder.apply)({"params": params}, *inputs)[0], expected(params))


@pytest.mark.parametrize("order", ["post", "pre"])
def test_encoder_is_made_of_the_same_parts(order):
    """Two sub-layers with a norm each; a final norm under pre alone; weights of
    every layer.
    """
    encoder = Encoder(LayerConfig(**RATE_FREE, norm_order=order), 2)
    mask = F.padding_mask(jnp.array([[5, 6, 0, 0], [5, 6, 7, 8]]), 0)
    params = draw_parameters(encoder, 4, X, mask)
    assert ("norm" in params) == (order == "pre")
    assert set(params["layer_0"]) == {
        "self_attention",
        "self_attention_residual",
        "feed_forward",
        "feed_forward_residual",
    }

    @jax.jit
    def expected(params):
        x = X
        for layer in (params["layer_0"], params["layer_1"]):
            first, second = (
                layer["self_attention_residual"],
                layer["feed_forward_residual"],
            )
            if order == "post":
                x = norm(
                    first,
                    x + F.multi_head_attention(layer["self_attention"], x, x, mask)[0],
                )
                x = norm(second, x + F.feed_forward(layer["feed_forward"], x))
            else:
                y = norm(first, x)
                x = x + F.multi_head_attention(layer["self_attention"], y, y, mask)[0]
                x = x + F.feed_forward(layer["feed_forward"], norm(second, x))
        return x if order == "post" else norm(params, x)

    output, weights = jax.jit(encoder.apply)({"params": params}, X, mask)
    same(output, expected(params))
    assert [w.shape for w in weights] == [(2, 2, 4, 4)] * 2


@pytest.mark.parametrize("order", ["post", "pre"])
def test_dropout_stands_between_sub_layer_and_residual(order):
    """Only f's output is dropped: LN(x + Dropout(f(x))), or x + Dropout(f(LN(x)))."""
    residual = Residual(LayerConfig(d_model=8, dropout_rate=0.5, norm_order=order))
    x = 10 + draw(5, 2, 64, 8)
    variables = residual.init(jax.random.key(0), x, lambda y: (y, None), train=False)

    def constant(y):
        return jnp.full_like(y, 3.0), y

    output, given = residual.apply(
        variables, x, constant, train=True, rngs={"dropout": jax.random.key(1)}
    )
    plain = LayerNorm(8).apply({"params": variables["params"]["norm"]}, x)
    if order == "pre":
        same(given, plain)
        added = np.asarray(output - x)
        assert (
            np.isclose(added, 0.0, atol=1e-5) | np.isclose(added, 6.0, atol=1e-5)
        ).all()
        assert abs((added > 3).mean() - 0.5) < 0.1
        return
    same(given, x)
    # LN sees x + 6 or x + 0 in each place: of the 2^8 patterns of a row, one must fit
    patterns = 6.0 * jnp.asarray(
        (np.arange(256)[:, None] >> np.arange(8)) & 1, jnp.float32
    )
    candidates = LayerNorm(8).apply(
        {"params": variables["params"]["norm"]}, x[:, :, None] + patterns[None, None]
    )
    distance = np.abs(np.asarray(candidates - output[:, :, None])).max(-1)
    assert distance.min(-1).max() < 1e-4
    assert len(np.unique(distance.argmin(-1))) > 50


def test_nothing_flows_back_from_the_future():
    """The gradient of the output at t is exactly 0 at later inputs, and not 0 at t
    and before.
    """
    decoder = Decoder(LayerConfig(**RATE_FREE), 2)
    inputs = (X, MEMORY, CAUSAL, MEMORY_MASK)
    params = draw_parameters(decoder, 6, *inputs)
    project = draw(7, 8)  # LN makes a plain sum nearly constant

    def outputs(x):
        return (decoder.apply({"params": params}, x, *inputs[1:])[0] @ project).sum(0)

    # [output position, input position]
    flow = np.abs(np.asarray(jax.jit(jax.jacobian(outputs))(X))).max((1, 3))
    np.testing.assert_array_equal(flow > 0.0, np.tri(4, dtype=bool))


@pytest.mark.parametrize(
    ("layer", "dtype"), [(EncoderLayer, jnp.bfloat16), (DecoderLayer, jnp.float16)]
)
def test_filler_rows_leave_gradients_finite(layer, dtype):
    """A sentence of padding alone gives finite outputs and gradients, in half
    precision too.
    """
    mask = MEMORY_MASK.at[0].set(False)
    x, memory = X.astype(dtype), MEMORY.astype(dtype)
    inputs = (memory, mask) if layer is EncoderLayer else (x, memory, CAUSAL, mask)
    module = layer(LayerConfig(**RATE_FREE))

    def loss(params):
        output, _ = module.apply({"params": params}, *inputs)
        return jnp.square(output.astype(jnp.float32)).mean(), output

    found, output = jax.jit(jax.grad(loss, has_aux=True))(
        draw_parameters(module, 10, *inputs)
    )
    assert output.dtype == dtype
    for leaf in jax.tree.leaves((found, output)):
        assert np.isfinite(np.asarray(leaf, np.float32)).all()


def test_nothing_is_learned_from_rows_that_may_attend_to_nothing():
    """A filler sentence adds nothing to the gradients of query, key and value
    projections.
    """
    config = LayerConfig(**RATE_FREE)
    layer = DecoderLayer(config)
    params = draw_parameters(layer, 8, X, MEMORY, CAUSAL, MEMORY_MASK)
    project = draw(9, 8)

    def gradient(rows, mask):
        def loss(params):
            output, _ = layer.apply(
                {"params": params}, X[rows], MEMORY[rows], CAUSAL, mask[rows]
            )
            return (output @ project)[-1].sum()

        return jax.jit(jax.grad(loss))(params)["cross_attention"]

    filler = MEMORY_MASK.at[1].set(False)
    found = gradient(jnp.array([0, 1]), filler)
    for name in ("query", "key", "value"):
        for leaf in jax.tree.leaves(found[name]):
            np.testing.assert_array_equal(leaf, jnp.zeros_like(leaf))
    assert (
        np.asarray(gradient(jnp.array([0, 1]), MEMORY_MASK)["value"]["kernel"]) != 0.0
    ).any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"norm_order": "pr"}, "norm_order must be one of post, pre, not 'pr'"),
        ({"activation": "swish"}, "activation must be one of relu, "),
        ({"d_model": 30, "num_heads": 4}, "d_model 30 is not divisible by num_heads 4"),
    ],
)
def test_layers_that_cannot_be_are_refused(settings, said):
    """A layer of one's own is refused for what would else be another layer in
    silence, or fail late.
    """
    with pytest.raises(InputError, match=re.escape(said)):
        LayerConfig(**settings)
    assert LayerConfig(d_model=30, num_heads=4, d_k=7, d_v=7).d_k == 7
