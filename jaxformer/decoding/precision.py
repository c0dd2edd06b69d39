"""The numbers that a model is decoded in: its parameters in the form that the steps of a search read fastest."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.decoding.config import Precision
from jaxformer.functional.weights import Table, quantize
from jaxformer.models.config import TransformerConfig
from jaxformer.typing import Array, PyTree


def prepare(config: TransformerConfig, params: PyTree, precision: Precision) -> tuple[TransformerConfig, PyTree]:
    """Give configuration and parameters of the same model in another precision.

    ========== ==================================================== =================================================
    precision  weights                                              computation
    ========== ==================================================== =================================================
    `model`    as ``config.dtype`` says                             in the same
    `float32`  float32                                              float32
    `bfloat16` bfloat16                                             bfloat16, added up in float32
    `int8`     8 bits, a float32 scale and sum for each output      products in 8 bits, added up exactly; the rest in
                                                                    float32
    ========== ==================================================== =================================================

    Weights are the kernels of all linear maps and the table that gives logits. Embeddings are looked up in the type of
    the computation, in `int8` in float32: a step reads no more of them than the rows of its tokens. Biases, norms and
    learned positions stay float32, and so do softmax and log-probabilities.

    Args:
        config: of the model, with looped layers.
        params: of the model, its whole tree.
        precision: a name above.
    """
    if precision != "model":
        config = dataclasses.replace(config, dtype="float32" if precision == "int8" else precision)
    dtype = jnp.dtype(config.dtype)

    def convert(path: tuple[Any, ...], leaf: Array) -> Any:
        names = [entry.key for entry in path]
        if names[-1] == "kernel":
            # The output projection of attention sums over heads and their width, all others over one axis.
            axes = (0, 1) if names[-2] == "output" and leaf.ndim == 3 else (0,)
            return quantize(leaf, axes) if precision == "int8" else leaf.astype(dtype)
        if names[-1] == "output":
            return quantize(leaf, (1,)) if precision == "int8" else _table(leaf.astype(dtype))
        if names[-1] == "table" and "embedding" in names[-2]:
            if config.tied_embeddings == "none" or names[-2] == "source_embedding":
                return leaf.astype(dtype)  # nothing is multiplied with it
            rows = leaf.astype(dtype)
            return Table(rows, quantize(leaf, (1,))) if precision == "int8" else _table(rows)
        return leaf

    return config, jax.tree_util.tree_map_with_path(convert, params)


def _table(rows: Array) -> Array | Table:
    # A CPU multiplies few rows twice as fast with a matrix whose columns are the outputs.
    return Table(rows, rows.T) if jax.default_backend() == "cpu" else rows
