"""Layers looped or scanned are one model, whose parameters go from the one form to
the other and back.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import InputError, Transformer, TransformerConfig
from jaxformer.models import empty_cache, stack_layers, unstack_layers

SETTINGS = {
    "paper": {},
    "pre, learned, untied": {
        "norm_order": "pre",
        "positions": "learned",
        "tied_embeddings": "none",
        "source_vocabulary_size": 17,
    },
    "widths": {"num_heads": 3, "d_k": 5, "d_v": 2, "activation": "gelu"},
}
LITTLE = ("pre, learned, untied", "widths")
DEPTH = {"num_encoder_layers": 3, "num_decoder_layers": 2}


def scanned(model):
    return Transformer(dataclasses.replace(model.config, scan_layers=True))


def shapes(model):
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, source, target):
    return model.apply({"params": params}, source, target, method="forward")


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("settings", [SETTINGS[name] for name in LITTLE], ids=LITTLE)
def test_looped_and_scanned_layers_are_one_model(make_model, make_sentences, settings):
    """With converted parameters, logits and the attention weights of every layer are
    the same.
    """
    model, params = make_model(0, **(settings | {"num_encoder_layers": 3}))
    source = make_sentences(1, [5, 2], size=model.config.source_vocabulary_size or 13)
    target = make_sentences(2, [3, 6])
    expected = forward(model, params, source, target)
    found = forward(scanned(model), stack_layers(params), source, target)
    assert [len(part) for part in found[1]] == [3, 1, 1]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=2e-6),
        found,
        expected,
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_converted_trees_are_those_of_the_other_model(make_model, settings):
    """Names, shapes and types of a converted tree are what the other model draws;
    abstract trees convert too.
    """
    model, _ = make_model(0, **(DEPTH | settings))
    looped, stacked = shapes(model), shapes(scanned(model))
    assert stack_layers(looped) == stacked
    assert unstack_layers(stacked) == looped


def test_stacking_is_undone_in_order(make_model):
    """Of eleven layers, row i of each stacked array is layer i; the way back gives
    every bit.
    """
    _, params = make_model(
        3, num_encoder_layers=11, num_decoder_layers=1, norm_order="pre"
    )
    stacked = stack_layers(params)
    kernels = stacked["encoder"]["layers"]["feed_forward"]["inner"]["kernel"]
    for index in range(11):
        expected = params["encoder"][f"layer_{index}"]["feed_forward"]["inner"][
            "kernel"
        ]
        np.testing.assert_array_equal(kernels[index], expected)
    assert_equal(unstack_layers(stacked), params)
    assert_equal(stack_layers(unstack_layers(stacked)), stacked)


class Record(NamedTuple):
    """Something that holds parameters, as a state of training does."""

    count: Any
    params: Any


def test_whatever_holds_parameters_is_converted(make_model):
    """Moments, masked moments, tuples and None keep their places; what belongs to no
    layer stays as it is.
    """
    _, params = make_model(4, **DEPTH)
    frozen = jax.tree_util.tree_map_with_path(
        lambda path, _: path[0].key == "decoder", params
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.masked(optax.adam(0.1), frozen)
    )
    tree = [
        Record(jnp.int32(7), params),
        (None, optimizer.init(params)),
        {"layers_seen": jnp.int32(3)},
    ]
    converted = stack_layers(tree)
    names = {
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(converted)
    }
    assert not any("layer_" in name for name in names)
    assert any(".mu['decoder']['layers']" in name for name in names)
    assert converted[0].count == 7
    assert converted[1][0] is None
    # the encoder's moments are masked away
    with pytest.raises(InputError, match=r"number of layers, not \[\]"):
        unstack_layers(converted)
    assert_equal(unstack_layers(converted[0]), tree[0])


def test_a_step_of_the_optimizer_commutes_with_stacking():
    """Adam on stacked parameters, moments and gradients is Adam on looped ones,
    stacked.
    """
    rng = np.random.default_rng(5)
    layers = {
        f"layer_{i}": {"kernel": rng.normal(size=(2, 3)).astype(np.float32)}
        for i in range(3)
    }
    params = jax.tree.map(
        jnp.asarray,
        {"encoder": layers, "output": rng.normal(size=4).astype(np.float32)},
    )
    gradient = jax.tree.map(lambda p: jnp.sin(37.0 * p), params)
    optimizer = optax.adam(0.1, b1=0.9, b2=0.98)

    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    # optax raises a float to the power of an integer
    with jax.numpy_dtype_promotion("standard"):
        params, state = step(params, optimizer.init(params), gradient)
        expected = stack_layers(step(params, state, gradient))
        found = step(*(stack_layers(tree) for tree in (params, state, gradient)))
    assert_equal(found, expected)


def test_layers_that_are_not_alike_do_not_stack():
    """Another shape or other names in one layer raise and say which; so do stacks
    that disagree on their number.
    """
    layer = {"bias": jnp.zeros(3)}
    for other in (
        {"bias": jnp.zeros(4)},
        {"scale": jnp.zeros(3)},
        {"bias": optax.MaskedNode()},
    ):
        with pytest.raises(
            InputError,
            match="equal layers can be stacked, and layer_1 has other parameters than layer_0",
        ):
            stack_layers({"encoder": {"layer_0": layer, "layer_1": other}})
    with pytest.raises(InputError, match=r"not \[2, 3\]"):
        unstack_layers(
            {
                "encoder": {
                    "layers": {"bias": jnp.zeros((2, 3)), "scale": jnp.zeros((3, 3))}
                }
            }
        )


def count(jaxpr):
    """Count the equations of a program, sub-programs included, each once however
    often it runs.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = [getattr(value, "jaxpr", value) for value in equation.params.values()]
        total += 1 + sum(count(part) for part in inner if hasattr(part, "eqns"))
    return total


