"""What may come next: functions that take log-probabilities and give minus infinity to
what may not come.

Each works on the N rows of a search: ``log_probabilities`` [N V] of the next token,
``tokens`` [N 1+T] with the begin-of-sentence token and what follows, of which those at
1 to ``position`` are generated, and the constraint's own arrays. The others keep their
log-probabilities: nothing is normalised again. Only a repetition penalty changes
values.

All values are arrays, so that a compiled search serves every other value of the same
shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxformer.typing import Array, Bool, Float, Int

_BEFORE = -2
"""What stands before the first token generated: it equals no token and no filler of
a phrase.
"""


def phrase_lengths(phrases: Int[Array, "*B L"]) -> Int[Array, "*B"]:
    """Count the tokens of each phrase."""
    return jnp.sum(phrases >= 0, axis=-1, dtype=jnp.int32)


def met_phrases(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], phrases: Int[Array, "N C L"]
) -> Bool[Array, "N C"]:
    """Tell which phrases stand among the tokens at 1 to ``position``; a phrase
    without tokens stands everywhere.
    """
    stands = jnp.ones((*tokens.shape, phrases.shape[1]), bool)
    for offset in range(phrases.shape[2]):
        wanted = phrases[:, None, :, offset]
        stands &= (jnp.roll(tokens, -offset, axis=1)[:, :, None] == wanted) | (
            wanted < 0
        )
    places = jnp.arange(tokens.shape[1])[None, :, None]
    lengths = phrase_lengths(phrases)
    inside = (places >= 1) & (places + lengths[:, None, :] <= position + 1)
    return jnp.any(stands & inside, axis=1) | (lengths == 0)


def latest_tokens(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], count: int
) -> Int[Array, "N L"]:
    """Return the last tokens of those at 1 to ``position``; what comes before them
    equals no token of a phrase.
    """
    places = position + 1 - jnp.arange(count, 0, -1)
    return jnp.where(
        places >= 1, jnp.take(tokens, jnp.maximum(places, 0), axis=1), _BEFORE
    )


def phrase_progress(
    latest: Int[Array, "*B L"], phrases: Int[Array, "*B C L"]
) -> Int[Array, "*B C"]:
    """Count how many of the first tokens of each phrase are the latest tokens; all
    of them where it is just met.
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
    """Return the token that goes on with each phrase; -1 where it is met."""
    progress = phrase_progress(
        latest_tokens(tokens, position, phrases.shape[2]), phrases
    )
    # A phrase that is complete here is met as well.
    place = jnp.minimum(progress, phrases.shape[2] - 1)
    following = jnp.take_along_axis(phrases, place[..., None], axis=-1)[..., 0]
    return jnp.where(met_phrases(tokens, position, phrases), -1, following)


_ANY = -1


class Constraints(NamedTuple):
    """What the hypotheses of a search must keep to; None asks for nothing.

    A hypothesis that is left no token dies. Prefixes go before all else: their tokens
    come whatever forbids them.
    """

    min_lengths: Int[Array, " B"] | None = None
    """Least tokens of each sentence, the end-of-sentence token included."""
    banned_tokens: Bool[Array, " V"] | None = None
    """True at tokens that never come."""
    banned_phrases: Int[Array, "P L"] | None = None
    """Sequences of tokens that never come, each at the end of its row behind as many
    -1 as fill it.
    """
    no_repeat_ngram: Int[Array, ""] | None = None
    """n, at least 1: no n tokens come twice in the same order."""
    repetition_penalty: Float[Array, ""] | None = None
    """Above 0; multiplies the log-probabilities of tokens that came before: above 1
    they come less often.
    """
    required: Int[Array, "B C L"] | None = None
    """Sequences of tokens of each sentence that must come, in any order, before its
    hypotheses may end; each before as many -1 as fill it. Beam search alone meets them:
    it keeps places for hypotheses that have more of them.
    """
    prefixes: Int[Array, "B A L"] | None = None
    """Each hypothesis begins with one of A prefixes of its sentence; -1 leaves a place
    free, and so does the end of a prefix. A sentence with fewer than A of them repeats
    one; a prefix of -1 alone asks for nothing.
    """


FREE = Constraints()
"""No constraint at all."""


def of_sentences(constraints: Constraints, sentences: Int[Array, " B2"]) -> Constraints:
    """Return the constraints of some of the sentences; those that hold for all stay."""
    own = {
        name: values[sentences]
        for name, values in (
            ("min_lengths", constraints.min_lengths),
            ("required", constraints.required),
            ("prefixes", constraints.prefixes),
        )
        if values is not None
    }
    return constraints._replace(**own)


def constrain(
    constraints: Constraints,
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    eos_id: int,
) -> Float[Array, "N V"]:
    """Apply all constraints: penalty, then what is forbidden, then what is forced.

    Raises:
        ValueError: a constraint for each sentence does not divide the rows.
    """
    rows = tokens.shape[0]
    found = log_probabilities
    if constraints.repetition_penalty is not None:
        found = penalise_repetition(
            found, tokens, position, constraints.repetition_penalty
        )
    if constraints.min_lengths is not None:
        found = keep_minimum_length(
            found, position, of_rows(constraints.min_lengths, rows), eos_id
        )
    if constraints.banned_tokens is not None:
        found = ban_tokens(found, constraints.banned_tokens)
    if constraints.banned_phrases is not None:
        found = ban_phrases(found, tokens, position, constraints.banned_phrases)
    if constraints.no_repeat_ngram is not None:
        found = ban_repeated_ngrams(
            found, tokens, position, constraints.no_repeat_ngram
        )
    if constraints.required is not None:
        found = require_phrases(
            found, tokens, position, of_rows(constraints.required, rows), eos_id
        )
    if constraints.prefixes is not None:
        found = force_prefixes(
            found,
            log_probabilities,
            tokens,
            position,
            of_rows(constraints.prefixes, rows),
        )
    return found


