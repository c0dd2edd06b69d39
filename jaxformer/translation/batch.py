"""A batch of encoded sentences through the compiled search, in one of few shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import SearchResult, SearchRules
from jaxformer.search.single import Sampling
from jaxformer.translation.compiled import Batch, Shared, lost_coverage, search
from jaxformer.translation.models import Models
from jaxformer.translation.shortlist import Shortlist, within


class Sentence(NamedTuple):
    """A sentence to translate, or a part of one."""

    ids: list[int]
    """Source tokens, with those added to them."""
    words: int
    """How many of them are text."""
    prefixes: list[list[int]]
    """Target tokens, with one of which its translation begins; -1 leaves a place
    free. None: it begins as it will.
    """
    place: tuple[int, int]
    """Which sentence of all it is, and which part: what its samples depend on,
    beside the seed.
    """
    required: Sequence[list[int]] = ()
    """Target tokens that its translation holds, each phrase as it is, in any order."""


class Banned(NamedTuple):
    """What translations never hold, the same for all batches of a call."""

    tokens: np.ndarray | None
    """True at tokens of the vocabulary; None: nothing."""
    phrases: np.ndarray | None
    """Rows of tokens behind as many -1 as fill them; None: nothing."""


def most_tokens(decoding: DecodingConfig, words: int, positions: int) -> int:
    """Return the limit of a translation whose source has so many tokens, by a model of
    so many positions.
    """
    limits = [words + decoding.max_extra_length, positions]
    if decoding.max_target_length is not None:
        limits.append(decoding.max_target_length)
    if decoding.max_length_ratio is not None:
        limits.append(max(1, int(decoding.max_length_ratio * words)))
    return min(limits)


def batches(
    lengths: Sequence[int], most: int, tokens: int, limit: int
) -> Iterator[tuple[list[int], int]]:
    """Put sentences of like length together, longest first, so that memory is short at
    once or never.

    Args:
        lengths: tokens of each sentence; those without any are in no batch.
        most: sentences of a batch.
        tokens: of a batch, padding counted; a single sentence may have more.
        limit: the longest sentence there can be.

    Yields:
        The places of a batch's sentences, and how many its shape has room for: as many
        as ``tokens`` allow at that width, rounded down to a power of two for the sake
        of few shapes, and at most ``most``.
    """
    order = sorted(
        (place for place, length in enumerate(lengths) if length),
        key=lambda place: (-lengths[place], place),
    )
    start = 0
    while start < len(order):
        rows = max(1, tokens // round_width(lengths[order[start]], limit))
        rows = min(most, 1 << (rows.bit_length() - 1))
        yield order[start : start + rows], rows
        start += rows


def ban(
    decoding: DecodingConfig,
    phrases: Sequence[list[int]],
    unk_id: int,
    pieces: int,
    columns: int,
) -> Banned:
    """Write what is banned as arrays, of few shapes.

    Args:
        decoding: says whether the unknown token is written.
        phrases: tokens of each banned phrase; one with the unknown token cannot be
            written anyway and bans nothing.
        unk_id: of the vocabulary.
        pieces: of the vocabulary.
        columns: of the model's output; those beyond the pieces are unknown tokens as
            well.
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
    """Find the translations of sentences, filled up to one of few shapes, as arrays of
    this process.

    Args:
        models: one, or several that predict each token together.
        sentences: of the batch.
        decoding: how to search.
        eos_id: of the target vocabulary.
        n_best: translations of each sentence.
        banned: see :func:`ban`.
        forced: whether any sentence of the call has a prefix; the same for all batches,
            for the same compiled search.
        shortlist: of the target tokens that may come; None: all may.

    Raises:
        InputError: a sentence has required phrases, and the search is no beam search
            that can meet them.
    """
    config, positions = models.models[0].config, models.positions
    beam_size = n_best if decoding.sample else decoding.beam_size
    rows = rows_of_batch(len(sentences), decoding.batch_size, beam_size, models)
    width = round_width(max(len(sentence.ids) for sentence in sentences), positions)
    # Rows that fill the batch have limit 0: they are done before they begin.
    limits, places = np.zeros(rows, np.int32), np.zeros((rows, 2), np.uint32)
    limits[: len(sentences)] = [
        most_tokens(decoding, each.words, positions) for each in sentences
    ]
    places[: len(sentences)] = [each.place for each in sentences]
    constraints, part = _constraints(sentences, decoding, limits, banned, forced), None
    if shortlist is not None:
        lists = [shortlist.tokens_of(each.ids, _needed(each)) for each in sentences]
        part = within(lists, rows, config.vocabulary_size, whole=decoding.sample)
        constraints = part.constraints(constraints)
    rules = SearchRules(
        max_lengths=cast(Any, limits),
        alpha=jnp.float32(decoding.alpha),
        constraints=constraints,
        beta=jnp.float32(decoding.coverage_penalty),
        diversity=jnp.float32(decoding.diversity_strength),
        length=min(width + decoding.max_extra_length, positions),
        beam_size=beam_size,
        n_best=n_best,
        penalty=decoding.length_penalty,
        coverage=lost_coverage if decoding.coverage_penalty else None,
        groups=decoding.diversity_groups,
        bos_id=config.bos_id,
        eos_id=eos_id,
        pad_id=config.pad_id,
    )
    source, allowed = (
        pad([each.ids for each in sentences], rows, width, config.pad_id),
        part and part.allowed,
    )
    batch = Batch(cast(Any, source), cast(Any, places), allowed)
    shared = Shared(
        _sampling(decoding), jnp.uint32(decoding.seed), part and part.tokens
    )
    found = jax.device_get(search(models, batch, rules, shared))
    return (
        found
        if part is None
        else found._replace(tokens=np.asarray(part.tokens)[found.tokens])
    )


