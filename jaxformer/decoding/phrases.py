"""Phrases that must come: which of them a hypothesis has, how much of the others, and what would go on with them.

A phrase is met where its tokens stand behind each other anywhere among those generated. Until then its progress counts
those of its first tokens that the hypothesis ends with. Nothing is carried from step to step: all is read from the
tokens. Phrases that overlap, or hold each other, may share tokens.

Phrases [N C L] have -1 behind their tokens; a row of -1 alone asks for nothing.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxformer.typing import Array, Bool, Int

_BEFORE = -2
"""What stands before the first token generated: it equals no token and no filler of a phrase."""


def phrase_lengths(phrases: Int[Array, "*B L"]) -> Int[Array, "*B"]:
    """Count the tokens of each phrase."""
    return jnp.sum(phrases >= 0, axis=-1, dtype=jnp.int32)


def met_phrases(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], phrases: Int[Array, "N C L"]
) -> Bool[Array, "N C"]:
    """Tell which phrases stand among the tokens at 1 to ``position``; a phrase without tokens stands everywhere."""
    stands = jnp.ones((*tokens.shape, phrases.shape[1]), bool)
    for offset in range(phrases.shape[2]):
        wanted = phrases[:, None, :, offset]
        stands &= (jnp.roll(tokens, -offset, axis=1)[:, :, None] == wanted) | (wanted < 0)
    places = jnp.arange(tokens.shape[1])[None, :, None]
    lengths = phrase_lengths(phrases)
    inside = (places >= 1) & (places + lengths[:, None, :] <= position + 1)
    return jnp.any(stands & inside, axis=1) | (lengths == 0)


def latest_tokens(tokens: Int[Array, "N 1+T"], position: Int[Array, ""], count: int) -> Int[Array, "N L"]:
    """Give the last tokens of those at 1 to ``position``; what comes before them equals no token of a phrase."""
    places = position + 1 - jnp.arange(count, 0, -1)
    return jnp.where(places >= 1, jnp.take(tokens, jnp.maximum(places, 0), axis=1), _BEFORE)


def phrase_progress(latest: Int[Array, "*B L"], phrases: Int[Array, "*B C L"]) -> Int[Array, "*B C"]:
    """Count how many of the first tokens of each phrase are the latest tokens; all of them where it is just met."""
    width = phrases.shape[-1]
    found = jnp.zeros(phrases.shape[:-1], jnp.int32)
    for count in range(1, width + 1):
        ends = jnp.all(latest[..., None, width - count :] == phrases[..., :count], axis=-1)
        found = jnp.where(ends, count, found)
    return found


def next_phrase_tokens(
    tokens: Int[Array, "N 1+T"], position: Int[Array, ""], phrases: Int[Array, "N C L"]
) -> Int[Array, "N C"]:
    """Give the token that goes on with each phrase; -1 where it is met."""
    progress = phrase_progress(latest_tokens(tokens, position, phrases.shape[2]), phrases)
    # A phrase that is complete here is met as well.
    place = jnp.minimum(progress, phrases.shape[2] - 1)
    following = jnp.take_along_axis(phrases, place[..., None], axis=-1)[..., 0]
    return jnp.where(met_phrases(tokens, position, phrases), -1, following)
