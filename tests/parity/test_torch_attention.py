"""Multi-head attention equals torch.nn.MultiheadAttention, forward and gradients."""

# Arguments are unpacked from iterables of unknown length.
# pyright: reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F

try:
    import torch
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(torch is None, reason="needs the extra `parity`"),
]

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 4, 6, 16, 4


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def from_torch(attention):
    """Carry torch's packed weights, [out, in], over to kernels [D, H, K] and [H, K,
    D].
    """
    kernels = (
        attention.in_proj_weight.detach()
        .numpy()
        .reshape(3, HEADS, -1, WIDTH)
        .transpose(0, 3, 1, 2)
    )
    biases = attention.in_proj_bias.detach().numpy().reshape(3, HEADS, -1)
    params = {
        name: {"kernel": jnp.asarray(kernels[i]), "bias": jnp.asarray(biases[i])}
        for i, name in enumerate(("query", "key", "value"))
    }
    kernel = attention.out_proj.weight.detach().numpy().T.reshape(HEADS, -1, WIDTH)
    bias = attention.out_proj.bias.detach().numpy()
    return params | {
        "output": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
    }


def gradients_from_torch(attention):
    """Give torch's gradients the shapes of ours."""
    kernels = (
        attention.in_proj_weight.grad.numpy()
        .reshape(3, HEADS, -1, WIDTH)
        .transpose(0, 3, 1, 2)
    )
    biases = attention.in_proj_bias.grad.numpy().reshape(3, HEADS, -1)
    gradients = {
        name: {"kernel": kernels[i], "bias": biases[i]}
        for i, name in enumerate(("query", "key", "value"))
    }
    kernel = attention.out_proj.weight.grad.numpy().T.reshape(HEADS, -1, WIDTH)
    return gradients | {
        "output": {"kernel": kernel, "bias": attention.out_proj.bias.grad.numpy()}
    }


def masks(kind):
    """Return our mask, True = may attend, and torch's two, True = may not."""
    padding = np.ones((BATCH, KEYS), bool)
    padding[0, 4:] = padding[2, 1:] = False
    causal = np.tri(QUERIES, KEYS, dtype=bool)
    return {
        "none": (None, None, None),
        "padding": (padding[:, None, None], ~padding, None),
        "causal": (causal[None, None], None, ~causal),
        "both": (padding[:, None, None] & causal[None, None], ~padding, ~causal),
    }[kind]


def same(actual, expected):
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["none", "padding", "causal", "both"])
def test_attention_equals_torch(kind):
    """Output, weights and all gradients, for cross attention under padding and
    causal masks.
    """
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():  # torch begins biases at 0, where a lost one would not show
        attention.in_proj_bias.normal_()
        attention.out_proj.bias.normal_()
    x, memory, direction = (
        draw(1, BATCH, QUERIES, WIDTH),
        draw(2, BATCH, KEYS, WIDTH),
        draw(3, BATCH, QUERIES, WIDTH),
    )
    mask, key_padding_mask, attn_mask = masks(kind)

    their_x, their_memory = (torch.tensor(a, requires_grad=True) for a in (x, memory))
    expected, expected_weights = attention(
        their_x,
        their_memory,
        their_memory,
        key_padding_mask=None
        if key_padding_mask is None
        else torch.tensor(key_padding_mask),
        attn_mask=None if attn_mask is None else torch.tensor(attn_mask),
        average_attn_weights=False,
    )
    (expected * torch.tensor(direction)).mean().backward()

    def loss(params, x, memory):
        output, weights = F.multi_head_attention(
            params, x, memory, None if mask is None else jnp.asarray(mask)
        )
        return (output * direction).mean(), (output, weights)

    gradients, (output, weights) = jax.jit(
        jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
    )(from_torch(attention), jnp.asarray(x), jnp.asarray(memory))
    same(output, expected.detach())
    same(weights, expected_weights.detach())
    jax.tree.map(same, gradients[0], gradients_from_torch(attention))
    same(gradients[1], their_x.grad)
    same(gradients[2], their_memory.grad)


def test_scaled_dot_product_equals_torch():
    """The bare equation with d_v unlike d_k and a mask of its own for every head."""
    query, key, value = draw(4, 2, 3, 5, 8), draw(5, 2, 7, 5, 8), draw(6, 2, 7, 5, 6)
    mask = np.random.default_rng(7).random((2, 5, 3, 7)) < 0.7
    mask[..., 0] = True
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(a).transpose(1, 2) for a in (query, key, value)),
        attn_mask=torch.tensor(mask),
    ).transpose(1, 2)
    output, _ = F.dot_product_attention(
        *(jnp.asarray(a) for a in (query, key, value)), jnp.asarray(mask)
    )
    same(output, expected)
