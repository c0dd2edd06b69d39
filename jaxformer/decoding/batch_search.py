"""A batch of encoded sentences through the compiled search, in one of few shapes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding.config import DecodingConfig, LengthPenalty
from jaxformer.decoding.constraints import Constraints
from jaxformer.decoding.ensemble import ensemble
from jaxformer.decoding.reduced_model import reduce_vocabulary
from jaxformer.decoding.rules import SearchResult, Step
from jaxformer.decoding.sampling import Sampling, sample_search
from jaxformer.decoding.search import beam_search, greedy_search
from jaxformer.decoding.shortlist import Shortlist, Within, within
from jaxformer.models.seq2seq import Cache, Transformer, empty_cache
from jaxformer.typing import Array, Float, Int, Key, PyTree


class Models(NamedTuple):
    """The models that search together: one, or an ensemble of them with one vocabulary."""

    models: tuple[Transformer, ...]
    params: tuple[PyTree, ...]
    weights: np.ndarray | None = None
    """How much each counts, [M]; None: all alike."""

    @property
    def positions(self) -> int:
        """Most tokens that every model takes, on either side."""
        return min(model.config.max_length for model in self.models)


class Sentence(NamedTuple):
    """A sentence to translate, or a part of one."""

    ids: list[int]
    """Source tokens, with those added to them."""
    words: int
    """How many of them are text."""
    prefix: list[int]
    """Target tokens that its translation begins with."""
    place: tuple[int, int]
    """Which sentence of all it is, and which part: what its samples depend on, beside the seed."""


class Banned(NamedTuple):
    """What translations never hold, the same for all batches of a call."""

    tokens: np.ndarray | None
    """True at tokens of the vocabulary; None: nothing."""
    phrases: np.ndarray | None
    """Rows of tokens behind as many -1 as fill them; None: nothing."""


def most_tokens(decoding: DecodingConfig, words: int, positions: int) -> int:
    """Give the limit of a translation whose source has so many tokens, by a model of so many positions."""
    limits = [words + decoding.max_extra_length, positions]
    if decoding.max_target_length is not None:
        limits.append(decoding.max_target_length)
    if decoding.max_length_ratio is not None:
        limits.append(max(1, int(decoding.max_length_ratio * words)))
    return min(limits)


def ban(decoding: DecodingConfig, phrases: Sequence[list[int]], unk_id: int, pieces: int, columns: int) -> Banned:
    """Write what is banned as arrays, of few shapes.

    Args:
        decoding: says whether the unknown token is written.
        phrases: tokens of each banned phrase; one with the unknown token cannot be written anyway and bans nothing.
        unk_id: of the vocabulary.
        pieces: of the vocabulary.
        columns: of the model's output; those beyond the pieces are unknown tokens as well.
    """
    tokens = np.arange(columns)
    unknown = (tokens == unk_id) | (tokens >= pieces) if decoding.no_unknown else None
    known = [phrase for phrase in phrases if unk_id not in phrase]
    if not known:
        return Banned(unknown, None)
    shape = power_of_two(max(16, len(known))), power_of_two(max(8, *map(len, known)))
    rows = np.full(shape, -1, np.int32)
    for row, phrase in zip(rows, known, strict=False):
        row[-len(phrase) :] = phrase
    return Banned(unknown, rows)


def search_batch(
    models: Models,
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    n_best: int,
    banned: Banned,
    forced: bool,
    shortlist: Shortlist | None = None,
) -> SearchResult:
    """Find the translations of sentences, filled up to one of few shapes, as arrays of this process.

    Args:
        models: one, or several that predict each token together.
        sentences: of the batch.
        decoding: how to search.
        eos_id: of the target vocabulary.
        n_best: translations of each sentence.
        banned: see :func:`ban`.
        forced: whether any sentence of the call has a prefix; the same for all batches, for the same compiled search.
        shortlist: of the target tokens that may come; None: all may.
    """
    pad_id, positions = models.models[0].config.pad_id, models.positions
    rows = row_count(len(sentences), decoding.batch_size)
    width = round_width(max(len(sentence.ids) for sentence in sentences), positions)
    # Rows that fill the batch have limit 0: they are done before they begin.
    limits, places = np.zeros(rows, np.int32), np.zeros((rows, 2), np.uint32)
    limits[: len(sentences)] = [most_tokens(decoding, each.words, positions) for each in sentences]
    places[: len(sentences)] = [each.place for each in sentences]
    constraints, part = _constraints(sentences, decoding, limits, banned, forced), None
    if shortlist is not None:
        lists = [shortlist.tokens_of(each.ids, each.prefix) for each in sentences]
        part = within(lists, rows, models.models[0].config.vocabulary_size, whole=decoding.sample)
        constraints = part.constraints(constraints)
    found = _search(
        models.models,
        models.params,
        models.weights,
        pad([each.ids for each in sentences], rows, width, pad_id),
        limits,
        jnp.float32(decoding.alpha),
        constraints,
        _sampling(decoding),
        places,
        np.uint32(decoding.seed),
        part,
        length=min(width + decoding.max_extra_length, positions),
        beam_size=n_best if decoding.sample else decoding.beam_size,
        n_best=n_best,
        penalty=decoding.length_penalty,
        eos_id=eos_id,
    )
    found = jax.device_get(found)
    return found if part is None else found._replace(tokens=np.asarray(part.tokens)[found.tokens])


def _constraints(
    sentences: Sequence[Sentence], decoding: DecodingConfig, limits: np.ndarray, banned: Banned, forced: bool
) -> Constraints:
    """Write what is asked for as arrays, and leave out what is not."""
    rows, minimum = len(limits), None
    if decoding.min_length > 1 or decoding.min_length_ratio > 0:
        minimum = np.zeros(rows, np.int32)
        minimum[: len(sentences)] = [
            max(decoding.min_length, math.ceil(decoding.min_length_ratio * each.words)) for each in sentences
        ]
        minimum = np.minimum(minimum, limits)
    prefixes = None
    if forced:
        longest = max(len(each.prefix) for each in sentences)
        prefixes = pad([each.prefix for each in sentences], rows, power_of_two(max(longest, 8)), -1)
    return Constraints(
        min_lengths=cast(Any, minimum),
        banned_tokens=cast(Any, banned.tokens),
        banned_phrases=cast(Any, banned.phrases),
        no_repeat_ngram=jnp.int32(decoding.no_repeat_ngram) if decoding.no_repeat_ngram else None,
        repetition_penalty=jnp.float32(decoding.repetition_penalty) if decoding.repetition_penalty != 1 else None,
        prefixes=cast(Any, prefixes),
    )


def _sampling(decoding: DecodingConfig) -> Sampling | None:
    """Write what to draw from as arrays; what cuts nothing off is left out, and costs nothing."""
    if not decoding.sample:
        return None
    return Sampling(
        temperature=jnp.float32(decoding.temperature),
        top_k=jnp.int32(decoding.top_k) if decoding.top_k else None,
        top_p=jnp.float32(decoding.top_p) if decoding.top_p < 1 else None,
        min_p=jnp.float32(decoding.min_p) if decoding.min_p else None,
        epsilon=jnp.float32(decoding.epsilon) if decoding.epsilon else None,
    )


@functools.partial(jax.jit, static_argnums=0, static_argnames=("length", "beam_size", "n_best", "penalty", "eos_id"))
def _search(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "B S"],
    max_lengths: Int[Array, " B"],
    alpha: Float[Array, ""],
    constraints: Constraints,
    sampling: Sampling | None,
    places: Int[Array, "B 2"],
    seed: Int[Array, ""],
    part: Within | None,
    *,
    length: int,
    beam_size: int,
    n_best: int,
    penalty: LengthPenalty,
    eos_id: int,
) -> SearchResult:
    rows, config = source.shape[0] * beam_size, models[0].config
    begun = [_begin(model, own, source, part, rows, length) for model, own in zip(models, params, strict=True)]
    step, cache = begun[0]
    if len(begun) > 1:
        step, cache = ensemble([own for own, _ in begun], weights), tuple(own for _, own in begun)
    shared: dict[str, Any] = {
        "max_lengths": max_lengths,
        "length": length,
        "alpha": alpha,
        "penalty": penalty,
        "constraints": constraints,
        "bos_id": config.bos_id,
        "eos_id": eos_id,
        "pad_id": config.pad_id,
    }
    if sampling is not None:
        return sample_search(step, cache, keys=_keys(seed, places), sampling=sampling, samples=n_best, **shared)
    if beam_size == 1:
        return greedy_search(step, cache, **shared)
    return beam_search(step, cache, beam_size=beam_size, n_best=n_best, **shared)


def _begin(
    model: Transformer, params: PyTree, source: Int[Array, "B S"], part: Within | None, rows: int, length: int
) -> tuple[Step, Cache]:
    """Read the source by one model, and give its step and its cache."""
    memory = model.apply({"params": params}, source, method="start")
    if part is not None:
        model, params = reduce_vocabulary(model, params, part.tokens)
    allowed = None if part is None else jnp.repeat(part.allowed, rows // source.shape[0], axis=0)

    def step(tokens: Int[Array, " N"], cache: Cache) -> tuple[Float[Array, "N V"], Cache]:
        logits, cache = cast(Any, model.apply({"params": params}, tokens, cache, memory, method="step"))
        return logits if allowed is None else jnp.where(allowed, logits, -jnp.inf), cache

    return step, empty_cache(model.config, rows, length)


def _keys(seed: Int[Array, ""], places: Int[Array, "B 2"]) -> Key:
    """Give each sentence its random key, whatever batch it is in."""
    base = jax.random.key(seed)
    return jax.vmap(lambda place: jax.random.fold_in(jax.random.fold_in(base, place[0]), place[1]))(places)


def pad(sentences: Sequence[list[int]], rows: int, width: int, filler: int) -> np.ndarray:
    """Write sentences as the first rows of an array [rows, width], filled up behind them and below."""
    batch = np.full((rows, width), filler, np.int32)
    for row, ids in enumerate(sentences):
        batch[row, : len(ids)] = ids
    return batch


def round_width(longest: int, limit: int) -> int:
    """Round a length up to one of few static ones: 16, 32, 48, 64, 96, 128, 192, ..."""
    width = 16
    while width < longest:
        width = width + 16 if width < 64 else (width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3)
    return min(width, limit)


def row_count(sentences: int, batch_size: int) -> int:
    """Round a number of rows up to a power of two, at most the batch size, so that few shapes are compiled."""
    return max(min(power_of_two(sentences), batch_size), sentences)


def power_of_two(number: int) -> int:
    """Round a number up to a power of two.

    Example:
        >>> [power_of_two(number) for number in (1, 2, 3, 8, 9)]
        [1, 2, 4, 8, 16]
    """
    return 1 << (number - 1).bit_length()
