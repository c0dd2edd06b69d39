"""Looped and scanned layers are one model; parameters convert both ways."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models.little import make_model, make_sentences, run, shapes

from jaxformer import InputError, Transformer
from jaxformer.models import stack_layers, unstack_layers
from jaxformer.models.cache import empty_cache

SETTINGS = {
    "norm_order": "pre",
    "positions": "learned",
    "tied_embeddings": "none",
    "source_vocabulary_size": 17,
    "num_heads": 3,
    "d_k": 5,
    "d_v": 2,
    "num_encoder_layers": 2,
}


def scanned(model):
    return Transformer(dataclasses.replace(model.config, scan_layers=True))


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_looped_and_scanned_layers_are_one_model():
    """With converted parameters, the weights of every layer, logits and loss are the
    same, and the gradient is that of the other, converted. Abstract trees convert too.
    """
    model, params = make_model(0, **SETTINGS)
    pair = make_sentences(1, [5, 2], size=17), make_sentences(2, [3, 6])
    expected = run(model, params, *pair)
    found = run(scanned(model), stack_layers(params), *pair)
    assert [len(part) for part in found[3]] == [2, 1, 1]
    expected = (expected[0], stack_layers(expected[1]), *expected[2:])

    def same(x, y):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=2e-6)

    jax.tree.map(same, (found[0], *found[2:]), (expected[0], *expected[2:]))
    compare = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)  # noqa: E731
    jax.tree.map(compare, found[1], expected[1])
    looped, stacked = shapes(model.config), shapes(scanned(model).config)
    assert stack_layers(looped) == stacked
    assert unstack_layers(stacked) == looped


class State(NamedTuple):
    count: Any
    params: Any


def test_trees_that_hold_parameters_are_converted():
    """Of eleven layers, row i of each stacked array is layer i. Moments, masked
    moments, tuples and None keep their places; the way back gives every bit.
    """
    layers = {f"layer_{i}": {"bias": np.full(2, i, np.float32)} for i in range(11)}
    params = {"encoder": layers, "decoder": layers, "output": np.ones(3, np.float32)}
    stacked = stack_layers(params)["encoder"]["layers"]["bias"]
    np.testing.assert_array_equal(stacked, np.arange(11)[:, None] * np.ones((1, 2)))
    frozen = jax.tree_util.tree_map_with_path(
        lambda path, _: path[0].key != "encoder", params
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.masked(optax.adam(0.1), frozen)
    )
    seen = {"layers_seen": jnp.int32(3)}
    tree = [State(jnp.int32(7), params), (None, optimizer.init(params)), seen]
    converted = stack_layers(tree)
    paths = jax.tree_util.tree_leaves_with_path(converted)
    names = {jax.tree_util.keystr(path) for path, _ in paths}
    assert not any("layer_" in name for name in names)
    assert any(".mu['decoder']['layers']" in name for name in names)
    assert converted[0].count == 7
    assert converted[1][0] is None
    assert_equal(unstack_layers(converted[0]), tree[0])
    # The encoder's moments are masked away.
    with pytest.raises(InputError, match=r"number of layers, not \[\]"):
        unstack_layers(converted)


def test_layers_that_differ_do_not_stack():
    layer = {"bias": np.zeros(3)}
    for other in (
        {"bias": np.zeros(4)},
        {"scale": np.zeros(3)},
        {"bias": optax.MaskedNode()},
    ):
        with pytest.raises(
            InputError, match="layer_1 has other parameters than layer_0"
        ):
            stack_layers({"encoder": {"layer_0": layer, "layer_1": other}})
    layers = {"bias": np.zeros((2, 3)), "scale": np.zeros((3, 3))}
    with pytest.raises(InputError, match=r"not \[2, 3\]"):
        unstack_layers({"encoder": {"layers": layers}})


def test_scanned_layers_are_traced_once_and_draw_their_own_parameters():
    """More layers add hardly an equation. Each draws uniformly within Glorot's limit
    of one layer, and has unit norms.
    """

    token, counts = jnp.ones((1, 1), jnp.int32), []
    for depth in (1, 3):
        settings = {"num_encoder_layers": depth, "scan_layers": True}
        model, _ = make_model(0, d_model=32, d_ff=64, **settings)
        init = jax.jit(model.init).trace(jax.random.key(0), token, token)
        counts.append(len(str(init.jaxpr).splitlines()))
    assert counts[1] < counts[0] + 20
    params = init.lower().compile()(jax.random.key(0), token, token)["params"]
    layers = params["encoder"]["layers"]
    kernel = np.asarray(layers["feed_forward"]["inner"]["kernel"])
    np.testing.assert_allclose(np.abs(kernel).max((1, 2)), np.sqrt(6 / 96), rtol=0.05)
    assert len({row.tobytes() for row in kernel}) == len(kernel) == 3
    scale = layers["feed_forward_residual"]["norm"]["scale"]
    np.testing.assert_array_equal(scale, np.ones((3, 32)))


def test_decoding_needs_looped_layers():
    model, params = make_model(8)
    source, tokens = jnp.asarray(make_sentences(9, [4])), jnp.ones(1, jnp.int32)
    line = r"scan_layers=False and parameters jaxformer.models.unstack_layers\(params\)"

    def start(model, params):
        return model.apply({"params": params}, source, method="start")

    def step(params, memory):
        given = {"params": params}, tokens, empty_cache(model.config, 1, 4), memory
        return scanned(model).apply(*given, method="step")

    with pytest.raises(InputError, match=line):
        jax.eval_shape(
            lambda params: start(scanned(model), params), stack_layers(params)
        )
    memory = jax.eval_shape(lambda params: start(model, params), params)
    with pytest.raises(InputError, match="decoding needs looped layers"):
        jax.eval_shape(step, stack_layers(params), memory)
