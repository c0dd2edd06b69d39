"""The step function, rules and result of a search, and the loop that all searches
share.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.search.config import LengthPenalty
from jaxformer.search.constraints import FREE, Constraints, of_sentences
from jaxformer.search.scoring import length_penalty, log_probabilities
from jaxformer.typing import Array, Bool, Float, Int, PyTree

Step: TypeAlias = Callable[[Array, PyTree], tuple[Array, PyTree]]
"""``step(tokens: Int[N], cache) -> (logits: Float[N V], cache)``: the next token's
logits in each row.
"""

Coverage: TypeAlias = Callable[[PyTree], Array]
"""``coverage(cache) -> Float[N]``: what each row has lost so far for what it has not
attended to; none above 0.
"""


class SearchResult(NamedTuple):
    """The hypotheses of each sentence, n of them, the best first; those of sampling in
    the order of their drawing.

    Finished hypotheses come before unfinished ones, and each kind is sorted by score.
    Where a sentence has fewer than n hypotheses at all, the rest is empty: padding,
    length 0, score minus infinity, not finished. A hypothesis that its constraints
    leave no token dies, and a sentence whose hypotheses all die has empty ones alone.
    """

    tokens: Int[Array, "B n T"]
    """The tokens, with the end-of-sentence token where ``finished``, then padding."""
    scores: Float[Array, "B n"]
    """Log-probability, changed by a repetition penalty if there is one, divided by the
    length penalty, and the coverage penalty if there is one. NaN: the logits of the
    sentence were NaN or infinite, and its search ended there.
    """
    log_probabilities: Float[Array, "B n"]
    """Sum of ``token_log_probabilities``: no option changes it."""
    lengths: Int[Array, "B n"]
    """Number of tokens, the end-of-sentence token included."""
    finished: Bool[Array, "B n"]
    """Whether the hypothesis ended by itself, before the sentence's limit."""
    token_log_probabilities: Float[Array, "B n T"]
    """Natural logarithms of the tokens' probabilities, as the model gives them; 0 at
    padding.
    """
    iterations: Int[Array, ""]
    """How often the step function was called."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["max_lengths", "alpha", "constraints", "beta", "diversity"],
    meta_fields=[
        "length",
        "beam_size",
        "n_best",
        "penalty",
        "coverage",
        "groups",
        "bos_id",
        "eos_id",
        "pad_id",
    ],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRules:
    """All that stays the same during a search: a pytree.

    Its leaves are the limits, the strengths and the constraints: a function compiled
    for some of them serves every other value of the same shapes. The rest is static:
    shapes, the tokens that are no words, and the formulas of the penalties.

    Raises:
        ValueError: W below 1, n not in 1 to W, groups that do not divide W, or an
            end-of-sentence token that may not be generated.
    """

    max_lengths: Int[Array, " B"]
    """Most tokens of each sentence; 0 gives the empty hypothesis. Limits above
    ``length`` are cut to it.
    """
    alpha: Float[Array, ""] | float
    """Strength of the length penalty; it may be negative."""
    constraints: Constraints = FREE
    """What may come; what is None there costs nothing."""
    beta: Float[Array, ""] | float = 0.0
    """Strength of the coverage penalty, at least 0."""
    diversity: Float[Array, ""] | float = 0.0
    """What a token loses in the ranking of a group for each hypothesis of earlier
    groups that chose it, at least 0.
    """
    length: int
    """Width T of the result."""
    beam_size: int = 1
    """W, the hypotheses of a sentence that grow together."""
    n_best: int = 1
    """n, the hypotheses returned of a sentence, at most W."""
    penalty: LengthPenalty = "gnmt"
    """Name of the length penalty; see
    :func:`~jaxformer.search.scoring.length_penalty`.
    """
    coverage: Coverage | None = None
    """Reads the coverage penalty, without its strength, from the cache; None: there
    is no such penalty.
    """
    groups: int = 1
    """G, the groups that the hypotheses of a sentence are divided into; each is a
    beam of W / G.
    """
    bos_id: int
    """The first input of every hypothesis, never generated."""
    eos_id: int
    """Ends a hypothesis."""
    pad_id: int
    """Fills up the result, never generated."""

    def __post_init__(self) -> None:
        """Check what is static."""
        if self.beam_size < 1:
            raise ValueError(
                "a sentence has at least 1 hypothesis (beam_size, samples), not"
                f" {self.beam_size}"
            )
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(
                f"n_best must be from 1 to the beam size {self.beam_size}, not"
                f" {self.n_best}; widen it"
            )
        if self.groups < 1 or self.beam_size % self.groups:
            raise ValueError(
                f"groups must divide the beam size {self.beam_size}, and {self.groups}"
                " do not"
            )
        if self.eos_id in (self.bos_id, self.pad_id):
            raise ValueError(
                f"eos_id {self.eos_id} must differ from bos_id {self.bos_id} and pad_id"
                f" {self.pad_id}"
            )

    @property
    def limits(self) -> Int[Array, " B"]:
        """Most tokens of each sentence that the result has room for.

        Raises:
            ValueError: ``max_lengths`` has not one axis.
        """
        given = jnp.asarray(self.max_lengths, jnp.int32)
        if given.ndim != 1:
            raise ValueError(
                "max_lengths has a number for each sentence: the shape [B], not"
                f" {given.shape}"
            )
        return jnp.minimum(given, self.length)

    def of(self, sentences: Int[Array, " B2"]) -> SearchRules:
        """Return the rules of some of the sentences."""
        limits, constraints = self.limits, of_sentences(self.constraints, sentences)
        return dataclasses.replace(
            self, max_lengths=limits[sentences], constraints=constraints
        )

    def score(
        self,
        values: Float[Array, "*B"],
        lengths: Int[Array, "*#B"],
        coverage: Float[Array, "*B"] | None = None,
    ) -> Float[Array, "*B"]:
        """Divide log-probabilities by the penalty of their lengths, and add the
        coverage penalty (Wu et al. 2016, equation 14).
        """
        scores = values / length_penalty(lengths, self.alpha, self.penalty)
        return scores if coverage is None else scores + self.beta * coverage


def blank(rules: SearchRules, *shape: int) -> Int[Array, "*B 1+T"]:
    """Give hypotheses that hold their begin-of-sentence token alone."""
    return (
        jnp.full((*shape, 1 + rules.length), rules.pad_id, jnp.int32)
        .at[..., 0]
        .set(rules.bos_id)
    )


def of_words(rules: SearchRules, logits: Float[Array, "N V"]) -> Float[Array, "N V"]:
    """Normalise what a step gives to log-probabilities; tokens that are no words get
    minus infinity.

    Raises:
        ValueError: the end-of-sentence token is none of the vocabulary, so that nothing
            could ever end.
    """
    if not 0 <= rules.eos_id < logits.shape[-1]:
        raise ValueError(
            f"eos_id {rules.eos_id} is not in 0 to {logits.shape[-1] - 1}, the tokens"
            " that have logits"
        )
    return log_probabilities(logits, (rules.bos_id, rules.pad_id))


def check_cache(cache: PyTree, rules: SearchRules) -> None:
    """Refuse a cache whose leaves belong neither to the rows of a search nor to its
    sentences.

    Raises:
        ValueError: a leaf is no scalar and begins with neither number, nor with that of
            the groups.
    """
    sentences = rules.limits.shape[0]
    rows = sentences * rules.beam_size
    for path, leaf in jax.tree.leaves_with_path(cache):
        if jnp.ndim(leaf) and jnp.shape(leaf)[0] not in (
            rows,
            sentences * rules.groups,
            sentences,
        ):
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"cache{name} has shape {jnp.shape(leaf)}; a leaf must be a scalar or"
                f" begin with the {rows} rows or the {sentences} sentences"
            )


class State(Protocol):
    """What a search carries from step to step: a pytree whose leaves begin with the
    sentences, or some rows of each.
    """

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
    """Advance a state until all of its sentences are done, in a batch that is halved
    when half of it is done.

    Args:
        rules: of the search.
        state: where it begins; a leaf that is no scalar begins with the sentences, or a
            multiple of them.
        advance: makes one step.
        finish: reads the result.
        halvings: how often the batch is halved, static.
    """
    sentences = rules.limits.shape[0]
    target = sentences // 2 if halvings > 0 else 0
    state = lax.while_loop(
        lambda state: jnp.sum(~_done(state, sentences)) > target,
        lambda state: advance(rules, state),
        state,
    )
    result = finish(rules, state)
    if target == 0:
        return result
    # those that are not done come first
    rest = jnp.argsort(_done(state, sentences), stable=True)[:target]
    smaller = run_search(
        rules.of(rest),
        take_sentences(state, rest, sentences),
        advance,
        finish,
        halvings - 1,
    )
    return jax.tree.map(
        lambda whole, part: whole.at[rest].set(part) if whole.ndim else part,
        result,
        smaller,
    )


def take_sentences(tree: _Tree, index: Int[Array, " B2"], sentences: int) -> _Tree:
    """Choose what belongs to some of the sentences: in each leaf as many rows as it
    has for a sentence.
    """

    def choose(x: Array) -> Array:
        if jnp.ndim(x) == 0:
            return x
        of_each = x.shape[0] // sentences
        rows = (index[:, None] * of_each + jnp.arange(of_each)[None, :]).reshape(-1)
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(choose, tree)


def _done(state: State, sentences: int) -> Bool[Array, " B"]:
    return state.done.reshape(sentences, -1).all(axis=1)
