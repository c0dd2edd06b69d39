"""The state of a run that begins: the same bits from the same seed, however it is
compiled.
"""

import jax
import numpy as np
import pytest

from jaxformer.runs.training import TrainingConfig
from jaxformer.training.state import create_state


@pytest.mark.parametrize(
    "changes",
    [{}, {"scan_layers": True}, {"tied_embeddings": "none", "positions": "learned"}],
    ids=str,
)
def test_the_state_is_the_same_within_a_compiled_function(make_model, changes):
    """Engines of one device draw each shape by a program of its own, and engines of
    many all in one: the same bits.
    """
    # Widths of this test alone: a process keeps its programs, and other tests compile
    # theirs with less optimisation.
    model = make_model(d_model=28, d_ff=44, **changes)
    alone, compiled = (
        create_state(model, TrainingConfig()),
        jax.jit(lambda: create_state(model, TrainingConfig()))(),
    )
    jax.tree.map(np.testing.assert_array_equal, alone, compiled)


def test_the_state_is_made_from_the_seed_alone(make_model):
    """The same seed gives the same bits, another one other parameters and another
    key of dropout.
    """
    model = make_model()
    first, again, other = (
        create_state(model, TrainingConfig(seed=seed)) for seed in (0, 0, 1)
    )
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first.key, other.key)
    tables = [state.params["embedding"]["table"] for state in (first, other)]
    assert not np.array_equal(*tables)