def penalise_repetition(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    penalty: Float[Array, ""],
) -> Float[Array, "N V"]:
    """Multiply the log-probabilities of tokens that came before (Keskar et al. 2019,
    section 4.1).

    The paper divides logits, which have no sign; log-probabilities have one, so that a
    penalty above 1 always lowers them. They stay at most 0, as the stop rule of beam
    search needs it, and they are not normalised again.
    """
    rows = jnp.arange(tokens.shape[0])[:, None]
    seen = (
        jnp.zeros(log_probabilities.shape, bool)
        .at[rows, tokens]
        .max(_generated(tokens, position), mode="drop")
    )
    return jnp.where(seen, log_probabilities * penalty, log_probabilities)


def keep_minimum_length(
    log_probabilities: Float[Array, "N V"],
    position: Int[Array, ""],
    min_lengths: Int[Array, " N"],
    eos_id: int,
) -> Float[Array, "N V"]:
    """Forbid the end of sentence where a hypothesis would have too few tokens with
    it.
    """
    ends = jnp.arange(log_probabilities.shape[1])[None, :] == eos_id
    return jnp.where(
        ends & (position + 1 < min_lengths)[:, None], -jnp.inf, log_probabilities
    )


def ban_tokens(
    log_probabilities: Float[Array, "N V"], banned: Bool[Array, " V"]
) -> Float[Array, "N V"]:
    """Forbid tokens everywhere."""
    return jnp.where(banned[None, :], -jnp.inf, log_probabilities)


def ban_phrases(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    phrases: Int[Array, "P L"],
) -> Float[Array, "N V"]:
    """Forbid the last token of each phrase where the others have just come; a row of
    -1 alone forbids nothing.
    """
    # What comes before the first token generated equals no token of a phrase.
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
    """Forbid what would complete n tokens that came before in the same order (Paulus et
    al. 2018, section 2.5).

    n is traced, so that all n share one compiled search; the loop over it costs little
    beside a step of a model.
    """
    places = jnp.arange(tokens.shape[1])[None, :]

    def compare(
        back: Int[Array, ""], matches: Bool[Array, "N 1+T"]
    ) -> Bool[Array, "N 1+T"]:
        latest = lax.dynamic_index_in_dim(tokens, position - back, axis=1)
        return matches & (jnp.roll(tokens, back, axis=1) == latest)

    # True at the last of n - 1 tokens that are the latest n - 1 and come before them.
    whole = jnp.broadcast_to((places >= n - 1) & (places < position), tokens.shape)
    # No place has more tokens before it than there are: a larger n ends here at once.
    matches = lax.fori_loop(0, jnp.minimum(n - 1, tokens.shape[1]), compare, whole)
    return _forbid(log_probabilities, jnp.roll(tokens, -1, axis=1), matches)


def require_phrases(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    phrases: Int[Array, "N C L"],
    eos_id: int,
) -> Float[Array, "N V"]:
    """Forbid the end of sentence until every phrase has come (Post and Vilar 2018,
    section 3).
    """
    waits = ~jnp.all(met_phrases(tokens, position, phrases), axis=1)
    ends = jnp.arange(log_probabilities.shape[1])[None, :] == eos_id
    return jnp.where(ends & waits[:, None], -jnp.inf, log_probabilities)


def force_prefixes(
    log_probabilities: Float[Array, "N V"],
    natural: Float[Array, "N V"],
    tokens: Int[Array, "N 1+T"],
    position: Int[Array, ""],
    prefixes: Int[Array, "N A L"],
) -> Float[Array, "N V"]:
    """Forbid all but the next tokens of the prefixes that agree with what has come, a
    trie of them.

    These tokens get their values in ``natural``, where no constraint has changed them.
    Where a prefix that agrees leaves the place free, the other tokens keep theirs.
    """
    prefixes = prefixes[:, :, : tokens.shape[1] - 1]
    came = tokens[:, None, 1 : 1 + prefixes.shape[2]]
    places = jnp.arange(prefixes.shape[2])[None, None, :]
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


def _generated(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""]
) -> Bool[Array, "N 1+T"]:
    places = jnp.arange(tokens.shape[1])[None, :]
    return jnp.broadcast_to((places >= 1) & (places <= position), tokens.shape)


def _forbid(
    log_probabilities: Float[Array, "N V"],
    tokens: Int[Array, "N M"],
    where: Bool[Array, "N M"],
) -> Float[Array, "N V"]:
    """Give minus infinity to some tokens of each row; a negative one is none."""
    rows, vocabulary = jnp.arange(tokens.shape[0])[:, None], log_probabilities.shape[1]
    limits = jnp.where(where, -jnp.inf, jnp.inf).astype(log_probabilities.dtype)
    places = jnp.where(tokens < 0, vocabulary, tokens)
    return log_probabilities.at[rows, places].min(limits, mode="drop")


def of_rows(values: Array, rows: int) -> Array:
    """Give each row what its sentence has.

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
