"""BERT, RoBERTa, DistilBERT, GPT and GPT-2 of Hugging Face's transformers, both ways.

Their names are in :mod:`~jaxformer.interop.huggingface.one_stack_kinds`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.errors import InputError
from jaxformer.interop.huggingface import entries, files
from jaxformer.interop.huggingface.entries import Entry
from jaxformer.interop.huggingface.families import check_fits
from jaxformer.interop.huggingface.one_stack_kinds import Kind
from jaxformer.interop.huggingface.one_stack_settings import (
    differences,
    find_head,
    kind_of,
    read_labels,
    to_config,
    to_settings,
)
from jaxformer.models.config import TransformerConfig
from jaxformer.models.stacking import unstack_layers
from jaxformer.typing import PyTree

_BUFFERS = re.compile(r"(position_ids|token_type_ids|\.attn\.(masked_)?bias)$")
"""Tensors of files that are no parameters."""


def find_entries(config: TransformerConfig, kind: Kind) -> Iterator[Entry]:
    """Map every tensor of a model."""
    width, start = config.d_model, kind.prefix
    rows = {
        "embedding": config.text_vocabulary_size,
        "positions": config.position_offset + config.max_length,
        "segment_embedding": config.segment_types,
    }
    for ours, theirs in kind.tables.items():
        if rows[ours]:
            path = (ours, "table")
            yield entries.table(f"{start}{theirs}", path, (rows[ours], width))
    for ours, theirs in kind.norms.items():
        yield from entries.norm(f"{start}{theirs}", tuple(ours.split("/")), width)
    side = "encoder" if config.num_encoder_layers else "decoder"
    for number in range(config.num_encoder_layers or config.num_decoder_layers):
        place, path = start + kind.layer.format(number), (side, f"layer_{number}")
        yield from _layer(config, kind, place, path)
    yield from _head_entries(config, kind)


def _layer(
    config: TransformerConfig, kind: Kind, place: str, path: tuple[str, ...]
) -> Iterator[Entry]:
    width, hidden = (config.d_model,), (config.d_ff,)
    heads = (config.num_heads, config.d_model // config.num_heads)
    maps = {
        **dict.fromkeys(("query", "key", "value"), ("self_attention", width, heads)),
        "output": ("self_attention", heads, width),
        "inner": ("feed_forward", width, hidden),
        "outer": ("feed_forward", hidden, width),
    }
    for ours, theirs in kind.parts.items():
        if ours not in maps:
            yield from entries.norm(place + theirs, (*path, ours, "norm"), *width)
            continue
        part, inputs, outputs = maps[ours]
        where = (*path, part, ours)
        yield from entries.linear(
            place + theirs, where, inputs, outputs, transposed=not kind.conv
        )


def _head_entries(config: TransformerConfig, kind: Kind) -> Iterator[Entry]:
    width, names, head = config.d_model, kind.heads, config.head
    square = (width,), (width,)
    if head in ("words", "words_and_next"):
        path = ("word_transform",)
        yield from entries.linear(names["transform"], (*path, "dense"), *square)
        yield from entries.norm(names["transform_norm"], (*path, "norm"), width)
        rows = (config.vocabulary_size,)
        yield Entry(names["word_bias"], rows, ("logits", "bias"), rows)
    if head in ("pooled", "words_and_next", "classification"):
        yield from entries.linear(names["pooler"], ("pooler", "dense"), *square)
    for ours, count in (
        ("next_text", 2 * (head == "words_and_next")),
        ("classifier", config.vocabulary_size * (head == "classification")),
        ("span", 2 * (head == "span")),
    ):
        if count:
            where = (ours, "dense")
            yield from entries.linear(names[ours], where, (width,), (count,))
    if head == "tagging":
        count = (config.vocabulary_size,)
        where = ("classifier", "dense")
        yield from entries.linear("classifier", where, (width,), count)


def from_state(
    settings: Mapping[str, Any], state: Mapping[str, ArrayLike]
) -> tuple[TransformerConfig, PyTree]:
    """Convert the configuration and the tensors of a model.

    Args:
        settings: the fields of its ``config.json``.
        state: its tensors by name, with the prefix of the model or without. Buffers are
            ignored, as is an equal table under a second name.

    Returns:
        The configuration, and the parameters as float32 views.

    Raises:
        InputError: an unsupported setting, or a tensor that is missing, unknown or of
            another shape.
    """
    name, kind = kind_of(settings)
    state = whole_names(kind, state)
    config = to_config(settings, find_head(kind, settings, frozenset(state)))
    if config.num_decoder_layers:
        state = _split(state)
    tensors, params = files.Tensors(state), {}
    entries.take(find_entries(config, kind), tensors, params)
    _drop_tied(tensors, kind, config, params)
    if config.head not in ("pooled", "words_and_next"):
        # Unused by this head, and part of many files.
        for end, shape in (("weight", (config.d_model,) * 2), ("bias", None)):
            tensors.take_optional(
                f"{kind.prefix}pooler.dense.{end}", shape or (config.d_model,)
            )
    tensors.check_empty(f"{name} model")
    return config, params


def whole_names(kind: Kind, state: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Name tensors as in a model with a head, and norms as today; leave out buffers."""
    found = {}
    bare = not any(name.startswith(kind.prefix) for name in state)
    outside = tuple({name.split(".")[0] + "." for name in kind.heads.values()})
    for name, tensor in state.items():
        if _BUFFERS.search(name):
            continue
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        inside = not name.startswith(tuple(set(outside) - {kind.prefix}))
        found[kind.prefix + name if bare and inside else name] = tensor
    return found


