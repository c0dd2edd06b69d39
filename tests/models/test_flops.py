"""The count of operations equals the compiler's, without padding."""

import types

import jax
import numpy as np
import pytest
from models.little import shapes

from jaxformer.models.config import TransformerConfig
from jaxformer.models.flops import (
    Work,
    forward_flops,
    peak_flops,
    slots,
    tokens,
    training_flops,
)
from jaxformer.models.transformer import Transformer


def full(rows, source, target):
    lengths = {"source": source, "target": target}
    return {side: np.full((rows, n), 5, np.int32) for side, n in lengths.items()}


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ((1, 40, 9), {"num_encoder_layers": 2}),
        ((3, 11, 20), {"num_decoder_layers": 2, "num_heads": 3, "d_k": 24, "d_v": 56}),
        ((2, 9, 60), {"num_key_value_heads": 1, "activation": "reglu"}),
        ((2, 9, 60), {"source_vocabulary_size": 900, "tied_embeddings": "target"}),
    ],
)
def test_operations_are_what_the_compiler_counts(shape, changes):
    """XLA's count of the forward pass, with norms, softmax and biases, is a few per
    cent more; that of the gradient is near three times ours.
    """
    values = {"d_model": 128, "d_ff": 512, "num_heads": 4}
    values |= {"num_encoder_layers": 1, "num_decoder_layers": 1} | changes
    config = TransformerConfig(vocabulary_size=500, **values)
    params, batch = shapes(config), full(*shape)

    def forward(params, source, target):
        logits = Transformer(config).apply({"params": params}, source, target)
        return logits.sum(), logits

    def counted(function):
        program = jax.jit(function).lower(params, batch["source"], batch["target"])
        return program.cost_analysis()["flops"]

    ours = forward_flops(config, slots(batch))
    assert 0.95 < ours / counted(forward) < 1
    assert training_flops(config, slots(batch)) == 3 * ours
    assert training_flops(config, slots(batch), passes=2) == 6 * ours
    if shape[0] == 1:
        assert 0.9 < 3 * ours / counted(jax.grad(forward, has_aux=True)) < 1.05


def test_padding_is_not_counted():
    """Without padding, tokens are slots; with it, those of the sentences one by one."""
    batch = full(4, 6, 9)
    assert tokens(batch, 0) == slots(batch) == Work(24, 36, 4 * 36, 4 * 81, 4 * 54)
    lengths = [9, 4, 1, 7, 0]
    real = np.arange(9) < np.array(lengths)[:, None]
    batch = {side: np.where(real, 5, 0) for side in ("source", "target")}
    alone = [
        tokens({side: rows[i : i + 1, :n] for side, rows in batch.items()}, 0)
        for i, n in enumerate(lengths)
    ]
    assert tokens(batch, 0) == Work(*np.sum(alone, axis=0))
    assert tokens(batch, 0).target == 21


def test_packed_sentences_are_counted_one_by_one():
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 6, (4, 3, 2))  # rows, sentences, sides
    packed, plain = {}, {}
    for i, side in enumerate(("source", "target")):
        segments = [np.repeat([1, 2, 3], row[:, i]) for row in lengths]
        segments = np.stack([np.pad(row, (0, 16 - len(row))) for row in segments])
        packed |= {side: 7 * (segments > 0), f"{side}_segments": segments}
        plain[side] = 7 * (np.arange(5) < lengths[:, :, i].reshape(-1, 1))
    assert tokens(packed, 0) == tokens(plain, 0)


@pytest.mark.parametrize(
    ("platform", "kind", "dtype", "peak"),
    [
        ("gpu", "NVIDIA H200", "bfloat16", 989.4e12),
        ("gpu", "Tesla V100-PCIE-16GB", "float32", 14e12),
        ("tpu", "TPU v5 lite", "bfloat16", 197e12),
        ("tpu", "TPU v5p", "float32", 459e12),
        ("gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("cpu", "NVIDIA H200", "bfloat16", None),
    ],
)
def test_peaks(platform, kind, dtype, peak):
    """The published figures, by the names that JAX gives."""
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    found = peak_flops(device, dtype)
    assert found == (None if peak is None else pytest.approx(peak))
