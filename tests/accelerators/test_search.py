"""Beam search and greedy search of 64 sentences, and of the continuations of 64
prompts, compiled for a GPU and a TPU.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators.conftest import arrays, exchanges, host_calls, need
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.models.config import TransformerConfig
from jaxformer.models.families import preset
from jaxformer.models.seq2seq import abstract_parameters, make_model
from jaxformer.search.rules import SearchRules
from jaxformer.translation.compiled import BatchInput, search
from jaxformer.translation.models import Models
from topologies import devices_of

ROWS, LENGTH = 64, 64
# Two layers of the base model, and of GPT-2 small.
LITTLE = {"dtype": "bfloat16", "num_decoder_layers": 2}
CONFIGS = {
    "translation": TransformerConfig(num_encoder_layers=2, **LITTLE),
    "continuation": preset("gpt2", **LITTLE),
}


@functools.cache
def compiled(topology: str, kind: str, beam_size: int) -> str:
    """Compile the search of a batch."""
    need(topology)
    device = devices_of(topology)[0]
    mesh = Mesh(np.array([device]), ("device",))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(tree):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), tree
        )

    config = CONFIGS[kind]
    model, params = make_model(config, device), abstract_parameters(config)
    params = jax.tree.map(lambda x: x.update(dtype=jnp.bfloat16), params)
    whole = jax.ShapeDtypeStruct((), jnp.int32)
    batch = BatchInput(
        jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32),
        jax.ShapeDtypeStruct((ROWS, 2), jnp.int32),
        whole,
    )

    def run(params, batch, max_lengths):
        rules = SearchRules(
            max_lengths=max_lengths,
            alpha=0.6,
            length=LENGTH,
            beam_size=beam_size,
            bos_id=config.bos_id,
            eos_id=3,
            pad_id=config.pad_id,
        )
        return search(Models((model,), (params,), None, None), batch, rules)

    limits = jax.ShapeDtypeStruct((ROWS,), jnp.int32)
    lowered = jax.jit(run).lower(*place((params, batch, limits)))
    return lowered.compile().as_text()


@pytest.fixture(params=["h200:1", pytest.param("v5e:1x1", marks=pytest.mark.slow)])
def topology(request, monkeypatch):
    """A device; the cache has the form of its platform, not of this machine's."""
    platform = "tpu" if request.param.startswith("v") else "gpu"
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield request.param


@pytest.mark.parametrize(
    ("kind", "beam_size"),
    [
        pytest.param("translation", 1, marks=pytest.mark.slow),
        ("translation", 4),
        ("continuation", 1),
        pytest.param("continuation", 4, marks=pytest.mark.slow),
    ],
)
def test_a_search_stays_on_its_device(topology, kind, beam_size):
    """Every step of the search runs in a loop of the one program: nothing goes to the
    host, nothing to other devices. The beam is never copied with its keys and values:
    no gather of a step has a result as large as the cache of a layer. The kernel of the
    device reads the source or the prompts.
    """
    text = compiled(topology, kind, beam_size)
    kernel = "__cudnn$fmha" if topology.startswith("h") else "tpu_custom_call"
    assert f'custom_call_target="{kernel}' in text
    assert " while(" in text
    assert not exchanges(text)
    assert not host_calls(text)
    cache = ROWS * beam_size * LENGTH * CONFIGS[kind].d_model  # elements
    gathered = [
        math.prod(shape)
        for line in text.splitlines()
        if " gather(" in line and "while" in line
        for _, shape in arrays(line.partition(" gather(")[0])
    ]
    assert gathered
    assert max(gathered) < cache
