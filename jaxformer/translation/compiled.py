"""The search of a batch as one compiled function, sharded over devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxformer.errors import InputError
from jaxformer.models.base import EncoderDecoder, Model
from jaxformer.models.cache import empty_coverage
from jaxformer.search.constraints import OF_SENTENCES
from jaxformer.search.rules import SearchResult, SearchRules, Step
from jaxformer.search.scoring import coverage_penalty
from jaxformer.translation.models import SENTENCES, Models, reduce_vocabulary
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Each halving compiles one more loop, which small batches do not repay.
_HALVINGS, _WORTH_HALVING = 2, 16


class BatchInput(NamedTuple):
    """The arrays of a batch, besides the rules of its search."""

    source: Int[Array, "B S"]
    places: Int[Array, "B 2"]
    """The number of each sentence and of its part, which its samples depend on."""
    seed: Int[Array, ""]
    tokens: Int[Array, " V"] | None = None
    """The shortlist of the batch; None: the whole vocabulary."""
    allowed: Bool[Array, "B V"] | None = None
    """Which tokens of the shortlist each sentence may contain."""


# Fields of a batch, its rules and its constraints whose leading axis is the sentences.
_SHARDED = {"source", "places", "allowed", "max_lengths", *OF_SENTENCES}


class _ModelCache(NamedTuple):
    """The cache of one model's step, with what it knows of the sentences."""

    cache: Any  # Cache and Memory, or those of a recurrent network
    memory: Any
    allowed: Bool[Array, "B V"] | None


