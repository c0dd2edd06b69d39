"""Packed rows train and evaluate as the same pairs do in rows of their own, on one
device and on eight.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from training.little import PAD, assert_trees_close, without_key_biases

from jaxformer.data.packing import RowShape, make_packed_batch, pack
from jaxformer.data.store import Encoded, Sentences
from jaxformer.training.engines import Engine

DEVICES = 8
# Eleven rows, which eight devices cannot share; and what a batch of single pairs has in
# the tests of the engines.
SHAPE = RowShape(14, 13, 11)
SIZES = [9, 1, 4, 4, 2, 7, 7, 1, 3, 8, 5, 6, 2, 2]


def packed(batch):
    """Pack the pairs of a batch."""
    kept = {
        side: [row[row != PAD].tolist() for row in rows if (row != PAD).any()]
        for side, rows in batch.items()
    }
    pairs = Encoded(
        *(Sentences.from_lists(kept[side], PAD) for side in ("source", "target"))
    )
    rows = pack(
        pairs.source.lengths, pairs.target.lengths, np.arange(len(pairs)), SHAPE
    )
    assert len(rows) < len(pairs)
    return make_packed_batch(pairs.take(rows.pairs), rows.sizes, SHAPE)


@pytest.mark.parametrize("engine", ["jit", "pmap"])
def test_packed_training_is_unpacked_training(
    make_model, make_training, make_batch, engine
):
    """Metrics, gradients and parameters of packed updates are those of the same pairs
    unpacked on one device, also where the devices do not share the rows equally.
    """
    model = make_model()
    one, one_state = make_training(model, "jit")
    other, other_state = make_training(model, engine)
    for step in range(3):
        batch = make_batch(step, SIZES)
        assert_trees_close(
            other.evaluate(other_state, packed(batch)),
            one.evaluate(one_state, batch),
            rtol=1e-5,
            atol=1e-5,
        )
        one_state, wanted = one.step(one_state, batch)
        other_state, metrics = other.step(other_state, packed(batch))
        assert float(metrics["tokens"]) == sum(SIZES)
        del metrics["slots"], wanted["slots"]
        assert_trees_close(metrics, wanted, rtol=1e-5)
        found, expected = other.collect(other_state), one.collect(one_state)
        # The first moment of the first update is a tenth of its gradient.
        assert_trees_close(
            found.optimizer[0].mu, expected.optimizer[0].mu, atol=1e-6, rtol=0
        )
        assert_trees_close(
            without_key_biases(found.params),
            without_key_biases(expected.params),
            atol=1e-5,
            rtol=0,
        )


def test_one_compilation_of_packed_rows(make_model, make_training, make_batch):
    """Whatever the pairs, packed batches have one shape and one compiled step."""
    engine, state = make_training(make_model(), "jit")
    state, _ = engine.step(state, packed(make_batch(0, SIZES)))
    before = engine.compilations()
    for seed in range(1, 4):
        lengths = (
            np.random.default_rng(seed).permutation(SIZES)[: 5 + 3 * seed].tolist()
        )
        state, _ = engine.step(state, packed(make_batch(seed, lengths)))
    assert engine.compilations() == before


def test_rows_that_fill_up_devices_have_no_segment():
    """They hold padding on both sides, and segment 0 whatever the id of padding."""
    batch = {
        name: np.ones((11, 5), np.int32)
        for name in ("source", "target", "source_segments", "target_segments")
    }
    for name, rows in Engine._fill(
        SimpleNamespace(pad_id=7), batch, 2 * DEVICES
    ).items():
        assert rows.shape == (16, 5)
        assert (rows[:11] == 1).all()
        assert (rows[11:] == (0 if name.endswith("segments") else 7)).all()
