"""Stacks with blocks later than the paper equal those of transformers: Qwen 3 (rotary
positions, RMSNorm, SwiGLU, grouped queries, QK-norm, sliding windows), T5 1.1 (relative
bias, gated GELU).
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer import nn

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]

WIDTH, HEADS, K, HIDDEN, LENGTH = 24, 4, 6, 40, 9
COMMON = {"d_model": WIDTH, "num_heads": HEADS, "d_k": K, "d_v": K, "d_ff": HIDDEN}
COMMON |= {"norm": "rms", "norm_order": "pre", "biases": False, "dropout_rate": 0.0}


def drawn(model):
    """Return the weights of a model, drawn anew, as arrays."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    weights = model.state_dict().items()
    return {name: jnp.asarray(weight.numpy()) for name, weight in weights}


def heads(weight, count):
    return {"kernel": weight.T.reshape(weight.shape[1], count, -1)}


def output(weight):
    return {"kernel": weight.T.reshape(-1, K, weight.shape[0])}


def linear(weight):
    return {"kernel": weight.T}


def close(found, expected):
    expected = expected.detach().numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found / scale, expected / scale, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_a_decoder_of_today(window):
    """Qwen 3: a stack of layers with a causal mask, and its last norm."""
    config = transformers.Qwen3Config(
        vocab_size=11,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=K,
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=0,
        attn_implementation="eager",
    )
    model = transformers.Qwen3Model(config).eval()
    weights = drawn(model)

    def layer(name):
        own = {part: weights[f"{name}.{part}.weight"] for part in PARTS}
        return {
            "self_attention": {
                "query": heads(own["self_attn.q_proj"], HEADS),
                "key": heads(own["self_attn.k_proj"], 2),
                "value": heads(own["self_attn.v_proj"], 2),
                "output": output(own["self_attn.o_proj"]),
                "query_norm": {"scale": own["self_attn.q_norm"]},
                "key_norm": {"scale": own["self_attn.k_norm"]},
            },
            "self_attention_residual": {"norm": {"scale": own["input_layernorm"]}},
            "feed_forward": {
                "gate": linear(own["mlp.gate_proj"]),
                "inner": linear(own["mlp.up_proj"]),
                "outer": linear(own["mlp.down_proj"]),
            },
            "feed_forward_residual": {
                "norm": {"scale": own["post_attention_layernorm"]}
            },
        }

    params = {f"layer_{i}": layer(f"layers.{i}") for i in range(2)}
    params["norm"] = {"scale": weights["norm.weight"]}
    layers = nn.LayerConfig(
        **COMMON,
        activation="swiglu",
        num_key_value_heads=2,
        query_key_norm=True,
        rotary_base=10_000.0,
        attention_window=window,
    )
    x = torch.randn(2, LENGTH, WIDTH)
    # The base is at one of two places, by the version of transformers.
    bases = getattr(config, "rope_parameters", None) or {"rope_theta": 10_000.0}
    assert bases["rope_theta"] == 10_000.0
    expected = model(inputs_embeds=x).last_hidden_state
    found, _ = nn.Encoder(layers, 2).apply(
        {"params": params}, jnp.asarray(x.numpy()), F.causal_mask(LENGTH)
    )
    close(found, expected)


PARTS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("self_attn.q_norm", "self_attn.k_norm", "input_layernorm"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"),
)


def test_encoder_and_decoder_of_t5():
    """T5 1.1; its attention is not scaled, which the kernel of the queries makes up
    for. The bias is of the first layer and used by all.
    """
    config = transformers.T5Config(
        vocab_size=11,
        d_model=WIDTH,
        d_kv=K,
        d_ff=HIDDEN,
        num_layers=2,
        num_heads=HEADS,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
    )
    model = transformers.T5Model(config).eval()
    weights = drawn(model)
    norm = "layer_norm.weight"

    def attention(name):
        query, key, value, out = (weights[f"{name}.{part}.weight"] for part in "qkvo")
        return {
            "query": heads(query * K**0.5, HEADS),
            "key": heads(key, HEADS),
            "value": heads(value, HEADS),
            "output": output(out),
        }

    def layer(name, last):
        dense = f"{name}.layer.{last}.DenseReluDense"
        parts = {
            "self_attention": attention(f"{name}.layer.0.SelfAttention"),
            "self_attention_residual": {
                "norm": {"scale": weights[f"{name}.layer.0.{norm}"]}
            },
            "feed_forward": {
                "gate": linear(weights[f"{dense}.wi_0.weight"]),
                "inner": linear(weights[f"{dense}.wi_1.weight"]),
                "outer": linear(weights[f"{dense}.wo.weight"]),
            },
            "feed_forward_residual": {
                "norm": {"scale": weights[f"{name}.layer.{last}.{norm}"]}
            },
        }
        if last == 2:
            parts["cross_attention"] = attention(f"{name}.layer.1.EncDecAttention")
            parts["cross_attention_residual"] = {
                "norm": {"scale": weights[f"{name}.layer.1.{norm}"]}
            }
        return parts

    def stack(side, last):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        return {
            **{f"layer_{i}": layer(f"{side}.block.{i}", last) for i in range(2)},
            "norm": {"scale": weights[f"{side}.final_{norm}"]},
            "position_bias": {"table": weights[first]},
        }

    layers = nn.LayerConfig(**COMMON, activation="geglu", position_bias="relative")
    x, y = torch.randn(2, LENGTH, WIDTH), torch.randn(2, 150, WIDTH)
    expected = model(inputs_embeds=x, decoder_inputs_embeds=y)
    memory, _ = nn.Encoder(layers, 2).apply(
        {"params": stack("encoder", 1)}, jnp.asarray(x.numpy())
    )
    close(memory, expected.encoder_last_hidden_state)
    found, _ = nn.Decoder(layers, 2).apply(
        {"params": stack("decoder", 2)},
        jnp.asarray(y.numpy()),
        memory,
        F.causal_mask(150),
    )
    close(found, expected.last_hidden_state)
