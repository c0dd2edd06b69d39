"""Batches of the benchmark of training."""

import numpy as np
import pytest

from jaxformer.data.store import Encoded, Sentences
from tasks import (
    EOS,
    PAD,
    TASKS,
    fixed_batches,
    padding,
    real_tokens,
    sorted_batches,
)


def draw(count):
    rng = np.random.default_rng(0)

    def side():
        texts = [
            rng.integers(4, 50, rng.integers(1, 30)).tolist() for _ in range(count)
        ]
        return Sentences.from_lists(texts, PAD, last=EOS)

    return Encoded(side(), side())


def test_fixed_batches_have_no_padding_and_an_end():
    """Every slot is a real token, and each batch another draw."""
    task = TASKS["tiny"]
    batches = fixed_batches(task, 3)
    assert padding(batches) == 0.0
    assert real_tokens(batches) == 3 * task.rows * task.length
    for batch in batches:
        assert batch["source"].shape == (task.rows, task.length)
        assert (batch["target"][:, -1] == EOS).all()
    assert not np.array_equal(batches[0]["target"], batches[1]["target"])


@pytest.mark.parametrize("budget", [64, 1000])
def test_sorted_batches_hold_each_pair_once_within_the_budget(budget):
    """There is little padding."""
    pairs = draw(200)
    batches = sorted_batches(pairs, budget)
    rows = [
        (tuple(source[source != PAD]), tuple(target[target != PAD]))
        for batch in batches
        for source, target in zip(batch["source"], batch["target"], strict=True)
    ]
    given = zip(map(tuple, pairs.source), map(tuple, pairs.target), strict=True)
    assert sorted(rows) == sorted(given)
    assert max(side.size for batch in batches for side in batch.values()) <= budget
    assert real_tokens(batches) == pairs.target_lengths.sum()
    assert padding(batches) < 0.35
