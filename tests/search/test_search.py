"""Beam and greedy search with all options, against plain lists."""

import dataclasses
import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from search.search_batches import STEADY, batches
from search.search_oracle import (
    EOS,
    IDS,
    LENGTH,
    NONE,
    SENTENCES,
    Batch,
    assert_same,
    compiled,
    exhaustive_best,
    hypotheses,
    prepare,
    random_attention,
    random_tables,
    reference_beam,
    reference_greedy,
    step,
)

from jaxformer.errors import InputError
from jaxformer.search import beam, scoring, single
from jaxformer.search.beam import beam_search
from jaxformer.search.candidates import largest
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import Sampling, SearchRules
from jaxformer.search.single import greedy_search, sample_search
from jaxformer.translation import batch as batch_search

PLAIN = {"beam_size": 5, "n_best": 5}
FULL = {"beam_size": 4, "n_best": 4, "groups": 2}
ASKING = {"ngram": 2, "penalty": 1.5, "required": [(3, 4)], "min_length": 3}
ASKING = NONE | ASKING | {"banned": (6,), "prefixes": [(-1, 5), (4,)]}


def full_batch(seed, ends=-1.0, **changes):
    """Return a batch with every option; its last sentence has no rules of its own."""
    shared = NONE | {name: ASKING[name] for name in ("ngram", "penalty", "banned")}
    rules = [ASKING, ASKING | {"required": [(4,), (5, 5)]}, ASKING, shared]
    batch = Batch(random_tables(seed, ends), (LENGTH, 4, 5, LENGTH), rules=rules)
    changes = {"attention": random_attention(seed), "beta": 0.5} | changes
    return batch._replace(**changes)


@pytest.mark.parametrize(
    ("plain", "penalty", "beam_size", "n_best", "groups"),
    [
        (True, "none", 1, 1, 1),
        (True, "gnmt", 5, 5, 1),
        (True, "average", 5, 1, 1),
        (False, "gnmt", 4, 4, 2),
        (False, "average", 3, 3, 1),
        (False, "none", 3, 1, 1),
        (False, "gnmt", 3, 1, 3),
    ],
)
@STEADY
@given(data=st.data(), diversity=st.sampled_from([0.0, 0.3, 1.0, 100.0]))
def test_beam_search_equals_plain_lists(
    plain, penalty, beam_size, n_best, groups, data, diversity
):
    """Tokens, scores, log-probabilities and flags are those of a search that never
    stops early, for every combination of options.

    So the stop rule is sound for every penalty and either sign of alpha, with coverage,
    groups and banks. Limits are each sentence's own, the cache follows its hypothesis,
    and a dead end leaves an empty result.
    """
    batch = data.draw(batches(plain=plain, penalty=penalty))
    options = {"beam_size": beam_size, "n_best": n_best, "groups": groups}
    result = batch.search(diversity=diversity, **options)
    assert result.scores.dtype == result.log_probabilities.dtype == jnp.float32
    assert result.iterations <= min(max(batch.limits), LENGTH)
    for index in range(SENTENCES):
        sentence = batch.sentence(index)
        # the strength is rounded to float32 as in the search
        exact = float(np.float32(diversity))
        expected = reference_beam(sentence, beam_size, groups, exact)[:n_best]
        assert_same(hypotheses(result, index), expected)
        for place, each in enumerate(expected):
            found = result.token_log_probabilities[index, place, : len(each.tokens)]
            exact = sentence.log_probabilities(each.tokens)
            np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("plain", [True, False])
@STEADY
@given(data=st.data())
def test_greedy_search_follows_the_largest_value(plain, data):
    """The choice ignores the penalties of the score; a beam of 1 with alpha 0 returns
    the same fields.
    """
    batch = data.draw(batches(plain=plain))
    if not plain:
        rules = [rule | {"required": ()} for rule in batch.rules]
        batch = batch._replace(rules=rules)
    result = batch.search("greedy")
    for index in range(SENTENCES):
        assert_same(hypotheses(result, index), reference_greedy(batch.sentence(index)))
    if plain:
        plain_scores = batch._replace(alpha=0.0, penalty="none")
        one = plain_scores.search()
        for name, found, other in zip(
            one._fields,
            plain_scores._replace(penalty="gnmt").search("greedy"),
            one,
            strict=True,
        ):
            np.testing.assert_allclose(found, other, rtol=1e-6, err_msg=name)


@STEADY
@given(data=st.data(), diversity=st.sampled_from([0.0, 0.7, 5.0]))
def test_wide_beams_find_what_exhaustive_search_finds(data, diversity):
    """Beams with room for all hypotheses find the best of all with every option, or
    nothing that ends.
    """
    # Two words and the end: 2^5 live hypotheses make 96 candidates at the last step.
    options = {"penalty": "average", "sentences": 1, "vocabulary": 5}
    batch = data.draw(batches(plain=False, **options))._replace(limits=(6,))
    beams = {"beam_size": 192, "groups": 2}
    found = hypotheses(batch.search(length=6, diversity=diversity, **beams), 0)
    finished = [each for each in found if each.finished]
    assert_same(finished, exhaustive_best(batch.sentence(0)))


