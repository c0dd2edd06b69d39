"""Import ``MarianMTModel`` of Hugging Face's transformers.

It is the paper's Transformer with another activation, an output bias, sines before
cosines in its positions, and padding as the first decoder token. All are options of
:class:`~jaxformer.TransformerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.errors import InputError
from jaxformer.functional.positions import sinusoidal
from jaxformer.models.config import TransformerConfig
from jaxformer.typing import PyTree

_ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
}

_EPSILON = 1e-5
"""Epsilon of the layer norms, which Hugging Face's configuration does not have."""


def from_model(model: Any) -> tuple[TransformerConfig, PyTree]:
    """Convert a ``transformers.MarianMTModel``.

    Args:
        model: a ``MarianMTModel`` on any device, of any floating type.

    Returns:
        The configuration and the parameters, float32.

    Raises:
        InputError: see :func:`from_state`.
    """
    state = {
        name: tensor.detach().float().cpu().numpy()
        for name, tensor in model.state_dict().items()
    }
    return from_state(model.config.to_dict(), state)


def from_state(
    settings: Mapping[str, Any], state: Mapping[str, ArrayLike]
) -> tuple[TransformerConfig, PyTree]:
    """Convert the configuration and the tensors of a ``MarianMTModel``.

    A file may leave out further names of a tied table. Tables of sines and cosines are
    compared with those that the model computes.

    Args:
        settings: the fields of its ``config.json``.
        state: its tensors by name.

    Returns:
        The configuration and the parameters, float32.

    Raises:
        InputError: an unsupported setting, a tensor that is missing, unknown or of
            another shape, or positions that are no sines and cosines.
    """
    _check_settings(settings)
    source_size = target_size = int(settings["vocab_size"])
    if not settings.get("share_encoder_decoder_embeddings", True):
        target_size = int(settings.get("decoder_vocab_size") or source_size)
    width = int(settings["d_model"])
    tensors = _Tensors(state)
    source, target, output = _tables(
        tensors, (source_size, width), (target_size, width)
    )
    tied = "target" if target is output else "none"
    if source is target is output:
        tied = "all"
    bias = tensors.take_optional("final_logits_bias", (1, target_size))
    config = _config(
        settings, source_size, target_size, tied, bias is not None and bool(bias.any())
    )
    depths = {
        "encoder": config.num_encoder_layers,
        "decoder": config.num_decoder_layers,
    }
    params: dict[str, Any] = {
        side: {f"layer_{i}": _layer(tensors, config, side, i) for i in range(depth)}
        for side, depth in depths.items()
    }
    if tied == "all":
        params["embedding"] = {"table": source}
    else:
        params |= {
            "source_embedding": {"table": source},
            "target_embedding": {"table": target},
        }
    if tied == "none":
        params["output"] = output
    if config.output_bias and bias is not None:
        params["logits"] = {"bias": bias[0]}
    _check_positions(tensors, config)
    tensors.check_empty()
    return config, jax.tree.map(jnp.asarray, params)


