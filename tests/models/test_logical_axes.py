"""Every axis of every parameter has a name that says what it is."""

import itertools
import math

import flax.linen
import jax
import jax.numpy as jnp
import pytest

from jaxformer import Transformer, TransformerConfig, nn
from jaxformer.models import logical_axes

# No two axes have a common size, so that the size of an axis tells what it is.
SIZES = {
    "vocabulary": {31, 37},
    "position": {16},
    "embed": {10},
    "heads": {3},
    "head_width": {5, 7},
    "hidden": {11},
    "layers": {2, 4},
}


def shapes(**settings):
    config = TransformerConfig(
        vocabulary_size=31,
        d_model=10,
        d_ff=11,
        num_heads=3,
        d_k=5,
        d_v=7,
        num_encoder_layers=2,
        num_decoder_layers=4,
        max_length=16,
        **settings,
    )
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)[
        "params"
    ]


OPTIONS = list(
    itertools.product(
        (False, True),
        ("post", "pre"),
        ("sinusoidal", "learned"),
        (("all", None), ("target", 37), ("none", 37)),
    )
)


@pytest.mark.parametrize(("scan", "order", "positions", "tables"), OPTIONS)
def test_every_parameter_of_every_option_is_named(scan, order, positions, tables):
    """One name an axis, and each is the name of an axis of that size."""
    tied, source_size = tables
    params = shapes(
        scan_layers=scan,
        norm_order=order,
        output_bias=order == "pre",
        positions=positions,
        tied_embeddings=tied,
        source_vocabulary_size=source_size,
    )
    names = logical_axes(params)
    named, structure = jax.tree.flatten(
        names, is_leaf=lambda node: isinstance(node, tuple)
    )
    assert structure == jax.tree.structure(params)
    for axes, leaf in zip(named, jax.tree.leaves(params), strict=True):
        assert len(axes) == leaf.ndim
        assert all(
            size in SIZES[axis] for axis, size in zip(axes, leaf.shape, strict=True)
        )
        assert ("layers" in axes) <= scan


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("order", ["post", "pre"])
def test_a_part_is_named_as_in_the_whole(scan, order):
    """An encoder or a decoder in someone else's model has the names that it has in
    ours.
    """
    params = shapes(scan_layers=scan, norm_order=order)
    names = logical_axes(params)
    for part in ("encoder", "decoder"):
        assert logical_axes(params[part]) == names[part]
        assert logical_axes({"inner": {"backbone": params[part]}}) == {
            "inner": {"backbone": names[part]}
        }


def test_names_cover_the_parameters_that_shard():
    """All but a thousandth of a scanned base model has an axis of the vocabulary, of
    heads or of hidden units.
    """
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    model = Transformer(TransformerConfig(vocabulary_size=37_000, scan_layers=True))
    params = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
    named = jax.tree.leaves(
        logical_axes(params), is_leaf=lambda node: isinstance(node, tuple)
    )
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    split = [bool({"vocabulary", "heads", "hidden"} & set(axes)) for axes in named]
    assert sum(
        size for size, splits in zip(sizes, split, strict=True) if splits
    ) > 0.999 * sum(sizes)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        (
            {"encoder": {"gate": {"kernel": jnp.zeros((2, 3))}}},
            "encoder/gate/kernel is not of a jaxformer module",
        ),
        (
            {"embedding": {"table": jnp.zeros((2, 3, 4))}},
            "embedding/table should have the axes",
        ),
        (
            {"encoder": {"layers": {"norm": {"scale": jnp.zeros(3)}}}},
            "encoder/layers/norm/scale should have the axes",
        ),
    ],
)
def test_an_unknown_parameter_is_named(params, line):
    """A parameter outside the table, or with another number of axes, raises and is
    named.
    """
    with pytest.raises(ValueError, match=f"the parameter {line}"):
        logical_axes(params)


def test_modules_have_any_names():
    """Those of a user's own tree, and those that Flax gives; what a table and a norm
    are, their names have to say.
    """

    class Mine(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, tokens):
            place = jnp.arange(3)[None]
            x = nn.Embedding(7, 8)(tokens) + nn.Positions(
                "learned", 8, 5, name="position_embedding"
            )(place)
            x = x + nn.Positions("learned", 8, 5, name="positions")(place)
            x, _ = nn.MultiHeadAttention(8, 2)(x, x)
            return nn.LayerNorm(8)(nn.FeedForward(8, 16, name="mlp")(x))

    params = jax.eval_shape(Mine().init, jax.random.key(0), jnp.zeros((2, 3), int))[
        "params"
    ]
    assert logical_axes(params) == {
        "Embedding_0": {"table": ("vocabulary", "embed")},
        "position_embedding": {"table": ("position", "embed")},
        "positions": {"table": ("position", "embed")},
        "MultiHeadAttention_0": {
            **{
                name: {
                    "kernel": ("embed", "heads", "head_width"),
                    "bias": ("heads", "head_width"),
                }
                for name in ("query", "key", "value")
            },
            "output": {"kernel": ("heads", "head_width", "embed"), "bias": ("embed",)},
        },
        "LayerNorm_0": {"scale": ("embed",), "bias": ("embed",)},
        "mlp": {
            "inner": {"kernel": ("embed", "hidden"), "bias": ("hidden",)},
            "outer": {"kernel": ("hidden", "embed"), "bias": ("embed",)},
        },
    }
    assert (
        logical_axes(params["MultiHeadAttention_0"])
        == logical_axes(params)["MultiHeadAttention_0"]
    )
