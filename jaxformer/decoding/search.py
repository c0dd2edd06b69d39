"""Greedy and beam search over a step function, each inside one ``lax.while_loop``.

A search knows no model. It calls ``step(tokens, cache) -> (logits, cache)`` with the last token of each row, where the
W rows of a sentence are adjacent: row ``b * W + w`` is hypothesis w of sentence b, N = B * W rows in all.

Lengths count the end-of-sentence token and nothing else that is special: no begin-of-sentence token, no padding.
Probabilities and scores are float32; minus infinity marks a place that holds no hypothesis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.decoding.scoring import length_penalty, log_probabilities
from jaxformer.typing import Array, Bool, Float, Int, PyTree

Step: TypeAlias = Callable[[Array, PyTree], tuple[Array, PyTree]]
"""``step(tokens: Int[N], cache) -> (logits: Float[N V], cache)``: the next token's logits in each row."""

_Tree = TypeVar("_Tree")


class SearchResult(NamedTuple):
    """The hypotheses of each sentence, n of them, the best first.

    Finished hypotheses come before unfinished ones, and each kind is sorted by score. Where a sentence has fewer than n
    hypotheses at all, the rest is empty: padding, length 0, score minus infinity, not finished.
    """

    tokens: Int[Array, "B n T"]
    """The tokens, with the end-of-sentence token where ``finished``, then padding."""
    scores: Float[Array, "B n"]
    """Log-probability divided by the length penalty."""
    log_probabilities: Float[Array, "B n"]
    """Sum of the natural logarithms of the tokens' probabilities."""
    lengths: Int[Array, "B n"]
    """Number of tokens, the end-of-sentence token included."""
    finished: Bool[Array, "B n"]
    """Whether the hypothesis ended by itself, before the sentence's limit."""
    iterations: Int[Array, ""]
    """How often the step function was called."""


class Finished(NamedTuple):
    """The best hypotheses so far that have ended, sorted by score; n places a sentence."""

    tokens: Int[Array, "B n 1+T"]
    scores: Float[Array, "B n"]
    log_probabilities: Float[Array, "B n"]
    lengths: Int[Array, "B n"]


class BeamState(NamedTuple):
    """All that changes during a beam search."""

    position: Int[Array, ""]
    """Tokens that each live hypothesis has."""
    tokens: Int[Array, "B W 1+T"]
    """The live hypotheses behind their begin-of-sentence token, sorted by log-probability."""
    log_probabilities: Float[Array, "B W"]
    finished: Finished
    done: Bool[Array, " B"]
    """Sentences whose result no longer changes."""
    cache: PyTree


@dataclasses.dataclass(frozen=True)
class BeamRules:
    """All that stays the same during a beam search; see :func:`beam_search` for the meaning of each."""

    max_lengths: Int[Array, " B"]
    alpha: Float[Array, ""]
    length: int
    beam_size: int
    n_best: int
    bos_id: int
    eos_id: int
    pad_id: int
    forbidden_ids: tuple[int, ...]


