"""The bytes of a training state, by arithmetic."""

from __future__ import annotations

import jax
import pytest

from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.memory import StateMemory, abstract_mesh, count_bytes


def count(model: TransformerConfig, devices: int = 1, **changes) -> StateMemory:
    config = TrainingConfig(**{"engine": "jit" if devices == 1 else "mesh", **changes})
    return count_bytes(model, config, abstract_mesh(config.engine, devices, config))


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("pmap", {"optimizer": "adafactor", "ema_decay": 0.9}),
        ("mesh", {"mesh_fsdp": 2, "mesh_tensor": 2, "shard_moments": True}),
        (
            "mesh",
            {"mesh_fsdp": 2, "mesh_tensor": 2, "initial_run": "any"}
            | {"lora_rank": 2, "ema_decay": 0.9},
        ),
    ],
)
def test_the_state_is_counted_as_it_lies(engine, changes, make_model, make_training):
    """Bytes of parameters, those of a base too, of moments and of the average are those
    that the first device really holds.
    """
    model = make_model()
    made, state = make_training(model, engine, **changes)
    config = TrainingConfig(engine=engine, warmup_steps=300, **changes)
    mesh = abstract_mesh(engine, made.devices, config)
    found = count_bytes(model.config, config, mesh)
    device = jax.devices()[0]

    def held(tree) -> int:
        shards = [
            shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards
        ]
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    assert found.parameters == held(state.params) + held(state.base)
    assert found.optimizer == held(state.optimizer)
    assert found.average == held(state.average)
