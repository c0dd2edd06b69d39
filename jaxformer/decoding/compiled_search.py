"""The search of a batch as one compiled function of arrays, divided among devices."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxformer.decoding.config import LengthPenalty
from jaxformer.decoding.constraints import Constraints
from jaxformer.decoding.ensemble import ensemble
from jaxformer.decoding.models import SENTENCES, Models
from jaxformer.decoding.reduced_model import reduce_vocabulary
from jaxformer.decoding.rules import SearchResult, Step
from jaxformer.decoding.sampling import Sampling, sample_search
from jaxformer.decoding.scoring import coverage_penalty
from jaxformer.decoding.search import beam_search, greedy_search
from jaxformer.models.seq2seq import Cache, Memory, Transformer, empty_cache, empty_coverage
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

# Each halving compiles one more loop; a batch below the second number is not worth them.
_HALVINGS, _WORTH_HALVING = 2, 16


class Rows(NamedTuple):
    """What each sentence of a batch has of its own."""

    source: Int[Array, "B S"]
    max_lengths: Int[Array, " B"]
    places: Int[Array, "B 2"]
    """Which sentence of all it is, and which part of it."""
    min_lengths: Int[Array, " B"] | None
    required: Int[Array, "B C L"] | None
    prefixes: Int[Array, "B A L"] | None
    allowed: Bool[Array, "B V"] | None
    """Which tokens of the shortlist it may have."""


class Common(NamedTuple):
    """What all sentences have in common, and what may change without another compilation."""

    alpha: Float[Array, ""]
    beta: Float[Array, ""] | None
    diversity: Float[Array, ""]
    constraints: Constraints
    """Those that hold for all sentences alike."""
    sampling: Sampling | None
    seed: Int[Array, ""]
    tokens: Int[Array, " V"] | None
    """The shortlist of the batch; None: the whole vocabulary."""


class Shape(NamedTuple):
    """What another compilation is needed for; see :func:`~jaxformer.decoding.search.beam_search`."""

    length: int
    beam_size: int
    n_best: int
    groups: int
    penalty: LengthPenalty
    eos_id: int


class _Row(NamedTuple):
    """What the step of a model takes along: its cache, and all that it knows of sentences."""

    cache: Cache
    memory: Memory
    allowed: Bool[Array, "B V"] | None


def search(models: Models, rows: Rows, common: Common, shape: Shape) -> SearchResult:
    """Find the translations of a batch, whose sentences are divided evenly among the devices.

    Each device ends when its own sentences are done; nothing is exchanged between them.
    """
    return _search(models.models, models.params, models.weights, rows, common, shape=shape, mesh=models.mesh)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("shape", "mesh"))
def _search(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    rows: Rows,
    common: Common,
    *,
    shape: Shape,
    mesh: Mesh | None,
) -> SearchResult:
    if mesh is None:
        return _search_share(models, params, weights, rows, common, shape)

    def share(params: tuple[PyTree, ...], weights: Array | None, rows: Rows, common: Common) -> SearchResult:
        found = _search_share(models, params, weights, rows, common, shape)
        return found._replace(iterations=found.iterations[None])

    all_alike, divided = PartitionSpec(), PartitionSpec(SENTENCES)
    specs = (all_alike, all_alike, divided, all_alike)
    # What a loop carries begins alike on all devices and does not stay so, which the check would call a mistake.
    run = jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=divided, check_vma=False)
    found = run(params, weights, rows, common)
    return found._replace(iterations=found.iterations.max())


def _search_share(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    rows: Rows,
    common: Common,
    shape: Shape,
) -> SearchResult:
    begun = [_begin(model, own, rows, common, shape) for model, own in zip(models, params, strict=True)]
    step = ensemble([own for own, _ in begun], weights) if len(begun) > 1 else _alone(begun[0][0])
    cache, config = tuple(own for _, own in begun), models[0].config
    shared: dict[str, Any] = {
        "max_lengths": rows.max_lengths,
        "length": shape.length,
        "alpha": common.alpha,
        "penalty": shape.penalty,
        "constraints": common.constraints._replace(
            min_lengths=rows.min_lengths, required=rows.required, prefixes=rows.prefixes
        ),
        "bos_id": config.bos_id,
        "eos_id": shape.eos_id,
        "pad_id": config.pad_id,
    }
    if common.beta is not None:
        shared |= {"coverage": _lost, "beta": common.beta}
    if common.sampling is not None:
        keys = _keys(common.seed, rows.places)
        return sample_search(step, cache, keys=keys, sampling=common.sampling, samples=shape.n_best, **shared)
    shared["halvings"] = _HALVINGS if rows.source.shape[0] >= _WORTH_HALVING else 0
    if shape.beam_size == 1:
        return greedy_search(step, cache, **shared)
    return beam_search(
        step,
        cache,
        beam_size=shape.beam_size,
        n_best=shape.n_best,
        groups=shape.groups,
        diversity=common.diversity,
        **shared,
    )


def _begin(model: Transformer, params: PyTree, rows: Rows, common: Common, shape: Shape) -> tuple[Step, _Row]:
    """Read the source by one model; give its step and what that takes along."""
    memory = cast(Memory, model.apply({"params": params}, rows.source, method="start"))
    if common.tokens is not None:
        model, params = reduce_vocabulary(model, params, common.tokens)
    sentences = rows.source.shape[0]
    number = sentences * shape.beam_size
    # Samples never change places.
    change_places = 1 if common.sampling is not None else shape.beam_size // shape.groups
    cache = empty_cache(model.config, number, shape.length, change_places)
    if common.beta is not None:
        cache = cache._replace(coverage=empty_coverage(memory, number))

    def step(tokens: Int[Array, " N"], row: _Row) -> tuple[Float[Array, "N V"], _Row]:
        logits, grown = cast(Any, model.apply({"params": params}, tokens, row.cache, row.memory, method="step"))
        if row.allowed is not None:
            own = logits.reshape(row.allowed.shape[0], -1, logits.shape[-1])
            logits = jnp.where(row.allowed[:, None], own, -jnp.inf).reshape(logits.shape)
        return logits, row._replace(cache=grown)

    return step, _Row(cache, memory, rows.allowed)


def _alone(step: Step) -> Step:
    """Let a model's step take a tuple of caches, as that of an ensemble does."""

    def only(tokens: Int[Array, " N"], caches: PyTree) -> tuple[Float[Array, "N V"], PyTree]:
        logits, cache = step(tokens, caches[0])
        return logits, (cache,)

    return only


def _lost(caches: tuple[_Row, ...]) -> Float[Array, " N"]:
    """Give the coverage penalty of what the models have attended to, all alike."""
    each = jnp.stack([cast(Array, row.cache.coverage) for row in caches])
    return coverage_penalty(jnp.mean(each, axis=0))


def _keys(seed: Int[Array, ""], places: Int[Array, "B 2"]) -> Key:
    """Give each sentence its random key, whatever batch it is in."""
    base = jax.random.key(seed)
    return jax.vmap(lambda place: jax.random.fold_in(jax.random.fold_in(base, place[0]), place[1]))(places)