def beam_search(
    step: Step,
    cache: PyTree,
    *,
    max_lengths: Int[Array, " B"],
    length: int,
    beam_size: int,
    alpha: Float[Array, ""] | float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    n_best: int = 1,
    forbidden_ids: Sequence[int] = (),
) -> SearchResult:
    """Find the hypotheses with the best length-normalised log-probability among those that a beam of W reaches.

    Each iteration ranks all continuations of a sentence's live hypotheses. Those among the first W that end become
    finished; the first W that do not end live on. The n best finished hypotheses are kept, not the first. A sentence
    stops when nothing alive can displace them, or at its own limit; then its best live hypotheses, if needed, fill up
    the result, unfinished. Ties go to the hypothesis that was found earlier, then to the lower place in the beam, then
    to the lower token id. No sentence depends on its neighbours.

    Args:
        step: see the module.
        cache: what ``step`` takes and returns, a pytree. Leaves with a leading axis N follow their hypotheses; scalar
            leaves, such as a position, belong to all rows.
        max_lengths: most tokens of each sentence; 0 gives the empty hypothesis. Limits above ``length`` are cut to it.
        length: width T of the result, static.
        beam_size: W, the live hypotheses of a sentence.
        alpha: strength of :func:`~jaxformer.decoding.scoring.length_penalty`; it may be traced and negative.
        bos_id: the first input of every hypothesis, never generated.
        eos_id: ends a hypothesis.
        pad_id: fills up the result, never generated.
        n_best: n, the hypotheses returned of a sentence, at most W. A smaller n stops earlier with the same best.
        forbidden_ids: more tokens that are never generated, such as unk.

    Raises:
        ValueError: W below 1, n not in 1 to W, an end-of-sentence token that may not be generated, or a cache with
            leaves of another leading axis.

    Example:
        >>> logits = jnp.log(jnp.array([[0.0, 0.1, 0.6, 0.3], [1, 0, 0, 0], [0, 0.7, 0.1, 0.2], [0, 0.9, 0.05, 0.05]]))
        >>> result = beam_search(lambda tokens, cache: (logits[tokens], cache), None, max_lengths=jnp.array([5]),
        ...                      length=5, beam_size=2, alpha=0.6, bos_id=0, eos_id=1, pad_id=0)
        >>> result.tokens.tolist()
        [[[2, 1, 0, 0, 0]]]
    """
    if not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best must be from 1 to the beam size {beam_size}, not {n_best}; widen the beam")
    rules = BeamRules(
        # A limit beyond the width of the result could not be kept.
        max_lengths=jnp.minimum(jnp.asarray(max_lengths, jnp.int32), length),
        alpha=jnp.asarray(alpha, jnp.float32),
        length=length,
        beam_size=beam_size,
        n_best=n_best,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        forbidden_ids=_forbidden(bos_id, eos_id, pad_id, forbidden_ids),
    )
    state = lax.while_loop(
        lambda state: ~jnp.all(state.done),
        lambda state: beam_advance(rules, step, state),
        beam_init(rules, cache),
    )
    return beam_finish(rules, state)