def test_scanned_layers_are_traced_once(make_model, make_sentences):
    """A layer more adds hundreds of equations to the gradient of a looped model, and
    hardly any to a scanned one.
    """
    pair = make_sentences(6, [5, 2]), make_sentences(7, [3, 6])

    def equations(depth, scan):
        model, params = make_model(
            0,
            num_encoder_layers=depth,
            num_decoder_layers=depth,
            scan_layers=scan,
            dropout_rate=0.1,
        )

        def loss(params):
            return model.apply(
                {"params": params},
                *pair,
                train=True,
                rngs={"dropout": jax.random.key(0)},
            ).sum()

        return count(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)

    (looped, deep_looped), (scanned, deep_scanned) = (
        [equations(d, scan) for d in (1, 4)] for scan in (False, True)
    )
    assert deep_looped - looped > 3 * 2 * 100
    assert deep_scanned < scanned + 3 * 20


def test_scanned_layers_begin_like_looped_ones():
    """Each layer draws its own kernels, uniform within Glorot's limit of one layer,
    and unit norms.
    """
    config = TransformerConfig(
        vocabulary_size=13,
        d_model=32,
        d_ff=64,
        num_heads=2,
        num_encoder_layers=3,
        scan_layers=True,
    )
    model = Transformer(config)
    token = jnp.ones((1, 1), jnp.int32)
    layers = jax.jit(model.init)(jax.random.key(0), token, token)["params"]["encoder"][
        "layers"
    ]
    limit = np.sqrt(6.0 / (config.d_model + config.d_ff))
    kernel = np.asarray(layers["feed_forward"]["inner"]["kernel"])
    np.testing.assert_allclose(np.abs(kernel).max((1, 2)), limit, rtol=0.05)
    assert len({row.tobytes() for row in kernel}) == len(kernel)
    np.testing.assert_array_equal(
        layers["feed_forward_residual"]["norm"]["scale"], np.ones((3, config.d_model))
    )


def test_decoding_needs_looped_layers(make_model, make_sentences):
    """Scanned layers refuse to decode, and say what to do instead."""
    model, params = make_model(8, scan_layers=True, **DEPTH)
    source = make_sentences(9, [4])
    with pytest.raises(
        InputError,
        match=(
            r"scan_layers=False and parameters jaxformer.models.unstack_layers\(params\)"
        ),
    ):
        jax.eval_shape(lambda: model.apply({"params": params}, source, method="start"))
    looped = Transformer(dataclasses.replace(model.config, scan_layers=False))
    memory = jax.eval_shape(
        lambda: looped.apply({"params": unstack_layers(params)}, source, method="start")
    )
    cache, tokens = empty_cache(model.config, 1, 4), jnp.ones(1, jnp.int32)
    with pytest.raises(InputError, match="decoding needs looped layers"):
        jax.eval_shape(
            lambda m: model.apply({"params": params}, tokens, cache, m, method="step"),
            memory,
        )
