"""The step function, the rules and the result of a search, and the loop that all
searches share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxformer.errors import InputError
from jaxformer.functional.shapes import compare
from jaxformer.kernels.mesh import check_mesh, match_varying
from jaxformer.search.config import EarlyStopping, LengthPenalty
from jaxformer.search.constraints import (
    FREE,
    Constraints,
    constrain,
    repeat_rows,
    select_sentences,
)
from jaxformer.search.scoring import length_penalty, log_probabilities, normalise
from jaxformer.typing import Array, Bool, Float, Int, PyTree

Step: TypeAlias = Callable[[Array, PyTree], tuple[Array, PyTree]]
"""``step(tokens: Int[N], cache) -> (logits: Float[N V], cache)``: the logits of the
next token of each row.
"""

Coverage: TypeAlias = Callable[[PyTree], Array]
"""``coverage(cache) -> Float[N]``: the coverage penalty of each row so far, at most 0,
without its strength.
"""


class SearchResult(NamedTuple):
    """The n hypotheses of each sentence, the best first; samples in the order in which
    they were drawn.

    Finished hypotheses come before unfinished ones, and each kind is sorted by score;
    with ``rank_unfinished`` all by score.
    If a sentence has fewer than n hypotheses, the rest is empty: padding, length 0,
    score minus infinity, not finished. A hypothesis whose constraints allow no token
    dies. A sentence whose hypotheses all die has only empty ones.
    """

    tokens: Int[Array, "B n T"]
    """The tokens, with the end-of-sentence token where ``finished``, then padding."""
    scores: Float[Array, "B n"]
    """Log-probability with the repetition penalty and renormalised, divided by the
    length penalty, plus the coverage penalty. NaN: the logits of the sentence were NaN
    or infinite, and its search ended there.
    """
    log_probabilities: Float[Array, "B n"]
    """Sum of ``token_log_probabilities``; no option changes it."""
    lengths: Int[Array, "B n"]
    """Number of tokens, the end-of-sentence token included."""
    finished: Bool[Array, "B n"]
    """Whether the hypothesis ended before the sentence's limit."""
    token_log_probabilities: Float[Array, "B n T"]
    """Natural logarithms of the model's probabilities; 0 at padding."""
    iterations: Int[Array, ""]
    """How often the step function was called."""


