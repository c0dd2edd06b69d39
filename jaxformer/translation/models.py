"""The models of a search: those of a run, in the precision of the search and on its
devices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import bucket
from jaxformer.checkpoints.parameters import SavedParameters, find_parameters
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.kernels.int8 import TwoWayTable, quantize, take_rows
from jaxformer.models.base import EncoderDecoder, Model
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.folder import check_vocabulary
from jaxformer.search.config import Precision
from jaxformer.translation.codec import Codec
from jaxformer.typing import Array, Int, Parameters, PyTree


class SavedRun(NamedTuple):
    """A run whose parameters are found and not yet read."""

    directory: Path
    config: RunConfig
    saved: SavedParameters
    vocabularies: Vocabularies


def open_run(
    directory: str | Path,
    checkpoint: str | int,
    check: Callable[[Path, RunConfig], None] = lambda *_: None,
) -> SavedRun:
    """Read the configuration and the vocabularies of a run, and find its parameters.

    Args:
        directory: of the run; on the disk or in a bucket (``gs://bucket/run``).
        checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
        check: refuses runs by their configuration.

    Raises:
        InputError: there is no such run or checkpoint, or its parts do not belong
            together.
    """
    directory = bucket.open_directory(directory)
    config = configuration.load(directory / "config.json")
    check(directory, config)
    metric = config.evaluation.best_metric
    saved = find_parameters(directory, str(checkpoint), metric)
    vocabularies = Vocabularies.load(directory / "vocabulary")
    check_vocabulary(directory, vocabularies, saved.vocabulary, saved.name)
    return SavedRun(directory, config, saved, vocabularies)


def prepare(
    config: TransformerConfig, params: PyTree, precision: Precision
) -> tuple[TransformerConfig, PyTree]:
    """Return configuration and parameters of the same model in another precision.

    ========== ================ ==================================================
    precision  weights          computation
    ========== ================ ==================================================
    `model`    ``config.dtype`` the same
    `float32`  float32          float32
    `bfloat16` bfloat16         bfloat16 with float32 accumulation
    `int8`     8 bits           matmuls in 8 bits with exact sums, the rest in float32
    ========== ================ ==================================================

    Weights are the kernels of all linear maps and the table of the output. Embeddings
    are looked up in the dtype of the computation, for `int8` in float32: a step reads
    only the rows of its tokens. Biases, norms, learned positions, softmax and
    log-probabilities stay float32.

    Args:
        config: of the model, with looped layers.
        params: of the model, or some entries of the tree.
        precision: a name above.

    Raises:
        InputError: ``int8`` for a recurrent network.
    """
    config = set_precision(config, precision)
    dtype = jnp.dtype(config.dtype)

    def convert(path: tuple[Any, ...], leaf: Array) -> Any:
        names = [entry.key for entry in path]
        if names[-1] == "kernel":
            # The output projection of attention sums over two axes, heads and their
            # width.
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
                return leaf.astype(dtype)  # only looked up
            rows = leaf.astype(dtype)
            return (
                TwoWayTable(rows, quantize(leaf, (1,)))
                if precision == "int8"
                else _table(rows)
            )
        return leaf

    return config, jax.tree_util.tree_map_with_path(convert, params)


def prepare_params(
    config: TransformerConfig, precision: Precision, params: PyTree
) -> PyTree:
    """Return the parameters of :func:`prepare` when they are computed.

    Args:
        config: of the model, with looped layers.
        precision: a name of :func:`prepare`.
        params: of the model, or some entries of the tree.
    """
    return jax.block_until_ready(prepare(config, params, precision)[1])


def set_precision(config: TransformerConfig, precision: Precision) -> TransformerConfig:
    """Return the configuration of :func:`prepare`.

    Raises:
        InputError: ``int8`` for a recurrent network.
    """
    if precision == "int8" and config.network != "transformer":
        raise InputError(
            f"decoding.precision=int8 is not for model.network={config.network}: take"
            " model, float32 or bfloat16"
        )
    if precision == "model":
        return config
    dtype = "float32" if precision == "int8" else precision
    return dataclasses.replace(config, dtype=dtype)


_LARGE = 1 << 25
"""Numbers of a table that a CPU multiplies at the speed of its memory."""


def _table(rows: Array) -> Array | TwoWayTable:
    if jax.default_backend() != "cpu":
        return rows
    # A CPU multiplies few rows twice as fast with a transposed matrix, unless it waits
    # for memory: then the copy has no gain, and in half precision a loss.
    return TwoWayTable(rows, rows.T if rows.size < _LARGE else None)


def reduce_vocabulary(
    model: EncoderDecoder, params: Parameters, tokens: Int[Array, " L"]
) -> tuple[Model, Parameters]:
    """Return a model and parameters for
    :meth:`~jaxformer.models.transformer.Transformer.step` over some target tokens.

    Token i of that model is ``tokens[i]`` of the given one, with the same logit.
    Sources are encoded by the given model's
    :meth:`~jaxformer.models.transformer.Transformer.start`.

    Args:
        model: over the whole vocabulary.
        params: of the model.
        tokens: that are kept.
    """
    config, kept = model.config, dict(params)
    tied = config.tied_embeddings
    # A table of both sides becomes one of the target: the given model encodes sources.
    table = kept["embedding" if tied == "all" else "target_embedding"]["table"]
    kept["target_embedding"] = {"table": take_rows(table, tokens)}
    if tied == "none":
        kept["output"] = take_rows(kept["output"], tokens)
    if config.output_bias:
        kept["logits"] = {"bias": kept["logits"]["bias"][tokens]}
    reduced = dataclasses.replace(
        config,
        vocabulary_size=tokens.shape[0],
        source_vocabulary_size=config.text_vocabulary_size,
        tied_embeddings="none" if tied == "none" else "target",
        # A step reads neither.
        pad_id=0,
        bos_id=0,
    )
    return make_model(reduced), kept


class Models(NamedTuple):
    """One model, or an ensemble of them with one vocabulary."""

    models: tuple[Model, ...]
    params: tuple[PyTree, ...]
    weights: np.ndarray | None = None
    """Of each in the mean, [M]; None: all equal."""
    mesh: Mesh | None = None
    """The devices that sentences are sharded over; None: a single one."""
    least_rows: int = 1
    """Least rows of a step: fewer would take longer."""
    precision: Precision | None = None
    """The only precision of the parameters; None: as they were saved."""

    @property
    def positions(self) -> int:
        """Most tokens that every model has positions for, on either side."""
        return min(model.config.max_length for model in self.models)

    @property
    def devices(self) -> int:
        """Number of devices, each with a share of the sentences."""
        return 1 if self.mesh is None else self.mesh.size

    def prepare(self, precision: Precision) -> Models:
        """Return the same models in another precision, on all devices of this host.

        Raises:
            InputError: they were loaded in another one.
        """
        if self.precision not in (None, precision):
            raise InputError(
                f"the model was loaded only for precision={self.precision}, not for"
                f" {precision}: load it again"
            )
        prepared = [
            (set_precision(model.config, precision), own)
            if self.precision
            else prepare(model.config, own, precision)
            for model, own in zip(self.models, self.params, strict=True)
        ]
        params, mesh = tuple(own for _, own in prepared), mesh_of_devices()
        if mesh is not None:
            params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        narrow = precision == "int8" or any(
            config.dtype != "float32" for config, _ in prepared
        )
        models = tuple(make_model(config) for config, _ in prepared)
        return self._replace(
            models=models, params=params, mesh=mesh, least_rows=2 if narrow else 1
        )


SENTENCES = "sentences"
"""The name of the mesh's axis."""


def mesh_of_devices() -> Mesh | None:
    """Return the mesh of the devices of this host; None for a single one."""
    devices = np.array(jax.local_devices())
    return Mesh(devices, (SENTENCES,)) if devices.size > 1 else None


def combine(
    parts: Sequence[Models], codecs: Sequence[Codec], weights: Sequence[float] | None
) -> Models:
    """Combine single models to an ensemble.

    Args:
        parts: single models.
        codecs: of each.
        weights: of the models; None: all equal.

    Raises:
        InputError: there is no model, one is an ensemble, they read or write other
            tokens, or the weights do not fit.
    """
    if not parts:
        raise InputError("an ensemble needs a translator: give at least one")
    if weights is not None:
        from jaxformer.search.ensemble import check_weights

        check_weights(weights, len(parts))
    if len(parts) > 1 and any(len(part.models) > 1 for part in parts):
        raise InputError(
            "an ensemble is built at once: give its models, not another ensemble of"
            " some"
        )
    facts = [
        {
            "a vocabulary of hash": codec.vocabularies.hash[:12],
            "data.source_eos": codec.frame.end in codec.frame.source_after,
            "the language tag": codec.vocabularies.source.pieces(
                codec.frame.source_before
            ),
            "the end of sources": codec.vocabularies.source.pieces(
                codec.frame.source_after
            ),
            "the target language": codec.vocabularies.target.pieces(
                codec.frame.target_before
            ),
            "weights only of precision": part.precision,
            "model.vocabulary_size": part.models[0].config.vocabulary_size,
            "model.pad_id": part.models[0].config.pad_id,
            "model.bos_id": part.models[0].config.bos_id,
        }
        for part, codec in zip(parts, codecs, strict=True)
    ]
    for number, other in enumerate(facts[1:], start=2):
        for name, value in facts[0].items():
            if other[name] != value:
                raise InputError(
                    f"the first model of the ensemble has {name} {value} and model"
                    f" {number} has {other[name]}: combine models that agree in it,"
                    " trained with the same vocabulary files"
                )
    return Models(
        tuple(part.models[0] for part in parts),
        tuple(part.params[0] for part in parts),
        None if weights is None else np.asarray(weights, np.float32),
        precision=parts[0].precision,
    )
