"""Export a Transformer to CTranslate2, an inference engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.frame import TARGET
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError, require
from jaxformer.functional.positions import learned, sinusoidal
from jaxformer.interop.huggingface.tokenizers import names_of
from jaxformer.models.config import TransformerConfig, later_blocks
from jaxformer.models.stacking import unstack_layers
from jaxformer.nn.embedding import LAYOUTS
from jaxformer.translation.translator import Translator
from jaxformer.typing import Parameters

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELUTanh",
    "gelu_exact": "GELU",
    "silu": "SWISH",
}
"""CTranslate2's names of activations, by ours."""


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Hold the tokens of a model as strings in the order of their ids.

    Attributes:
        source: of the source vocabulary.
        target: of the target vocabulary; equal to ``source`` if it is shared.
        unk_id: the unknown token.
        eos_id: the end of a target, and of a source if ``source_eos``.
        source_eos: whether CTranslate2 appends the end to each source.
        source_bos: the token that it puts before each source; None: none.
        banned: tokens that it never generates.
        start: whether it begins targets by itself; otherwise ``target_prefix`` does.
    """

    source: Sequence[str]
    target: Sequence[str]
    unk_id: int
    eos_id: int
    source_eos: bool = True
    source_bos: str | None = None
    banned: Sequence[int] = ()
    start: bool = True


def tokens_of(translator: Translator) -> Tokens:
    """Return the tokens of a translator's vocabularies: a name of its own for each row
    of the tables.

    CTranslate2 ends sources by itself only for models that were trained here; for
    imported ones the caller gives all tokens around the text, as for models that its
    own converter writes.
    """
    vocabularies, config = translator.vocabularies, translator.model.config
    rows = config.vocabulary_size, config.source_vocabulary_size
    target = _names(vocabularies.target, rows[0])
    source = _names(vocabularies.source, rows[1] or rows[0])
    frame = translator.codec.frame
    imported = vocabularies.template is not None
    return Tokens(
        source,
        target,
        vocabularies.target.unk_id,
        frame.end,
        source_eos=not imported and bool(frame.source_after),
        start=not _starts_by_language(translator),
    )


def target_prefix(translator: Translator) -> list[int]:
    """Return the tokens that each target begins with as ``target_prefix``. That of
    mBART-25 begins with the decoder's first input, which is the language.
    """
    frame = translator.codec.frame
    first = [frame.start] if _starts_by_language(translator) else []
    return [*first, *frame.target_before]


def _starts_by_language(translator: Translator) -> bool:
    template = translator.vocabularies.template
    return template is not None and template.start == TARGET


def _names(vocabulary: Vocabulary, rows: int) -> list[str]:
    found = names_of(vocabulary)
    found += [None] * (rows - len(found))
    return [name or f"<row {row}>" for row, name in enumerate(found)]


def save(
    directory: str | Path,
    config: TransformerConfig,
    params: Parameters,
    tokens: Tokens,
    quantization: str | None = None,
) -> None:
    """Write a model that ``ctranslate2.Translator(directory)`` computes equally.

    Numbers are float32; ``compute_type`` of CTranslate2 quantises them when it loads.
    There are positions for 1,024 tokens and more, computed as in the model; those
    beyond a learned table are its last.
    Unlike jaxformer's search, its search may generate padding and the begin of
    sentence, if ``tokens.banned`` does not have them: pass them as
    ``suppress_sequences``.

    Args:
        directory: of the model, created or overwritten.
        config: of the model.
        params: its parameters, with looped or scanned layers.
        tokens: of its vocabularies.
        quantization: of the matrices, such as ``int8``; None: float32.

    Raises:
        InputError: a block later than the paper, heads of another width than d_model /
            num_heads, a wrong number of tokens, or the package ctranslate2 is missing.
    """
    _check(config, tokens)
    specs = require("ctranslate2.specs", "interop")
    spec = specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm_order == "pre",
        activation=specs.Activation[_ACTIVATIONS[config.activation]],
        layernorm_embedding=config.embedding_norm,
    )
    if quantization is not None:  # CTranslate2 quantises in place
        params = jax.tree.map(np.array, dict(params))
    _fill_model(spec, config, params, list(tokens.banned))
    spec.register_source_vocabulary(list(tokens.source))
    spec.register_target_vocabulary(list(tokens.target))
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.config.unk_token = tokens.target[tokens.unk_id]
    spec.config.eos_token = tokens.target[tokens.eos_id]
    start = tokens.target[config.bos_id]
    spec.config.decoder_start_token = start if tokens.start else None
    spec.config.bos_token = start
    if tokens.source_bos is not None:
        spec.config.bos_token, spec.config.add_source_bos = tokens.source_bos, True
    spec.config.add_source_eos = tokens.source_eos
    spec.validate()
    spec.optimize(quantization)  # writes a tied table once
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))


def list_limits(config: TransformerConfig) -> list[str]:
    """Return the number of positions that were learned, where CTranslate2 by itself
    takes longer texts.
    """
    most = config.max_length
    if config.positions != "learned" or most >= _POSITIONS - 2:
        return []
    return [
        f"model.max_length={most} (further positions repeat the last that was learned:"
        f" set max_input_length and max_decoding_length to at most {most})"
    ]


def _check(config: TransformerConfig, tokens: Tokens) -> None:
    for name, value in later_blocks(config).items():
        raise InputError(
            f"jaxformer writes models for CTranslate2 without model.{name}={value}:"
            " such a model cannot be written for it"
        )
    width = config.d_model // config.num_heads
    if config.d_model % config.num_heads or {
        config.d_k or width,
        config.d_v or width,
    } != {width}:
        raise InputError(
            "CTranslate2 needs heads of width d_model / num_heads, and model.d_k is"
            f" {config.d_k} and model.d_v {config.d_v} at model.d_model"
            f" {config.d_model} and model.num_heads {config.num_heads}; such a model"
            " cannot be written for it"
        )
    sizes = {
        "source": config.text_vocabulary_size,
        "target": config.vocabulary_size,
    }
    for side, size in sizes.items():
        given = len(getattr(tokens, side))
        if given != size:
            raise InputError(
                f"the model has {size} {side} tokens, not {given}; give the tokens of"
                " the vocabulary it was made for"
            )


_POSITIONS = 1026
"""CTranslate2 cuts a source after 1,024 tokens, and stops with an error where there are
no positions. Beyond a learned table its last row is repeated.
"""

_NEVER = -1e4
"""Added to the logits of banned tokens: within the range of float16."""


def _fill_model(
    spec: Any, config: TransformerConfig, params: Parameters, banned: list[int]
) -> None:
    if config.scan_layers:
        params = unstack_layers(params)
    params = jax.tree.map(
        lambda leaf: np.ascontiguousarray(leaf, np.float32), dict(params)
    )
    _fill_side(spec.encoder, spec.encoder.embeddings[0], config, params, "source")
    _fill_side(spec.decoder, spec.decoder.embeddings, config, params, "target")
    tied = config.tied_embeddings != "none"
    output = _table(params, "target") if tied else params["output"]
    spec.decoder.projection.weight = output
    bias = np.zeros(len(output), np.float32)
    if config.output_bias:
        bias += params["logits"]["bias"]
    bias[banned] = _NEVER
    if config.output_bias or banned:
        spec.decoder.projection.bias = bias


def _fill_side(
    stack: Any,
    embeddings: Any,
    config: TransformerConfig,
    params: Parameters,
    side: str,
) -> None:
    embeddings.weight = _table(params, side)
    stack.scale_embeddings = config.scale_embedding
    stack.position_encodings.encodings = _positions(config, params, side)
    layers = params["encoder" if side == "source" else "decoder"]
    for number, spec in enumerate(stack.layer):
        layer = layers[f"layer_{number}"]
        _fill_attention(spec.self_attention, layer, "self_attention", 0)
        if side == "target":
            _fill_attention(spec.attention, layer, "cross_attention", 1)
        _fill_linear(spec.ffn.linear_0, [layer["feed_forward"]["inner"]])
        _fill_linear(spec.ffn.linear_1, [layer["feed_forward"]["outer"]])
        _fill_norm(spec.ffn.layer_norm, layer["feed_forward_residual"]["norm"])
    if config.norm_order == "pre":
        _fill_norm(stack.layer_norm, layers["norm"])
    if config.embedding_norm:
        _fill_norm(stack.layernorm_embedding, params[f"{side}_embedding_norm"])


def _table(params: Parameters, side: str) -> np.ndarray:
    return (
        params["embedding"] if "embedding" in params else params[f"{side}_embedding"]
    )["table"]


def _positions(config: TransformerConfig, params: Parameters, side: str) -> np.ndarray:
    longest = max(config.max_length, _POSITIONS)
    place = config.position_offset + jnp.arange(longest)
    if config.positions == "learned":
        scaled = config.scale_embedding and config.scale_positions
        scale = config.d_model**0.5 if scaled else 1.0
        table = jnp.asarray(params[f"{side}_positions"]["table"])
        last = jnp.minimum(place, len(table) - 1)
        return np.asarray(learned(table, last)) * np.float32(scale)
    return np.asarray(
        sinusoidal(place, config.d_model, layout=LAYOUTS[config.positions])
    )


def _flat(projection: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Flatten the heads of a query, key or value projection."""
    kernel, bias = projection["kernel"], projection["bias"]
    return {"kernel": kernel.reshape(kernel.shape[0], -1), "bias": bias.reshape(-1)}


def _fill_attention(spec: Any, layer: Parameters, name: str, apart: int) -> None:
    """Fill in an attention: its first ``apart`` projections by themselves, the others
    as one, the output and the norm.
    """
    inputs = [_flat(layer[name][each]) for each in ("query", "key", "value")]
    for linear, projection in zip(spec.linear, inputs[:apart], strict=False):
        _fill_linear(linear, [projection])
    _fill_linear(spec.linear[apart], inputs[apart:])
    kernel, bias = layer[name]["output"]["kernel"], layer[name]["output"]["bias"]
    _fill_linear(
        spec.linear[-1],
        [{"kernel": kernel.reshape(-1, kernel.shape[-1]), "bias": bias}],
    )
    _fill_norm(spec.layer_norm, layer[f"{name}_residual"]["norm"])


def _fill_linear(spec: Any, linears: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Fill in a linear map, [outputs, inputs], of concatenated outputs."""
    spec.weight = np.concatenate([linear["kernel"].T for linear in linears])
    spec.bias = np.concatenate([linear["bias"] for linear in linears])


def _fill_norm(spec: Any, norm: Mapping[str, np.ndarray]) -> None:
    spec.gamma, spec.beta = norm["scale"], norm["bias"]
