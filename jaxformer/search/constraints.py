"""Constraints of a search: functions that set the log-probabilities of forbidden tokens
to minus infinity.

Each takes the N rows of a search: ``log_probabilities`` [N V] of the next token,
``tokens`` [N 1+T] with the begin-of-sentence token first, of which those at 1 to
``position`` are generated, and the constraint's own arrays. Allowed tokens keep their
log-probabilities, without normalisation. Only the repetition penalty changes values.

All values are arrays, so a compiled search serves every value of the same shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.typing import Array, Bool, Float, Int

NO_TOKEN = -2
"""Stands for positions before the first input; differs from every token
and from the padding of phrases.
"""


def phrase_lengths(phrases: Int[Array, "*B L"]) -> Int[Array, "*B"]:
    """Count the tokens of each phrase."""
    return jnp.sum(phrases >= 0, axis=-1, dtype=jnp.int32)


def satisfied_phrases(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], phrases: Int[Array, "N C L"]
) -> Bool[Array, "N C"]:
    """Return which phrases occur among the tokens at 1 to ``position``; a phrase
    without tokens always does.
    """
    occurs = jnp.ones((*tokens.shape, phrases.shape[1]), bool)
    for offset in range(phrases.shape[2]):
        wanted = phrases[:, None, :, offset]
        occurs &= (jnp.roll(tokens, -offset, axis=1)[:, :, None] == wanted) | (
            wanted < 0
        )
    places = jnp.arange(tokens.shape[1])[None, :, None]
    lengths = phrase_lengths(phrases)
    inside = (places >= 1) & (places + lengths[:, None, :] <= position + 1)
    return jnp.any(occurs & inside, axis=1) | (lengths == 0)


def latest_tokens(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], count: int
) -> Int[Array, "N L"]:
    """Return the last ``count`` of the tokens at 0 to ``position``, padded on the left
    by :data:`NO_TOKEN`.
    """
    places = position + 1 - jnp.arange(count, 0, -1)
    return jnp.where(
        places >= 0, jnp.take(tokens, jnp.maximum(places, 0), axis=1), NO_TOKEN
    )


def phrase_progress(
    latest: Int[Array, "*B L"], phrases: Int[Array, "*B C L"]
) -> Int[Array, "*B C"]:
    """Count how many of the first tokens of each phrase are the latest tokens; all of
    them if it was just satisfied.
    """
    width = phrases.shape[-1]
    found = jnp.zeros(phrases.shape[:-1], jnp.int32)
    for count in range(1, width + 1):
        ends = jnp.all(
            latest[..., None, width - count :] == phrases[..., :count], axis=-1
        )
        found = jnp.where(ends, count, found)
    return found


def next_phrase_tokens(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], phrases: Int[Array, "N C L"]
) -> Int[Array, "N C"]:
    """Return the token that continues each phrase; -1 if it is satisfied."""
    progress = phrase_progress(
        latest_tokens(tokens, position, phrases.shape[2]), phrases
    )
    # A phrase that is complete here is satisfied too.
    place = jnp.minimum(progress, phrases.shape[2] - 1)
    following = jnp.take_along_axis(phrases, place[..., None], axis=-1)[..., 0]
    return jnp.where(satisfied_phrases(tokens, position, phrases), -1, following)


_ANY = -1
"""In prefixes and banned phrases: any token."""


class Constraints(NamedTuple):
    """The constraints of a search; None: no such constraint.

    A hypothesis without an allowed token dies. Prefixes have priority: their tokens are
    generated even if another constraint forbids them.
    """

    min_lengths: Int[Array, " B"] | None = None
    """Least tokens of each sentence, the end-of-sentence token included."""
    banned_tokens: Bool[Array, " V"] | None = None
    """True for tokens that are never generated."""
    banned_phrases: Int[Array, "P L"] | None = None
    """Sequences of tokens that are never generated, padded on the left by -1. They may
    begin with the first input.
    """
    no_repeat_ngram: Int[Array, ""] | None = None
    """n, at least 1: no n-gram is generated twice, nor one of ``before``."""
    repetition_penalty: Float[Array, ""] | None = None
    """Above 0; multiplies the log-probabilities of tokens that were generated before or
    are in ``before``: above 1 they are repeated less often.
    """
    required: Int[Array, "B C L"] | None = None
    """Sequences of tokens of each sentence that must be generated, in any order, before
    its hypotheses may end; padded on the right by -1. Only beam search has them: it
    keeps slots for hypotheses with more of their tokens.
    """
    prefixes: Int[Array, "B A L"] | None = None
    """Each hypothesis begins with one of A prefixes of its sentence. -1 allows any
    token, as after the end of a prefix. A sentence with fewer than A of them repeats
    one; a prefix of only -1 allows everything.
    """
    given: Int[Array, ""] | None = None
    """How many of the first tokens of the prefixes are given: their log-probability is
    0, and so is that of tokens that the prefixes let take their place.
    """
    before: Int[Array, "B P"] | None = None
    """The prompt of each sentence, padded on the left by :data:`NO_TOKEN`: tokens that
    may not be repeated, like those that were generated.
    """


FREE = Constraints()
"""No constraint at all."""


OF_SENTENCES = ("min_lengths", "required", "prefixes", "before")
"""Constraints that each sentence has of its own."""


def select_sentences(
    constraints: Constraints, sentences: Int[Array, " B2"]
) -> Constraints:
    """Return the constraints of some of the sentences."""
    own = {name: getattr(constraints, name) for name in OF_SENTENCES}
    return constraints._replace(**jax.tree.map(lambda values: values[sentences], own))


def constrain(
    constraints: Constraints,
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    eos_id: int,
    ends: Bool[Array, " N"] | None = None,
) -> Float[Array, "N V"]:
    """Apply all constraints: the penalty, then forbidden tokens, then prefixes.

    Args:
        constraints: of the search.
        log_probabilities: of the next token.
        tokens: generated so far, see the module.
        position: how many were generated.
        eos_id: ends a hypothesis.
        ends: rows whose end is forced: only required phrases and prefixes prevent it.

    Raises:
        ValueError: a constraint for each sentence does not divide the rows.
    """
    rows = tokens.shape[0]
    found = log_probabilities
    seen = tokens, position
    if constraints.before is not None:
        prompt = repeat_rows(constraints.before, rows)
        whole = jnp.concatenate([tokens[:, :1], prompt, tokens[:, 1:]], axis=1)
        seen = whole, position + prompt.shape[1]
    if constraints.repetition_penalty is not None:
        found = penalise_repetition(found, *seen, constraints.repetition_penalty)
    if constraints.min_lengths is not None:
        short = position + 1 < repeat_rows(constraints.min_lengths, rows)
        found = _forbid_end(found, short, eos_id)
    if constraints.banned_tokens is not None:
        found = jnp.where(constraints.banned_tokens[None], -jnp.inf, found)
    if constraints.banned_phrases is not None:
        found = ban_phrases(found, tokens, position, constraints.banned_phrases)
    if constraints.no_repeat_ngram is not None:
        found = ban_repeated_ngrams(found, *seen, constraints.no_repeat_ngram)
    if ends is not None:
        found = jnp.where(ends[:, None], log_probabilities, found)
    if constraints.required is not None:
        found = require_phrases(
            found, tokens, position, repeat_rows(constraints.required, rows), eos_id
        )
    if constraints.prefixes is not None:
        found = force_prefixes(
            found,
            log_probabilities,
            tokens,
            position,
            repeat_rows(constraints.prefixes, rows),
        )
    return found


def penalise_repetition(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    penalty: Float[Array, ""],
) -> Float[Array, "N V"]:
    """Multiply the log-probabilities of tokens that were generated before (Keskar et
    al. 2019, section 4.1).

    The paper divides logits, which may have either sign. Log-probabilities are
    negative, so a penalty above 1 always lowers them. They stay at most 0, as the stop
    rule of beam search needs, and are not normalised again.
    """
    rows, places = jnp.arange(tokens.shape[0])[:, None], jnp.arange(tokens.shape[1])
    places = places[None]
    generated = (places >= 1) & (places <= position) & (tokens >= 0)
    nothing = jnp.zeros(log_probabilities.shape, bool)
    seen = nothing.at[rows, tokens].max(generated, mode="drop")
    return jnp.where(seen, log_probabilities * penalty, log_probabilities)


def ban_phrases(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    phrases: Int[Array, "P L"],
) -> Float[Array, "N V"]:
    """Forbid the last token of each phrase after its other tokens; a row of only -1
    forbids nothing.
    """
    window = latest_tokens(tokens, position, phrases.shape[1] - 1)
    begun = phrases[None, :, :-1]
    matches = jnp.all((begun == _ANY) | (begun == window[:, None, :]), axis=2)
    return _forbid(
        log_probabilities,
        jnp.broadcast_to(phrases[None, :, -1], matches.shape),
        matches,
    )


def ban_repeated_ngrams(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    n: Int[Array, ""],
) -> Float[Array, "N V"]:
    """Forbid tokens that would repeat an n-gram (Paulus et al. 2018, section 2.5).

    n is traced, so all n share one compiled search; the loop over it is cheap compared
    with a step of a model.
    """
    places = jnp.arange(tokens.shape[1])[None]

    def compare(
        back: Int[Array, ""], matches: Bool[Array, "N 1+T"]
    ) -> Bool[Array, "N 1+T"]:
        latest = lax.dynamic_index_in_dim(tokens, position - back, axis=1)
        return matches & (jnp.roll(tokens, back, axis=1) == latest)

    # True at the last of n - 1 tokens that equal the latest n - 1 tokens.
    whole = jnp.ones_like(tokens, bool) & (places >= n - 1) & (places < position)
    # A larger n than there are tokens matches nothing.
    matches = lax.fori_loop(0, jnp.minimum(n - 1, tokens.shape[1]), compare, whole)
    return _forbid(log_probabilities, jnp.roll(tokens, -1, axis=1), matches)


def require_phrases(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    phrases: Int[Array, "N C L"],
    eos_id: int,
) -> Float[Array, "N V"]:
    """Forbid the end of sentence until every phrase is satisfied (Post and Vilar 2018,
    section 3).
    """
    waits = ~jnp.all(satisfied_phrases(tokens, position, phrases), axis=1)
    return _forbid_end(log_probabilities, waits, eos_id)


def force_prefixes(
    log_probabilities: Float[Array, "N V"],
    natural: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    prefixes: Int[Array, "N A L"],
) -> Float[Array, "N V"]:
    """Allow only the next tokens of the prefixes that agree with the tokens so far.

    These tokens get their values in ``natural``, before all constraints. Where an
    agreeing prefix allows any token, the other tokens keep their values.
    """
    prefixes = prefixes[:, :, : tokens.shape[1] - 1]
    came = tokens[:, None, 1 : 1 + prefixes.shape[2]]
    places = jnp.arange(prefixes.shape[2])[None, None]
    agrees = jnp.all(
        (prefixes == _ANY) | (prefixes == came) | (places >= position), axis=2
    )
    following = jnp.take(prefixes, position, axis=2, mode="fill", fill_value=_ANY)
    is_free = jnp.any(agrees & (following == _ANY), axis=1, keepdims=True)
    rows, vocabulary = jnp.arange(natural.shape[0])[:, None], natural.shape[1]
    forced = jnp.where(agrees & (following != _ANY), following, vocabulary)
    is_forced = jnp.zeros(natural.shape, bool).at[rows, forced].set(True, mode="drop")
    return jnp.where(
        is_forced, natural, jnp.where(is_free, log_probabilities, -jnp.inf)
    )


def _forbid_end(
    log_probabilities: Float[Array, "N V"], where: Bool[Array, " N"], eos_id: int
) -> Float[Array, "N V"]:
    ends = jnp.arange(log_probabilities.shape[1])[None] == eos_id
    return jnp.where(ends & where[:, None], -jnp.inf, log_probabilities)


def _forbid(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N M"],
    where: Bool[Array, "N M"],
) -> Float[Array, "N V"]:
    """Set some tokens of each row to minus infinity; negative ones are ignored."""
    rows, vocabulary = jnp.arange(tokens.shape[0])[:, None], log_probabilities.shape[1]
    limits = jnp.where(where, -jnp.inf, jnp.inf).astype(log_probabilities.dtype)
    places = jnp.where(tokens < 0, vocabulary, tokens)
    return log_probabilities.at[rows, places].min(limits, mode="drop")


def repeat_rows(values: Array, rows: int) -> Array:
    """Repeat the values of each sentence for its rows.

    Raises:
        ValueError: the sentences do not divide the rows.
    """
    sentences = values.shape[0]
    if sentences == 0 or rows % sentences:
        raise ValueError(
            f"a constraint of {sentences} sentences does not fit the {rows} rows of the"
            " search"
        )
    return jnp.repeat(values, rows // sentences, axis=0)
