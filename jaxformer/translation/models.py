"""The models that search together, in the form and on the devices where they do."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.functional.int8 import Table, quantize, take_rows
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer
from jaxformer.search.config import Precision
from jaxformer.typing import Array, Int, Parameters, PyTree


def prepare(
    config: TransformerConfig, params: PyTree, precision: Precision
) -> tuple[TransformerConfig, PyTree]:
    """Return configuration and parameters of the same model in another precision.

    ========== ============================ =====================================
    precision  weights                      computation
    ========== ============================ =====================================
    `model`    as ``config.dtype`` says     in the same
    `float32`  float32                      float32
    `bfloat16` bfloat16                     bfloat16, float32 accumulation
    `int8`     8 bits, a float32 scale and  8-bit matmuls with exact sums; the rest
               sum for each output          in float32
    ========== ============================ =====================================

    Weights are the kernels of all linear maps and the table that gives logits.
    Embeddings are looked up in the type of the computation, in `int8` in float32: a
    step reads no more of them than the rows of its tokens. Biases, norms and learned
    positions stay float32, and so do softmax and log-probabilities.

    Args:
        config: of the model, with looped layers.
        params: of the model, its whole tree.
        precision: a name above.
    """
    if precision != "model":
        config = dataclasses.replace(
            config, dtype="float32" if precision == "int8" else precision
        )
    dtype = jnp.dtype(config.dtype)

    def convert(path: tuple[Any, ...], leaf: Array) -> Any:
        names = [entry.key for entry in path]
        if names[-1] == "kernel":
            # The output projection of attention sums over heads and their width, all
            # others over one axis.
            axes = (0, 1) if names[-2] == "output" and leaf.ndim == 3 else (0,)
            return quantize(leaf, axes) if precision == "int8" else leaf.astype(dtype)
        if names[-1] == "output":
            return (
                quantize(leaf, (1,))
                if precision == "int8"
                else _table(leaf.astype(dtype))
            )
        if names[-1] == "table" and "embedding" in names[-2]:
            if config.tied_embeddings == "none" or names[-2] == "source_embedding":
                return leaf.astype(dtype)  # nothing is multiplied with it
            rows = leaf.astype(dtype)
            return (
                Table(rows, quantize(leaf, (1,)))
                if precision == "int8"
                else _table(rows)
            )
        return leaf

    return config, jax.tree_util.tree_map_with_path(convert, params)


def _table(rows: Array) -> Array | Table:
    # A CPU multiplies few rows twice as fast with a matrix whose columns are the
    # outputs.
    return Table(rows, rows.T) if jax.default_backend() == "cpu" else rows


def reduce_vocabulary(
    model: Transformer, params: Parameters, tokens: Int[Array, " L"]
) -> tuple[Transformer, Parameters]:
    """Return a model and parameters for
    :meth:`~jaxformer.models.seq2seq.Transformer.step` over some target tokens.

    Token i of that model is ``tokens[i]`` of the given one, and its logits are those of
    the given one. What it does with sources is of no use:
    :meth:`~jaxformer.models.seq2seq.Transformer.start` is the given model's.

    Args:
        model: over the whole vocabulary.
        params: of the model.
        tokens: those that are kept; the ids of padding and begin of sentence keep their
            numbers among them.
    """
    config, kept = model.config, dict(params)
    tied = config.tied_embeddings
    # One table for both sides becomes one for the target alone: the source is read by
    # the whole.
    table = kept["embedding" if tied == "all" else "target_embedding"]["table"]
    kept["target_embedding"] = {"table": take_rows(table, tokens)}
    if tied == "none":
        kept["output"] = take_rows(kept["output"], tokens)
    if config.output_bias:
        kept["logits"] = {"bias": kept["logits"]["bias"][tokens]}
    reduced = dataclasses.replace(
        config,
        vocabulary_size=tokens.shape[0],
        source_vocabulary_size=config.source_vocabulary_size or config.vocabulary_size,
        tied_embeddings="none" if tied == "none" else "target",
    )
    return Transformer(reduced), kept


class Models(NamedTuple):
    """One model, or an ensemble of them with one vocabulary."""

    models: tuple[Transformer, ...]
    params: tuple[PyTree, ...]
    weights: np.ndarray | None = None
    """How much each counts, [M]; None: all alike."""
    mesh: Mesh | None = None
    """The devices among which sentences are divided; None: there is one."""
    least_rows: int = 1
    """How many rows a step has at least, where fewer take longer."""

    @property
    def positions(self) -> int:
        """Most tokens that every model takes, on either side."""
        return min(model.config.max_length for model in self.models)

    @property
    def devices(self) -> int:
        """How many devices search, each its share of the sentences."""
        return 1 if self.mesh is None else self.mesh.size

    def prepare(self, precision: Precision) -> Models:
        """Return the same models in another precision, on all devices of this host."""
        prepared = [
            prepare(model.config, own, precision)
            for model, own in zip(self.models, self.params, strict=True)
        ]
        params = tuple(own for _, own in prepared)
        mesh = None
        if jax.local_device_count() > 1:
            mesh = Mesh(np.array(jax.local_devices()), (SENTENCES,))
            params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        narrow = precision == "int8" or any(
            config.dtype != "float32" for config, _ in prepared
        )
        models = tuple(Transformer(config) for config, _ in prepared)
        return self._replace(
            models=models, params=params, mesh=mesh, least_rows=2 if narrow else 1
        )


SENTENCES = "sentences"
"""The name of the mesh's axis."""
