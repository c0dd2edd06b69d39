"""A batch of tokenized sentences as the arrays and rules of a search, in one of few
shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from jaxformer.data.vocabulary import Vocabulary
from jaxformer.models.config import TransformerConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import FREE, NO_TOKEN, Constraints
from jaxformer.search.rules import Sampling, SearchResult, SearchRules
from jaxformer.translation.compiled import BatchInput, lost_coverage, search
from jaxformer.translation.models import Models

if TYPE_CHECKING:
    from jaxformer.translation.shortlist import Shortlist

Search: TypeAlias = Callable[[Models, BatchInput, SearchRules], SearchResult]
"""Searches a batch, as :func:`~jaxformer.translation.compiled.search` does."""

# Sentences of a batch next to others: with more, each takes a core no less time.
_SIDE_BY_SIDE = 16

# A scalar of jax.numpy runs a program of its own, about 30 µs on a CPU.
_float32: Any = np.float32
_int32: Any = np.int32
_uint32: Any = np.uint32


class Sentence(NamedTuple):
    """A sentence to translate, or a part of one, as tokens."""

    ids: list[int]
    """Source tokens, with those added to the text."""
    words: int
    """How many of them are text."""
    place: tuple[int, int]
    """The number of the sentence and of the part."""
    prefixes: Sequence[list[int]] = ()
    """Target tokens; the translation begins with one of these, -1 being any token.
    Empty: no prefix.
    """
    required: Sequence[list[int]] = ()
    """Target tokens of the phrases that the translation contains, in any order."""


class Shape(NamedTuple):
    """The sizes of a batch, which with the settings of a search determine its compiled
    program.
    """

    rows: int
    """Sentences, with those that fill it up; equally many on each device."""
    width: int
    """Tokens of a source."""
    prefixes: tuple[int, int] | None = None
    """Prefixes of a sentence and tokens of each; None: no sentence has any."""
    required: tuple[int, int] | None = None
    """Required phrases of a sentence and tokens of each; None: no sentence has any."""
    listed: int | None = None
    """Tokens that a shortlist leaves; None: one of few sizes."""


def most_tokens(decoding: DecodingConfig, words: int, positions: int) -> int:
    """Return the most tokens of the translation of a source of ``words`` tokens."""
    limits = [words + decoding.max_extra_length, positions]
    if decoding.max_target_length is not None:
        limits.append(decoding.max_target_length)
    if decoding.max_length_ratio is not None:
        limits.append(max(1, math.floor(_multiply(decoding.max_length_ratio, words))))
    return min(limits)


def least_tokens(decoding: DecodingConfig, words: int) -> int:
    """Return the least tokens of the translation of a source of ``words`` tokens, where
    its limit allows them.
    """
    least = math.ceil(_multiply(decoding.min_length_ratio, words))
    return max(decoding.min_length, least)


def _multiply(ratio: float, words: int) -> float:
    """Return the product of a decimal number: that of 1.1 and 50 is 55, and in binary
    above it.
    """
    return round(ratio * words, 9)


def batches(
    lengths: Sequence[int],
    most: int,
    tokens: int,
    limit: int,
    round_up: Callable[[int, int], int] | None = None,
    workers: int = 1,
) -> Iterator[tuple[list[int], int]]:
    """Group sentences of similar length, longest first, so that too little memory is
    noticed at once.

    Args:
        lengths: tokens of each sentence; sentences without any are in no batch.
        most: sentences of a batch.
        tokens: of a batch, padding included; a single sentence may have more.
        limit: the longest possible sentence.
        round_up: returns the width of a batch; None: :func:`round_width`.
        workers: how many batches are computed at the same time; those are smaller.

    Yields:
        The indices of a batch's sentences, and the rows of its shape: the largest power
        of two that ``tokens`` allow at that width, at most ``most``. A batch that is
        the only one has one of few smaller numbers.
    """
    round_up = round_up or round_width
    if workers > 1:
        part = min(most, _SIDE_BY_SIDE)
        most, tokens = part, tokens * part // most
    order = sorted(
        (index for index, length in enumerate(lengths) if length),
        key=lambda index: -lengths[index],
    )
    start = 0
    while start < len(order):
        rows = max(1, tokens // round_up(lengths[order[start]], limit))
        rows = min(most, 1 << (rows.bit_length() - 1))
        few = rows if start else min(rows, power_of_four(len(order)))
        yield order[start : start + rows], few
        start += rows


def ban(
    decoding: DecodingConfig,
    phrases: Sequence[list[int]],
    vocabulary: Vocabulary,
    columns: int,
    *,
    surplus: bool = False,
) -> Constraints:
    """Build the constraints of banned tokens, in one of few shapes.

    Args:
        decoding: whether the unknown token is allowed.
        phrases: tokens of each banned phrase.
        vocabulary: of the target.
        columns: of the model's output; those beyond the vocabulary are unknown tokens.
        surplus: whether those are banned too.
    """
    unknown: Any = None
    if decoding.no_unknown or (surplus and columns > vocabulary.size):
        tokens = np.arange(columns)
        unknown = tokens >= vocabulary.size
        if decoding.no_unknown:
            unknown |= tokens == vocabulary.unk_id
    padded: Any = None
    if phrases:
        rows = power_of_two(max(64, len(phrases)))
        width = power_of_two(max(8, *map(len, phrases)))
        # on the left
        padded = pad([phrase[::-1] for phrase in phrases], rows, width, -1)[:, ::-1]
    return Constraints(banned_tokens=unknown, banned_phrases=padded)


def search_batch(
    models: Models,
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    *,
    run: Search = search,
    **options: Any,
) -> SearchResult:
    """Search the translations of sentences in one batch.

    Args:
        models: one, or an ensemble.
        sentences: of the batch.
        decoding: how to search.
        **options: of :func:`make_batch`.
        run: searches a batch.
    """
    batch, rules = make_batch(models, sentences, decoding, **options)
    found = jax.device_get(run(models, batch, rules))
    if batch.tokens is None:
        return found
    return found._replace(tokens=np.asarray(batch.tokens)[found.tokens])


def make_batch(
    models: Models,
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    n_best: int,
    banned: Constraints = FREE,
    forced: bool = False,
    given: int = 0,
    shortlist: Shortlist | None = None,
    shape: Shape | None = None,
) -> tuple[BatchInput, SearchRules]:
    """Return the arrays of a batch and the rules of its search.

    Args:
        models: one, or an ensemble.
        sentences: of the batch.
        decoding: how to search.
        eos_id: of the target vocabulary.
        n_best: translations of each sentence.
        banned: see :func:`ban`.
        forced: whether any sentence of the call has a prefix; equal for all batches, so
            that they share a compiled search.
        given: how many of the first tokens of the prefixes cost nothing.
        shortlist: of the target tokens; None: the whole vocabulary.
        shape: that holds the sentences, of which there may be none; None: the smallest
            of few.
    """
    config, positions = models.models[0].config, models.positions
    shape = shape or fit(models, sentences, decoding, n_best, forced)
    rows, width = shape.rows, shape.width
    source: Any = pad([each.ids for each in sentences], rows, width, config.pad_id)
    places: Any = pad([[*each.place] for each in sentences], rows, 2, 0)
    batch = BatchInput(source, places, _uint32(decoding.seed))
    alone = not config.num_encoder_layers
    limits, least = np.zeros((2, rows), np.int32)  # other rows are done at once
    for row, each in enumerate(sentences):
        # A continuation has the positions after its prompt, the last of which it reads.
        room = positions - alone * (len(each.ids) - 1)
        limits[row] = most_tokens(decoding, each.words, room)
        least[row] = least_tokens(decoding, each.words)
    found: dict[str, Any] = {"given": _int32(given)} if given else {}
    if alone:
        before = pad([each.ids[::-1] for each in sentences], rows, width, NO_TOKEN)
        found["before"] = before[:, ::-1]
    if shape.prefixes:
        # A sentence with fewer prefixes than others repeats its first one.
        repeated = [
            [*own, *own[:1] * (shape.prefixes[0] - len(own))]
            for own in ([*each.prefixes] for each in sentences)
        ]
        found["prefixes"] = _pad_phrases(repeated, rows, shape.prefixes)
    if shape.required:
        phrases = [each.required for each in sentences]
        found["required"] = _pad_phrases(phrases, rows, shape.required)
    constraints = banned._replace(**found)
    if shortlist is not None:
        # What sampling draws depends on the position of each token in the vocabulary,
        # which must not depend on the other sentences.
        whole, columns = decoding.sample, config.vocabulary_size
        special = [config.pad_id, config.bos_id, eos_id]
        sizes: dict[str, Any] = {"whole": whole, "size": shape.listed}
        part = shortlist.within(sentences, rows, columns, special=special, **sizes)
        pad_id, bos_id, eos_id = part.numbers(np.array(special)).tolist()
        config = dataclasses.replace(config, pad_id=pad_id, bos_id=bos_id)
        constraints = part.constraints(constraints)
        batch = batch._replace(tokens=part.tokens, allowed=part.allowed)
    length = min((not alone) * width + decoding.max_extra_length, positions)
    return batch, make_rules(
        decoding, limits, least, constraints, length, n_best, config, eos_id
    )


def fit(
    models: Models,
    sentences: Sequence[Sentence],
    decoding: DecodingConfig,
    n_best: int,
    forced: bool,
    rows: int = 0,
) -> Shape:
    """Return the smallest of few shapes that holds sentences.

    Args:
        models: that search.
        sentences: of the batch.
        decoding: how to search.
        n_best: translations of each sentence.
        forced: as of :func:`make_batch`.
        rows: of the batch; 0: a power of four.
    """
    beam_size = n_best if decoding.sample else decoding.beam_size
    rows = rows or min(power_of_four(len(sentences)), decoding.batch_size)
    prefixes = [each.prefixes for each in sentences]
    required = [each.required for each in sentences]
    return Shape(
        rows_of_batch(rows, beam_size, models),
        search_width(max(len(each.ids) for each in sentences), models.positions),
        _round_phrases(prefixes, 1, 8) if forced else None,
        _round_phrases(required, 4, 4) if any(required) else None,
    )


def _round_phrases(
    phrases: Sequence[Sequence[list[int]]], most: int, longest: int
) -> tuple[int, int]:
    """Return the most phrases of a sentence and the most tokens of a phrase, at least
    so many, as powers of two.
    """
    most = max([most, *map(len, phrases)])
    longest = max([longest, *(len(phrase) for each in phrases for phrase in each)])
    return power_of_two(most), power_of_two(longest)


def make_rules(
    decoding: DecodingConfig,
    limits: Any,
    least: Any,
    constraints: Constraints,
    length: int,
    n_best: int,
    config: TransformerConfig,
    eos_id: int,
) -> SearchRules:
    """Return the rules of a search.

    Args:
        decoding: how to search.
        limits: most tokens of each sentence, [B].
        least: tokens of each sentence, where its limit allows them, [B].
        constraints: of the sentences, without those that ``decoding`` sets.
        length: most tokens of any sentence.
        n_best: translations of each sentence.
        config: of the model.
        eos_id: of the target vocabulary.
    """
    ngram, penalty = decoding.no_repeat_ngram, decoding.repetition_penalty
    has_least = decoding.min_length > 1 or decoding.min_length_ratio > 0
    constraints = constraints._replace(
        min_lengths=least.clip(max=limits) if has_least else None,
        no_repeat_ngram=_int32(ngram) if ngram else None,
        repetition_penalty=_float32(penalty) if penalty != 1 else None,
        before=constraints.before if ngram or penalty != 1 else None,
    )
    return SearchRules(
        max_lengths=limits,
        alpha=_float32(decoding.alpha),
        constraints=constraints,
        beta=_float32(decoding.coverage_penalty),
        diversity=_float32(decoding.diversity_strength),
        sampling=make_sampling(decoding),
        length=length,
        beam_size=n_best if decoding.sample else decoding.beam_size,
        n_best=n_best,
        penalty=decoding.length_penalty,
        coverage=lost_coverage if decoding.coverage_penalty else None,
        groups=decoding.diversity_groups,
        end_at_limit=decoding.end_at_limit,
        early_stopping=decoding.early_stopping,
        rank_unfinished=decoding.rank_unfinished,
        renormalize=decoding.renormalize,
        bos_id=config.bos_id,
        eos_id=eos_id,
        pad_id=config.pad_id,
    )


def _pad_phrases(
    phrases: Sequence[Sequence[list[int]]], rows: int, sizes: tuple[int, int]
) -> np.ndarray:
    """Pad the phrases of sentences with -1 to an array [rows, phrases, tokens]."""
    filled = np.full((rows, *sizes), -1, np.int32)
    for row, each in enumerate(phrases):
        filled[row, : len(each)] = pad(each, len(each), sizes[1], -1)
    return filled


def make_sampling(decoding: DecodingConfig) -> Sampling | None:
    """Return the distribution to sample from; None for truncations that keep all."""
    if not decoding.sample:
        return None
    return Sampling(
        temperature=_float32(decoding.temperature),
        top_k=_int32(decoding.top_k) if decoding.top_k else None,
        top_p=_float32(decoding.top_p) if decoding.top_p < 1 else None,
        min_p=_float32(decoding.min_p) if decoding.min_p else None,
        epsilon=_float32(decoding.epsilon) if decoding.epsilon else None,
    )


def pad(
    sentences: Sequence[list[int]], rows: int, width: int, filler: int
) -> np.ndarray:
    """Pad sentences on the right, and with empty rows, to an array [rows, width]."""
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


def search_width(longest: int, limit: int) -> int:
    """Round the tokens of a source up to one of fewer: 32, 64, 128, ... A search has a
    large program, whose time depends less on them.
    """
    return min(max(32, power_of_two(longest)), limit)


def rows_of_batch(rows: int, beam_size: int, models: Models) -> int:
    """Return at least so many rows: equally many on each device, and enough for
    each.
    """
    rows = max(-(-rows // models.devices), -(-models.least_rows // beam_size))
    return rows * models.devices


def power_of_four(number: int) -> int:
    """Round a number up to a power of four."""
    return 1 << 2 * -(-(number - 1).bit_length() // 2)


def power_of_two(number: int) -> int:
    """Round a number up to a power of two.

    Example:
        >>> [power_of_two(number) for number in (1, 2, 3, 8, 9)]
        [1, 2, 4, 8, 16]
    """
    return 1 << (number - 1).bit_length()
