"""Floating-point operations of a batch, and the peak of a device.

A matmul of [M, K] and [K, N] is 2 M K N operations. Model FLOPs are the matmuls of
projections, attention, feed-forward layers and logits (Kaplan et al. 2020, section 2.1;
Chowdhery et al. 2022, appendix B). Embeddings, norms, softmax, dropout, the optimizer
and what rematerialization recomputes do not count. Causal attention and attention in a
window count as full attention. The backward pass takes twice the forward one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.functional.layers import GATED
from jaxformer.models.config import TransformerConfig


class Work(NamedTuple):
    """The sizes that the operations of a batch depend on; those of several batches add
    up.

    Attributes:
        source: positions of the encoder.
        target: positions of the decoder, or those that have logits where there is none.
        source_pairs: pairs of query and key in the encoder's self-attention.
        target_pairs: pairs in the decoder's self-attention.
        cross_pairs: pairs in the decoder's cross-attention.
    """

    source: float
    target: float
    source_pairs: float
    target_pairs: float
    cross_pairs: float


def slots(batch: Mapping[str, np.ndarray], *, predicted: float = 1.0) -> Work:
    """Measure every position of a batch, padding included: what devices compute.

    Args:
        batch: ``source`` [B, S] and ``target`` [B, T], or one of them.
        predicted: the share of the target that has logits, as masked words do.
    """
    rows, target = batch["target"].shape
    source = batch.get("source", batch["target"]).shape[1]
    return Work(
        rows * source,
        rows * target * predicted,
        rows * source**2,
        rows * target**2,
        rows * source * target,
    )


def tokens(
    batch: Mapping[str, np.ndarray], pad_id: int, *, predicted: float = 1.0
) -> Work:
    """Measure the real tokens of a batch.

    Args:
        batch: ``source`` [B, S] and ``target`` [B, T], or one of them, padded on the
            right; for packed rows also ``source_segments`` and ``target_segments``.
        pad_id: the id of padding.
        predicted: the share of the target that has logits, as masked words do.
    """
    target = _lengths(batch, "target", pad_id)
    source = _lengths(batch, "source", pad_id) if "source" in batch else target
    return Work(
        float(source.sum()),
        float(target.sum()) * predicted,
        float((source * source).sum()),
        float((target * target).sum()),
        float((source * target).sum()),
    )


def _lengths(batch: Mapping[str, np.ndarray], side: str, pad_id: int) -> np.ndarray:
    """Count the tokens of each sentence: [B, 1], or [B, N] for packed rows of up to N
    sentences.
    """
    real = batch[side] != pad_id
    if f"{side}_segments" not in batch:
        return real.sum(axis=1, keepdims=True, dtype=np.int64)
    # Segments are numbered from 1, and 0 is padding; both sides of a row have the same.
    names = (f"{name}_segments" for name in ("source", "target"))
    most = max(int(batch[name].max(initial=0)) for name in names if name in batch)
    sentences = (most + 1) * np.arange(len(real))[:, None] + batch[f"{side}_segments"]
    return np.bincount(sentences[real], minlength=(most + 1) * len(real)).reshape(
        len(real), most + 1
    )


def forward_flops(config: TransformerConfig, work: Work) -> float:
    """Count the operations of one forward pass, logits included.

    Example:
        >>> base = TransformerConfig.base(vocabulary_size=37_000)
        >>> ones = np.ones((1, 25), np.int32)
        >>> work = tokens({"source": ones, "target": ones}, pad_id=0)
        >>> f"{forward_flops(base, work):.3g}"
        '3.17e+09'
    """
    if config.network != "transformer":
        return _recurrent_flops(config, work)
    width, heads = config.d_model, config.num_heads
    d_k = config.d_k or width // heads
    d_v = config.d_v or width // heads
    queries = 2.0 * width * heads * (d_k + d_v)  # a position's query and output
    groups = config.num_key_value_heads or heads
    keys = 2.0 * width * groups * (d_k + d_v)  # its key and value
    pair = 2.0 * heads * (d_k + d_v)  # a score, and its share of the output
    kernels = 3 if config.activation in GATED else 2
    feed_forward = 2.0 * kernels * width * config.d_ff
    encoder = work.source * (queries + keys + feed_forward) + work.source_pairs * pair
    decoder = work.target * (queries + keys + feed_forward) + work.target_pairs * pair
    if config.num_encoder_layers:
        decoder += work.target * queries + work.source * keys + work.cross_pairs * pair
    logits = 2.0 * work.target * width * config.vocabulary_size
    return (
        config.num_encoder_layers * encoder
        + config.num_decoder_layers * decoder
        + logits
    )


def _recurrent_flops(config: TransformerConfig, work: Work) -> float:
    """Count one forward pass of a recurrent network, without the first state of
    RNNsearch's decoder, a map of one position a sentence.
    """
    width = config.d_model
    square = 2.0 * width * width  # a map from d_model to d_model
    logits = 2.0 * work.target * width * config.vocabulary_size
    if config.network == "bahdanau":
        # Two GRUs of three gates, and the alignment's map of both states.
        source = 2 * 3 * (1 + 1) * square + 2 * square
        # The query, a GRU that reads word and context, and the readout.
        target = square + 3 * (3 + 1) * square + 2 * 4 * square
        pair = 2.0 * width + 2.0 * 2 * width
    else:
        score = config.attention_score
        below = config.num_encoder_layers - 1
        source = 4 * (1 + 1) * square * (1 + below) + (score == "concat") * square
        target = 4 * (2 + 1) * square + 4 * (1 + 1) * square * below + 2 * square
        target += (score != "dot") * square
        pair = 2.0 * width + 2.0 * width
    return (
        work.source * source + work.target * target + work.cross_pairs * pair + logits
    )


def training_flops(config: TransformerConfig, work: Work, *, passes: int = 1) -> float:
    """Count the operations of forward and backward: three times those of forward.

    Args:
        config: the model.
        work: of the batch: :func:`tokens` for model FLOPs, :func:`slots` for what the
            devices compute.
        passes: how often the batch goes through the model; 2 with R-Drop.
    """
    return 3.0 * passes * forward_flops(config, work)


# Peaks of dense matmuls in TFLOP/s, by the name of the device in JAX. From NVIDIA's
# data sheets of V100 (2017), T4 (2018), A100 (2020), L4 (2023), H100 (2022) and H200
# (2023), without sparsity, and Google's "Cloud TPU system architecture" of v2 to v6e, a
# chip. float32 is JAX's default precision for float32 matmuls: TF32 from A100 on, one
# pass of bfloat16 on TPUs. V100 and T4 have no bfloat16.
_SXM_HOPPER = {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7}
_NVL_HOPPER = {"bfloat16": 835.5, "float16": 835.5, "float32": 417.5}
_PEAKS: tuple[tuple[str, Mapping[str, float]], ...] = (
    (r"\bMIG\b", {}),  # a part of a device, of unknown size
    (r"\bH100 PCIe\b", {"bfloat16": 756.0, "float16": 756.0, "float32": 378.0}),
    (r"\bH[12]00 NVL\b", _NVL_HOPPER),
    (r"\bH[12]00\b", _SXM_HOPPER),
    (r"\bA100\b", {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0}),
    (r"\bV100-PCIE\b", {"float16": 112.0, "float32": 14.0}),
    (r"\bV100\b", {"float16": 125.0, "float32": 15.7}),
    (r"\bL4\b", {"bfloat16": 121.0, "float16": 121.0, "float32": 60.0}),
    (r"\bT4\b", {"float16": 65.0, "float32": 8.1}),
    # A device of JAX is one of the two cores of a chip of v2 and v3, and the whole chip
    # from v4 on.
    (r"^TPU v2$", {"bfloat16": 45.0 / 2, "float32": 45.0 / 2}),
    (r"^TPU v3$", {"bfloat16": 123.0 / 2, "float32": 123.0 / 2}),
    (r"^TPU v4$", {"bfloat16": 275.0, "float32": 275.0}),
    (r"^TPU v5( lite|e)$", {"bfloat16": 197.0, "float32": 197.0}),
    (r"^TPU v5p?$", {"bfloat16": 459.0, "float32": 459.0}),
    (r"^TPU v6( lite|e)$", {"bfloat16": 918.0, "float32": 918.0}),
)


class Device(Protocol):
    """A device of JAX."""

    @property
    def platform(self) -> str:
        """``cpu``, ``gpu`` or ``tpu``."""
        ...

    @property
    def device_kind(self) -> str:
        """The vendor's name."""
        ...


def peak_flops(device: Device, dtype: str) -> float | None:
    """Return the published peak of a device in operations per second; None for CPUs and
    unknown devices.

    Args:
        device: one device of JAX.
        dtype: type of the computation: ``bfloat16``, ``float16`` or ``float32``.
    """
    if device.platform == "cpu":
        return None
    for pattern, peaks in _PEAKS:
        if re.search(pattern, device.device_kind):
            return peaks[dtype] * 1e12 if dtype in peaks else None
    return None
