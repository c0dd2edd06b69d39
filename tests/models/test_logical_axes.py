"""Every axis of every parameter has a name."""

import dataclasses
import functools

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from models.little import shapes

from jaxformer import TransformerConfig, nn
from jaxformer.models import logical_axes, stack_layers
from jaxformer.models.lora import draw_adapters

# No two axes have a common size: the size tells what an axis is.
SIZES = {"vocabulary": {31, 37}, "position": {16, 32}, "embed": {10}, "heads": {3, 1}}
SIZES |= {"head_width": {5, 7}, "hidden": {11}, "layers": {2, 4}, "rank": {1}}
CONFIG = {"vocabulary_size": 31, "d_model": 10, "d_ff": 11, "num_heads": 3, "d_k": 5}
CONFIG |= {"d_v": 7, "num_encoder_layers": 2, "num_decoder_layers": 4}
CONFIG |= {"max_length": 16}


def is_names(node):
    return isinstance(node, tuple)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "scan_layers": True,
            "norm_order": "pre",
            "output_bias": True,
            "positions": "learned",
            "embedding_norm": True,
            "tied_embeddings": "none",
            "source_vocabulary_size": 37,
        },
        {
            "norm": "rms",
            "query_key_norm": True,
            "position_bias": "relative",
            "activation": "swiglu",
            "num_key_value_heads": 1,
        },
    ],
)
def test_every_parameter_is_named(settings):
    """Each name is that of an axis of this size, of adapters too; a part has the names
    that it has in the whole, in any tree.
    """
    config = TransformerConfig(**CONFIG, **settings)
    params = shapes(config)
    looped = flatten_dict(shapes(dataclasses.replace(config, scan_layers=False)))
    kernels = {path: looped[path] for path in looped if path[-1] == "kernel"}
    draw = functools.partial(draw_adapters, unflatten_dict(kernels), 1)
    adapters = jax.eval_shape(draw, jax.random.key(0))
    for tree in (params, stack_layers(adapters) if config.scan_layers else adapters):
        named, structure = jax.tree.flatten(logical_axes(tree), is_leaf=is_names)
        assert structure == jax.tree.structure(tree)
        for axes, leaf in zip(named, jax.tree.leaves(tree), strict=True):
            sizes = zip(axes, leaf.shape, strict=True)
            assert all(size in SIZES[axis] for axis, size in sizes)
            assert ("layers" in axes) <= ("scan_layers" in settings)
    names = logical_axes(params)
    for part in ("encoder", "decoder"):
        assert logical_axes({"mine": {"backbone": params[part]}}) == {
            "mine": {"backbone": names[part]}
        }


@pytest.mark.parametrize(
    ("path", "shape", "line"),
    [
        ("encoder/door/kernel", (2, 3), "is not of a jaxformer module"),
        ("embedding/table", (2, 3, 4), "should have the axes"),
        ("encoder/layers/norm/scale", (3,), "should have the axes"),
    ],
)
def test_an_unknown_parameter_is_refused(path, shape, line):
    params = np.zeros(shape)
    for name in reversed(path.split("/")):
        params = {name: params}
    with pytest.raises(ValueError, match=f"the parameter {path} {line}"):
        logical_axes(params)


def test_modules_have_any_names():
    """Those of a user's tree, and those that Flax gives."""

    class Mine(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, tokens):
            place = jnp.arange(3)[None]
            x = nn.Embedding(7, 8)(tokens)
            x += nn.Positions("learned", 8, 5, name="position_embedding")(place)
            bias = nn.PositionBias("relative", 2)(place[0], place[0], causal=False)
            x, _ = nn.MultiHeadAttention(8, 2)(x, x, bias=bias)
            x, _ = nn.EarlierAttention("additive", 5)(x, x)
            return nn.LayerNorm(8)(nn.FeedForward(8, 16, name="mlp")(x))

    tokens = jnp.zeros((2, 3), int)
    params = jax.eval_shape(Mine().init, jax.random.key(0), tokens)["params"]
    heads = {
        "kernel": ("embed", "heads", "head_width"),
        "bias": ("heads", "head_width"),
    }
    attention = dict.fromkeys(("query", "key", "value"), heads)
    output = {"kernel": ("heads", "head_width", "embed"), "bias": ("embed",)}
    hidden = {"kernel": ("embed", "hidden")}
    energy = {"energy": {"kernel": ("hidden", "score")}}
    assert logical_axes(params) == {
        "Embedding_0": {"table": ("vocabulary", "embed")},
        "position_embedding": {"table": ("position", "embed")},
        "EarlierAttention_0": dict.fromkeys(("state", "memory"), hidden) | energy,
        "PositionBias_0": {"table": ("position", "heads")},
        "MultiHeadAttention_0": attention | {"output": output},
        "LayerNorm_0": {"scale": ("embed",), "bias": ("embed",)},
        "mlp": {
            "inner": {"kernel": ("embed", "hidden"), "bias": ("hidden",)},
            "outer": {"kernel": ("hidden", "embed"), "bias": ("embed",)},
        },
    }
