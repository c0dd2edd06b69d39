"""The slow reference of constraints: one history at a time, tokens in a dict; and
rules drawn at random.
"""

import math

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from search.search_oracle import (
    EOS,
    Hypothesis,
    allowed_tokens,
    holds,
    next_log_probabilities,
    score,
)

from jaxformer.search.constraints import Constraints

STATES, VOCABULARY, LENGTH = 4099, 7, 7
WORDS = [token for token in allowed_tokens(VOCABULARY) if token != EOS]
NONE = {
    "min_length": 0,
    "banned": (),
    "phrases": (),
    "ngram": 99,
    "penalty": 1.0,
    "required": (),
    "prefixes": (),
}


def reference_allow(
    history, natural, *, min_length, banned, phrases, ngram, penalty, required, prefixes
):
    """Map each token that may follow the history to its value; what may not come has
    minus infinity or is not there.
    """
    place = len(history)
    agree = [
        prefix
        for prefix in prefixes
        if all(a in (-1, b) for a, b in zip(prefix, history, strict=False))
    ]
    forced = {prefix[place] for prefix in agree if place < len(prefix)} - {-1}
    is_free = not prefixes or any(
        place >= len(prefix) or prefix[place] == -1 for prefix in agree
    )
    values = {
        token: value * penalty if token in history else value
        for token, value in natural.items()
    }
    seen = {
        tuple(history[start : start + ngram])
        for start in range(len(history) - ngram + 1)
    }
    for token in values:
        longer = (*history, token)
        if (
            not is_free
            or (token == EOS and len(longer) < min_length)
            or (token == EOS and not all(holds(history, phrase) for phrase in required))
            or token in banned
            or any(longer[-len(phrase) :] == phrase for phrase in phrases)
            or (len(longer) >= ngram and longer[-ngram:] in seen)
        ):
            values[token] = -math.inf
    return values | {token: natural.get(token, -math.inf) for token in forced}


def reference_greedy(table, limit, alpha, allow):
    """Follow the largest value until the end, the limit or a dead end."""
    history, total, value = (), 0.0, 0.0
    while len(history) < limit and history[-1:] != (EOS,):
        following = next_log_probabilities(table, history)
        natural = {
            token: float(following[token]) for token in allowed_tokens(table.shape[1])
        }
        allowed = allow(history, natural)
        token = max(sorted(allowed), key=lambda each: allowed[each])
        if allowed[token] == -math.inf:
            return []
        history, total, value = (
            (*history, token),
            total + natural[token],
            value + allowed[token],
        )
    return [
        Hypothesis(
            history, total, score(value, len(history), alpha), history[-1:] == (EOS,)
        )
    ]


def arrays(rules: list[dict], *, beam: bool = True) -> Constraints:
    """Write the rules of several sentences, which differ in minimum, required phrases
    and prefixes, as arrays of one shape.
    """
    phrases = np.full((4, 3), -1, np.int32)
    for row, phrase in enumerate(rules[0]["phrases"]):
        phrases[row, 3 - len(phrase) :] = phrase
    prefixes = np.full((len(rules), 3, 4), -1, np.int32)
    required = np.full((len(rules), 3, 3), -1, np.int32)
    for row, rule in enumerate(rules):
        given = rule["prefixes"] or [()]
        for place in range(3):
            prefix = given[min(place, len(given) - 1)]
            prefixes[row, place, : len(prefix)] = prefix
        for place, phrase in enumerate(rule["required"]):
            required[row, place, : len(phrase)] = phrase
    return Constraints(
        min_lengths=jnp.array([rule["min_length"] for rule in rules], jnp.int32),
        banned_tokens=jnp.asarray(np.isin(np.arange(VOCABULARY), rules[0]["banned"])),
        banned_phrases=jnp.asarray(phrases),
        no_repeat_ngram=jnp.int32(rules[0]["ngram"]),
        repetition_penalty=jnp.float32(rules[0]["penalty"]),
        required=jnp.asarray(required) if beam else None,
        prefixes=jnp.asarray(prefixes),
    )


words = st.sampled_from(WORDS)
one = {
    "min_length": st.integers(0, LENGTH + 1),
    "banned": st.lists(st.sampled_from([EOS, *WORDS]), max_size=3).map(tuple),
    "phrases": st.lists(
        st.lists(st.sampled_from([EOS, *WORDS]), min_size=1, max_size=3).map(tuple),
        max_size=4,
    ),
    "ngram": st.sampled_from([1, 2, 3, 99]),
    "penalty": st.sampled_from([0.5, 1.25, 3.0]),
    "required": st.lists(
        st.lists(words, min_size=1, max_size=3).map(tuple), max_size=3
    ),
    "prefixes": st.lists(
        st.lists(st.one_of(words, st.just(-1)), max_size=4).map(tuple), max_size=3
    ),
}


@st.composite
def together(draw):
    """Draw rules for two sentences, most of them asking for something."""
    shared = {name: draw(st.one_of(st.just(NONE[name]), one[name])) for name in NONE}
    other = {name: draw(one[name]) for name in ("min_length", "required", "prefixes")}
    return [shared, {**shared, **other}]
