"""The translation models of Hugging Face's transformers as Transformers, both ways.

BERT and GPT are passed on to :mod:`~jaxformer.interop.huggingface.one_stack`.

One map has the names and shapes of their tensors and ours; it is read in both
directions. How the families differ is in
:mod:`~jaxformer.interop.huggingface.families`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.errors import InputError
from jaxformer.functional.positions import sinusoidal
from jaxformer.interop.huggingface import entries, families, files, one_stack
from jaxformer.interop.huggingface.entries import Entry
from jaxformer.interop.huggingface.families import Family
from jaxformer.interop.huggingface.one_stack_kinds import KINDS
from jaxformer.models.config import TransformerConfig
from jaxformer.models.stacking import unstack_layers
from jaxformer.nn.embedding import LAYOUTS
from jaxformer.typing import Parameters, PyTree

_SIDES = {"encoder": "source", "decoder": "target"}


@dataclasses.dataclass(frozen=True)
class Imported:
    """A model that was read from a folder.

    Attributes:
        config: of the model.
        params: its parameters, float32 NumPy arrays that cannot be written. Those that
            the file has in float32 are mapped into memory: nothing is read before it
            is used.
        settings: ``config.json``.
        generation: ``generation_config.json``; None if there is none.
        tensors: the names of the file's tensors.
    """

    config: TransformerConfig
    params: PyTree
    settings: dict[str, Any]
    generation: dict[str, Any] | None
    tensors: frozenset[str]


def read(folder: str | Path) -> Imported:
    """Read a model from a folder as ``save_pretrained`` writes it.

    Args:
        folder: with ``config.json`` and ``model.safetensors`` or its shards; half
            precision becomes float32.

    Raises:
        InputError: an unknown ``model_type``, an unsupported setting, no weights,
            pickled weights, a damaged file, or a tensor that is missing, unknown or of
            another shape.
    """
    folder = Path(folder)
    settings, generation = files.read_settings(folder), None
    if settings.get("model_type") is None:
        files.refuse_others(folder, settings)
    if (folder / files.GENERATION).exists():
        generation = files.read_settings(folder, files.GENERATION)
    if str(settings.get("model_type")) in KINDS:
        tensors = files.read_tensors(folder)
        parts = one_stack.from_state(settings, tensors)
        return Imported(*parts, settings, generation, frozenset(tensors))
    given, start = settings, "decoder_start_token_id"
    if generation is not None and given.get(start) is None:
        given = settings | {start: generation.get(start)}
    whole = families.complete(given)
    config = families.to_config(whole)  # before the tensors, whose shapes it knows
    tensors = files.read_tensors(folder)
    parts = _convert(config, whole, tensors)
    return Imported(*parts, settings, generation, frozenset(tensors))


def from_model(model: Any) -> tuple[TransformerConfig, PyTree]:
    """Convert a model of transformers.

    Args:
        model: a ``MarianMTModel``, ``M2M100ForConditionalGeneration``,
            ``MBartForConditionalGeneration`` or ``BartForConditionalGeneration``, or
            one of BERT, RoBERTa, DistilBERT, GPT or GPT-2 with its head, on any device,
            of any floating type.

    Returns:
        The configuration and the parameters, float32.

    Raises:
        InputError: see :func:`from_state`.
    """
    state = {
        name: tensor.detach().float().cpu().numpy()
        for name, tensor in model.state_dict().items()
    }
    settings = model.config.to_dict() | {"architectures": [type(model).__name__]}
    return from_state(settings, state)


def from_state(
    settings: Mapping[str, Any], state: Mapping[str, ArrayLike]
) -> tuple[TransformerConfig, PyTree]:
    """Convert the configuration and the tensors of a model of transformers.

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
    if str(settings.get("model_type")) in KINDS:
        config, params = one_stack.from_state(settings, state)
        return config, jax.tree.map(jnp.asarray, params)
    settings = families.complete(settings)
    config, params = _convert(families.to_config(settings), settings, state)
    return config, jax.tree.map(jnp.asarray, params)


