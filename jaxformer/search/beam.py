"""Beam search over a step function, as init, step and finish over an explicit state.

A search knows no model. It calls ``step(tokens, cache) -> (logits, cache)`` with the
last token of each row, where the W rows of a sentence are adjacent: row ``b * W + w``
is hypothesis w of sentence b, N = B * W rows in all.

:func:`beam_search` loops inside one ``lax.while_loop``. To see each token as it comes,
compile :func:`beam_step`, or :func:`~jaxformer.search.single.row_step` for greedy
search, and loop in Python until ``state.done`` is True everywhere.

Lengths count the end-of-sentence token and nothing else that is special: no
begin-of-sentence token, no padding. Probabilities and scores are float32; minus
infinity marks a place that holds no hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.search.candidates import Candidates, choose, put, take
from jaxformer.search.constraints import constrain
from jaxformer.search.rules import (
    SearchResult,
    SearchRules,
    Step,
    blank,
    check_cache,
    run_search,
    word_log_probabilities,
)
from jaxformer.search.scoring import length_penalty
from jaxformer.typing import Array, Bool, Float, Int, PyTree

_Tree = TypeVar("_Tree")


class Finished(NamedTuple):
    """The best hypotheses so far that have ended, sorted by score; n places a
    sentence, at most W.
    """

    tokens: Int[Array, "B n 1+T"]
    scores: Float[Array, "B n"]
    token_log_probabilities: Float[Array, "B n 1+T"]
    lengths: Int[Array, "B n"]


class BeamState(NamedTuple):
    """All that changes during a beam search. With G groups, each is like a sentence of
    width W / G: B is G times the sentences, W the width of a group, and the groups of a
    sentence are adjacent.
    """

    position: Int[Array, ""]
    """Tokens that each live hypothesis has."""
    tokens: Int[Array, "B W 1+T"]
    """The live hypotheses behind their begin-of-sentence token, in the order in which
    they were chosen: sorted by value, unless groups or required phrases have a say in
    it.
    """
    values: Float[Array, "B W"]
    """Sum of the log-probabilities, changed by the constraints."""
    token_log_probabilities: Float[Array, "B W 1+T"]
    """As the model gives them, whatever the constraints; 0 for the begin-of-sentence
    token.
    """
    coverage: Float[Array, "B W"] | None
    """The coverage penalty of each, without its strength; None where there is none."""
    finished: Finished
    done: Bool[Array, " B"]
    """Sentences whose result no longer changes."""
    cache: PyTree


def beam_search(
    step: Step, cache: PyTree, rules: SearchRules, *, halvings: int = 0
) -> SearchResult:
    """Find the hypotheses with the best length-normalised log-probability among those
    that a beam of W reaches.

    Each iteration ranks all continuations of a sentence's live hypotheses. Those among
    the first W that end become finished; the first W that do not end live on. The n
    best finished hypotheses are kept, not the first. A sentence stops when nothing
    alive can displace them, or at its own limit; then its best live hypotheses, if
    needed, fill up the result, unfinished. Ties go to the hypothesis that was found
    earlier, then to the lower place in the beam, then to the lower token id. No
    sentence depends on its neighbours.

    Groups are G beams of W / G whose results are put together at the end, each
    hypothesis once. A group ranks continuations as if their tokens had been made less
    probable by the earlier groups' choices (Vijayakumar et al. 2018); scores and
    log-probabilities stay the model's. All groups of a sentence stop together.

    Required phrases divide each beam into banks of hypotheses that have as many
    required tokens (Post and Vilar 2018, Hu et al. 2019); no hypothesis ends before it
    has them all. One that reaches its limit first comes back unfinished.

    Args:
        step: see the module.
        cache: what ``step`` takes and returns, a pytree. Leaves with a leading axis N
            follow their hypotheses. Those with a leading axis B (or B times G) belong
            to the sentences (or groups) and stay where they are, and scalars, such as a
            position, belong to all.
        rules: what to search for.
        halvings: how often the batch is halved when half of its sentences are done,
            static; see :func:`~jaxformer.search.rules.run_search`. All that ``step``
            knows of sentences must then be in the cache.

    Raises:
        ValueError: an end-of-sentence token that has no logits, or a cache with leaves
            of another leading axis.

    Example:
        >>> table = [[0.0, 0.1, 0.6, 0.3], [1, 0, 0, 0], [0, 0.7, 0.1, 0.2]]
        >>> logits = jnp.log(jnp.array([*table, [0, 0.9, 0.05, 0.05]]))
        >>> rules = SearchRules(max_lengths=jnp.array([5]), length=5, beam_size=2,
        ...                     alpha=0.6, bos_id=0, eos_id=1, pad_id=0)
        >>> step = lambda tokens, cache: (logits[tokens], cache)
        >>> beam_search(step, None, rules).tokens.tolist()
        [[[2, 1, 0, 0, 0]]]
    """
    return run_search(
        rules,
        beam_init(rules, cache),
        lambda rules, state: beam_step(rules, step, state),
        beam_finish,
        halvings,
    )


def beam_init(rules: SearchRules, cache: PyTree) -> BeamState:
    """Begin with one live hypothesis a sentence: W equal ones would stay equal for
    ever.

    Raises:
        ValueError: a cache with leaves of another leading axis.
    """
    limits = _limits(rules)
    batch, width = limits.shape[0], rules.beam_size // rules.groups
    check_cache(cache, rules)
    kept = min(rules.n_best, width)
    return BeamState(
        position=jnp.zeros((), jnp.int32),
        tokens=blank(rules, batch, width),
        values=jnp.full((batch, width), -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        token_log_probabilities=jnp.zeros(
            (batch, width, 1 + rules.length), jnp.float32
        ),
        # The empty hypothesis attends to nothing and is charged nothing.
        coverage=(
            None if rules.coverage is None else jnp.zeros((batch, width), jnp.float32)
        ),
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
    """Lengthen every live hypothesis by one token, and finish those that end."""
    last = lax.dynamic_index_in_dim(
        state.tokens, state.position, axis=2, keepdims=False
    )
    logits, cache = step(last.reshape(-1), state.cache)
    position = state.position + 1

    natural = word_log_probabilities(rules, logits)
    rows = state.tokens.reshape(-1, state.tokens.shape[2])
    allowed = constrain(rules.constraints, natural, rows, state.position, rules.eos_id)
    totals = allowed.reshape(*last.shape, -1)
    totals += state.values[:, :, None]
    ended, live = choose(rules, totals, state.tokens, state.position)

    # Logits that are NaN in any live hypothesis end the sentence; beam_finish then
    # gives it no other score.
    broken = jnp.isnan(natural[:, rules.eos_id].reshape(last.shape)) & (
        state.values > -jnp.inf
    )
    broken = jnp.any(broken, axis=1)
    natural = natural.reshape(last.shape[0], -1)
    coverage = (
        None if rules.coverage is None else rules.coverage(cache).reshape(last.shape)
    )
    finished = _keep_best(
        rules,
        state.finished,
        _lengthen(state, ended, natural),
        ended,
        coverage,
        position,
    )
    finished = finished._replace(
        scores=jnp.where(broken[:, None], jnp.nan, finished.scores)
    )
    live_tokens, live_each = _lengthen(state, live, natural)
    live_values, live_parents, _ = live
    live_coverage = None if coverage is None else take(coverage, live_parents)

    settled = _is_settled(
        rules, jnp.max(live_values, axis=1), finished.scores[:, -1], position
    )
    done = state.done | settled | broken | (position >= _limits(rules))
    old = (
        state.tokens,
        state.values,
        state.token_log_probabilities,
        state.coverage,
        state.finished,
    )
    new = _freeze(
        state.done, old, (live_tokens, live_values, live_each, live_coverage, finished)
    )
    return BeamState(
        position, *new, _together(rules, done), _follow(cache, live_parents)
    )


def beam_finish(rules: SearchRules, state: BeamState) -> SearchResult:
    """Return the finished hypotheses of each sentence, then its unfinished ones."""
    lengths = jnp.broadcast_to(
        jnp.minimum(state.position, _limits(rules))[:, None], state.values.shape
    )
    scores = rules.score(state.values, lengths, state.coverage)
    live = Finished(state.tokens, scores, state.token_log_probabilities, lengths)
    kept = state.finished.scores.shape[1]
    _, order = lax.top_k(live.scores, kept)
    both = jax.tree.map(
        lambda ended, alive: jnp.concatenate([ended, take(alive, order)], axis=1),
        state.finished,
        live,
    )
    place = jnp.arange(kept)[None, :]
    count = jnp.sum(state.finished.scores > -jnp.inf, axis=1, keepdims=True)
    # Both kinds are sorted with their empty places last: skip from the end of the one
    # to the begin of the other.
    chosen = jax.tree.map(
        lambda x: take(x, jnp.where(place < count, place, place - count + kept)), both
    )
    chosen, finished = _put_together(rules, chosen, place < count)
    exists = chosen.scores > -jnp.inf
    each = jnp.where(exists[:, :, None], chosen.token_log_probabilities[:, :, 1:], 0.0)
    broken = jnp.any(
        jnp.isnan(state.finished.scores).reshape(exists.shape[0], -1),
        axis=1,
        keepdims=True,
    )
    return SearchResult(
        tokens=jnp.where(exists[:, :, None], chosen.tokens[:, :, 1:], rules.pad_id),
        scores=jnp.where(broken, jnp.nan, chosen.scores),
        log_probabilities=jnp.where(exists, jnp.sum(each, axis=2), -jnp.inf),
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
    """Tell where no live hypothesis can displace a kept one any more.

    Let a live hypothesis have t tokens and the value L <= 0. Whatever grows from it
    ends with n tokens, where t < n <= m and m is the sentence's limit, and with a value
    of at most L, since no token adds more than 0: neither its log-probability nor that
    times a repetition penalty, and other constraints only take tokens away. As lp > 0,
    its score is at most L / lp(n), and as L <= 0, that is largest where lp(n) is. Each
    of the penalties rises with n for alpha >= 0 and falls for alpha < 0, or is 1 for
    all n, so its largest value is at one end of the range:

        score <= L / max(lp(t + 1), lp(m)).

    The bound rises with L, so the best live hypothesis bounds all. An equal score would
    not displace an older one.

    A coverage penalty is added to the score when a hypothesis ends. It is at most 0,
    since each of its terms is the logarithm of a number that is cut to 1, and beta is
    at least 0: the bound holds with it as without it.

    Groups and banks choose by other orders, but the values are the same sums, and the
    bound asks for nothing more. A group that is settled goes on, because later ones
    avoid its choices, until those of its sentence are settled too.
    """
    ahead = [
        length_penalty(n, rules.alpha, rules.penalty)
        for n in (position + 1, _limits(rules))
    ]
    # A free place counts as minus infinity: only when nothing lives any more does a
    # sentence stop before it is taken.
    return worst_kept >= best_live / jnp.maximum(*ahead)


def _lengthen(
    state: BeamState, chosen: Candidates, natural: Float[Array, "B W*V"]
) -> tuple[Int[Array, "B W 1+T"], Float[Array, "B W 1+T"]]:
    """Write candidates as hypotheses, and the log-probabilities of their tokens
    beside them.
    """
    vocabulary = natural.shape[1] // state.values.shape[1]
    added = take(natural, chosen.parents * vocabulary + chosen.tokens)
    position = state.position + 1
    tokens = put(take(state.tokens, chosen.parents), chosen.tokens, position)
    return tokens, put(
        take(state.token_log_probabilities, chosen.parents), added, position
    )


def _keep_best(
    rules: SearchRules,
    kept: Finished,
    hypotheses: tuple[Int[Array, "B W 1+T"], Float[Array, "B W 1+T"]],
    ended: Candidates,
    coverage: Float[Array, "B W"] | None,
    position: Int[Array, ""],
) -> Finished:
    tokens, each = hypotheses
    own = None if coverage is None else take(coverage, ended.parents)
    scores = rules.score(ended.values, position, own)
    new = Finished(tokens, scores, each, jnp.broadcast_to(position, scores.shape))
    both = jax.tree.map(
        lambda old, more: jnp.concatenate([old, more], axis=1), kept, new
    )
    _, order = lax.top_k(both.scores, kept.scores.shape[1])
    return jax.tree.map(lambda x: take(x, order), both)


def _put_together(
    rules: SearchRules, found: Finished, finished: Bool[Array, "B n"]
) -> tuple[Finished, Bool[Array, "B n"]]:
    """Return the n best of the hypotheses of a sentence's groups, each once, finished
    ones before unfinished ones.
    """
    if rules.groups == 1:
        return found, finished
    found, finished = jax.tree.map(
        lambda x: x.reshape(-1, rules.groups * x.shape[1], *x.shape[2:]),
        (found, finished),
    )
    scores, places = found.scores, jnp.arange(found.scores.shape[1])
    alike = jnp.all(found.tokens[:, :, None] == found.tokens[:, None, :], axis=3)
    # What differs by rounding alone is the same: of equal ones the best stays, and of
    # those the first.
    better = scores[:, None, :] > scores[:, :, None]
    earlier = (scores[:, None, :] == scores[:, :, None]) & (
        places[None, :] < places[:, None]
    )[None]
    scores = jnp.where(jnp.any(alike & (better | earlier), axis=2), -jnp.inf, scores)
    kinds = jnp.where(scores > -jnp.inf, jnp.where(finished, 0, 1), 2)
    numbers = jnp.broadcast_to(places, scores.shape)
    *_, order = lax.sort(
        (kinds, -scores, numbers), dimension=1, num_keys=2, is_stable=True
    )
    chosen = take(finished & (scores > -jnp.inf), order[:, : rules.n_best])
    return (
        jax.tree.map(
            lambda x: take(x, order[:, : rules.n_best]), found._replace(scores=scores)
        ),
        chosen,
    )


def _limits(rules: SearchRules) -> Int[Array, " B"]:
    """Give each group the limit of its sentence."""
    return rules.limits if rules.groups == 1 else jnp.repeat(rules.limits, rules.groups)


def _together(rules: SearchRules, done: Bool[Array, " B"]) -> Bool[Array, " B"]:
    """Let a sentence go on until all its groups are done."""
    if rules.groups == 1:
        return done
    return jnp.repeat(jnp.all(done.reshape(-1, rules.groups), axis=1), rules.groups)


def _freeze(done: Bool[Array, " B"], old: _Tree, new: _Tree) -> _Tree:
    return jax.tree.map(
        lambda was, now: jnp.where(done.reshape(-1, *[1] * (now.ndim - 1)), was, now),
        old,
        new,
    )


def _follow(cache: _Tree, parents: Int[Array, "B W"]) -> _Tree:
    """Give each hypothesis the rows of the one it grew from; what belongs to
    sentences or to all stays.
    """
    batch, width = parents.shape
    if width == 1:  # nobody to take it from but itself: leave the cache where it is
        return cache
    rows = (parents + width * jnp.arange(batch)[:, None]).reshape(-1)

    def follow(x: Array) -> Array:
        if jnp.ndim(x) == 0 or jnp.shape(x)[0] != rows.size:
            return x
        # The promise makes the gather a copy of whole rows, many times faster on a CPU
        # than one that checks each element.
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(follow, cache)
