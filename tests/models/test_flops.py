"""The count of operations equals the compiler's, and padding is told from tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.models.config import TransformerConfig
from jaxformer.models.flops import (
    Work,
    forward_flops,
    peak_flops,
    slots,
    tokens,
    training_flops,
)
from jaxformer.models.seq2seq import Transformer

MODELS = {
    "plain": {},
    "deep": {"num_encoder_layers": 4, "num_decoder_layers": 1},
    "shallow": {"num_encoder_layers": 1, "num_decoder_layers": 3},
    "heads": {"num_heads": 3, "d_k": 24, "d_v": 56},
    "separate": {"source_vocabulary_size": 900, "tied_embeddings": "target"},
}


def zeros(rows, source, target):
    return {
        "source": np.zeros((rows, source), np.int32),
        "target": np.zeros((rows, target), np.int32),
    }


@pytest.mark.parametrize(
    ("name", "shape", "optimised"),
    [
        ("plain", (2, 24, 17), True),
        ("plain", (1, 9, 60), False),
        ("deep", (1, 40, 9), False),
        ("shallow", (3, 11, 20), False),
        ("heads", (2, 24, 17), False),
        ("separate", (2, 9, 60), False),
    ],
)
def test_forward_is_what_the_compiler_counts(name, shape, optimised):
    """XLA's own count of the forward pass, all of norms, softmax and biases included,
    is a few per cent more, before XLA has optimised the program and after.
    """
    values = {
        "d_model": 128,
        "d_ff": 512,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    }
    config = TransformerConfig(vocabulary_size=500, **{**values, **MODELS[name]})
    model = Transformer(config)
    source, target = (jnp.ones((shape[0], length), jnp.int32) for length in shape[1:])
    params = jax.eval_shape(model.init, jax.random.key(0), source, target)["params"]

    def forward(params, source, target):
        return model.apply({"params": params}, source, target, train=False)

    program = jax.jit(forward).lower(params, source, target)
    counted = (program.compile() if optimised else program).cost_analysis()["flops"]
    assert 0.95 * counted < forward_flops(config, slots(zeros(*shape))) < counted


@pytest.mark.parametrize("passes", [1, 2])
def test_training_is_three_times_forward(passes):
    """The gradients of a product of matrices are two such products, for each pass
    through the model.
    """
    config = TransformerConfig.tiny(vocabulary_size=100)
    work = slots(zeros(3, 5, 7))
    assert training_flops(config, work, passes=passes) == 3 * passes * forward_flops(
        config, work
    )


def test_gradients_are_twice_forward():
    """XLA's own count of value and gradient is about three times that of the value."""
    config = TransformerConfig(
        vocabulary_size=500,
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    model, ones = Transformer(config), jnp.ones((2, 16), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ones, ones)["params"]

    def total(params, source, target):
        return model.apply({"params": params}, source, target, train=False).sum()

    counted = (
        jax.jit(jax.grad(total)).lower(params, ones, ones).cost_analysis()["flops"]
    )
    assert 0.9 < training_flops(config, slots(zeros(2, 16, 16))) / counted < 1.05


def test_six_operations_a_parameter_and_token():
    """Kaplan et al. 2020: training takes six operations for each weight of a matrix
    and token, without attention's.
    """
    config = TransformerConfig.base(vocabulary_size=37_000)
    work = Work(
        source=1.0, target=1.0, source_pairs=0.0, target_pairs=0.0, cross_pairs=0.0
    )
    attention, feed_forward = 4 * 512 * 512, 2 * 512 * 2048
    weights = (
        6 * (attention + feed_forward)
        + 6 * (2 * attention + feed_forward)
        + 512 * 37_000
    )
    assert training_flops(config, work) == 6 * weights


def test_full_rows_are_all_tokens():
    """Without padding, tokens and slots are the same."""
    batch = {"source": np.full((4, 6), 5), "target": np.full((4, 9), 5)}
    assert tokens(batch, 0) == slots(batch) == Work(24, 36, 4 * 36, 4 * 81, 4 * 54)


def test_padding_is_not_counted():
    """Tokens are those of the sentences alone: one by one, without padding, they are
    the same.
    """
    lengths = [9, 4, 1, 7, 0]
    real = np.arange(9) < np.array(lengths)[:, None]
    batch = {side: np.where(real, 5, 0) for side in ("source", "target")}
    alone = [
        tokens({side: rows[i : i + 1, :n] for side, rows in batch.items()}, 0)
        for i, n in enumerate(lengths)
    ]
    assert tokens(batch, 0) == Work(*np.sum(alone, axis=0))
    assert (
        tokens(batch, 0).target
        == sum(lengths)
        < slots(batch).target
        == batch["target"].size
    )


def test_packed_sentences_are_counted_one_by_one():
    """Packed or not, sentences take the same: none sees another of its row."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 6, (4, 3, 2))  # rows, sentences, sides
    packed = {
        name: np.zeros((4, 16), np.int32)
        for name in ("source", "target", "source_segments", "target_segments")
    }
    plain = {side: np.zeros((12, 5), np.int32) for side in ("source", "target")}
    for row in range(4):
        for i, side in enumerate(("source", "target")):
            ends = np.cumsum(lengths[row, :, i])
            for number, (end, length) in enumerate(
                zip(ends, lengths[row, :, i], strict=True)
            ):
                packed[side][row, end - length : end] = 7
                packed[f"{side}_segments"][row, end - length : end] = number + 1
                plain[side][3 * row + number, :length] = 7
    assert tokens(packed, 0) == tokens(plain, 0)


class Named:
    """A device with a name."""

    def __init__(self, platform, device_kind):
        self.platform, self.device_kind = platform, device_kind


@pytest.mark.parametrize(
    ("platform", "kind", "dtype", "peak"),
    [
        ("gpu", "NVIDIA H200", "bfloat16", 989.4e12),
        ("gpu", "NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("gpu", "NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("gpu", "NVIDIA H200 NVL", "float16", 835.5e12),
        ("gpu", "NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("gpu", "NVIDIA A100 80GB PCIe", "float32", 156e12),
        ("gpu", "Tesla V100-SXM2-16GB", "float16", 125e12),
        ("gpu", "Tesla V100-PCIE-16GB", "float32", 14e12),
        ("gpu", "Tesla V100-SXM2-16GB", "bfloat16", None),
        ("gpu", "NVIDIA L4", "bfloat16", 121e12),
        ("gpu", "Tesla T4", "float32", 8.1e12),
        ("gpu", "Tesla T4", "bfloat16", None),
        ("tpu", "TPU v3", "bfloat16", 61.5e12),
        ("tpu", "TPU v4", "bfloat16", 275e12),
        ("tpu", "TPU v5 lite", "bfloat16", 197e12),
        ("tpu", "TPU v5", "bfloat16", 459e12),
        ("tpu", "TPU v5p", "float32", 459e12),
        ("tpu", "TPU v6 lite", "bfloat16", 918e12),
        ("gpu", "NVIDIA L40S", "bfloat16", None),
        ("gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("gpu", "NVIDIA A10G", "bfloat16", None),
        ("tpu", "TPU v4 lite", "bfloat16", None),
        ("cpu", "NVIDIA H200", "bfloat16", None),
    ],
)
def test_peaks(platform, kind, dtype, peak):
    """The published figures, by the names that JAX gives; a device that is not known
    has none.
    """
    found = peak_flops(Named(platform, kind), dtype)
    assert found == (None if peak is None else pytest.approx(peak))


def test_this_processor_has_no_peak():
    """On the CPU there is no utilisation."""
    assert peak_flops(jax.local_devices()[0], "float32") is None
