"""Export the search of a translator as StableHLO: one program for CPUs, GPUs and TPUs,
which JAX runs without jaxformer.

The program is traced on this machine: exported on a CPU, it keeps its cache in spans
and at least in float32, also where it runs on a GPU or TPU.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import export

from jaxformer.data.frame import Frame
from jaxformer.errors import require
from jaxformer.files import write_whole
from jaxformer.interop import stablehlo_loader
from jaxformer.kernels.int8 import TwoWayTable
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import SearchRules
from jaxformer.translation import batch
from jaxformer.translation.compiled import BatchInput, search_shard
from jaxformer.translation.models import prepare
from jaxformer.translation.translator import Translator
from jaxformer.typing import Array, Int

PLATFORMS = ("cpu", "cuda", "tpu")
"""What a program is lowered for."""

PROGRAM, WEIGHTS, SETTINGS = "search.stablehlo", "model.safetensors", "config.json"


def save(folder: Path, translator: Translator, decoding: DecodingConfig) -> None:
    """Write the search of a translator as a program with its parameters.

    ``search.stablehlo`` takes the parameters by name and sources [B, S], int32, of any
    B and S, and returns what :func:`make_search` does. ``model.safetensors`` has the
    parameters, ``config.json`` the tokens around the text, ``vocabulary/`` the
    vocabularies. ``translate.py`` loads it all with jax, numpy, safetensors and
    flatbuffers only.

    Args:
        folder: exists.
        translator: of a single model.
        decoding: how to search, in float32 or bfloat16; nothing is sampled.

    Raises:
        InputError: a package is missing.
    """
    require("flatbuffers", "interop")
    safetensors = require("safetensors.numpy", "interop")
    config = translator.model.config
    config, params = prepare(config, translator.params, decoding.precision)
    # Kernels and transposed tables are for the device of this machine.
    config = dataclasses.replace(config, attention_backend="plain")
    params = jax.tree.map(_rows, params, is_leaf=lambda x: isinstance(x, TwoWayTable))
    named = cast("dict[str, Array]", flatten_dict(params, sep="/"))
    size = export.symbolic_shape("b, s", constraints=[f"s <= {config.max_length}"])
    exported = export.export(
        jax.jit(make_search(config, translator, decoding)), platforms=PLATFORMS
    )(
        {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in named.items()},
        jax.ShapeDtypeStruct(size, jnp.int32),
    )
    write_whole(folder / PROGRAM, bytes(exported.serialize()))
    # Of other strides it would write wrong numbers.
    arrays = {name: np.ascontiguousarray(x) for name, x in named.items()}
    safetensors.save_file(arrays, folder / WEIGHTS)
    frame = dataclasses.asdict(translator.codec.frame)
    settings = {"pad_id": config.pad_id, "max_length": config.max_length, **frame}
    write_whole(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")
    translator.vocabularies.save(folder / "vocabulary")
    write_whole(folder / "translate.py", Path(stablehlo_loader.__file__).read_bytes())


def _rows(leaf: Any) -> Any:
    return leaf.rows if isinstance(leaf, TwoWayTable) else leaf


def make_search(
    config: TransformerConfig, translator: Translator, decoding: DecodingConfig
) -> Callable[[dict[str, Array], Int[Array, "B S"]], dict[str, Array]]:
    """Return the function that is exported.

    It takes parameters by their paths and sources padded on the right, with the tokens
    around the text; a row of padding has no translation. It returns the best hypothesis
    of each source: ``tokens`` [B, T], with those around the text, ``lengths``,
    ``scores``, ``log_probabilities`` and ``finished``, all [B].

    Args:
        config: of the model, with looped layers.
        translator: the run's vocabularies, and the tokens around its text.
        decoding: how to search.
    """
    frame = translator.codec.frame
    decoding = dataclasses.replace(decoding, sample=False)
    banned = batch.ban(
        decoding,
        [*map(list, frame.banned)],
        translator.vocabularies.target,
        config.vocabulary_size,
        surplus=translator.vocabularies.template is not None,
    )

    def search(params: dict[str, Array], source: Int[Array, "B S"]) -> dict[str, Array]:
        places = jnp.zeros((source.shape[0], 2), jnp.int32)  # only for sampling
        found = search_shard(
            (make_model(config),),
            (unflatten_dict(params, sep="/"),),
            None,
            BatchInput(source, places, jnp.uint32(0)),
            _make_rules(source, decoding, banned, config, frame),
        )
        names = ("tokens", "lengths", "scores", "log_probabilities", "finished")
        return {name: getattr(found, name)[:, 0] for name in names}

    return search


def _make_rules(
    source: Int[Array, "B S"],
    decoding: DecodingConfig,
    banned: Constraints,
    config: TransformerConfig,
    frame: Frame,
) -> SearchRules:
    """Return the rules of a search, whose limits follow from the sources' lengths."""
    words = range(config.max_length + 1)
    most = [batch.most_tokens(decoding, each, config.max_length) for each in words]
    least = [batch.least_tokens(decoding, each) for each in words]
    filled = jnp.sum(source != config.pad_id, axis=1)
    count = jnp.maximum(filled - frame.added, 0)
    limits = jnp.where(filled > 0, jnp.asarray(most)[count], 0)
    constraints = banned
    if frame.target_before:
        before = jnp.asarray(frame.target_before, jnp.int32)
        rows = jnp.broadcast_to(before, (source.shape[0], 1, len(before)))
        given = jnp.int32(len(before))
        constraints = constraints._replace(prefixes=rows, given=given)
    own = jnp.asarray(least)[count]
    return batch.make_rules(
        decoding, limits, own, constraints, max(most), 1, config, frame.end
    )
