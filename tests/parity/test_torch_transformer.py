"""A whole encoder-decoder equals one that is put together from torch.nn, forward and
gradients.
"""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import functools
import math

import jax
import numpy as np
import pytest

from jaxformer import Transformer, TransformerConfig
from jaxformer import functional as F

try:
    import torch
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = None
else:
    from parity import torch_parameters

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(torch is None, reason="needs the extra `parity`"),
]

SIZE, WIDTH, HIDDEN, HEADS = 19, 16, 24, 4


def torch_model(config):
    """Make stacks and the one table, with random parameters."""
    tanh_gelu = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    pre = config.norm_order == "pre"
    options = {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": tanh_gelu if config.activation == "gelu" else torch.relu,
        "layer_norm_eps": 1e-6,
        "batch_first": True,
        "norm_first": pre,
    }

    def final_norm():
        return torch.nn.LayerNorm(WIDTH, eps=1e-6) if pre else None

    layer = torch.nn.TransformerEncoderLayer(**options)
    encoder = torch.nn.TransformerEncoder(
        layer, config.num_encoder_layers, norm=final_norm(), enable_nested_tensor=False
    )
    layer = torch.nn.TransformerDecoderLayer(**options)
    depth = config.num_decoder_layers
    decoder = torch.nn.TransformerDecoder(layer, depth, norm=final_norm())
    parts = {
        "encoder": encoder,
        "decoder": decoder,
        "table": torch.nn.Embedding(SIZE, WIDTH),
    }
    model = torch.nn.ModuleDict(parts)
    generator = torch.Generator().manual_seed(0)
    # Layers of a stack are copies of one, biases 0 and scales 1.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(generator=generator).mul_(0.25)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return model


def torch_sinusoids(length):
    place = torch.arange(length, dtype=torch.float32)[:, None]
    angles = place / 10_000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float32) / WIDTH)
    table = torch.zeros(length, WIDTH)
    table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
    return table


def torch_forward(model, config, source, target):
    table = model["table"].weight
    no_source, length = source == config.pad_id, target.shape[1]
    inputs = torch.cat([torch.full((len(target), 1), config.bos_id), target[:, :-1]], 1)
    x = table[source] * math.sqrt(WIDTH) + torch_sinusoids(source.shape[1])
    memory = model["encoder"](x, src_key_padding_mask=no_source)
    y = table[inputs] * math.sqrt(WIDTH) + torch_sinusoids(length)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    y = model["decoder"](
        y,
        memory,
        tgt_mask=future,
        tgt_key_padding_mask=inputs == config.pad_id,
        memory_key_padding_mask=no_source,
    )
    return y @ table.T


def sentences(seed, lengths):
    length = max(lengths)
    tokens = np.random.default_rng(seed).integers(3, SIZE, size=(len(lengths), length))
    real = np.arange(length) < np.array(lengths)[:, None]
    return np.where(real, tokens, 0).astype(np.int32)


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("order", "activation", "depths"),
    [("post", "relu", (1, 2)), ("pre", "gelu", (2, 1))],
)
def test_transformer_equals_torch(order, activation, depths):
    """Logits, loss and the gradient of every parameter on padded batches. Parameters
    come back from torch unchanged.
    """
    config = TransformerConfig(
        vocabulary_size=SIZE,
        d_model=WIDTH,
        d_ff=HIDDEN,
        num_heads=HEADS,
        num_encoder_layers=depths[0],
        num_decoder_layers=depths[1],
        dropout_rate=0.0,
        norm_order=order,
        activation=activation,
    )
    theirs, ours = torch_model(config), Transformer(config)
    source, target = sentences(1, [7, 4, 5]), sentences(2, [3, 6, 5])
    real, long = target != config.pad_id, torch.long
    tokens = [torch.tensor(x, dtype=long) for x in (source, target)]
    expected = torch_forward(theirs, config, *tokens)
    their_loss = torch.nn.functional.cross_entropy(
        expected.flatten(0, 1), tokens[1].flatten(), ignore_index=0, reduction="sum"
    )
    their_loss.backward()

    def loss(params, source, target, real):
        logits = ours.apply({"params": params}, source, target)
        return F.cross_entropy(logits, target, real)[0], logits

    parts = (theirs["table"], theirs["encoder"], theirs["decoder"])
    places = torch_parameters.find_places(*parts)
    params = torch_parameters.read(places)
    compute = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, logits), gradients = compute(params, source, target, real)
    same(np.asarray(logits)[real], expected.detach().numpy()[real])
    same(value, their_loss.detach())
    expected_gradients = torch_parameters.read(places, lambda parameter: parameter.grad)
    count = sum(p.numel() for p in theirs.parameters())
    assert sum(g.size for g in jax.tree.leaves(expected_gradients)) == count
    jax.tree.map(same, gradients, expected_gradients)
    for path, gradient in jax.tree_util.tree_leaves_with_path(expected_gradients):
        # The bias of keys shifts all scores of a row equally.
        names = [key.key for key in path[-2:]]
        assert np.abs(gradient).max() > 1e-4 or names == ["key", "bias"]
    shapes = jax.eval_shape(ours.init, jax.random.key(0), source, target)["params"]
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes)
    drawn = jax.tree.map(lambda leaf: leaf + np.float32(0.5), params)
    torch_parameters.write(places, drawn)
    jax.tree.map(np.testing.assert_array_equal, torch_parameters.read(places), drawn)