def beam_init(rules: BeamRules, cache: PyTree) -> BeamState:
    """Begin with one live hypothesis a sentence: W equal ones would stay equal for ever."""
    batch = rules.max_lengths.shape[0]
    _check_cache(cache, batch * rules.beam_size)
    empty = jnp.full((batch, rules.n_best), -jnp.inf, jnp.float32)
    log_probability = jnp.full((batch, rules.beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0)
    return BeamState(
        position=jnp.zeros((), jnp.int32),
        tokens=_blank((batch, rules.beam_size), rules.length, rules.bos_id, rules.pad_id),
        log_probabilities=log_probability,
        finished=Finished(
            tokens=_blank((batch, rules.n_best), rules.length, rules.bos_id, rules.pad_id),
            scores=empty,
            log_probabilities=empty,
            lengths=jnp.zeros(empty.shape, jnp.int32),
        ),
        done=rules.max_lengths <= 0,
        cache=cache,
    )


def beam_advance(rules: BeamRules, step: Step, state: BeamState) -> BeamState:
    """Lengthen every live hypothesis by one token, and finish those that end."""
    width = rules.beam_size
    last = lax.dynamic_index_in_dim(state.tokens, state.position, axis=2, keepdims=False)
    logits, cache = step(last.reshape(-1), state.cache)
    position = state.position + 1

    totals = log_probabilities(logits, rules.forbidden_ids).reshape(*last.shape, -1)
    totals += state.log_probabilities[:, :, None]
    vocabulary = totals.shape[-1]
    # W of them can end at most, one for each live hypothesis, so 2 W always leave W that live on.
    values, index = largest(totals.reshape(last.shape[0], -1), min(2 * width, width * vocabulary))
    parents, tokens = index // vocabulary, index % vocabulary
    ends = tokens == rules.eos_id

    # Only the first W may end: with W = 1 and alpha = 0, this makes beam search greedy search.
    ended_values = jnp.where(ends, values, -jnp.inf)[:, :width]
    ended_tokens = _take(state.tokens, parents[:, :width]).at[:, :, position].set(rules.eos_id)
    finished = _keep_best(rules, state.finished, ended_tokens, ended_values, position)

    live_values, order = lax.top_k(jnp.where(ends, -jnp.inf, values), width)
    live_parents = _take(parents, order)
    live_tokens = _take(state.tokens, live_parents).at[:, :, position].set(_take(tokens, order))

    settled = _is_settled(rules, live_values[:, 0], finished.scores[:, -1], position)
    old = (state.tokens, state.log_probabilities, state.finished)
    live_tokens, live_values, finished = _freeze(state.done, old, (live_tokens, live_values, finished))
    return BeamState(
        position=position,
        tokens=live_tokens,
        log_probabilities=live_values,
        finished=finished,
        done=state.done | settled | (position >= rules.max_lengths),
        cache=_follow(cache, live_parents),
    )


def beam_finish(rules: BeamRules, state: BeamState) -> SearchResult:
    """Give the finished hypotheses of each sentence, then its unfinished ones."""
    live_lengths = jnp.broadcast_to(jnp.minimum(state.position, rules.max_lengths)[:, None], state.tokens.shape[:2])
    live = Finished(
        tokens=state.tokens,
        scores=state.log_probabilities / length_penalty(live_lengths, rules.alpha),
        log_probabilities=state.log_probabilities,
        lengths=live_lengths,
    )
    both = jax.tree.map(lambda ended, alive: jnp.concatenate([ended, alive], axis=1), state.finished, live)
    place = jnp.arange(rules.n_best)[None, :]
    count = jnp.sum(state.finished.scores > -jnp.inf, axis=1, keepdims=True)
    # Both kinds are sorted with their empty places last: skip from the end of the one to the begin of the other.
    chosen = jax.tree.map(lambda x: _take(x, jnp.where(place < count, place, place - count + rules.n_best)), both)
    exists = chosen.scores > -jnp.inf
    return SearchResult(
        tokens=jnp.where(exists[:, :, None], chosen.tokens[:, :, 1:], rules.pad_id),
        scores=chosen.scores,
        log_probabilities=chosen.log_probabilities,
        lengths=jnp.where(exists, chosen.lengths, 0),
        finished=place < count,
        iterations=state.position,
    )


class _GreedyState(NamedTuple):
    position: Int[Array, ""]
    tokens: Int[Array, "N 1+T"]
    log_probabilities: Float[Array, " N"]
    lengths: Int[Array, " N"]
    finished: Bool[Array, " N"]
    cache: PyTree


def greedy_search(
    step: Step,
    cache: PyTree,
    *,
    max_lengths: Int[Array, " N"],
    length: int,
    alpha: Float[Array, ""] | float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    forbidden_ids: Sequence[int] = (),
) -> SearchResult:
    """Follow the most probable token in every sentence: one row a sentence, and no cache is ever re-ordered.

    Takes what :func:`beam_search` takes, where ``alpha`` enters the scores and not the choice, and returns the same
    type with one hypothesis a sentence: that of a beam of 1 with ``alpha`` 0.

    Raises:
        ValueError: an end-of-sentence token that may not be generated, or a cache with leaves of another leading axis.
    """
    max_lengths = jnp.minimum(jnp.asarray(max_lengths, jnp.int32), length)
    forbidden_ids = _forbidden(bos_id, eos_id, pad_id, forbidden_ids)
    rows = max_lengths.shape[0]
    _check_cache(cache, rows)

    def is_open(state: _GreedyState) -> Bool[Array, " N"]:
        return ~state.finished & (state.position < max_lengths)

    def advance(state: _GreedyState) -> _GreedyState:
        last = lax.dynamic_index_in_dim(state.tokens, state.position, axis=1, keepdims=False)
        logits, cache = step(last, state.cache)
        candidates = log_probabilities(logits, forbidden_ids)
        token = jnp.argmax(candidates, axis=-1).astype(jnp.int32)
        grows = is_open(state)
        return _GreedyState(
            position=state.position + 1,
            tokens=state.tokens.at[:, state.position + 1].set(jnp.where(grows, token, pad_id)),
            log_probabilities=state.log_probabilities + jnp.where(grows, jnp.max(candidates, axis=-1), 0.0),
            lengths=state.lengths + grows.astype(jnp.int32),
            finished=state.finished | (grows & (token == eos_id)),
            cache=cache,
        )

    first = _GreedyState(
        position=jnp.zeros((), jnp.int32),
        tokens=_blank((rows,), length, bos_id, pad_id),
        log_probabilities=jnp.zeros(rows, jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        finished=jnp.zeros(rows, bool),
        cache=cache,
    )
    state = lax.while_loop(lambda state: jnp.any(is_open(state)), advance, first)
    return SearchResult(
        tokens=state.tokens[:, None, 1:],
        scores=(state.log_probabilities / length_penalty(state.lengths, alpha))[:, None],
        log_probabilities=state.log_probabilities[:, None],
        lengths=state.lengths[:, None],
        finished=state.finished[:, None],
        iterations=state.position,
    )


def largest(values: Float[Array, "B M"], count: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Give the largest values of each row and their indices as ``lax.top_k`` does, ties by the lower index, but faster.

    The k largest lie in the k blocks with the largest maxima: a value elsewhere has k others before it. So one pass
    finds the blocks, and only they are ranked. Long rows gain a factor of two to four on a CPU.
    """
    batch, size = values.shape
    block = 64
    if size <= 2 * count * block:
        return lax.top_k(values, count)
    end = size - size % block
    blocks = values[:, :end].reshape(batch, -1, block)
    # In the order of their indices, so that ties are found in that order; what does not fill a block comes last.
    chosen = jnp.sort(lax.top_k(jnp.max(blocks, axis=-1), count)[1], axis=-1)
    candidates = jnp.concatenate([_take(blocks, chosen).reshape(batch, -1), values[:, end:]], axis=1)
    top, place = lax.top_k(candidates, count)
    in_block = _take(chosen, jnp.minimum(place // block, count - 1)) * block + place % block
    return top, jnp.where(place < count * block, in_block, place - count * block + end)


def _is_settled(
    rules: BeamRules, best_live: Float[Array, " B"], worst_kept: Float[Array, " B"], position: Int[Array, ""]
) -> Bool[Array, " B"]:
    """Tell where no live hypothesis can displace a kept one any more.

    Let a live hypothesis have t tokens and log-probability L <= 0. Whatever grows from it ends with n tokens, where
    t < n <= m and m is the sentence's limit, and with a log-probability of at most L, since no token adds more than 0.
    As lp > 0, its score is at most L / lp(n), and as L <= 0, that is largest where lp(n) is. lp rises with n for
    alpha >= 0 and falls for alpha < 0, so its largest value is at one end of the range:

        score <= L / max(lp(t + 1), lp(m)).

    The bound rises with L, so the best live hypothesis bounds all. An equal score would not displace an older one.
    """
    ahead = jnp.maximum(length_penalty(position + 1, rules.alpha), length_penalty(rules.max_lengths, rules.alpha))
    # A free place counts as minus infinity: only when nothing lives any more does a sentence stop before it is taken.
    return worst_kept >= best_live / ahead


def _keep_best(
    rules: BeamRules,
    kept: Finished,
    tokens: Int[Array, "B W 1+T"],
    values: Float[Array, "B W"],
    position: Int[Array, ""],
) -> Finished:
    lengths = jnp.broadcast_to(position, values.shape)
    new = Finished(tokens, values / length_penalty(position, rules.alpha), values, lengths)
    both = jax.tree.map(lambda old, more: jnp.concatenate([old, more], axis=1), kept, new)
    _, order = lax.top_k(both.scores, rules.n_best)
    return jax.tree.map(lambda x: _take(x, order), both)


def _freeze(done: Bool[Array, " B"], old: _Tree, new: _Tree) -> _Tree:
    return jax.tree.map(lambda was, now: jnp.where(done.reshape(-1, *[1] * (now.ndim - 1)), was, now), old, new)


def _take(x: Array, index: Int[Array, "B k"]) -> Array:
    """Choose along the second axis in each row of the first."""
    return jax.vmap(lambda row, places: row.at[places].get(mode="promise_in_bounds"))(x, index)


def _follow(cache: _Tree, parents: Int[Array, "B W"]) -> _Tree:
    """Give each hypothesis the cache of the one it grew from."""
    batch, width = parents.shape
    if width == 1:  # nobody to take it from but itself: leave the cache where it is
        return cache
    rows = (parents + width * jnp.arange(batch)[:, None]).reshape(-1)
    # The promise makes the gather a copy of whole rows, many times faster on a CPU than one that checks each element.
    return jax.tree.map(lambda x: x if jnp.ndim(x) == 0 else x.at[rows].get(mode="promise_in_bounds"), cache)


def _blank(shape: tuple[int, ...], length: int, bos_id: int, pad_id: int) -> Int[Array, "*B 1+T"]:
    return jnp.full((*shape, 1 + length), pad_id, jnp.int32).at[..., 0].set(bos_id)


def _forbidden(bos_id: int, eos_id: int, pad_id: int, more: Sequence[int]) -> tuple[int, ...]:
    forbidden = (bos_id, pad_id, *more)
    if eos_id in forbidden:
        raise ValueError(f"eos_id {eos_id} must differ from bos_id, pad_id and forbidden_ids {forbidden}")
    return forbidden


def _check_cache(cache: PyTree, rows: int) -> None:
    for path, leaf in jax.tree.leaves_with_path(cache):
        if jnp.ndim(leaf) and jnp.shape(leaf)[0] != rows:
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"cache{name} has shape {jnp.shape(leaf)}; a leaf must be a scalar or begin with the {rows} rows"
            )
