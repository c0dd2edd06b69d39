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
from typing import Any, NamedTuple

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
    shapes = {side: batch[side].shape for side in batch.keys() & {"source", "target"}}
    lengths = {side: np.full(rows, width) for side, (rows, width) in shapes.items()}
    return _work(lengths, predicted)


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
    # Segments are numbered from 1, and 0 is padding; both sides of a row have the same.
    rows, most = np.arange(len(batch["target"]))[:, None], 1
    for name in batch.keys() & {"source_segments", "target_segments"}:
        most = max(most, int(batch[name].max(initial=0)))
    lengths = {}
    for side in batch.keys() & {"source", "target"}:
        real = batch[side] != pad_id
        sentences = rows * (most + 1) + batch.get(f"{side}_segments", real)
        lengths[side] = np.bincount(sentences[real], minlength=rows.size * (most + 1))
    return _work(lengths, predicted)


def _work(lengths: Mapping[str, np.ndarray], predicted: float) -> Work:
    target = lengths["target"]
    source = lengths.get("source", target)
    return Work(
        float(source.sum()),
        float(target.sum()) * predicted,
        *(float(source @ source), float(target @ target), float(source @ target)),
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
    pair = 2.0 * heads * sum(config.head_widths)  # a score, and its share of the output
    queries = width * pair  # a position's query and output
    groups = config.num_key_value_heads or heads
    keys = queries * groups / heads  # its key and value
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
    """Count one forward pass of a recurrent network, without maps of one vector a
    sentence: the first states of RNNsearch's and Cho's decoders, and c.
    """
    width, score = config.d_model, config.attention_score
    square = 2.0 * width * width  # a map from d_model to d_model
    pair = 0.0
    if config.network == "bahdanau":
        # Two GRUs of three gates, and the alignment's map of both states.
        source = 2 * 3 * (1 + 1) + 2
        # The query, a GRU that reads word and context, and the readout.
        target = 1 + 3 * (3 + 1) + 2 * 4
        pair = 2.0 * width * (1 + 2)
    elif config.network == "cho":
        # GRUs, whose second reads word and c, and the readout.
        source, target = 3 * (1 + 1), 3 * (2 + 1) + 2 * 3
    else:
        source = target = 4 * (1 + 1) * config.num_encoder_layers
        if config.network == "luong":
            source += score == "concat"
            target += 4 + 2 + (score != "dot")  # h~ as an input, h~, the score
            pair = 2.0 * width * (1 + 1)
    logits = 2.0 * work.target * width * config.vocabulary_size
    maps = work.source * source + work.target * target
    return maps * square + work.cross_pairs * pair + logits


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
_DTYPES: tuple[str, ...] = ("bfloat16", "float16", "float32")
_PEAKS: tuple[tuple[str, tuple[float | None, ...]], ...] = (
    (r"\bMIG\b", ()),  # a part of a device, of unknown size
    (r"\bH100 PCIe\b", (756.0, 756.0, 378.0)),
    (r"\bH[12]00 NVL\b", (835.5, 835.5, 417.5)),
    (r"\bH[12]00\b", (989.4, 989.4, 494.7)),
    (r"\bA100\b", (312.0, 312.0, 156.0)),
    (r"\bV100-PCIE\b", (None, 112.0, 14.0)),
    (r"\bV100\b", (None, 125.0, 15.7)),
    (r"\bL4\b", (121.0, 121.0, 60.0)),
    (r"\bT4\b", (None, 65.0, 8.1)),
    # A device of JAX is one of the two cores of a chip of v2 and v3, and the whole chip
    # from v4 on.
    (r"^TPU v2$", (45.0 / 2, None, 45.0 / 2)),
    (r"^TPU v3$", (123.0 / 2, None, 123.0 / 2)),
    (r"^TPU v4$", (275.0, None, 275.0)),
    (r"^TPU v5( lite|e)$", (197.0, None, 197.0)),
    (r"^TPU v5p?$", (459.0, None, 459.0)),
    (r"^TPU v6( lite|e)$", (918.0, None, 918.0)),
)


def peak_flops(device: Any, dtype: str) -> float | None:
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
            peak = dict(zip(_DTYPES, peaks, strict=False)).get(dtype)
            return peak and peak * 1e12
    return None
