"""Beam search over a step function, as init, step and finish over an explicit state.

A search knows no model. It calls ``step(tokens, cache) -> (logits, cache)`` with the
last token of each of the N = B * W rows: row ``b * W + w`` is hypothesis w of sentence
b.

:func:`beam_search` is one ``lax.while_loop``. To stream tokens, compile
:func:`beam_step`, or :func:`~jaxformer.search.single.row_step` for greedy search, and
loop in Python until ``state.done`` is True everywhere.

Lengths count the end-of-sentence token, and neither the begin-of-sentence token nor
padding. Probabilities and scores are float32; minus infinity marks an empty beam slot.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.search.candidates import Candidates, choose, put, take
from jaxformer.search.rules import (
    SearchResult,
    SearchRules,
    Step,
    allow,
    blank,
    check_cache,
    next_logits,
    run_search,
    word_log_probabilities,
)
from jaxformer.search.scoring import length_penalty
from jaxformer.typing import Array, Bool, Float, Int, PyTree

_Tree = TypeVar("_Tree")


class Finished(NamedTuple):
    """The best finished hypotheses so far, sorted by score: n a sentence, at most
    W.
    """

    tokens: Int[Array, "B n 1+T"]
    scores: Float[Array, "B n"]
    token_log_probabilities: Float[Array, "B n 1+T"]
    lengths: Int[Array, "B n"]


class BeamState(NamedTuple):
    """What changes during a beam search.

    Each of G groups is like a sentence with a beam of W / G: B is G times the
    sentences, W the width of a group, and the groups of a sentence are adjacent.
    """

    position: Int[Array, ""]
    """Number of tokens of each live hypothesis."""
    tokens: Int[Array, "B W 1+T"]
    """The live hypotheses after their begin-of-sentence token, sorted by value, or by
    the order that groups or required phrases impose.
    """
    values: Float[Array, "B W"]
    """Sum of the log-probabilities, changed by the constraints."""
    token_log_probabilities: Float[Array, "B W 1+T"]
    """Of the model, without constraints; 0 for the begin-of-sentence token."""
    coverage: Float[Array, "B W"] | None
    """The coverage penalty of each, before its strength; None: no such penalty."""
    finished: Finished
    done: Bool[Array, " B"]
    """Sentences whose result no longer changes."""
    cache: PyTree


def beam_search(
    step: Step, cache: PyTree, rules: SearchRules, *, halvings: int = 0
) -> SearchResult:
    """Search for the hypotheses with the best length-normalised log-probability, with
    a beam of W.

    Each iteration ranks all continuations of a sentence's live hypotheses. Those of the
    first W that end are finished; the first W that do not end stay alive. The n best
    finished hypotheses are kept. A sentence stops when no live hypothesis can displace
    them (or as ``early_stopping`` says), or at its limit. Its best live hypotheses then
    fill the rest of the result, unfinished. Ties go to the hypothesis that was found
    earlier, then to the lower beam slot, then to the lower token id. Sentences do not
    depend on each other.

    Groups are G beams of W / G whose results are merged without duplicates. The ranking
    of a group penalises the tokens that earlier groups chose (Vijayakumar et al. 2018).
    Scores and log-probabilities stay the model's. All groups of a sentence stop
    together.

    Required phrases divide each beam into banks of hypotheses with equally many
    required tokens (Post and Vilar 2018, Hu et al. 2019). No hypothesis ends before it
    has them all; one that reaches its limit is returned unfinished.

    Args:
        step: see the module.
        cache: what ``step`` takes and returns, a pytree. Leaves with a leading axis N
            are reordered with their hypotheses. Those with a leading axis B (or B times
            G) belong to the sentences (or groups) and stay; scalars are shared.
        rules: of the search.
        halvings: how often the batch is halved when half of its sentences are done,
            static; see :func:`~jaxformer.search.rules.run_search`. ``step`` must then
            take everything about sentences from the cache.

    Raises:
        InputError: an end-of-sentence token that has no logits, or a cache with leaves
            of another leading axis.

    Example:
        >>> table = [[0, 0.1, 0.6, 0.3], [1, 0, 0, 0],
        ...          [0, 0.7, 0.1, 0.2], [0, 0.9, 0.1, 0]]
        >>> logits = jnp.log(jnp.array(table))
        >>> rules = SearchRules(bos_id=0, eos_id=1, max_lengths=5, beam_size=2)
        >>> step = lambda tokens, cache: (logits[tokens], cache)
        >>> beam_search(step, None, rules).tokens.tolist()
        [[[2, 1, 1, 1, 1]]]
    """
    return run_search(
        rules,
        beam_init(rules, cache),
        lambda rules, state: beam_step(rules, step, state),
        beam_finish,
        halvings,
    )


def beam_init(rules: SearchRules, cache: PyTree) -> BeamState:
    """Begin with one live hypothesis a sentence; W equal ones would stay equal.

    Raises:
        InputError: a cache with leaves of another leading axis.
    """
    limits = _limits(rules)
    batch, width = limits.shape[0], rules.beam_size // rules.groups
    check_cache(cache, rules)
    kept = min(rules.n_best, width) if rules.early_stopping == "never" else width
    return BeamState(
        position=jnp.zeros((), jnp.int32),
        tokens=blank(rules, batch, width),
        values=jnp.full((batch, width), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        token_log_probabilities=jnp.zeros(
            (batch, width, 1 + rules.length), jnp.float32
        ),
        # The empty hypothesis has no penalty.
        coverage=rules.coverage and jnp.zeros((batch, width), jnp.float32),
        finished=Finished(
            tokens=blank(rules, batch, kept),
            scores=jnp.full((batch, kept), -jnp.inf, jnp.float32),
            token_log_probabilities=jnp.zeros(
                (batch, kept, 1 + rules.length), jnp.float32
            ),
            lengths=jnp.zeros((batch, kept), jnp.int32),
        ),
        done=limits <= 0,
        cache=cache,
    )


def beam_step(rules: SearchRules, step: Step, state: BeamState) -> BeamState:
    """Extend every live hypothesis by one token, and finish those that end."""
    last = lax.dynamic_index_in_dim(
        state.tokens, state.position, axis=2, keepdims=False
    )
    logits, cache = next_logits(step, last.reshape(-1), state.cache)
    position = state.position + 1

    natural = word_log_probabilities(rules, logits, state.position)
    rows = state.tokens.reshape(-1, state.tokens.shape[2])
    allowed = allow(rules, natural, rows, state.position)
    totals = allowed.reshape(*last.shape, -1)
    totals += state.values[..., None]
    ended, live = choose(rules, totals, state.tokens, state.position)

    # NaN logits of a live hypothesis end the sentence; beam_finish makes its scores
    # NaN.
    broken = jnp.isnan(natural[:, rules.eos_id].reshape(last.shape)) & (
        state.values > -jnp.inf
    )
    broken = broken.any(axis=1)
    natural = natural.reshape(last.shape[0], -1)
    coverage = rules.coverage and rules.coverage(cache).reshape(last.shape)
    finished = _keep_best(
        rules, state.finished, _append(state, ended, natural), ended, coverage, position
    )
    finished = finished._replace(
        scores=jnp.where(broken[:, None], jnp.nan, finished.scores)
    )
    live_tokens, live_each = _append(state, live, natural)
    live_values, live_parents, _ = live
    live_coverage = take(coverage, live_parents)

    settled = _is_settled(
        rules, live_values.max(axis=1), finished.scores[:, -1], position
    )
    done = state.done | settled | broken | (position >= _limits(rules))
    grown = live_tokens, live_values, live_each, live_coverage, finished
    kept = _freeze(state.done, state[1:6], grown)
    # The groups of a sentence are done together.
    done = jnp.repeat(done.reshape(-1, rules.groups).all(axis=1), rules.groups)
    state = BeamState(position, *kept, done, _gather_parents(cache, live_parents))
    if not rules.rank_unfinished:
        return state
    early = done & (position < _limits(rules))  # only those at their limit are ranked
    return state._replace(values=jnp.where(early[:, None], -jnp.inf, state.values))


def beam_finish(rules: SearchRules, state: BeamState) -> SearchResult:
    """Return the finished hypotheses of each sentence, then its unfinished ones."""
    lengths = jnp.broadcast_to(
        jnp.minimum(state.position, _limits(rules))[:, None], state.values.shape
    )
    scores = rules.score(state.values, lengths, state.coverage)
    live = Finished(state.tokens, scores, state.token_log_probabilities, lengths)
    both = jax.tree.map(
        lambda ended, alive: jnp.concatenate([ended, alive], axis=1),
        state.finished,
        live,
    )
    kept, width = state.finished.scores.shape[1], state.values.shape[1]
    ended = jnp.broadcast_to(jnp.arange(both.scores.shape[1]) < kept, both.scores.shape)
    chosen, finished = _rank(rules, both, ended, min(rules.n_best, width))
    chosen, finished = _merge_groups(rules, chosen, finished)
    exists = chosen.scores > -jnp.inf
    each = jnp.where(exists[..., None], chosen.token_log_probabilities[:, :, 1:], 0.0)
    broken = jnp.isnan(state.finished.scores).reshape(exists.shape[0], -1)
    return SearchResult(
        tokens=jnp.where(exists[..., None], chosen.tokens[:, :, 1:], rules.pad_id),
        scores=jnp.where(broken.any(axis=1, keepdims=True), jnp.nan, chosen.scores),
        log_probabilities=jnp.where(exists, each.sum(axis=2), -jnp.inf),
        lengths=jnp.where(exists, chosen.lengths, 0),
        finished=finished,
        token_log_probabilities=each,
        iterations=state.position,
    )


def _is_settled(
    rules: SearchRules,
    best_live: Float[Array, " B"],
    worst_kept: Float[Array, " B"],
    position: Int[Array, ""],
) -> Bool[Array, " B"]:
    """Return where no live hypothesis can displace a kept one, or where early stopping
    leaves a sentence.

    Let a live hypothesis have t tokens and the value L <= 0. Its continuations end with
    n tokens, where t < n <= m and m is the sentence's limit. Their value is at most L:
    no token adds more than 0, neither its log-probability nor that times a repetition
    penalty, and other constraints only remove tokens. As lp > 0, the score is at most
    L / lp(n), and as L <= 0, that is largest where lp(n) is. Each penalty rises with n
    for alpha >= 0, falls for alpha < 0, or is 1, so its largest value is at one end of
    the range:

        score <= L / max(lp(t + 1), lp(m)).

    The bound rises with L, so the best live hypothesis bounds all. An equal score would
    not displace an older one.

    The bound also holds with a coverage penalty, which is added when a hypothesis ends
    and is at most 0: each term is the logarithm of a number clipped to 1, and beta is
    at least 0.

    Groups and banks choose by other orders, but values are the same sums, which is all
    that the bound needs. A settled group continues until those of its sentence are
    settled too, because later groups avoid its choices.

    Early stopping at the present length assumes that the best keeps L and t tokens.
    """
    if rules.early_stopping == "full":
        return (worst_kept > -jnp.inf) | (best_live == -jnp.inf)
    if rules.early_stopping == "length":
        return worst_kept >= rules.score(best_live, position)
    ahead = [
        length_penalty(n, rules.alpha, rules.penalty)
        for n in (position + 1, _limits(rules))
    ]
    # An empty slot is minus infinity: a sentence with one stops early only when no
    # hypothesis is alive.
    return worst_kept >= best_live / jnp.maximum(*ahead)


def _append(
    state: BeamState, chosen: Candidates, natural: Float[Array, "B W*V"]
) -> tuple[Int[Array, "B W 1+T"], Float[Array, "B W 1+T"]]:
    """Append the tokens of candidates and their log-probabilities to the hypotheses
    that they continue.
    """
    vocabulary = natural.shape[1] // state.values.shape[1]
    added = take(natural, chosen.parents * vocabulary + chosen.tokens)
    position = state.position + 1
    tokens, each = take((state.tokens, state.token_log_probabilities), chosen.parents)
    return put(tokens, chosen.tokens, position), put(each, added, position)


def _keep_best(
    rules: SearchRules,
    kept: Finished,
    hypotheses: tuple[Int[Array, "B W 1+T"], Float[Array, "B W 1+T"]],
    ended: Candidates,
    coverage: Float[Array, "B W"] | None,
    position: Int[Array, ""],
) -> Finished:
    tokens, each = hypotheses
    scores = rules.score(ended.values, position, take(coverage, ended.parents))
    new = Finished(tokens, scores, each, jnp.broadcast_to(position, scores.shape))
    both = jax.tree.map(
        lambda old, more: jnp.concatenate([old, more], axis=1), kept, new
    )
    _, order = lax.top_k(both.scores, kept.scores.shape[1])
    return take(both, order)


def _merge_groups(
    rules: SearchRules, found: Finished, finished: Bool[Array, "B n"]
) -> tuple[Finished, Bool[Array, "B n"]]:
    """Return the n best hypotheses of a sentence's groups without duplicates, finished
    ones first.
    """
    if rules.groups == 1:
        return found, finished
    found, finished = jax.tree.map(
        lambda x: x.reshape(-1, rules.groups * x.shape[1], *x.shape[2:]),
        (found, finished),
    )
    found, finished = _rank(rules, found, finished, found.scores.shape[1])
    # Of equal hypotheses, whose scores may differ by rounding, the first is the best.
    equal = (found.tokens[:, :, None] == found.tokens[:, None, :]).all(axis=3)
    repeats = jnp.tril(equal, -1).any(axis=2)
    scores = jnp.where(repeats, -jnp.inf, found.scores)
    return _rank(rules, found._replace(scores=scores), finished, rules.n_best)


def _rank(
    rules: SearchRules,
    found: Finished,
    finished: Bool[Array, "B m"],
    count: int,
) -> tuple[Finished, Bool[Array, "B n"]]:
    """Return the first hypotheses and whether they are finished: finished ones before
    unfinished ones unless the rules rank these too, each by score, empty slots last.
    """
    exists = found.scores > -jnp.inf
    last = jnp.where(finished | rules.rank_unfinished, 0, 1)
    order = jnp.lexsort((-found.scores, jnp.where(exists, last, 2)))[:, :count]
    return take((found, finished & exists), order)


def _limits(rules: SearchRules) -> Int[Array, " B"]:
    """Return the limit of each group."""
    return jnp.repeat(rules.limits, rules.groups)


def _freeze(done: Bool[Array, " B"], old: _Tree, new: _Tree) -> _Tree:
    return jax.tree.map(
        lambda was, now: jnp.where(done.reshape(-1, *[1] * (now.ndim - 1)), was, now),
        old,
        new,
    )


def _gather_parents(cache: _Tree, parents: Int[Array, "B W"]) -> _Tree:
    """Gather the rows of each hypothesis' parent; other leaves stay."""
    batch, width = parents.shape
    if width == 1:  # each is its own parent
        return cache
    rows = (parents + width * jnp.arange(batch)[:, None]).reshape(-1)

    def gather(x: Array) -> Array:
        if jnp.ndim(x) == 0 or jnp.shape(x)[0] != rows.size:
            return x
        # With the promise the gather copies whole rows, many times faster on a CPU than
        # one that checks each element.
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(gather, cache)
