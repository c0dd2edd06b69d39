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
from jaxformer.decoding.rules import SearchResult
from jaxformer.decoding.sampling import Sampling, sample_search
from jaxformer.decoding.scoring import coverage_penalty
from jaxformer.decoding.search import beam_search, greedy_search
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Cache, Transformer, empty_cache, empty_coverage
from jaxformer.typing import Array, Float, Int, Key, PyTree


class Sentence(NamedTuple):
    """A sentence to translate, or a part of one."""

    ids: list[int]
    """Source tokens, with those added to them."""
    words: int
    """How many of them are text."""
    prefixes: list[list[int]]
    """Target tokens, with one of which its translation begins; -1 leaves a place free. None: it begins as it will."""
    place: tuple[int, int]
    """Which sentence of all it is, and which part: what its samples depend on, beside the seed."""
    required: Sequence[list[int]] = ()
    """Target tokens that its translation holds, each phrase as it is, in any order."""


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
    shape = power_of_two(max(64, len(known))), power_of_two(max(8, *map(len, known)))
    rows = np.full(shape, -1, np.int32)
    for row, phrase in zip(rows, known, strict=False):
        row[-len(phrase) :] = phrase
    return Banned(unknown, rows)


def search_batch(
    model: Transformer,
    params: PyTree,
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    n_best: int,
    banned: Banned,
    forced: bool,
) -> SearchResult:
    """Find the translations of sentences, filled up to one of few shapes, as arrays of this process.

    Args:
        model: whose parameters follow.
        params: of the model.
        sentences: of the batch.
        decoding: how to search.
        eos_id: of the target vocabulary.
        n_best: translations of each sentence.
        banned: see :func:`ban`.
        forced: whether any sentence of the call has a prefix; the same for all batches, for the same compiled search.

    Raises:
        InputError: a sentence has required phrases, and the search is no beam search that can meet them.
    """
    config = model.config
    rows = row_count(len(sentences), decoding.batch_size)
    width = round_width(max(len(sentence.ids) for sentence in sentences), config.max_length)
    # Rows that fill the batch have limit 0: they are done before they begin.
    limits, places = np.zeros(rows, np.int32), np.zeros((rows, 2), np.uint32)
    limits[: len(sentences)] = [most_tokens(decoding, each.words, config.max_length) for each in sentences]
    places[: len(sentences)] = [each.place for each in sentences]
    found = _search(
        model,
        params,
        pad([each.ids for each in sentences], rows, width, config.pad_id),
        limits,
        jnp.float32(decoding.alpha),
        jnp.float32(decoding.coverage_penalty) if decoding.coverage_penalty else None,
        jnp.float32(decoding.diversity_strength),
        _constraints(sentences, decoding, limits, banned, forced),
        _sampling(decoding),
        places,
        np.uint32(decoding.seed),
        length=min(width + decoding.max_extra_length, config.max_length),
        beam_size=n_best if decoding.sample else decoding.beam_size,
        n_best=n_best,
        groups=decoding.diversity_groups,
        penalty=decoding.length_penalty,
        eos_id=eos_id,
    )
    return jax.device_get(found)


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
        most = power_of_two(max([1, *(len(each.prefixes) for each in sentences)]))
        # A sentence with fewer prefixes than others has its first one again.
        repeated = [each.prefixes + each.prefixes[:1] * (most - len(each.prefixes)) for each in sentences]
        prefixes = _pad_phrases(repeated, (rows, most, 8))
    required = None
    if any(each.required for each in sentences):
        _check_beam(decoding)
        required = _pad_phrases([each.required for each in sentences], (rows, 4, 4))
    return Constraints(
        min_lengths=cast(Any, minimum),
        banned_tokens=cast(Any, banned.tokens),
        banned_phrases=cast(Any, banned.phrases),
        no_repeat_ngram=jnp.int32(decoding.no_repeat_ngram) if decoding.no_repeat_ngram else None,
        repetition_penalty=jnp.float32(decoding.repetition_penalty) if decoding.repetition_penalty != 1 else None,
        required=cast(Any, required),
        prefixes=cast(Any, prefixes),
    )


def _pad_phrases(phrases: Sequence[Sequence[list[int]]], least: tuple[int, int, int]) -> np.ndarray:
    """Write the phrases of sentences as an array [rows, phrases, tokens], filled up with -1 to one of few shapes."""
    rows, most, width = least
    most = power_of_two(max([most, *map(len, phrases)]))
    width = power_of_two(max([width, *(len(phrase) for each in phrases for phrase in each)]))
    filled = np.full((rows, most, width), -1, np.int32)
    for row, each in enumerate(phrases):
        filled[row, : len(each)] = pad(each, len(each), width, -1)
    return filled


def _check_beam(decoding: DecodingConfig) -> None:
    """Refuse required phrases where hypotheses cannot compete by how many they have."""
    if decoding.sample:
        raise InputError("required words need a beam search, not decoding.sample=True: leave out the one or the other")
    width = decoding.beam_size // decoding.diversity_groups
    if width < 2:
        least = 2 * decoding.diversity_groups
        raise InputError(f"required words need decoding.beam_size of at least {least}, not {decoding.beam_size}")


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


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("length", "beam_size", "n_best", "groups", "penalty", "eos_id")
)
def _search(
    model: Transformer,
    params: PyTree,
    source: Int[Array, "B S"],
    max_lengths: Int[Array, " B"],
    alpha: Float[Array, ""],
    beta: Float[Array, ""] | None,
    diversity: Float[Array, ""],
    constraints: Constraints,
    sampling: Sampling | None,
    places: Int[Array, "B 2"],
    seed: Int[Array, ""],
    *,
    length: int,
    beam_size: int,
    n_best: int,
    groups: int,
    penalty: LengthPenalty,
    eos_id: int,
) -> SearchResult:
    config = model.config
    memory = model.apply({"params": params}, source, method="start")

    def step(tokens: Int[Array, " N"], cache: Cache) -> tuple[Float[Array, "N V"], Cache]:
        return cast(Any, model.apply({"params": params}, tokens, cache, memory, method="step"))

    def lost(cache: Cache) -> Float[Array, " N"]:
        return coverage_penalty(cast(Array, cache.coverage))

    rows = source.shape[0] * beam_size
    change_places = 1 if sampling is not None else beam_size // groups
    cache = empty_cache(config, rows, length, change_places)
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
    if beta is not None:
        cache = cache._replace(coverage=empty_coverage(cast(Any, memory), rows))
        shared |= {"coverage": lost, "beta": beta}
    if sampling is not None:
        return sample_search(step, cache, keys=_keys(seed, places), sampling=sampling, samples=n_best, **shared)
    if beam_size == 1:
        return greedy_search(step, cache, **shared)
    return beam_search(step, cache, beam_size=beam_size, n_best=n_best, groups=groups, diversity=diversity, **shared)


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