class Sampling(NamedTuple):
    """The distribution that sampling draws from; None truncates nothing. All values may
    be traced.
    """

    temperature: Float[Array, ""] | float = 1.0
    """At least 0: below 1 probable tokens become more probable; 0 keeps only the most
    probable.
    """
    top_k: Int[Array, ""] | None = None
    """Number of most probable tokens that are kept, at least 1."""
    top_p: Float[Array, ""] | None = None
    """Least probability that the kept tokens have together, the most probable first;
    above 0.
    """
    min_p: Float[Array, ""] | None = None
    """Least probability, relative to that of the most probable token; from 0 to 1."""
    epsilon: Float[Array, ""] | None = None
    """Least probability; from 0 to 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRules:
    """What to search for: the argument of beam search, greedy search and sampling, a
    pytree. Only ``bos_id`` and ``eos_id`` have no default: the rest is a greedy search
    for one sentence.

    Its leaves are the limits, the strengths, the constraints and the distribution to
    sample from: a compiled function serves every value of the same shapes. The rest is
    static: shapes, special tokens, and the formulas of the penalties.

    Raises:
        InputError: n is not in 1 to W, or the groups do not divide W.
    """

    max_lengths: Int[Array, " B"] | Sequence[int] | int = 100
    """Most tokens of each sentence, or of the only one; 0 returns the empty hypothesis.
    Limits above ``length`` are lowered to it.
    """
    alpha: Float[Array, ""] | float = 0.6
    """Strength of the length penalty; it may be negative, and 0 is none."""
    constraints: Constraints = FREE
    """Which tokens are allowed; constraints of None cost nothing."""
    beta: Float[Array, ""] | float = 0.0
    """Strength of the coverage penalty, at least 0."""
    diversity: Float[Array, ""] | float = 0.0
    """What a token loses in the ranking of a group for each hypothesis of an earlier
    group that chose it, at least 0.
    """
    sampling: Sampling | None = None
    """The distribution to sample from; only sampling reads it."""
    length: int = -1
    """Width T of the result; -1: the largest of ``max_lengths``, if it is known."""
    beam_size: int = 1
    """W, the hypotheses of a sentence that grow together."""
    n_best: int = 1
    """n, the hypotheses of a sentence that are returned, at most W."""
    penalty: LengthPenalty = "gnmt"
    """Name of the length penalty; see
    :func:`~jaxformer.search.scoring.length_penalty`.
    """
    coverage: Coverage | None = None
    """Reads the coverage penalty, without its strength, from the cache; None: there
    is no coverage penalty.
    """
    groups: int = 1
    """G, the groups of a sentence's hypotheses; each is a beam of W / G."""
    end_at_limit: bool = False
    """Whether the last token that a limit allows is ``eos_id``, banned or not, with
    log-probability 0.
    """
    early_stopping: EarlyStopping = "never"
    """When a beam search leaves a sentence: ``never`` before its result is certain;
    ``length`` when no live hypothesis beats W finished ones at its present length;
    ``full`` when there are W finished ones.
    """
    rank_unfinished: bool = False
    """Whether hypotheses of a beam that reach their limit rank by their scores among
    the finished ones.
    """
    renormalize: bool = False
    """Whether the probabilities of the allowed tokens are normalised to 1. It changes
    scores, not log-probabilities.
    """
    bos_id: int
    """The first input of every hypothesis, never generated unless it is ``eos_id``."""
    eos_id: int
    """Ends a hypothesis."""
    pad_id: int = -1
    """Pads the result, never generated unless it is ``eos_id``; -1: ``eos_id``."""

    def __post_init__(self) -> None:
        """Check the static fields."""
        if not 1 <= self.n_best <= self.beam_size:
            raise InputError(
                f"n_best must be from 1 to the beam size {self.beam_size}, not"
                f" {self.n_best}; widen it"
            )
        if self.groups < 1 or self.beam_size % self.groups:
            raise InputError(
                f"groups must divide the beam size {self.beam_size}, and {self.groups}"
                " do not"
            )
        if self.length < 0:
            if isinstance(self.max_lengths, Tracer):
                raise InputError("under jit a search needs length, the largest limit")
            object.__setattr__(self, "length", int(np.max(self.max_lengths)))
        if self.pad_id < 0:
            object.__setattr__(self, "pad_id", self.eos_id)

    @property
    def limits(self) -> Int[Array, " B"]:
        """Most tokens of each sentence, at most ``length``."""
        given = jnp.atleast_1d(jnp.asarray(self.max_lengths, jnp.int32))
        return jnp.minimum(given, self.length)

    def select(self, sentences: Int[Array, " B2"]) -> SearchRules:
        """Return the rules of some of the sentences."""
        return dataclasses.replace(
            self,
            max_lengths=self.limits[sentences],
            constraints=select_sentences(self.constraints, sentences),
        )

    def score(
        self,
        values: Float[Array, "*B"],
        lengths: Int[Array, "*#B"],
        coverage: Float[Array, "*B"] | None = None,
    ) -> Float[Array, "*B"]:
        """Divide log-probabilities by the length penalty, and add the coverage
        penalty (Wu et al. 2016, equation 14).
        """
        scores = values / length_penalty(lengths, self.alpha, self.penalty)
        return scores if coverage is None else scores + self.beta * coverage


_TRACED = "max_lengths", "alpha", "constraints", "beta", "diversity", "sampling"
jax.tree_util.register_dataclass(
    SearchRules,
    _TRACED,
    [x.name for x in dataclasses.fields(SearchRules) if x.name not in _TRACED],
)


def next_logits(
    step: Step, tokens: Int[Array, " N"], cache: PyTree
) -> tuple[Float[Array, "N V"], PyTree]:
    """Call the step function for the last token of each of N hypotheses; the cache has
    leading axes [N].

    Raises:
        InputError: it returns something else than logits and a cache.
    """
    match step(tokens, cache):
        case (logits, new):
            both = [("tokens", [Int[Array, " N"]], tokens)]
            both += [("logits", [Float[Array, "N V"]], logits)]
            compare("a step returns", both)
            return logits, new
        case found:
            shapes = jax.tree.map(jnp.shape, found)
            raise InputError(f"a step returns (logits, cache), not the shapes {shapes}")


def blank(rules: SearchRules, *shape: int) -> Int[Array, "*B 1+T"]:
    """Return hypotheses with only their beginning-of-sentence token."""
    return (
        jnp.full((*shape, 1 + rules.length), rules.pad_id, jnp.int32)
        .at[..., 0]
        .set(rules.bos_id)
    )


