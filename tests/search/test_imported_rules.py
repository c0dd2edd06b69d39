"""The rules of a search that imported models have, against plain lists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.search_batches import STEADY, batches
from search.search_oracle import (
    BOS,
    EOS,
    LENGTH,
    NONE,
    SENTENCES,
    Batch,
    hypotheses,
    random_tables,
)

WIDTH = 3


def reference(sentence, early_stopping, *, renormalize, end_at_limit):
    """Search with a beam; return the best as tokens, score and whether they ended.

    Of the first continuations those that end or reach the limit are kept, by score.
    """
    live, kept = [((), 0.0)], []
    for place in range(sentence.limit):
        last, grown = place + 1 == sentence.limit, []
        for history, value in live:
            values = {k: v for k, v in sentence.allowed(history).items() if v > -np.inf}
            if last and end_at_limit:
                values = {EOS: 0.0}
            total = math.log(sum(map(math.exp, values.values())) or 1.0)
            total = total if renormalize else 0.0
            grown += [
                ((*history, token), value + added - total)
                for token, added in sorted(values.items())
            ]
        grown.sort(key=lambda each: -each[1])
        done = [each for each in grown[:WIDTH] if last or each[0][-1] == EOS]
        kept += [(tokens, sentence.score(tokens, value)) for tokens, value in done]
        kept = sorted(kept, key=lambda each: -each[1])[:WIDTH]
        live = [each for each in grown if each[0][-1] != EOS][:WIDTH]
        if len(kept) == WIDTH and early_stopping == "full":
            break
        if len(kept) == WIDTH and live and early_stopping == "length":
            tokens, value = live[0]
            if kept[-1][1] >= sentence.score(tokens, value):
                break
    return [(tokens, score, tokens[-1] == EOS) for tokens, score in kept]


@pytest.mark.parametrize(
    ("early_stopping", "renormalize", "end_at_limit"),
    [
        ("never", False, False),
        ("length", True, True),
        ("full", False, True),
        ("full", True, False),
        ("length", False, False),
    ],
)
@STEADY
@given(data=st.data())
def test_the_search_equals_plain_lists(early_stopping, renormalize, end_at_limit, data):
    """For each rule of stopping, with and without a forced end and normalised
    probabilities, constraints and limits.
    """
    batch = data.draw(batches(plain=data.draw(st.booleans()), penalty="average"))
    batch = batch._replace(attention=None)
    if batch.rules:
        others = {"required": (), "prefixes": ()} if end_at_limit else {"required": ()}
        batch = batch._replace(rules=[rule | others for rule in batch.rules])
    options = {"renormalize": renormalize, "end_at_limit": end_at_limit}
    for n_best in (1, WIDTH):
        found = batch.search(
            beam_size=WIDTH,
            n_best=n_best,
            early_stopping=early_stopping,
            rank_unfinished=True,
            **options,
        )
        for index in range(SENTENCES):
            if batch.limits[index] == 0:
                continue
            expected = reference(batch.sentence(index), early_stopping, **options)
            expected = expected[:n_best]
            count = len(expected)
            assert np.isneginf(found.scores[index, count:]).all()
            lengths = found.lengths[index, :count]
            tokens = found.tokens[index, :count]
            rows = zip(tokens, lengths, strict=True)
            assert [tuple(ids[:length].tolist()) for ids, length in rows] == [
                each[0] for each in expected
            ]
            assert found.finished[index, :count].tolist() == [
                each[2] for each in expected
            ]
            scores = [each[1] for each in expected]
            np.testing.assert_allclose(
                found.scores[index, :count], scores, rtol=2e-6, atol=2e-6
            )


def test_early_stopping_saves_steps():
    batch = Batch(random_tables(2, 3.0), alpha=2.0, penalty="average")
    steps = {
        rule: int(batch.search(beam_size=WIDTH, early_stopping=rule).iterations)
        for rule in ("never", "length", "full")
    }
    assert steps["never"] > steps["length"] > steps["full"]


def test_a_ban_may_begin_with_the_first_input():
    """So it is one of a first token; the forced end is not banned."""
    tables = random_tables(5, -20.0)
    free = Batch(tables).search("greedy", end_at_limit=True)
    first, second = free.tokens[:, 0, 0], free.tokens[:, 0, LENGTH - 2]
    phrases = [(BOS, int(first[0])), (int(second[0]), EOS)]
    rules = [NONE | {"phrases": phrases}] * SENTENCES
    found = Batch(tables, rules=rules).search("greedy", end_at_limit=True)
    assert (found.tokens[:, 0, 0] != first[0]).all()
    assert (first[0] == found.tokens[:, 0]).any()
    assert found.finished.all()
    one = Batch(tables, rules=[NONE | {"phrases": phrases[1:]}] * SENTENCES)
    found = one.search("greedy", end_at_limit=True)
    np.testing.assert_array_equal(found.tokens, free.tokens)
    assert len(hypotheses(found, 0)[0].tokens) == LENGTH