def test_the_loop_stops_when_every_sentence_is_settled():
    """Easy sentences settle at once; one that cannot end runs to its own limit."""
    easy, hard = random_tables(51, 12.0), random_tables(53, -np.inf)
    for alpha in (-1.0, 0.6, 2.0):
        batch = Batch(easy, alpha=alpha, penalty="average")
        assert Batch(easy, alpha=alpha).search("greedy").iterations == 1
        result = batch.search(beam_size=5)
        assert result.iterations <= 3
        assert result.finished[:, 0].all()
    mixed = Batch(np.concatenate([easy[:3], hard[:1]]), (7, 7, 7, 5)).search(**PLAIN)
    assert mixed.iterations <= 5
    assert mixed.finished[:, 0].tolist() == [True, True, True, False]


def test_ties_and_impossible_tokens():
    """Ties go to the lower beam slot and token id. Logits of minus infinity make no
    NaN. NaN logits make the scores of their sentence NaN, and of no other.
    """
    tables = random_tables(42)
    tables[0] = 0.0
    tables[1, :, 3:] = -np.inf
    tables[2, :, 4:] = -np.inf
    batch = Batch(tables, (4, LENGTH, 2, LENGTH))
    beams, greedy = batch.search(**PLAIN), batch.search("greedy")
    for index in range(3):
        sentence = batch.sentence(index)
        assert_same(hypotheses(beams, index), reference_beam(sentence, 5))
        assert_same(hypotheses(greedy, index), reference_greedy(sentence))
    assert [each.tokens for each in hypotheses(beams, 1)] == [(EOS,)]
    assert not any(np.isnan(leaf).any() for leaf in (*beams, *greedy))
    tables[3] = np.nan
    for clean, broken in (
        (beams, batch.search(**PLAIN)),
        (greedy, batch.search("greedy")),
    ):
        assert np.isnan(broken.scores[3]).all()
        np.testing.assert_array_equal(broken.scores[:3], clean.scores[:3])


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_no_value_recompiles_and_steps_are_the_loop(kind):
    """One program serves all limits, strengths, constraints, temperatures and keys.

    Steps that take the rules as an argument, in a loop in Python, are traced once for
    every value and give the result of the compiled search.
    """
    options = {"beam": FULL, "greedy": {}, "sample": {"beam_size": 3, "n_best": 3}}[
        kind
    ]
    traces = []

    @jax.jit
    def advance(rules, state, keys):
        traces.append(rules)
        if kind == "beam":
            return beam.beam_step(rules, step, state)
        choose = single.most_probable
        if kind == "sample":
            choose = single.draw(rules.sampling, keys, 3)
        return single.row_step(rules, step, choose, state)

    init, finish, programs = single.row_init, single.row_finish, None
    if kind == "beam":
        init, finish = beam.beam_init, beam.beam_finish
    init, finish = jax.jit(init), jax.jit(finish)
    for seed in range(3):
        batch = full_batch(seed, beta=seed / 3, alpha=seed - 1.0)
        keys = jax.random.split(jax.random.key(seed), SENTENCES)
        rest = [np.float32(x / (1 + seed)) for x in (0.9, 0.2, 0.1)]
        sampling = Sampling(np.float32(1 + seed), np.int32(4 + seed), *rest)
        own = {"sampling": sampling} if kind == "sample" else {}
        drawn = own | ({"keys": keys} if kind == "sample" else {})
        expected = batch.search(kind, diversity=seed, **options, **drawn)
        programs = programs or compiled._cache_size()
        arrays, more = batch.options(kind)
        rules, cache = prepare(
            *arrays, diversity=np.float32(seed), **more, **options, **own
        )
        state = init(rules, cache)
        while not np.asarray(state.done).all():
            state = advance(rules, state, keys)
        found = finish(rules, state)
        for name, one, other in zip(expected._fields, found, expected, strict=True):
            exact = not name.endswith(("scores", "log_probabilities"))
            rtol = 0 if exact else 1e-6
            np.testing.assert_allclose(one, other, rtol=rtol, err_msg=name)
    assert compiled._cache_size() == programs
    assert len(traces) == 1
    jax.eval_shape(advance, dataclasses.replace(rules, penalty="none"), state, keys)
    assert len(traces) == 2


