"""A whole encoder-decoder equals one that is put together from torch.nn, forward and
gradients.
"""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import Transformer, TransformerConfig
from jaxformer import functional as F

try:
    import torch
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = None
else:
    import torch_parameters

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(torch is None, reason="needs the extra `parity`"),
]

SIZE, WIDTH, HIDDEN, HEADS = 19, 16, 24, 4


def torch_model(config):
    """Make stacks and the one table; torch's GELU layer takes the tanh form through
    a function.
    """
    activation = torch.relu
    if config.activation == "gelu":

        def activation(x):
            return torch.nn.functional.gelu(x, approximate="tanh")

    pre = config.norm_order == "pre"
    options = {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": activation,
        "layer_norm_eps": 1e-6,
        "batch_first": True,
        "norm_first": pre,
    }

    def final_norm():
        return torch.nn.LayerNorm(WIDTH, eps=1e-6) if pre else None

    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(**options),
        config.num_encoder_layers,
        norm=final_norm(),
        enable_nested_tensor=False,
    )
    decoder = torch.nn.TransformerDecoder(
        torch.nn.TransformerDecoderLayer(**options),
        config.num_decoder_layers,
        norm=final_norm(),
    )
    model = torch.nn.ModuleDict(
        {
            "encoder": encoder,
            "decoder": decoder,
            "table": torch.nn.Embedding(SIZE, WIDTH),
        }
    )
    generator = torch.Generator().manual_seed(0)
    # layers of a stack are copies of one, biases 0 and scales 1: draw them all anew
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
    """Embed with scale and sinusoids, run the stacks under masks of padding and
    future, and tie the logits.
    """
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
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, SIZE, size=(len(lengths), max(lengths))).astype(np.int32)
    return np.where(
        np.arange(max(lengths))[None] < np.array(lengths)[:, None], tokens, 0
    ).astype(np.int32)


def same(actual, expected):
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("order", "activation", "encoder_layers", "decoder_layers"),
    [("post", "relu", 2, 2), ("pre", "gelu", 2, 1)],
)
def test_transformer_equals_torch(order, activation, encoder_layers, decoder_layers):
    """Logits, loss and the gradient of every parameter on padded batches, weights
    carried over.
    """
    config = TransformerConfig(
        vocabulary_size=SIZE,
        d_model=WIDTH,
        d_ff=HIDDEN,
        num_heads=HEADS,
        num_encoder_layers=encoder_layers,
        num_decoder_layers=decoder_layers,
        dropout_rate=0.0,
        norm_order=order,
        activation=activation,
    )
    theirs, ours = torch_model(config), Transformer(config)
    source, target = sentences(1, [7, 4, 5]), sentences(2, [3, 6, 5])

    expected = torch_forward(
        theirs, config, *(torch.tensor(x, dtype=torch.long) for x in (source, target))
    )
    their_loss = torch.nn.functional.cross_entropy(
        expected.flatten(0, 1),
        torch.tensor(target, dtype=torch.long).flatten(),
        ignore_index=config.pad_id,
        reduction="sum",
    )
    their_loss.backward()

    @jax.jit
    def evaluate(params):
        def loss(params):
            logits = ours.apply(
                {"params": params}, jnp.asarray(source), jnp.asarray(target)
            )
            total, _ = F.cross_entropy(
                logits, jnp.asarray(target), jnp.asarray(target != config.pad_id)
            )
            return total, logits

        return jax.value_and_grad(loss, has_aux=True)(params)

    places = torch_parameters.find_places(
        theirs["table"], theirs["encoder"], theirs["decoder"]
    )
    params = jax.tree.map(jnp.asarray, torch_parameters.read(places))
    (value, logits), gradients = evaluate(params)
    real = target != config.pad_id
    same(np.asarray(logits)[real], expected.detach().numpy()[real])
    same(value, their_loss.detach())
    expected_gradients = torch_parameters.read(places, lambda parameter: parameter.grad)
    assert sum(g.size for g in jax.tree.leaves(expected_gradients)) == sum(
        p.numel() for p in theirs.parameters()
    )
    jax.tree.map(same, gradients, expected_gradients)
    for path, gradient in jax.tree_util.tree_leaves_with_path(expected_gradients):
        # the bias of keys shifts all scores of a row alike: it alone has no gradient
        assert np.abs(gradient).max() > 1e-4 or [key.key for key in path[-2:]] == [
            "key",
            "bias",
        ]


@pytest.mark.parametrize("order", ["post", "pre"])
def test_parameters_come_back_from_torch(order):
    """There and back nothing changes, the tree is that of our model, and every
    parameter of torch is in it.
    """
    config = TransformerConfig(
        vocabulary_size=SIZE,
        d_model=WIDTH,
        d_ff=HIDDEN,
        num_heads=HEADS,
        num_encoder_layers=2,
        num_decoder_layers=3,
        norm_order=order,
    )
    model = torch_model(config)
    places = torch_parameters.find_places(
        model["table"], model["encoder"], model["decoder"]
    )
    tokens = jnp.ones((1, 1), int)
    shapes = jax.eval_shape(
        Transformer(config).init, jax.random.key(0), tokens, tokens
    )["params"]
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes
    )
    torch_parameters.write(places, params)
    jax.tree.map(np.testing.assert_array_equal, torch_parameters.read(places), params)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == sum(
        p.numel() for p in model.parameters()
    )