def count_workers(devices: int) -> int:
    """Return how many batches are computed at the same time: on a CPU one a core.

    Programs must run in the threads that call them, as the command line has it
    (``JAX_CPU_ENABLE_ASYNC_DISPATCH=false``): otherwise they take turns.

    Args:
        devices: of each batch.
    """
    turns = jax.config.read("jax_cpu_enable_async_dispatch")
    if turns or jax.default_backend() != "cpu":
        return 1
    from jaxformer.data.encoding import cores

    return max(1, cores() // devices)


def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Iterator[_Result]:
    """Yield what a function returns for each item, in order. Threads compute at most
    one item more than there are threads before it is needed.

    Args:
        function: of an item.
        items: read in the thread of the caller.
        workers: number of threads; below 2: only that of the caller.
    """
    if workers < 2:
        yield from map(function, items)
        return
    from jaxformer.data.encoding import map_ahead

    pool = ThreadPoolExecutor(workers)
    try:
        yield from map_ahead(pool, function, items, workers)
    finally:
        pool.shutdown(cancel_futures=True)


def search(
    models: Models, batch: BatchInput, rules: SearchRules, *, concurrent: bool = False
) -> SearchResult:
    """Search the translations of a batch. Each device stops when its own sentences are
    done; nothing is communicated.

    Args:
        models: one, or an ensemble.
        batch: the sentences.
        rules: of the search.
        concurrent: whether other batches are searched at the same time: on a CPU the
            program then keeps to one core.
    """
    run = _search_on_one_core if concurrent else _search
    return run(
        models.models, models.params, models.weights, batch, rules, mesh=models.mesh
    )


def _search_sharded(
    models: tuple[Model, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    batch: BatchInput,
    rules: SearchRules,
    *,
    mesh: Mesh | None,
) -> SearchResult:
    run = functools.partial(search_shard, models)
    if mesh is not None:
        replicated, sharded = PartitionSpec(), PartitionSpec(SENTENCES)
        specs = jax.tree.map_with_path(
            lambda path, _: sharded if path[-1].name in _SHARDED else replicated,
            (batch, rules),
        )
        run = jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(replicated, replicated, *specs),
            out_specs=sharded,
            check_vma=False,
        )
    found = run(params, weights, batch, rules)
    return found._replace(iterations=found.iterations.max())


_STATIC: Any = {"static_argnums": 0, "static_argnames": "mesh"}
_search = jax.jit(_search_sharded, **_STATIC)
_search_on_one_core = jax.jit(
    _search_sharded,
    **_STATIC,
    compiler_options={"xla_cpu_multi_thread_eigen": False},
)


def search_shard(
    models: tuple[Model, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    batch: BatchInput,
    rules: SearchRules,
) -> SearchResult:
    """Search the sentences of one device; ``iterations`` has one element, [1].

    Args:
        models: one, or an ensemble.
        params: of each model.
        weights: of the models, [M]; None: all equal.
        batch: the sentences, [B, S]; in an exported search both sizes may be symbols.
        rules: of the search.
    """
    begun = [
        _start(model, own, batch, rules)
        for model, own in zip(models, params, strict=True)
    ]
    steps, cache = zip(*begun, strict=True)
    if len(steps) == 1:
        step = _single(steps[0])
    else:
        from jaxformer.search.ensemble import ensemble

        step = ensemble(steps, weights)
    rows = batch.source.shape[0]
    # An exported search knows its number of rows only when it is called.
    halved = isinstance(rows, int) and rows >= _WORTH_HALVING
    halvings = _HALVINGS if halved else 0
    if rules.sampling is not None:
        from jaxformer.search.single import sample_search

        found = sample_search(step, cache, rules, sentence_keys(batch))
    elif rules.beam_size == 1:
        from jaxformer.search.single import greedy_search

        found = greedy_search(step, cache, rules, halvings=halvings)
    else:
        from jaxformer.search.beam import beam_search

        found = beam_search(step, cache, rules, halvings=halvings)
    return found._replace(iterations=found.iterations[None])


def sentence_keys(batch: BatchInput) -> Key:
    """Return the key of each sentence, which its samples depend on, [B]."""
    base = jax.random.key(batch.seed)
    return jax.vmap(
        lambda place: jax.random.fold_in(jax.random.fold_in(base, place[0]), place[1])
    )(batch.places)


def _start(
    model: Model, params: PyTree, batch: BatchInput, rules: SearchRules
) -> tuple[Step, _ModelCache]:
    """Encode the source by one model; return its step and the first cache."""
    memory: Any = model.apply({"params": params}, batch.source, method="start")
    if batch.tokens is not None:
        if not isinstance(model, EncoderDecoder):
            raise InputError(
                "a shortlist is for a model of both stacks, and this has one: leave it"
                " out"
            )
        model, params = reduce_vocabulary(model, params, batch.tokens)
    rows = batch.source.shape[0] * rules.beam_size
    # The rows of samples are never reordered.
    width = rules.beam_size // rules.groups if rules.sampling is None else 1
    cache = cast(Any, model).empty_cache(memory, rows, rules.length, width)
    if rules.coverage is not None:
        cache = cache._replace(coverage=empty_coverage(memory, rows))

    def step(
        tokens: Int[Array, " N"], own: _ModelCache
    ) -> tuple[Float[Array, "N V"], _ModelCache]:
        found = model.apply(
            {"params": params}, tokens, own.cache, own.memory, method="step"
        )
        logits, grown = cast(tuple[Array, Any], found)
        if own.allowed is not None:
            each = logits.reshape(own.allowed.shape[0], -1, logits.shape[-1])
            each = jnp.where(own.allowed[:, None], each, -jnp.inf)
            logits = each.reshape(logits.shape)
        return logits, own._replace(cache=grown)

    return step, _ModelCache(cache, memory, batch.allowed)


def _single(step: Step) -> Step:
    """Return the step of one model with a tuple as its cache, as an ensemble has."""

    def only(
        tokens: Int[Array, " N"], caches: PyTree
    ) -> tuple[Float[Array, "N V"], PyTree]:
        logits, cache = step(tokens, caches[0])
        return logits, (cache,)

    return only


def lost_coverage(caches: tuple[_ModelCache, ...]) -> Float[Array, " N"]:
    """Return the coverage penalty of the mean attention of the models."""
    each = jnp.stack([cast(Array, own.cache.coverage) for own in caches])
    return coverage_penalty(jnp.mean(each, axis=0))
