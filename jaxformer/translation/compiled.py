"""The search of a batch as one compiled function of arrays, divided among devices."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxformer.models.seq2seq import (
    Cache,
    Memory,
    Transformer,
    empty_cache,
    empty_coverage,
)
from jaxformer.search.beam import beam_search
from jaxformer.search.ensemble import ensemble
from jaxformer.search.rules import SearchResult, SearchRules, Step
from jaxformer.search.scoring import coverage_penalty
from jaxformer.search.single import Sampling, greedy_search, sample_search
from jaxformer.translation.models import SENTENCES, Models, reduce_vocabulary
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

# Each halving compiles one more loop; a batch below the second number is not worth
# them.
_HALVINGS, _WORTH_HALVING = 2, 16

# Fields of the rules and of their constraints that have a value for each sentence.
_OWN = {"max_lengths", "min_lengths", "required", "prefixes"}


class Batch(NamedTuple):
    """The arrays of a batch of sentences, beside the rules of its search."""

    source: Int[Array, "B S"]
    places: Int[Array, "B 2"]
    """Which sentence of all it is, and which part of it."""
    allowed: Bool[Array, "B V"] | None
    """Which tokens of the shortlist each sentence may have."""


class Shared(NamedTuple):
    """The values that all sentences share, besides the rules; another value does not
    compile again.
    """

    sampling: Sampling | None
    """The distribution to draw from; None: no sampling."""
    seed: Int[Array, ""]
    tokens: Int[Array, " V"] | None
    """The shortlist of the batch; None: the whole vocabulary."""


class _Row(NamedTuple):
    """What the step of a model takes along: its cache, and all that it knows of
    sentences.
    """

    cache: Cache
    memory: Memory
    allowed: Bool[Array, "B V"] | None


def search(
    models: Models, batch: Batch, rules: SearchRules, shared: Shared
) -> SearchResult:
    """Find the translations of a batch, whose sentences are divided evenly among the
    devices.

    Each device ends when its own sentences are done; nothing is exchanged between them.
    """
    return _search(
        models.models,
        models.params,
        models.weights,
        batch,
        rules,
        shared,
        mesh=models.mesh,
    )


@functools.partial(jax.jit, static_argnums=0, static_argnames="mesh")
def _search(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    batch: Batch,
    rules: SearchRules,
    shared: Shared,
    *,
    mesh: Mesh | None,
) -> SearchResult:
    if mesh is None:
        return _search_share(models, params, weights, batch, rules, shared)

    def share(
        params: tuple[PyTree, ...],
        weights: Array | None,
        batch: Batch,
        rules: SearchRules,
        shared: Shared,
    ) -> SearchResult:
        found = _search_share(models, params, weights, batch, rules, shared)
        return found._replace(iterations=found.iterations[None])

    replicated, divided = PartitionSpec(), PartitionSpec(SENTENCES)
    own = jax.tree.map_with_path(
        lambda path, _: divided if path[-1].name in _OWN else replicated, rules
    )
    specs = (replicated, replicated, divided, own, replicated)
    # What a loop carries begins alike on all devices and does not stay so, which the
    # check would call a mistake.
    run = jax.shard_map(
        share, mesh=mesh, in_specs=specs, out_specs=divided, check_vma=False
    )
    found = run(params, weights, batch, rules, shared)
    return found._replace(iterations=found.iterations.max())


def _search_share(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    batch: Batch,
    rules: SearchRules,
    shared: Shared,
) -> SearchResult:
    begun = [
        _begin(model, own, batch, rules, shared)
        for model, own in zip(models, params, strict=True)
    ]
    step = (
        ensemble([own for own, _ in begun], weights)
        if len(begun) > 1
        else _alone(begun[0][0])
    )
    cache = tuple(own for _, own in begun)
    if shared.sampling is not None:
        return sample_search(
            step, cache, rules, _keys(shared.seed, batch.places), shared.sampling
        )
    halvings = _HALVINGS if batch.source.shape[0] >= _WORTH_HALVING else 0
    search = greedy_search if rules.beam_size == 1 else beam_search
    return search(step, cache, rules, halvings=halvings)


def _begin(
    model: Transformer, params: PyTree, batch: Batch, rules: SearchRules, shared: Shared
) -> tuple[Step, _Row]:
    """Read the source by one model; give its step and what that takes along."""
    memory = cast(Memory, model.apply({"params": params}, batch.source, method="start"))
    if shared.tokens is not None:
        model, params = reduce_vocabulary(model, params, shared.tokens)
    sentences = batch.source.shape[0]
    number = sentences * rules.beam_size
    # Samples never change places.
    change_places = (
        1 if shared.sampling is not None else rules.beam_size // rules.groups
    )
    cache = empty_cache(model.config, number, rules.length, change_places)
    if rules.coverage is not None:
        cache = cache._replace(coverage=empty_coverage(memory, number))

    def step(tokens: Int[Array, " N"], row: _Row) -> tuple[Float[Array, "N V"], _Row]:
        logits, grown = cast(
            Any,
            model.apply(
                {"params": params}, tokens, row.cache, row.memory, method="step"
            ),
        )
        if row.allowed is not None:
            own = logits.reshape(row.allowed.shape[0], -1, logits.shape[-1])
            logits = jnp.where(row.allowed[:, None], own, -jnp.inf).reshape(
                logits.shape
            )
        return logits, row._replace(cache=grown)

    return step, _Row(cache, memory, batch.allowed)


def _alone(step: Step) -> Step:
    """Let a model's step take a tuple of caches, as that of an ensemble does."""

    def only(
        tokens: Int[Array, " N"], caches: PyTree
    ) -> tuple[Float[Array, "N V"], PyTree]:
        logits, cache = step(tokens, caches[0])
        return logits, (cache,)

    return only


def lost_coverage(caches: tuple[_Row, ...]) -> Float[Array, " N"]:
    """Return the coverage penalty of what the models have attended to, all alike."""
    each = jnp.stack([cast(Array, row.cache.coverage) for row in caches])
    return coverage_penalty(jnp.mean(each, axis=0))


def _keys(seed: Int[Array, ""], places: Int[Array, "B 2"]) -> Key:
    """Give each sentence its random key, whatever batch it is in."""
    base = jax.random.key(seed)
    return jax.vmap(
        lambda place: jax.random.fold_in(jax.random.fold_in(base, place[0]), place[1])
    )(places)
