"""Multi-head attention equals torch.nn.MultiheadAttention, forward and gradients."""

# Arguments are unpacked from iterables of unknown length.
# pyright: reportCallIssue=false

import jax
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


def from_torch(attention, read):
    """Shape torch's packed weights [out, in] as kernels [D, H, K] and [H, K, D]."""
    packed = read(attention.in_proj_weight).numpy().reshape(3, HEADS, -1, WIDTH)
    kernels = packed.transpose(0, 3, 1, 2)
    biases = read(attention.in_proj_bias).numpy().reshape(3, HEADS, -1)
    kernel = read(attention.out_proj.weight).numpy().T.reshape(HEADS, -1, WIDTH)
    bias = read(attention.out_proj.bias).numpy()
    names = ("query", "key", "value")
    return {
        **{
            name: {"kernel": kernels[i], "bias": biases[i]}
            for i, name in enumerate(names)
        },
        "output": {"kernel": kernel, "bias": bias},
    }


def masks(kind):
    """Return our mask, True = may attend, and torch's two, True = may not."""
    padding = np.ones((BATCH, KEYS), bool)
    padding[0, 4:] = padding[2, 1:] = False
    causal = np.tri(QUERIES, KEYS, dtype=bool)
    return {
        "none": (None, None, None),
        "both": (padding[:, None, None] & causal[None, None], ~padding, ~causal),
    }[kind]


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "both"])
def test_attention_equals_torch(kind):
    """Output, weights and all gradients of cross-attention."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():  # torch's initial biases are 0
        attention.in_proj_bias.normal_()
        attention.out_proj.bias.normal_()
    x, direction = (draw(seed, BATCH, QUERIES, WIDTH) for seed in (1, 3))
    memory = draw(2, BATCH, KEYS, WIDTH)
    mask, *theirs = masks(kind)
    padding, causal = (None if one is None else torch.tensor(one) for one in theirs)
    their_x, their_memory = (torch.tensor(a, requires_grad=True) for a in (x, memory))
    options = {"key_padding_mask": padding, "attn_mask": causal}
    expected, expected_weights = attention(
        their_x, their_memory, their_memory, average_attn_weights=False, **options
    )
    (expected * torch.tensor(direction)).mean().backward()

    def loss(params, x, memory, mask):
        output, weights = F.multi_head_attention(params, x, memory, mask)
        return (output * direction).mean(), (output, weights)

    params = from_torch(attention, lambda parameter: parameter.detach())
    compute = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    gradients, (output, weights) = compute(params, x, memory, mask)
    same(output, expected.detach())
    same(weights, expected_weights.detach())
    theirs = from_torch(attention, lambda parameter: parameter.grad)
    jax.tree.map(
        same, gradients, (theirs, their_x.grad.numpy(), their_memory.grad.numpy())
    )


def test_scaled_dot_product_equals_torch():
    """With d_v unlike d_k and a mask of its own for every head."""
    arrays = draw(4, 2, 3, 5, 8), draw(5, 2, 7, 5, 8), draw(6, 2, 7, 5, 6)
    mask = np.random.default_rng(7).random((2, 5, 3, 7)) < 0.7
    mask[..., 0] = True
    theirs = [torch.tensor(array).transpose(1, 2) for array in arrays]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *theirs, attn_mask=torch.tensor(mask)
    )
    output, _ = jax.jit(F.dot_product_attention)(*arrays, mask)
    same(output, expected.transpose(1, 2))
