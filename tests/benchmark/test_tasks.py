"""Batches of the benchmark of training: real tokens are counted, and sorting leaves
the least padding.
"""

import numpy as np
import pytest

from jaxformer.data.store import Encoded, Sentences
from tasks import (
    EOS,
    PAD,
    TASKS,
    fixed_batches,
    load_pairs,
    padding,
    real_tokens,
    save_pairs,
    sorted_batches,
)


def draw(count, seed=0):
    rng = np.random.default_rng(seed)

    def side():
        return Sentences.from_lists(
            [rng.integers(4, 50, rng.integers(1, 30)).tolist() for _ in range(count)],
            PAD,
            last=EOS,
        )

    return Encoded(side(), side())


def test_fixed_batches_have_no_padding_and_an_end():
    """So every slot is a real token, and each batch another draw."""
    task = TASKS["tiny"]
    batches = fixed_batches(task, 3)
    assert padding(batches) == 0.0
    assert real_tokens(batches) == 3 * task.rows * task.length
    for batch in batches:
        assert (
            batch["source"].shape == batch["target"].shape == (task.rows, task.length)
        )
        assert (batch["target"][:, -1] == EOS).all()
    assert not np.array_equal(batches[0]["target"], batches[1]["target"])


@pytest.mark.parametrize("budget", [64, 200, 1000])
def test_sorted_batches_hold_each_pair_once_within_the_budget(budget):
    """No slot beyond the budget on either side, whatever the order, and little
    padding.
    """
    pairs = draw(200)
    batches = sorted_batches(pairs, budget)
    rows = [
        (tuple(source[source != PAD]), tuple(target[target != PAD]))
        for batch in batches
        for source, target in zip(batch["source"], batch["target"], strict=True)
    ]
    assert sorted(rows) == sorted(
        (tuple(pairs.source[i]), tuple(pairs.target[i])) for i in range(len(pairs))
    )
    assert all(
        max(batch["source"].shape[1], batch["target"].shape[1]) * len(batch["source"])
        <= budget
        for batch in batches
    )
    assert real_tokens(batches) == pairs.target_lengths.sum()
    assert padding(batches) < 0.35


def test_pairs_come_back_from_their_file(tmp_path):
    """For the processes that learn from them."""
    pairs = draw(7)
    save_pairs(tmp_path / "pairs.npz", pairs)
    assert load_pairs(tmp_path / "pairs.npz").hash == pairs.hash
