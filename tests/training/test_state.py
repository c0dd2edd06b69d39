"""The state of a run that begins: the same bits from the same seed, however it is
compiled.
"""

import jax
import pytest
from training.little import assert_trees_equal

from jaxformer.models import stack_layers
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.state import create_state


@pytest.mark.parametrize(
    "changes",
    [{"tied_embeddings": "none", "positions": "learned"}, {"scan_layers": True}],
    ids=str,
)
def test_the_state_is_the_same_within_a_compiled_function(make_model, changes):
    """Engines of one device draw each shape by a program of its own, and engines of
    many all in one: the same bits. Scanned layers begin as looped ones.
    """
    # Widths of this test only: a process keeps its programs, and other tests compile
    # theirs with less optimisation.
    model, config = make_model(d_model=28, d_ff=44, **changes), TrainingConfig()
    found = create_state(model, config)
    assert_trees_equal(found, jax.jit(lambda: create_state(model, config))())
    if "scan_layers" in changes:
        looped = create_state(make_model(d_model=28, d_ff=44), config).params
        assert_trees_equal(found.params, stack_layers(looped))
