"""Choose the continuations of a beam that end and those that stay alive: the best, in
diverse groups or in banks of required phrases.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.functional.positions import segment_positions
from jaxformer.search.constraints import (
    latest_tokens,
    next_phrase_tokens,
    phrase_lengths,
    phrase_progress,
    repeat_rows,
    satisfied_phrases,
)
from jaxformer.search.rules import SearchRules
from jaxformer.typing import Array, Float, Int

_Tree = TypeVar("_Tree")


def largest(
    values: Float[Array, "B M"], count: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Compute ``lax.top_k`` faster: the largest values of each row and their indices,
    ties by the lower index.

    The k largest are in the k blocks with the largest maxima, because a value of
    another block has k before it. One pass finds the blocks, and only they are ranked.
    Long rows take a half to a quarter of the time on a CPU.
    """
    batch, size = values.shape
    block = 64
    if size <= 2 * count * block:
        return lax.top_k(values, count)
    end = size - size % block
    blocks = values[:, :end].reshape(batch, -1, block)
    # In the order of their indices, for ties; the incomplete block is last.
    chosen = jnp.sort(lax.top_k(blocks.max(axis=-1), count)[1], axis=-1)
    candidates = jnp.concatenate(
        [take(blocks, chosen).reshape(batch, -1), values[:, end:]], axis=1
    )
    top, place = lax.top_k(candidates, count)
    in_block = (
        take(chosen, jnp.minimum(place // block, count - 1)) * block + place % block
    )
    return top, jnp.where(place < count * block, in_block, place - count * block + end)


def take(tree: _Tree, index: Int[Array, "B k"]) -> _Tree:
    """Gather along the second axis in each row of the first, in every leaf."""
    gather = jax.vmap(lambda row, places: row.at[places].get(mode="promise_in_bounds"))
    return jax.tree.map(lambda x: gather(x, index), tree)


def put(x: Array, values: Array, place: Int[Array, ""]) -> Array:
    """Write one value at a position of the last axis, as a slice; a scatter would
    write value by value.
    """
    return lax.dynamic_update_index_in_dim(
        x, values.astype(x.dtype), place, axis=x.ndim - 1
    )


class Candidates(NamedTuple):
    """Continuations of a beam's hypotheses by one token each, k of them."""

    values: Float[Array, "B k"]
    """Sums of log-probabilities, after the constraints; minus infinity: an empty
    slot.
    """
    parents: Int[Array, "B k"]
    """Beam slots of the hypotheses that are continued."""
    tokens: Int[Array, "B k"]


class _Required(NamedTuple):
    """The required phrases of each beam, and its live hypotheses."""

    phrases: Int[Array, "B C L"]
    tokens: Int[Array, "B W 1+T"]
    position: Int[Array, ""]

    def flatten(self) -> tuple[Array, Array, Array]:
        """Return tokens, position and phrases with a row for each hypothesis."""
        batch, width, length = self.tokens.shape
        return (
            self.tokens.reshape(batch * width, length),
            self.position,
            jnp.repeat(self.phrases, width, axis=0),
        )


def choose(
    rules: SearchRules,
    totals: Float[Array, "B W V"],
    tokens: Int[Array, "B W 1+T"],
    position: Int[Array, ""],
) -> tuple[Candidates, Candidates]:
    """Choose W candidates that end and W that stay alive.

    Args:
        rules: of the search. With G groups, B is G times the sentences and W the width
            of a group, and the groups of a sentence are adjacent.
        totals: the value of every continuation of every live hypothesis.
        tokens: the live hypotheses, with ``position`` tokens each.
        position: see ``tokens``.
    """
    phrases, required = rules.constraints.required, None
    if phrases is not None:
        required = _Required(repeat_rows(phrases, totals.shape[0]), tokens, position)
    if rules.groups == 1:
        return _choose(rules.eos_id, totals, required)
    return _choose_diverse(rules, totals, required)


def _choose_diverse(
    rules: SearchRules,
    totals: Float[Array, "B W V"],
    required: _Required | None,
) -> tuple[Candidates, Candidates]:
    """Choose group after group, each with a penalty on the tokens of earlier groups
    (Vijayakumar et al. 2018, section 4, with the Hamming diversity of section 5.1).

    The penalty changes the ranking only. Values, and so scores and the stop rule, stay
    the model's. Only tokens of live hypotheses are penalised, not the end of sentence.
    """
    _, width, vocabulary = totals.shape
    by_group = totals.reshape(-1, rules.groups, width, vocabulary)
    sentences = jnp.arange(by_group.shape[0])[:, None]
    counts = jnp.zeros((by_group.shape[0], vocabulary), jnp.float32)
    chosen = []
    for group in range(rules.groups):
        values = by_group[:, group]
        ranked = values - jnp.asarray(rules.diversity, jnp.float32) * counts[:, None, :]
        own = slice(group, None, rules.groups)
        phrases = required and required._replace(
            phrases=required.phrases[own], tokens=required.tokens[own]
        )
        kinds = _choose(rules.eos_id, ranked, phrases)
        kinds = tuple(each._replace(values=_value(values, each)) for each in kinds)
        counts = counts.at[sentences, kinds[1].tokens].add(
            (kinds[1].values > -jnp.inf).astype(jnp.float32)
        )
        chosen.append(kinds)
    return jax.tree.map(
        lambda *parts: jnp.stack(parts, axis=1).reshape(-1, width), *chosen
    )


def _value(values: Float[Array, "B W V"], chosen: Candidates) -> Float[Array, "B k"]:
    """Return the values of candidates that were ranked by something else."""
    batch, _, vocabulary = values.shape
    found = take(values.reshape(batch, -1), chosen.parents * vocabulary + chosen.tokens)
    return jnp.where(chosen.values > -jnp.inf, found, -jnp.inf)


def _choose(
    eos_id: int,
    ranked: Float[Array, "B W V"],
    required: _Required | None,
) -> tuple[Candidates, Candidates]:
    """Choose from one beam by a value for every continuation."""
    batch, width, vocabulary = ranked.shape
    # At most W can end, one for each live hypothesis, so 2 W leave W that stay alive.
    values, index = largest(
        ranked.reshape(batch, -1), min(2 * width, width * vocabulary)
    )
    found = Candidates(values, index // vocabulary, index % vocabulary)
    if required is not None:
        found = _by_banks(eos_id, ranked, found, required)
    ends = found.tokens == eos_id
    # Only the first W may end: with W = 1 and alpha = 0, this makes beam search greedy
    # search.
    ended = Candidates(
        jnp.where(ends, found.values, -jnp.inf), found.parents, found.tokens
    )
    # In their order: by value, or by turns.
    lives = ~ends & (found.values > -jnp.inf)
    order = (~lives).argsort(axis=1)[:, :width]
    live = found._replace(values=jnp.where(lives, found.values, -jnp.inf))
    return Candidates(*(part[:, :width] for part in ended)), take(live, order)


def _by_banks(
    eos_id: int,
    ranked: Float[Array, "B W V"],
    best: Candidates,
    required: _Required,
) -> Candidates:
    """Add the continuations of required phrases, and sort all by banks (Post and Vilar
    2018, section 3; Hu et al. 2019, section 3).

    A bank has the candidates with the same number of required tokens. The order is the
    best candidate of each bank, then the second of each, and so on; in each turn the
    bank with the most tokens is first. Candidates that end have all phrases and are the
    first bank. So the hypothesis with the most required tokens always has a slot, and
    one with all phrases may always end. Without required phrases there is one bank, in
    the plain order.
    """
    all_ = _with_phrases(eos_id, ranked, best, required)
    banks = _required_tokens(all_, required)
    lengths = phrase_lengths(required.phrases)
    anything = lengths.sum(axis=1, keepdims=True) > 0
    banks += jnp.where((all_.tokens == eos_id) & anything, 1, 0)
    order = jnp.lexsort((-all_.values, banks))
    all_, banks = take((all_, banks), order)
    turns = segment_positions(banks + 1)
    turns = jnp.where(all_.values > -jnp.inf, turns, banks.shape[1])
    order = jnp.lexsort((-banks, turns))
    return take(all_, order)


def _with_phrases(
    eos_id: int,
    ranked: Float[Array, "B W V"],
    best: Candidates,
    required: _Required,
) -> Candidates:
    """Add, for each hypothesis, the next token of each required phrase, its best
    token and the end of sentence.
    """
    batch, width, vocabulary = ranked.shape
    following = next_phrase_tokens(*required.flatten()).reshape(batch, width, -1)
    more = jnp.concatenate(
        [
            following,
            jnp.argmax(ranked, axis=2)[..., None],
            jnp.full((batch, width, 1), eos_id),
        ],
        axis=2,
        dtype=jnp.int32,
    )
    parents = jnp.broadcast_to(jnp.arange(width)[None, :, None], more.shape)
    index = jnp.concatenate(
        [
            best.parents * vocabulary + best.tokens,
            jnp.where(
                more >= 0, parents * vocabulary + more, width * vocabulary
            ).reshape(batch, -1),
        ],
        axis=1,
    )
    repeats = jnp.tril(index[:, :, None] == index[:, None, :], -1).any(axis=2)
    exists = (index < width * vocabulary) & ~repeats
    index = jnp.minimum(index, width * vocabulary - 1)
    values = jnp.where(exists, take(ranked.reshape(batch, -1), index), -jnp.inf)
    return Candidates(values, index // vocabulary, index % vocabulary)


def _required_tokens(
    candidates: Candidates,
    required: _Required,
) -> Int[Array, "B M"]:
    """Count the required tokens of each candidate: all tokens of satisfied phrases,
    and the progress of the others.
    """
    phrases, (batch, width, _) = required.phrases, required.tokens.shape
    rows, position, each = required.flatten()
    met = satisfied_phrases(rows, position, each).reshape(batch, width, -1)
    latest = latest_tokens(rows, position, phrases.shape[2] - 1).reshape(
        batch, width, -1
    )
    latest = jnp.concatenate(
        [take(latest, candidates.parents), candidates.tokens[..., None]], axis=2
    )
    every = jnp.broadcast_to(
        phrases[:, None], (*candidates.tokens.shape, *phrases.shape[1:])
    )
    progress = phrase_progress(latest, every)
    return jnp.sum(
        jnp.where(take(met, candidates.parents), phrase_lengths(every), progress),
        axis=2,
    )