def _needed(sentence: Sentence) -> list[int]:
    """Return the tokens that its prefixes and required phrases want on the shortlist
    of a sentence.
    """
    return [
        token
        for phrase in (*sentence.prefixes, *sentence.required)
        for token in phrase
        if token >= 0
    ]


def _constraints(
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    limits: np.ndarray,
    banned: Banned,
    forced: bool,
) -> Constraints:
    """Write what is asked for as arrays, and leave out what is not."""
    rows, minimum = len(limits), None
    if decoding.min_length > 1 or decoding.min_length_ratio > 0:
        minimum = np.zeros(rows, np.int32)
        minimum[: len(sentences)] = [
            max(decoding.min_length, math.ceil(decoding.min_length_ratio * each.words))
            for each in sentences
        ]
        minimum = np.minimum(minimum, limits)
    prefixes = None
    if forced:
        most = power_of_two(max([1, *(len(each.prefixes) for each in sentences)]))
        # A sentence with fewer prefixes than others has its first one again.
        repeated = [
            each.prefixes + each.prefixes[:1] * (most - len(each.prefixes))
            for each in sentences
        ]
        prefixes = _pad_phrases(repeated, (rows, most, 8))
    required = None
    if any(each.required for each in sentences):
        check_beam(decoding)
        required = _pad_phrases([each.required for each in sentences], (rows, 4, 4))
    return Constraints(
        min_lengths=cast(Any, minimum),
        banned_tokens=cast(Any, banned.tokens),
        banned_phrases=cast(Any, banned.phrases),
        no_repeat_ngram=(
            jnp.int32(decoding.no_repeat_ngram) if decoding.no_repeat_ngram else None
        ),
        repetition_penalty=(
            jnp.float32(decoding.repetition_penalty)
            if decoding.repetition_penalty != 1
            else None
        ),
        required=cast(Any, required),
        prefixes=cast(Any, prefixes),
    )


def _pad_phrases(
    phrases: Sequence[Sequence[list[int]]], least: tuple[int, int, int]
) -> np.ndarray:
    """Write the phrases of sentences as an array [rows, phrases, tokens], filled up
    with -1 to one of few shapes.
    """
    rows, most, width = least
    most = power_of_two(max([most, *map(len, phrases)]))
    width = power_of_two(
        max([width, *(len(phrase) for each in phrases for phrase in each)])
    )
    filled = np.full((rows, most, width), -1, np.int32)
    for row, each in enumerate(phrases):
        filled[row, : len(each)] = pad(each, len(each), width, -1)
    return filled


def check_beam(decoding: DecodingConfig) -> None:
    """Refuse required phrases where hypotheses cannot compete by how many they have.

    Raises:
        InputError: samples are drawn, or a beam has one hypothesis.
    """
    if decoding.sample:
        raise InputError(
            "required phrases need a beam search, not samples: leave out the one or the"
            " other"
        )
    width = decoding.beam_size // decoding.diversity_groups
    if width < 2:
        least = 2 * decoding.diversity_groups
        raise InputError(
            f"required phrases need a beam_size of at least {least}, not"
            f" {decoding.beam_size}"
        )


def _sampling(decoding: DecodingConfig) -> Sampling | None:
    """Write what to draw from as arrays; what cuts nothing off is left out, and
    costs nothing.
    """
    if not decoding.sample:
        return None
    return Sampling(
        temperature=jnp.float32(decoding.temperature),
        top_k=jnp.int32(decoding.top_k) if decoding.top_k else None,
        top_p=jnp.float32(decoding.top_p) if decoding.top_p < 1 else None,
        min_p=jnp.float32(decoding.min_p) if decoding.min_p else None,
        epsilon=jnp.float32(decoding.epsilon) if decoding.epsilon else None,
    )


def pad(
    sentences: Sequence[list[int]], rows: int, width: int, filler: int
) -> np.ndarray:
    """Write sentences as the first rows of an array [rows, width], filled up behind
    them and below.
    """
    batch = np.full((rows, width), filler, np.int32)
    for row, ids in enumerate(sentences):
        batch[row, : len(ids)] = ids
    return batch


def round_width(longest: int, limit: int) -> int:
    """Round a length up to one of few static ones: 16, 32, 48, 64, 96, 128, 192, ..."""
    width = 16
    while width < longest:
        width = (
            width + 16
            if width < 64
            else (width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3)
        )
    return min(width, limit)


def rows_of_batch(
    sentences: int, batch_size: int, beam_size: int, models: Models
) -> int:
    """Return the rows of a batch that is divided evenly among the devices, none of
    which has fewer than it should.
    """
    least = models.devices * -(-models.least_rows // beam_size)
    rows = max(row_count(sentences, batch_size), least)
    return -(-rows // models.devices) * models.devices


def row_count(sentences: int, batch_size: int) -> int:
    """Round a number of rows up to a power of two, at most the batch size, so that
    few shapes are compiled.
    """
    return max(min(power_of_two(sentences), batch_size), sentences)


def power_of_two(number: int) -> int:
    """Round a number up to a power of two.

    Example:
        >>> [power_of_two(number) for number in (1, 2, 3, 8, 9)]
        [1, 2, 4, 8, 16]
    """
    return 1 << (number - 1).bit_length()