def word_log_probabilities(
    rules: SearchRules, logits: Float[Array, "N V"], position: Int[Array, ""]
) -> Float[Array, "N V"]:
    """Normalise the logits of a step after ``position`` tokens. Tokens that are never
    generated get minus infinity, given tokens and a forced end 0.

    Raises:
        InputError: the end-of-sentence token has no logit, so that no hypothesis could
            end.
    """
    if not 0 <= rules.eos_id < logits.shape[-1]:
        raise InputError(
            f"eos_id {rules.eos_id} is not in 0 to {logits.shape[-1] - 1}, the tokens"
            " that have logits"
        )
    never = {rules.bos_id, rules.pad_id} - {rules.eos_id}
    found = log_probabilities(logits, sorted(never))
    given = rules.constraints.given
    if given is not None:
        found = jnp.where(position < given, 0.0, found)
    if rules.end_at_limit:
        ends = jnp.where(jnp.arange(found.shape[1]) == rules.eos_id, 0.0, -jnp.inf)
        last = _is_last(rules, found.shape[0], position)
        found = jnp.where(last[:, None], ends, found)
    return found


def allow(
    rules: SearchRules,
    natural: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
) -> Float[Array, "N V"]:
    """Apply the constraints to the result of :func:`word_log_probabilities`."""
    ends = _is_last(rules, tokens.shape[0], position) if rules.end_at_limit else None
    found = constrain(rules.constraints, natural, tokens, position, rules.eos_id, ends)
    return normalise(found) if rules.renormalize else found


def _is_last(
    rules: SearchRules, rows: int, position: Int[Array, ""]
) -> Bool[Array, " N"]:
    """Return which rows generate the last token that their limit allows."""
    return position + 1 >= repeat_rows(rules.limits, rows)


def check_cache(cache: PyTree, rules: SearchRules) -> None:
    """Check that every leaf of a cache belongs to the rows, the groups or the sentences
    of a search, or is a scalar.

    Raises:
        InputError: a leaf has another leading axis, or is sharded over explicit axes.
    """
    check_mesh((cache, rules))
    sentences = rules.limits.shape[0]
    rows = sentences * rules.beam_size
    for path, leaf in jax.tree.leaves_with_path(cache):
        if jnp.ndim(leaf) and jnp.shape(leaf)[0] not in (
            rows,
            sentences * rules.groups,
            sentences,
        ):
            name = jax.tree_util.keystr(path)
            raise InputError(
                f"cache{name} has shape {jnp.shape(leaf)}; a leaf must be a scalar or"
                f" begin with the {rows} rows or the {sentences} sentences"
            )


class State(Protocol):
    """What a search carries from step to step: a pytree whose leading axes are the
    sentences, or the same number of rows of each.
    """

    @property
    def done(self) -> Bool[Array, " N"]:
        """Whether a row's result no longer changes."""
        ...

    @property
    def cache(self) -> PyTree:
        """What the step function takes and returns, arrays [N, ...]."""
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
    """Advance a state until all of its sentences are done, and halve the batch
    whenever half of it is done.

    Args:
        rules: of the search.
        state: the first state; the leading axis of a leaf that is not a scalar is the
            number of sentences or a multiple of it.
        advance: makes one step.
        finish: reads the result.
        halvings: how often the batch is halved at most, static.
    """
    sentences = rules.limits.shape[0]
    target = sentences // 2 if halvings > 0 else 0
    state = match_varying(state, rules)

    def body(state: _State) -> _State:
        new = advance(rules, state)
        old, found = (jax.tree.map(jnp.shape, x.cache) for x in (state, new))
        if jax.tree.flatten(old) != jax.tree.flatten(found):
            raise InputError(f"a step takes a cache {old} and returns one {found}")
        return new

    state = lax.while_loop(
        lambda state: (~_done(state, sentences)).sum() > target, body, state
    )
    result = finish(rules, state)
    if target == 0:
        return result
    # sentences that are not done come first
    rest = _done(state, sentences).argsort(stable=True)[:target]
    smaller = run_search(
        rules.select(rest),
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
    """Select the rows of some sentences in every leaf."""

    def choose(x: Array) -> Array:
        if jnp.ndim(x) == 0:
            return x
        of_each = x.shape[0] // sentences
        rows = (index[:, None] * of_each + jnp.arange(of_each)[None]).reshape(-1)
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(choose, tree)


def _done(state: State, sentences: int) -> Bool[Array, " B"]:
    return state.done.reshape(sentences, -1).all(axis=1)