class _Tensors:
    """The tensors of a state, each of which is taken once."""

    def __init__(self, state: Mapping[str, ArrayLike]) -> None:
        self._left = dict(state)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return _first(name, self.take_optional(name, shape))

    def take_optional(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        if name not in self._left:
            return None
        found = np.asarray(self._left.pop(name), np.float32)
        if found.shape != shape:
            raise InputError(
                f"the tensor {name} must have the shape {shape} by the configuration,"
                f" not {found.shape}; give the configuration of this very model"
            )
        return found

    def check_empty(self) -> None:
        if self._left:
            raise InputError(
                "no part of the model takes the tensors"
                f" {', '.join(sorted(self._left))}; give the state of a MarianMTModel"
                " and no more"
            )


def _tables(
    tensors: _Tensors, source_shape: tuple[int, int], target_shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tables of source, target and output; equal tables are one object.

    A state has a tied table under several names, a file under one of them.
    """
    shared = tensors.take_optional("model.shared.weight", source_shape)
    source = tensors.take_optional("model.encoder.embed_tokens.weight", source_shape)
    target = tensors.take_optional("model.decoder.embed_tokens.weight", target_shape)
    output = tensors.take_optional("lm_head.weight", target_shape)
    source = _first("model.encoder.embed_tokens.weight", source, shared)
    target = _first("model.decoder.embed_tokens.weight", target, shared, output)
    output = _first("lm_head.weight", output, target)
    target = source if np.array_equal(target, source) else target
    if np.array_equal(output, target):
        return source, target, target
    return source, target, output


def _first(name: str, *found: np.ndarray | None) -> np.ndarray:
    for table in found:
        if table is not None:
            return table
    raise InputError(
        f"the model lacks the tensor {name}; give the state of a whole MarianMTModel"
    )


_NEEDED = (
    "vocab_size",
    "d_model",
    *(
        f"{side}_{name}"
        for side in ("encoder", "decoder")
        for name in ("layers", "ffn_dim", "attention_heads")
    ),
    "activation_function",
    "max_position_embeddings",
    "pad_token_id",
    "decoder_start_token_id",
)


def _check_settings(settings: Mapping[str, Any]) -> None:
    kind = settings.get("model_type", "marian")
    if kind != "marian":
        raise InputError(
            f"model_type must be marian, not {kind}; other models have other layers"
        )
    missing = [name for name in _NEEDED if settings.get(name) is None]
    if missing:
        raise InputError(
            f"the configuration lacks {', '.join(missing)}; give the config.json of a"
            " MarianMTModel"
        )
    for side in ("ffn_dim", "attention_heads"):
        ours, theirs = settings[f"encoder_{side}"], settings[f"decoder_{side}"]
        if ours != theirs:
            raise InputError(
                f"encoder and decoder need layers of one make, and encoder_{side} is"
                f" {ours} where decoder_{side} is {theirs}; such a model cannot be"
                " carried over"
            )
    activation = settings["activation_function"]
    if activation not in _ACTIVATIONS:
        raise InputError(
            f"activation_function must be one of {', '.join(_ACTIVATIONS)} to be"
            f" carried over, not {activation!r}"
        )


def _config(
    settings: Mapping[str, Any],
    source_size: int,
    target_size: int,
    tied: str,
    output_bias: bool,
) -> TransformerConfig:
    return TransformerConfig(
        vocabulary_size=target_size,
        source_vocabulary_size=None if source_size == target_size else source_size,
        d_model=int(settings["d_model"]),
        d_ff=int(settings["encoder_ffn_dim"]),
        num_heads=int(settings["encoder_attention_heads"]),
        num_encoder_layers=int(settings["encoder_layers"]),
        num_decoder_layers=int(settings["decoder_layers"]),
        dropout_rate=float(settings.get("dropout", 0.1)),
        attention_dropout_rate=float(settings.get("attention_dropout", 0.0)),
        activation_dropout_rate=float(settings.get("activation_dropout", 0.0)),
        activation=_ACTIVATIONS[settings["activation_function"]],
        norm_epsilon=_EPSILON,
        positions="sinusoidal_concatenated",
        max_length=int(settings["max_position_embeddings"]),
        tied_embeddings=tied,
        scale_embedding=bool(settings.get("scale_embedding", False)),
        output_bias=output_bias,
        pad_id=int(settings["pad_token_id"]),
        bos_id=int(settings["decoder_start_token_id"]),
    )


def _layer(
    tensors: _Tensors, config: TransformerConfig, side: str, number: int
) -> dict[str, Any]:
    place, width, hidden = f"model.{side}.layers.{number}", config.d_model, config.d_ff
    layer: dict[str, Any] = {
        "self_attention": _attention(tensors, config, f"{place}.self_attn"),
        "self_attention_residual": _norm(
            tensors, config, f"{place}.self_attn_layer_norm"
        ),
        "feed_forward": {
            "inner": _linear(tensors, f"{place}.fc1", width, hidden),
            "outer": _linear(tensors, f"{place}.fc2", hidden, width),
        },
        "feed_forward_residual": _norm(tensors, config, f"{place}.final_layer_norm"),
    }
    if side == "decoder":
        layer["cross_attention"] = _attention(tensors, config, f"{place}.encoder_attn")
        layer["cross_attention_residual"] = _norm(
            tensors, config, f"{place}.encoder_attn_layer_norm"
        )
    return layer


def _attention(
    tensors: _Tensors, config: TransformerConfig, place: str
) -> dict[str, Any]:
    width, heads = config.d_model, config.num_heads
    found: dict[str, Any] = {}
    for name, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        linear = _linear(tensors, f"{place}.{theirs}", width, width)
        found[name] = {
            "kernel": linear["kernel"].reshape(width, heads, -1),
            "bias": linear["bias"].reshape(heads, -1),
        }
    linear = _linear(tensors, f"{place}.out_proj", width, width)
    found["output"] = {
        "kernel": linear["kernel"].reshape(heads, -1, width),
        "bias": linear["bias"],
    }
    return found


def _linear(
    tensors: _Tensors, place: str, inputs: int, outputs: int
) -> dict[str, np.ndarray]:
    """Take a linear map and transpose it from [outputs, inputs]."""
    return {
        "kernel": tensors.take(f"{place}.weight", (outputs, inputs)).T,
        "bias": tensors.take(f"{place}.bias", (outputs,)),
    }


def _norm(tensors: _Tensors, config: TransformerConfig, place: str) -> dict[str, Any]:
    scale, bias = (
        tensors.take(f"{place}.{name}", (config.d_model,))
        for name in ("weight", "bias")
    )
    return {"norm": {"scale": scale, "bias": bias}}


def _check_positions(tensors: _Tensors, config: TransformerConfig) -> None:
    positions = jnp.arange(config.max_length)
    computed = np.asarray(sinusoidal(positions, config.d_model, layout="concatenated"))
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        found = tensors.take_optional(name, computed.shape)
        # float32 angles of up to max_length radians, and tables in half precision
        if found is not None and not np.allclose(computed, found, rtol=0, atol=1e-2):
            raise InputError(
                f"the tensor {name} must hold sines and cosines, as MarianMTModel makes"
                " them; it does not"
            )