def write(
    folder: str | Path,
    config: TransformerConfig,
    params: Parameters,
    *,
    settings: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> None:
    """Write a model as ``save_pretrained`` of transformers does.

    Args:
        folder: created; a model in it is not overwritten.
        config: of the model.
        params: its parameters, with looped or scanned layers.
        settings: of ``config.json``: at least ``model_type``, which names the family,
            and ``eos_token_id``. What the configuration knows is taken from there.
        generation: of ``generation_config.json``; None writes none.
        dtype: of the file: ``float32``, ``float16`` or ``bfloat16``.

    Raises:
        InputError: the family has no such model, a setting is missing, or the folder
            has a model or cannot be written.
    """
    if str(settings.get("model_type")) in KINDS:
        one_stack.write(Path(folder), config, params, settings, generation, dtype)
        return
    family = families.family_of(settings)
    differ = families.differences(config, family)
    families.check_fits(config, family.model, differ)
    settings = families.to_settings(config, settings) | {"dtype": dtype}
    if config.scan_layers:
        params = unstack_layers(params)
    tensors = _tensors(config, family, jax.tree.map(np.asarray, params))
    files.write_folder(Path(folder), settings, generation, tensors, dtype)


def _entries(config: TransformerConfig, family: Family) -> Iterator[Entry]:
    """Map every tensor but the tables of tokens and the bias of logits."""
    width = config.d_model
    for side, ours in _SIDES.items():
        place = f"model.{side}"
        if config.positions == "learned":
            shape = (config.position_offset + config.max_length, width)
            path = (f"{ours}_positions", "table")
            yield Entry(f"{place}.{family.table}", shape, path, shape)
        if config.embedding_norm:
            path = (f"{ours}_embedding_norm",)
            yield from entries.norm(f"{place}.layernorm_embedding", path, width)
        if config.norm_order == "pre":
            yield from entries.norm(f"{place}.layer_norm", (side, "norm"), width)
        for i in range(getattr(config, f"num_{side}_layers")):
            yield from _layer(config, side, i)


def _layer(config: TransformerConfig, side: str, number: int) -> Iterator[Entry]:
    width, hidden = config.d_model, config.d_ff
    place, path = f"model.{side}.layers.{number}", (side, f"layer_{number}")
    attentions = {"self_attention": "self_attn"}
    if side == "decoder":
        attentions["cross_attention"] = "encoder_attn"
    norms = {"feed_forward": "final_layer_norm"}
    for ours, theirs in attentions.items():
        yield from _attention(config, f"{place}.{theirs}", (*path, ours))
        norms[ours] = f"{theirs}_layer_norm"
    for ours, theirs in norms.items():
        residual = (*path, f"{ours}_residual", "norm")
        yield from entries.norm(f"{place}.{theirs}", residual, width)
    feed = (*path, "feed_forward")
    yield from entries.linear(f"{place}.fc1", (*feed, "inner"), (width,), (hidden,))
    yield from entries.linear(f"{place}.fc2", (*feed, "outer"), (hidden,), (width,))


def _attention(
    config: TransformerConfig, place: str, path: tuple[str, ...]
) -> Iterator[Entry]:
    width = (config.d_model,)
    heads = (config.num_heads, config.d_model // config.num_heads)
    for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        yield from entries.linear(f"{place}.{theirs}", (*path, ours), width, heads)
    yield from entries.linear(f"{place}.out_proj", (*path, "output"), heads, width)


def _convert(
    config: TransformerConfig,
    settings: Mapping[str, Any],
    state: Mapping[str, ArrayLike],
) -> tuple[TransformerConfig, PyTree]:
    """Convert tensors; parameters are views of them."""
    family = families.family_of(settings)
    tensors = files.Tensors(_whole_names(state))
    bias = None
    if family.output_bias:
        shape = (1, config.vocabulary_size)
        bias = tensors.take_optional("final_logits_bias", shape)
    one = not family.separate or settings["share_encoder_decoder_embeddings"]
    tied = settings["tie_word_embeddings"]
    source, target, output = _tables(tensors, config, one=one, tied=tied)
    tied = "target" if target is output else "none"
    if source is target is output:
        tied = "all"
    config = dataclasses.replace(
        config,
        tied_embeddings=tied,
        output_bias=bias is not None and bool(bias.any()),
    )
    params = _token_params(source, target, output, tied)
    if config.output_bias and bias is not None:
        params["logits"] = {"bias": bias[0]}
    entries.take(_entries(config, family), tensors, params)
    _check_positions(tensors, config, family)
    tensors.check_empty(family.model)
    return config, params


def _token_params(
    source: np.ndarray, target: np.ndarray, output: np.ndarray, tied: str
) -> dict[str, Any]:
    if tied == "all":
        return {"embedding": {"table": source}}
    params: dict[str, Any] = {
        "source_embedding": {"table": source},
        "target_embedding": {"table": target},
    }
    return params | ({"output": output} if tied == "none" else {})


_UNUSED = ("encoder.version", "decoder.version")
"""Tensors of old files that transformers passes over too, by the ends of their names.
"""


def _whole_names(state: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
    """Name the tensors as in a model with logits, also those of a model without."""
    state = {name: x for name, x in state.items() if not name.endswith(_UNUSED)}
    if any(name.startswith("model.") for name in state):
        return state
    outside = ("lm_head.", "final_logits_bias")
    return {
        name if name.startswith(outside) else f"model.{name}": tensor
        for name, tensor in state.items()
    }


def _tables(
    tensors: files.Tensors, config: TransformerConfig, *, one: bool, tied: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tables of source, target and output; equal tables are one object.

    A state has a tied table under several names, a file under one of them. As in
    transformers, a name that the file has is read although the settings tie it.

    Args:
        tensors: of the model.
        config: of the model.
        one: whether both sides share a table; else a file's shared table has no use.
        tied: whether the output is one of the tables.
    """
    target_shape = (config.vocabulary_size, config.d_model)
    source_shape = (config.text_vocabulary_size, config.d_model)
    shared = tensors.take_optional("model.shared.weight", source_shape)
    source = tensors.take_optional("model.encoder.embed_tokens.weight", source_shape)
    target = tensors.take_optional("model.decoder.embed_tokens.weight", target_shape)
    output = tensors.take_optional("lm_head.weight", target_shape)
    if not one:
        shared = None
    elif tied:
        shared = _first("model.shared.weight", shared, output, target, source)
    other = output if tied else None
    source = _first("model.encoder.embed_tokens.weight", source, shared)
    target = _first("model.decoder.embed_tokens.weight", target, shared, other)
    other = (shared, target) if tied else ()
    output = _first("lm_head.weight", output, *other)
    target = source if _equal(target, source) else target
    output = target if _equal(output, target) else output
    return source, target, output


def _first(name: str, *found: np.ndarray | None) -> np.ndarray:
    for table in found:
        if table is not None:
            return table
    raise files.missing_tensor(name)


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first is second or np.array_equal(first, second)


def _tensors(
    config: TransformerConfig, family: Family, params: Parameters
) -> dict[str, np.ndarray]:
    """Convert parameters to tensors, views of them; tied ones appear once."""
    tensors = {
        entry.name: entry.to_theirs(params) for entry in _entries(config, family)
    }
    if family.output_bias:
        zeros = np.zeros(config.vocabulary_size, np.float32)
        bias = params["logits"]["bias"] if config.output_bias else zeros
        tensors["final_logits_bias"] = bias[None]
    if config.tied_embeddings == "all":
        return tensors | {"model.shared.weight": params["embedding"]["table"]}
    source, target = (params[f"{side}_embedding"]["table"] for side in _SIDES.values())
    tensors["model.encoder.embed_tokens.weight"] = source
    tensors["model.decoder.embed_tokens.weight"] = target
    if not family.separate:
        tensors["model.shared.weight"] = source  # unused, and part of the class
    if config.tied_embeddings == "none" or not family.separate:
        output = params["output"] if config.tied_embeddings == "none" else target
        tensors["lm_head.weight"] = output
    return tensors


def _check_positions(
    tensors: files.Tensors, config: TransformerConfig, family: Family
) -> None:
    """Compare tables of sines and cosines with those that the model computes."""
    if config.positions == "learned":
        return
    first = config.position_offset
    shape = (first + config.max_length, config.d_model)
    for side in _SIDES:
        name = f"model.{side}.{family.table}"
        found = tensors.take_optional(name, shape)
        if found is None:
            continue
        layout = LAYOUTS[config.positions]
        computed = sinusoidal(jnp.arange(shape[0]), config.d_model, layout=layout)
        # float32 angles of up to max_length radians, and tables in half precision
        if not np.allclose(computed[first:], found[first:], rtol=0, atol=1e-2):
            raise InputError(
                f"the tensor {name} must hold sines and cosines, as a {family.model}"
                " makes them; it does not"
            )