def _drop_tied(
    tensors: files.Tensors, kind: Kind, config: TransformerConfig, params: PyTree
) -> None:
    """Take a second name of the table of words and of its bias, if it is the same."""
    pairs = [("weight", params["embedding"]["table"])]
    if config.output_bias:
        pairs.append(("bias", params["logits"]["bias"]))
    for end, own in pairs:
        name = f"{kind.heads['tied']}.{end}"
        other = tensors.take_optional(name, own.shape)
        if other is not None and not np.array_equal(other, own):
            raise InputError(
                f"the tensor {name} differs from the table of words, and jaxformer has"
                " these models with one table: it cannot be imported"
            )


def to_state(
    config: TransformerConfig, settings: Mapping[str, Any], params: PyTree
) -> dict[str, np.ndarray]:
    """Convert parameters to tensors by name; the table of words appears once, and a
    model without a head has no prefix, as in transformers.
    """
    _, kind = kind_of(settings)
    found = {
        entry.name: entry.to_theirs(params) for entry in find_entries(config, kind)
    }
    if config.num_decoder_layers:
        return _join(found)
    if config.head in ("none", "pooled"):
        return {name.removeprefix(kind.prefix): x for name, x in found.items()}
    return found


def write(
    folder: Path,
    config: TransformerConfig,
    params: PyTree,
    settings: Mapping[str, Any],
    generation: Mapping[str, Any] | None,
    dtype: str,
) -> None:
    """Write a model as :func:`jaxformer.interop.huggingface.write` does.

    ``id2label`` of the settings has the labels; what the configuration knows is taken
    from there.

    Raises:
        InputError: the family has no such model, or the folder has a model or cannot be
            written.
    """
    name, _ = kind_of(settings)
    check_fits(config, f"model of model_type {name}", differences(config, name))
    labelled = config.head in ("classification", "tagging")
    labels = read_labels(settings) if labelled else ()
    dropped = {"quantization_config", "torch_dtype", "_name_or_path"}
    given = {key: x for key, x in settings.items() if key not in dropped}
    found = {**given, **to_settings(config, name, labels), "dtype": dtype}
    if config.scan_layers:
        params = unstack_layers(params)
    tensors = to_state(config, settings, jax.tree.map(np.asarray, params))
    files.write_folder(folder, found, generation, tensors, dtype)


_FUSED = re.compile(r"(.*\.attn\.)c_attn\.(weight|bias)$")
_THIRDS = ("query", "key", "value")


def _split(state: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Split queries, keys and values, which are thirds of the last axis."""
    found = {}
    for name, tensor in state.items():
        fused = _FUSED.match(name)
        if fused is None or np.shape(tensor)[-1] % 3:
            found[name] = tensor
            continue
        thirds = np.split(np.asarray(tensor), 3, axis=-1)
        for part, third in zip(_THIRDS, thirds, strict=True):
            found[f"{fused[1]}{part}.{fused[2]}"] = third
    return found


def _join(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for name, tensor in tensors.items():
        thirds = [name.replace(".attn.query.", f".attn.{part}.") for part in _THIRDS]
        if ".attn.query." in name:
            fused = name.replace(".attn.query.", ".attn.c_attn.")
            found[fused] = np.concatenate([tensors[each] for each in thirds], axis=-1)
        elif ".attn.key." not in name and ".attn.value." not in name:
            found[name] = tensor
    return found
