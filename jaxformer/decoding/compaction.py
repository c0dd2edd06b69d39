"""Sentences that are done leave the batch, so that it is not kept whole by its longest ones.

A batch whose shape never changes works for its longest sentence until the end, and much of that for sentences that are
done already. Here the loop ends when half of the sentences are done, the others go on in a loop of half the size, and
so on. The function is compiled with one loop for each size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.decoding.rules import SearchResult, SearchRules
from jaxformer.typing import Array, Bool, Int


class State(Protocol):
    """What a search carries from step to step: a pytree whose leaves begin with the sentences, or some rows of each."""

    @property
    def done(self) -> Bool[Array, " N"]:
        """Whether a row's result no longer changes."""
        ...


_State = TypeVar("_State", bound=State)
_Tree = TypeVar("_Tree")


def run_search(
    rules: SearchRules,
    state: _State,
    advance: Callable[[SearchRules, _State], _State],
    finish: Callable[[SearchRules, _State], SearchResult],
    halvings: int,
) -> SearchResult:
    """Advance a state until all of its sentences are done, in a batch that is halved when half of it is done.

    Args:
        rules: of the search.
        state: where it begins; a leaf that is no scalar begins with the sentences, or a multiple of them.
        advance: makes one step.
        finish: reads the result.
        halvings: how often the batch is halved, static.
    """
    sentences = rules.limits.shape[0]
    target = sentences // 2 if halvings > 0 else 0
    state = lax.while_loop(
        lambda state: jnp.sum(~_done(state, sentences)) > target, lambda state: advance(rules, state), state
    )
    result = finish(rules, state)
    if target == 0:
        return result
    rest = jnp.argsort(_done(state, sentences), stable=True)[:target]  # those that are not done come first
    smaller = run_search(rules.of(rest), take_sentences(state, rest, sentences), advance, finish, halvings - 1)
    return jax.tree.map(lambda whole, part: whole.at[rest].set(part) if whole.ndim else part, result, smaller)


def take_sentences(tree: _Tree, index: Int[Array, " B2"], sentences: int) -> _Tree:
    """Choose what belongs to some of the sentences: in each leaf as many rows as it has for a sentence."""

    def choose(x: Array) -> Array:
        if jnp.ndim(x) == 0:
            return x
        of_each = x.shape[0] // sentences
        rows = (index[:, None] * of_each + jnp.arange(of_each)[None, :]).reshape(-1)
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(choose, tree)


def _done(state: State, sentences: int) -> Bool[Array, " B"]:
    return state.done.reshape(sentences, -1).all(axis=1)
