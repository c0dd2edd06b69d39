"""Batches for a search, drawn by Hypothesis: sentences, and what is asked of each."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from search.search_oracle import (
    EOS,
    LENGTH,
    NONE,
    SENTENCES,
    VOCABULARY,
    WORDS,
    Batch,
    random_attention,
    random_tables,
)

STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow],
)

_words = st.sampled_from(WORDS)


def _phrases(elements, least, most, count):
    phrase = st.lists(elements, min_size=least, max_size=most).map(tuple)
    return st.lists(phrase, max_size=count)


def rule_values(words=_words):
    ends = st.one_of(st.just(EOS), words)
    return {
        "min_length": st.integers(0, LENGTH + 1),
        "banned": st.lists(ends, max_size=2).map(tuple),
        "phrases": _phrases(ends, 1, 3, 4),
        "ngram": st.sampled_from([1, 2, 3]),
        "penalty": st.sampled_from([0.5, 1.25, 3.0]),
        "required": _phrases(words, 1, 3, 3),
        "prefixes": _phrases(st.one_of(words, st.just(-1)), 0, 4, 3),
    }


@st.composite
def batches(draw, *, plain, penalty="gnmt", sentences=SENTENCES, vocabulary=VOCABULARY):
    """Draw a batch; most sentences are asked for something."""
    seed = draw(st.integers(0, 10_000))
    ends = draw(st.sampled_from([-np.inf, -5.0, -2.0, 0.0, 1.0, 3.0]))
    alpha = draw(
        st.one_of(
            st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]), st.floats(-2, 3, width=32)
        )
    )
    limits = draw(st.tuples(*[st.integers(0, LENGTH + 1)] * sentences))
    tables = random_tables(seed, ends, sentences, vocabulary)
    if plain:
        return Batch(tables, limits, alpha, penalty)
    values = rule_values(st.sampled_from(range(3, vocabulary)))
    rules = [{n: draw(st.one_of(st.just(NONE[n]), each)) for n, each in values.items()}]
    for _ in range(sentences - 1):
        own = {n: draw(values[n]) for n in ("min_length", "required", "prefixes")}
        rules.append(rules[0] | own)
    beta = draw(st.sampled_from([0.0, 0.2, 1.0, 5.0]))
    attention = random_attention(seed, sentences)
    return Batch(tables, limits, alpha, penalty, rules, attention, beta)
