"""The bytes of a training state, by arithmetic."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys

import jax
import pytest

from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.memory import StateMemory, abstract_mesh, count_bytes

LITTLE = TransformerConfig(
    vocabulary_size=64,
    d_model=16,
    d_ff=32,
    num_heads=4,
    num_encoder_layers=2,
    num_decoder_layers=2,
    max_length=16,
)


def count(
    model: TransformerConfig = LITTLE, devices: int = 1, **changes
) -> StateMemory:
    config = TrainingConfig(**{"engine": "jit" if devices == 1 else "mesh", **changes})
    return count_bytes(model, config, abstract_mesh(config.engine, devices, config))


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("pmap", {"optimizer": "lion", "ema_decay": 0.9}),
        ("mesh", {"mesh_tensor": 2, "optimizer": "adafactor"}),
        ("mesh", {"mesh_fsdp": 2, "mesh_tensor": 2, "shard_moments": True}),
    ],
)
def test_the_state_is_counted_as_it_lies(engine, changes, make_model, make_training):
    """Bytes of parameters, moments and average are those that the first device
    really holds.
    """
    # The vocabulary of 11 does not divide: such an axis stays whole.
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

    assert found.parameters == held(state.params)
    assert found.optimizer == held(state.optimizer)
    assert found.average == held(state.average)


def test_shares_of_the_paper_s_big_model():
    """214,245,376 parameters of 4 bytes; Adam's two moments and two counts; a
    sharded one is a part of it.
    """
    big = dataclasses.replace(
        TransformerConfig.big(vocabulary_size=37_000), scan_layers=True
    )
    whole = count(big)
    assert whole.parameters == whole.gradients == 4 * 214_245_376
    assert whole.optimizer == 2 * whole.parameters + 2 * 4
    part = count(big, devices=8, mesh_fsdp=4, mesh_tensor=2)
    assert whole.parameters / 8 <= part.parameters < 1.01 * whole.parameters / 8
    zero = count(big, devices=8, shard_moments=True)
    assert zero.parameters == whole.parameters
    assert whole.optimizer / 8 <= zero.optimizer < 1.01 * whole.optimizer / 8


def test_accumulation_keeps_a_sum_of_gradients():
    assert count(accumulation_steps=4).gradients == 2 * count().gradients


# A program of its own: the suite has eight virtual devices.
BILLION = """
import json
import jax
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.training.engines import make_engine
from jaxformer.runs.training import TrainingConfig

model = TransformerConfig(
    vocabulary_size=32_000, d_model=2048, d_ff=8192, num_heads=16,
    num_encoder_layers=8, num_decoder_layers=8, scan_layers=True,
    rematerialization="layer",
)
training = TrainingConfig(engine="mesh", mesh_fsdp=8, mesh_tensor=4, shard_moments=True)
engine = make_engine(Transformer(model), training)
state = engine.abstract()
compiled = engine.lower({"source": (64, 128), "target": (64, 128)}).compile()
memory = compiled.memory_analysis()
given, _ = compiled.input_shardings[0]

def cut(tree, shardings):
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return [(leaf.size, shards.shard_shape(leaf.shape)) for leaf, shards in leaves]

print(json.dumps({
    "parameters": count_parameters(state.params),
    "bytes": [memory.argument_size_in_bytes, memory.alias_size_in_bytes],
    "cut": [
        [cut(state.params, state_.params), cut(state.optimizer, state_.optimizer)]
        for state_ in (given, compiled.output_shardings[0])
    ],
    "live": sum(array.nbytes for array in jax.live_arrays()),
}))
"""


@pytest.mark.slow
def test_a_billion_parameters_on_64_devices():
    """A step of 10^9 parameters compiles for a mesh of 2 x 8 x 4 with parameters and
    moments in 32 and 64 parts.

    Not one parameter is made for it. Before and after the step every large array is in
    that many parts.
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=64"}
    flags["JAX_PLATFORMS"] = "cpu"
    script = [sys.executable, "-c", BILLION]
    made = subprocess.run(
        script, env=os.environ | flags, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["parameters"] > 10**9
    assert found["live"] < 10**6
    share = 4 * found["parameters"] * (1 / 32 + 2 / 64)
    assert all(share <= size < 1.01 * share for size in found["bytes"])
    for params, moments in found["cut"]:
        for leaves, shares in ((params, 32), (moments, 64)):
            for size, shape in leaves:
                assert size < 10**5 or size == shares * math.prod(shape), (size, shape)
