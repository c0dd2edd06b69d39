"""Count the parameters of a Transformer: on the model itself, and by a formula that a
reader can check.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxformer.functional.layers import GATED
from jaxformer.models import seq2seq
from jaxformer.models.config import TransformerConfig


def count_parameters(config: TransformerConfig) -> int:
    """Count the parameters of a configuration's model; nothing is allocated.

    >>> count_parameters(TransformerConfig.base(vocabulary_size=37_000))
    63082496
    """
    # These change no shape: rows that differ only in them are traced once.
    return _count(
        dataclasses.replace(
            config,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
            activation_dropout_rate=0.0,
        )
    )


@functools.lru_cache(maxsize=64)
def _count(config: TransformerConfig) -> int:
    return seq2seq.count_parameters(seq2seq.abstract_parameters(config))


def parameters_by_formula(config: TransformerConfig) -> int:
    """Count the parameters by arithmetic.

    With width d, h heads of widths d_k and d_v, and a feed-forward layer of width f, an
    attention has ``2 d h d_k + 2 d h d_v`` weights and ``2 h d_k + h d_v + d`` biases,
    a feed-forward layer ``2 d f + f + d``, and a norm ``2 d``. An encoder layer has one
    attention and two norms, a decoder layer two and three; each table of embeddings has
    V d (section 3.4: one for source, target and output), each of learned positions
    (``position_offset`` + ``max_length``) d. A final norm (pre-LN) and a norm of the
    embedded input count once for each side. A decoder-only model has layers of an
    encoder.

    With g heads of keys and values, h is g in their half of the weights and biases. A
    gated feed-forward layer has ``d f + f`` more, QK-norm ``2 d_k`` an attention, a
    relative position bias a table of 32 h on each side. RMSNorm has ``d``, and a model
    without biases has none in norms either.
    """
    if config.network != "transformer":
        return _recurrent(config) + _vocabulary(config)
    width = config.d_model
    attention, feed_forward = _attention(config), _feed_forward(config)
    norm = 2 * width if config.norm == "layer" and config.biases else width
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    stacks = (config.num_encoder_layers > 0) + (config.num_decoder_layers > 0)
    if not config.num_encoder_layers:  # nothing to attend to
        decoder -= config.num_decoder_layers * (attention + norm)
    norms = stacks * norm * ((config.norm_order == "pre") + config.embedding_norm)
    rows = config.position_offset + config.max_length
    positions = stacks * rows * width if config.positions == "learned" else 0
    positions += config.segment_types * width if stacks == 1 else 0
    if config.position_bias == "relative":
        positions += stacks * 32 * config.num_heads
    return encoder + decoder + norms + positions + _vocabulary(config) + _head(config)


def _recurrent(config: TransformerConfig) -> int:
    """Count the encoder and the decoder of a recurrent network of width d.

    A GRU of i inputs has ``3 (i d + d d) + 4 d`` parameters and an LSTM ``4 (i d + d d
    + d)``. RNNsearch has two GRUs that read d, one that reads 3 d, ``d d + d`` for its
    first state, ``3 d d + d`` for the alignment and ``8 d d + 2 d`` for the readout.
    Luong's has an LSTM of d for each layer of a side, the first of the decoder of 2 d,
    ``2 d d`` for h~, and for the score none, ``d d`` (general) or ``2 d d + d``
    (concat).
    """
    width = config.d_model
    square = width * width
    if config.network == "bahdanau":
        encoder = 2 * (6 * square + 4 * width)
        decoder = 12 * square + 4 * width + square + width + 8 * square + 2 * width
        return encoder + decoder + 3 * square + width
    lstm = 8 * square + 4 * width
    layers = config.num_encoder_layers + config.num_decoder_layers
    scores = {"dot": 0, "general": square, "concat": 2 * square + width}
    score = scores[config.attention_score]
    return layers * lstm + 4 * square + 2 * square + score


def _head(config: TransformerConfig) -> int:
    """Count what reads the output of an encoder-only model: a dense layer and a norm
    before the table of words, a dense layer for the whole text, and a map to classes.
    """
    width, head = config.d_model, config.head
    dense = width * width + width
    words = (dense + 2 * width) * (head in ("words", "words_and_next"))
    pooler = dense * (head in ("pooled", "words_and_next", "classification"))
    labels = config.vocabulary_size * (head in ("classification", "tagging"))
    classes = labels + 2 * (head in ("words_and_next", "span"))
    return words + pooler + classes * (width + 1)


def _attention(config: TransformerConfig) -> int:
    """Count one attention."""
    width, heads = config.d_model, config.num_heads
    groups = config.num_key_value_heads or heads
    d_k, d_v = config.d_k or width // heads, config.d_v or width // heads
    weights = width * (heads + groups) * (d_k + d_v)
    biases = (heads + groups) * d_k + groups * d_v + width if config.biases else 0
    return weights + biases + (2 * d_k if config.query_key_norm else 0)


def _feed_forward(config: TransformerConfig) -> int:
    """Count one feed-forward layer."""
    inner = 2 if config.activation in GATED else 1
    biases = inner * config.d_ff + config.d_model if config.biases else 0
    return (inner + 1) * config.d_model * config.d_ff + biases


def _vocabulary(config: TransformerConfig) -> int:
    """Count embedding tables, output weights and output biases."""
    if not (config.num_encoder_layers and config.num_decoder_layers):
        rows = config.text_vocabulary_size
        if config.head in ("classification", "tagging", "span"):
            return rows * config.d_model
        untied = config.tied_embeddings == "none"
        return rows * config.d_model * (1 + untied) + rows * config.output_bias
    source, target = config.text_vocabulary_size, config.vocabulary_size
    tables = {"all": target, "target": source + target, "none": source + 2 * target}[
        config.tied_embeddings
    ]
    return tables * config.d_model + (target if config.output_bias else 0)
