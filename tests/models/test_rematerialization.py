"""Recomputation in the backward pass: the same numbers from less that is kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer import functional as F
from jaxformer.models import stack_layers
from jaxformer.nn.stacks import REMATERIALIZATIONS

RATES = {
    "dropout_rate": 0.3,
    "attention_dropout_rate": 0.2,
    "activation_dropout_rate": 0.1,
}
# Draws of this kind compile in a fraction of the time.
KEY = jax.random.key(3, impl="unsafe_rbg")
KINDS = [kind for kind in REMATERIALIZATIONS if kind != "none"]


def loss(model, params, source, target, key):
    logits = model.apply(
        {"params": params}, source, target, train=True, rngs={"dropout": key}
    )
    return F.cross_entropy(logits, target, target != 0, smoothing=0.1)[0]


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(model, params, source, target, key):
    return jax.value_and_grad(loss, argnums=1)(model, params, source, target, key)


def same(found, expected, tolerance=2e-6):
    """Equal to float32 rounding, which is relative to the largest entry of an array:
    its small ones are differences.
    """

    def compare(x, y):
        np.testing.assert_allclose(
            x, y, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(y).max()))
        )

    jax.tree.map(compare, found, expected)


def make(make_model, scan, kind, **settings):
    """Make a model; its parameters are the same, looped or scanned, whatever it
    recomputes.
    """
    settings = RATES | settings
    model, params = make_model(0, scan_layers=scan, rematerialization=kind, **settings)
    if not scan:
        return model, params
    stacked = stack_layers(make_model(0, **settings)[1])
    assert jax.tree.structure(stacked) == jax.tree.structure(params)
    return model, stacked


# One pair of sentences a side, and one number of layers, so that most programs are
# compiled once for all tests.
@pytest.fixture
def pair(make_sentences):
    return make_sentences(1, [5, 2]), make_sentences(2, [3, 4])


@pytest.mark.parametrize(
    ("scan", "order"), [(False, "post"), (True, "pre")], ids=["looped", "scanned"]
)
def test_recomputing_changes_no_number(make_model, pair, order, scan):
    """Loss, gradients and parameter names are those of a model that keeps all:
    dropout draws the same masks twice.
    """
    model, params = make(make_model, scan, "none", norm_order=order)
    expected = loss_and_gradient(model, params, *pair, KEY)
    other_masks = loss_and_gradient(
        model, params, *pair, jax.random.key(4, impl="unsafe_rbg")
    )
    assert float(expected[0]) != float(other_masks[0])
    for kind in KINDS:
        model, other = make(make_model, scan, kind, norm_order=order)
        # one tree, with the same names and shapes
        jax.tree.map(np.testing.assert_array_equal, other, params)
        same(loss_and_gradient(model, params, *pair, KEY), expected)


def test_recomputing_under_pmap(make_model, pair):
    """Replicated over two devices with keys of their own, each has the gradient that
    it has without recomputation.
    """
    model, params = make(make_model, False, "layer")
    plain, _ = make(make_model, False, "none")
    sources, targets = (jnp.stack([side, side[::-1]]) for side in pair)
    keys = jax.random.split(KEY, 2)
    run = jax.pmap(
        jax.grad(functools.partial(loss, model)),
        in_axes=(None, 0, 0, 0),
        devices=jax.devices()[:2],
    )
    found = run(params, sources, targets, keys)
    for device in range(2):
        expected = loss_and_gradient(
            plain, params, sources[device], targets[device], keys[device]
        )[1]
        same(jax.tree.map(lambda x, d=device: x[d], found), expected)


def test_recomputing_on_a_mesh(make_model, pair):
    """With sharded parameters and a sharded batch, the gradient is that of one
    device without recomputation.
    """
    rates = dict.fromkeys(RATES, 0.0) | {"dropout_rate": 0.3}
    model, params = make(make_model, True, "layer", **rates)
    plain, _ = make(make_model, True, "none", **rates)
    # of the kind whose draws do not depend on how they are sharded
    key = jax.random.key(3)
    expected = loss_and_gradient(plain, params, *pair, key)
    mesh = jax.make_mesh(
        (2, 2),
        ("data", "fsdp"),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[:4],
    )

    def place(leaf):
        axes = [
            "fsdp" if size == 8 and axis == leaf.ndim - 1 else None
            for axis, size in enumerate(leaf.shape)
        ]
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    sharded = jax.tree.map(place, params)
    assert not all(
        leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(sharded)
    )
    batch = jax.device_put(pair, NamedSharding(mesh, PartitionSpec("data")))
    # the devices add in another order
    same(loss_and_gradient(model, sharded, *batch, key), expected, tolerance=1e-5)


def kept(model, params, source, target):
    """Count the bytes that the forward pass hands to the backward pass, besides the
    parameters.
    """

    def residuals(params, source, target):
        return jax.vjp(lambda p: loss(model, p, source, target, KEY), params)[1]

    leaves = jax.tree.leaves(jax.eval_shape(residuals, params, source, target))
    return sum(
        leaf.size * leaf.dtype.itemsize
        for leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    )


@pytest.mark.parametrize(
    ("scan", "dtype"),
    [(False, "float32"), (True, "bfloat16")],
    ids=["looped", "scanned"],
)
def test_less_is_kept(make_model, make_sentences, scan, dtype):
    """What waits for the backward pass shrinks from none to dots to layer; of layer,
    little is left but inputs.
    """
    pair = make_sentences(1, [12] * 4), make_sentences(2, [12] * 4)
    sizes = {}
    for kind in REMATERIALIZATIONS:
        model, params = make(
            make_model,
            scan,
            kind,
            num_encoder_layers=3,
            num_decoder_layers=2,
            dtype=dtype,
        )
        parameters = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)
        )
        sizes[kind] = kept(model, params, *pair) - parameters
    assert sizes["layer"] < 0.5 * sizes["dots"] < 0.5 * sizes["none"]


def test_a_compiled_deep_model_needs_less_memory(make_model, make_sentences):
    """The temporary memory of the compiled gradient of 8 + 8 scanned layers shrinks
    from none to dots to layer.
    """
    pair = make_sentences(1, [16] * 8), make_sentences(2, [16] * 8)
    rates, sizes = dict.fromkeys(RATES, 0.0), []
    for kind in REMATERIALIZATIONS:
        model, params = make(
            make_model, True, kind, num_encoder_layers=8, num_decoder_layers=8, **rates
        )
        program = loss_and_gradient.lower(model, params, *pair, KEY).compile()
        analysis = program.memory_analysis()
        if analysis is None:
            pytest.skip("this backend does not say what memory a program needs")
        sizes.append(analysis.temp_size_in_bytes)
    none, layer, dots = sizes
    assert layer < dots < none


def test_looped_layers_are_recomputed_behind_a_barrier(make_model, pair):
    """Each layer that is recomputed has a barrier, or the compiler would merge both
    computations into one again.
    """
    for kind, number in (("none", 0), ("layer", 2), ("dots", 2)):
        model, params = make(make_model, False, kind)
        text = loss_and_gradient.lower(model, params, *pair, KEY).as_text()
        assert text.count("optimization_barrier") == number


def products(jaxpr):
    """Count matrix products in a program: those of linear maps, and those between
    batches of matrices.
    """
    linear = between = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            batched = bool(equation.params["dimension_numbers"][1][0])
            linear, between = linear + (not batched), between + batched
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                more = products(inner)
                linear, between = linear + more[0], between + more[1]
    return linear, between


def test_dots_repeats_no_linear_map(make_model, pair):
    """Under dots the gradient has as many linear maps as under none, and repeats
    only the products of attention.
    """
    counts = {}
    for kind in REMATERIALIZATIONS:
        model, params = make(make_model, False, kind)
        gradient = jax.make_jaxpr(
            lambda p, model=model: jax.grad(loss, 1)(model, p, *pair, KEY)
        )
        counts[kind] = products(gradient(params).jaxpr)
    assert counts["dots"][0] == counts["none"][0] < counts["layer"][0]
    assert counts["none"][1] < counts["dots"][1] <= counts["layer"][1]
