"""The training step under ``jax.shard_map`` with its default check, and under ``pmap``,
against one device.
"""

import jax
import pytest
from jax.sharding import AxisType, PartitionSpec
from training.little import assert_trees_close, without_key_biases

from jaxformer.models.make import make_model as make
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import batch_losses
from jaxformer.training.state import create_state
from jaxformer.training.step import make_eval_step, make_train_step

AXIS, REPLICATED, ROWS = "rows", PartitionSpec(), PartitionSpec("rows")
CLIPPED = {"gradient_clip": 1e-2, "ema_decay": 0.9, "accumulation_steps": 2}
ADAFACTOR = {"optimizer": "adafactor", "frozen": "encoder/*", "gradient_clip": 1e-2}
HALF = {"dtype": "bfloat16", "norm_order": "pre"}
SCANNED = {"scan_layers": True, "rematerialization": "dots", "position_bias": "alibi"}
RECURRENT = {"d_ff": 2048, "num_heads": 8}  # which they do not have
LENGTHS = [6, 2, 9, 5, 0, 3, 3, 1, 7]


@pytest.mark.parametrize(
    ("devices", "model", "training", "chunks"),
    [
        (8, {}, CLIPPED, False),
        (8, SCANNED, ADAFACTOR, False),
        (4, HALF, {"accumulation_steps": 2, "r_drop": 1.0}, False),
        (8, HALF, {"z_loss": 1e-2, "gradient_clip": 1e-2}, True),
        (4, RECURRENT | {"network": "bahdanau"}, {}, True),
        (8, RECURRENT | {"network": "luong", "dtype": "bfloat16"}, {}, False),
        (4, RECURRENT | {"network": "cho"}, {}, False),
    ],
)
@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
def test_devices_make_the_step_of_one(
    make_model, make_batch, monkeypatch, devices, model, training, chunks
):
    """Metrics, the norm of the gradient among them, parameters, moments and the sums of
    an evaluation are those of one device, with fewer tokens on some devices and none on
    others.
    """
    if chunks:
        monkeypatch.setattr(batch_losses, "MOST_LOGIT_BYTES", 0)
    model = make(make_model(**model).config)
    config = TrainingConfig(warmup_steps=3, adam_epsilon=1e-3, **training)
    state, batch = create_state(model, config), make_batch(0, LENGTHS)

    def both(axis):
        train, evaluate = (
            build(model, config, axis_name=axis)
            for build in (make_train_step, make_eval_step)
        )
        return lambda state, batch: (train(state, batch), evaluate(state.params, batch))

    expected = compare(jax.jit(both(None))(state, batch))
    mesh = jax.make_mesh(
        (devices,), (AXIS,), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    mapped = jax.shard_map(
        both(AXIS), mesh=mesh, in_specs=(REPLICATED, ROWS), out_specs=REPLICATED
    )
    exact = model.config.dtype == "float32"
    near = {"rtol": 2e-5, "atol": 2e-6} if exact else {"rtol": 3e-2, "atol": 3e-3}
    assert_trees_close(compare(jax.jit(mapped)(state, batch)), expected, **near)
    if devices == 8 and not chunks:
        rows = {name: each.reshape(8, 2, -1) for name, each in batch.items()}
        run = jax.pmap(both(AXIS), AXIS, in_axes=(None, 0), out_axes=None)
        assert_trees_close(compare(run(state, rows)), expected, **near)


def compare(found):
    """Return what is to be equal: all but random bits and what no softmax sees."""
    (state, metrics), sums = found
    parts = without_key_biases((state.params, state.optimizer, state.average))
    return jax.device_get((parts, metrics, sums))