@pytest.mark.parametrize(("kind", "halvings"), [("beam", 1), ("greedy", 9)])
def test_halving_the_batch_changes_no_bit(kind, halvings):
    """Constraints, caches and results stay with their sentences as others leave."""
    options = FULL if kind == "beam" else {}
    for seed in range(3):
        batch = full_batch(seed, **({} if kind == "beam" else {"attention": None}))
        for index, ends in enumerate((-3.0, 4.0, 0.0, 2.0)):
            batch.tables[index, :, EOS] += ends
        whole = batch.search(kind, diversity=0.4, **options)
        halved = batch.search(kind, diversity=0.4, halvings=halvings, **options)
        jax.tree.map(np.testing.assert_array_equal, halved, whole)


def test_results_without_room_are_empty():
    """Limits and a length of 0 call no model."""
    for kind in ("beam", "greedy"):
        result = Batch(random_tables(1), (0, 1, 2, 3)).search(kind, length=0)
        assert result.iterations == 0
        assert hypotheses(result, 2) == [((), 0.0, 0.0, False)]


@pytest.mark.parametrize(("size", "count"), [(64, 2), (600, 4), (1087, 4)])
def test_the_largest_are_those_of_top_k(size, count):
    """Ranking by blocks gives values, indices and order of ties of ``lax.top_k``."""
    ranked = jax.jit(largest, static_argnums=1)
    for seed, kinds, lost in ((0, 1, 0), (1, 3, 0.5), (2, 50, 0.999), (3, 50, 0)):
        random = np.random.default_rng(seed)
        values = random.integers(0, kinds, (3, size)).astype(np.float32)
        values[random.random(values.shape) < lost] = -np.inf
        for one, other in zip(
            ranked(values, count), lax.top_k(values, count), strict=True
        ):
            np.testing.assert_array_equal(one, other)


KEYS = {"keys": np.zeros((3, 3))}
LENGTHS = Constraints(min_lengths=np.array([1, 1, 1]))
PHRASE = Constraints(required=np.zeros((1, 1, 1), np.int32))


@pytest.mark.parametrize(
    ("search", "changes", "cache", "line"),
    [
        (beam_search, {"n_best": 3}, None, "n_best must be from 1 to the beam size 2"),
        (beam_search, {"beam_size": 0}, None, "to the beam size 0, not 1"),
        (beam_search, {"groups": 3}, None, "groups must divide the beam size 2"),
        (beam_search, {"eos_id": 5}, None, "eos_id 5 is not in 0 to 4"),
        (beam_search, {}, KEYS, r"cache\['keys'\] .* the 4 rows or the 2 sentences"),
        (
            beam_search,
            {"constraints": LENGTHS},
            None,
            "of 3 sentences does not fit the",
        ),
        (greedy_search, {}, None, "greedy search has a beam_size of 1, not 2"),
        (greedy_search, {"beam_size": 1, "eos_id": 5}, None, "eos_id 5 is not in 0"),
        (greedy_search, {"beam_size": 1}, [np.zeros(4)], r"cache\[0\] has shape \(4,"),
        (
            greedy_search,
            {"beam_size": 1, "constraints": PHRASE},
            None,
            "need a beam sea",
        ),
        (sample_search, {"sampling": Sampling()}, None, "number of samples, not 2, 1"),
    ],
)
def test_a_fault_of_the_caller_is_named(search, changes, cache, line):
    given = {"max_lengths": np.array([3, 3]), "length": 3, "alpha": 0.6, "beam_size": 2}

    def run():
        zeros = lambda tokens, cache: (jnp.zeros((len(tokens), 5)), cache)  # noqa: E731
        keys = [None] if search is sample_search else []
        return search(zeros, cache, SearchRules(**given | IDS | changes), *keys)

    with pytest.raises(ValueError, match=line):
        jax.eval_shape(run)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda logits, _: logits, r"\(logits, cache\), not the shapes \(2, 5\)"),
        (lambda logits, cache: (logits[:1], cache), r"Float\[N V\], not .*\[1, 5\]"),
        (lambda logits, _: (logits, {}), r"a cache \{'x': \(2,\)\} and returns one \{"),
    ],
)
def test_a_step_that_returns_too_little_is_named(change, line):
    rules = SearchRules(bos_id=0, eos_id=EOS, beam_size=2)
    step = lambda _, cache: change(jnp.zeros((2, 5)), cache)  # noqa: E731
    with pytest.raises(InputError, match=line):
        jax.eval_shape(lambda: beam_search(step, {"x": np.zeros(2)}, rules))


def test_rules_need_only_their_special_tokens():
    """The rest is for one sentence of at most 100 tokens, and its padding the end."""
    rules, table = SearchRules(bos_id=2, eos_id=EOS), 99 * jnp.eye(5)[(1, 1, 3, 4, 1),]
    step, keys = lambda tokens, _: (table[tokens], _), jax.random.key(0)[None]
    for search, *more in ((greedy_search,), (beam_search,), (sample_search, keys)):
        found = search(step, None, rules, *more)
        assert found.tokens[0, 0].tolist() == [3, 4] + 98 * [EOS]


@pytest.mark.parametrize("module", [batch_search, beam, scoring])
def test_the_examples_in_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
