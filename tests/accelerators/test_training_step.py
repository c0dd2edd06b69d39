"""What must not come back into a training step that is compiled for GPUs and TPUs."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerators.conftest import arrays, exchanges, host_calls, need
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import functional as F
from jaxformer.kernels import attend
from jaxformer.training.batch_losses import MOST_LOGIT_BYTES
from topologies import devices_of

LENGTH = 256
MOST_SECONDS = 600.0
"""Compiling a step takes minutes at most. The bound is generous: machines differ."""

slow = pytest.mark.slow
LOOPED = {"model__scan_layers": False}
LITTLE = {"model__num_encoder_layers": 1, "model__num_decoder_layers": 1}
PMAP, MESH = ({"rows": 256, "training__engine": name} for name in ("pmap", "mesh"))
FSDP = {**MESH, "training__mesh_fsdp": 8}
TENSOR = {**MESH, "rows": 128, "training__mesh_tensor": 2}

# GPT-2 small and BERT base, two of their layers.
WIDTHS = {"d_model": 768, "d_ff": 3072, "num_heads": 12, "max_length": 512}
WIDE = {f"model__{name}": size for name, size in WIDTHS.items()}
GPT = {**WIDE, "data__vocabulary_size": 50_257, "model__num_decoder_layers": 2}
BERT = {**WIDE, "data__vocabulary_size": 30_522, "model__num_encoder_layers": 2}

STEPS = [
    pytest.param(("language_model", "h200:1", GPT)),
    pytest.param(("language_model", "v5e:1x1", {**GPT, "rows": 16}), marks=slow),
    pytest.param(("masked_language_model", "h200:1", BERT)),
    pytest.param(
        ("masked_language_model", "v5e:1x1", {**BERT, "rows": 16}), marks=slow
    ),
    pytest.param(("paper/ende_base", "h200:1", {})),
    pytest.param(("paper/ende_base", "h200:1", {"packed": True})),
    pytest.param(("paper/ende_base", "v5e:1x1", {"rows": 16})),
    pytest.param(("paper/ende_base", "h200:1", {**LOOPED, **LITTLE})),
    pytest.param(("paper/ende_base", "h200:8", PMAP)),
    pytest.param(("paper/ende_base", "h200:8", MESH)),
    pytest.param(("paper/ende_base", "h200:8", FSDP)),
    pytest.param(("paper/ende_base", "h200:8", TENSOR)),
    pytest.param(("paper/ende_base", "v5e:2x4", PMAP), marks=slow),
    pytest.param(("paper/ende_big", "h200:1", {}), marks=slow),
    pytest.param(("paper/ende_base", "v5p:2x2x1", {"rows": 64}), marks=slow),
]


@pytest.fixture(params=STEPS)
def step(request, compile_for):
    """The training step of one configuration on one machine."""
    name, topology, changes = request.param
    return compile_for(name, topology, **changes)


def test_a_step_is_what_it_should_be(step):
    """The state is donated whole. No array holds the attention weights of all heads,
    except on a TPU, or, except on a v5p, all logits where they exceed
    :data:`MOST_LOGIT_BYTES`. No matmul has operands of float32. Nothing goes to the
    host and back. It compiles within minutes.
    """
    assert step.compiled_in < MOST_SECONDS
    heading = step.text.partition("\n")[0]
    donated = re.findall(r"(?:may|must)-alias", heading)
    assert len(donated) == len(jax.tree.leaves(step.engine.shapes))
    memory = step.compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= step.state_bytes
    on_tpu = step.engine.mesh.devices.flat[0].platform == "tpu"
    assert on_tpu or not _attention_weights(step, step.text)
    assert not _float32_matmuls(step.text)
    assert not host_calls(step.text)
    if 4 * _count_logits(step) > MOST_LOGIT_BYTES:
        # A v5p moves less with all logits.
        kind = step.engine.mesh.devices.flat[0].device_kind
        assert _has_logits(step) == (kind == "TPU v5")


def _place(topology):
    """Return the sharding of arrays on the first device."""
    need(topology)
    device = devices_of(topology)[0]
    return NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())


def _count_logits(step):
    return step.rows * LENGTH * step.config.model.vocabulary_size // step.shards


def _has_logits(step):
    """Whether a float32 array is as large as all logits of a device's rows."""
    return any(
        dtype == "f32" and math.prod(shape) >= _count_logits(step)
        for dtype, shape in arrays(step.text)
    )


def _attention_weights(step, text):
    """Return arrays of the weights of all heads of a device's rows."""
    _, length = step.shapes["target"]
    most = step.rows * step.config.model.num_heads * length**2 // step.shards
    return [
        shape
        for _, shape in arrays(text)
        if shape[-2:] == (length, length) and math.prod(shape) >= most
    ]


def _float32_matmuls(text):
    """Return the lines of matmuls that have an operand of float32."""
    found = []
    for computation in text.split("\n}"):
        types = dict(re.findall(r"%?([\w.-]+) = (\w+)\[", computation))
        for line in computation.splitlines():
            if re.search(r" (?:dot|convolution)\(|cublas", line):
                _, _, operands = line.partition("(")
                names = re.findall(r"%([\w.-]+)", operands.partition(")")[0])
                if "f32" in map(types.get, names[:2]):
                    found.append(line)
    return found


@pytest.mark.parametrize(
    ("topology", "rows", "length", "kernel"),
    [
        ("h200:1", 16, 256, "__cudnn$fmha"),
        pytest.param("v5e:1x1", 4, 1024, "tpu_custom_call", marks=slow),
    ],
)
def test_auto_takes_the_kernel_of_the_machine_and_holds_less(
    topology, rows, length, kernel, compile_for
):
    """Attention by a kernel, forward and backward, and by plain matmuls."""
    size = {"packed": True, "model__max_length": length}
    fused, plain = (
        compile_for(
            *("paper/ende_base", topology, rows, length),
            **size,
            model__attention_backend=backend,
        )
        for backend in ("auto", "plain")
    )
    call = f'custom_call_target="{kernel}'
    assert fused.text.count(call) >= 6
    assert call not in plain.text
    assert not _attention_weights(fused, fused.text)
    assert _attention_weights(plain, plain.text)
    held = [
        step.compiled.memory_analysis().temp_size_in_bytes for step in (fused, plain)
    ]
    assert held[0] < held[1]


@pytest.mark.parametrize("packed", [False, True])
def test_the_kernel_of_a_gpu_differentiates_odd_lengths(packed):
    place = _place("h200:1")
    heads = jax.ShapeDtypeStruct((4, 13, 8, 64), jnp.bfloat16, sharding=place)
    segments = jax.ShapeDtypeStruct((4, 13), jnp.int32, sharding=place)

    def loss(query, key, value, segments):
        mask = F.SegmentMask(segments, segments if packed else None, causal=True)
        output, _ = attend(query, key, value, mask, backend="cudnn")
        return output.astype(jnp.float32).sum()

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        text = gradient.lower(heads, heads, heads, segments).compile().as_text()
    assert "SoftmaxBackward" in text


@pytest.mark.parametrize("topology", ["h200:8", pytest.param("v5e:2x4", marks=slow)])
def test_copies_only_sum(topology, compile_for):
    """Under ``pmap`` gradients and metrics are summed over the devices, and nothing
    else is exchanged.
    """
    step = compile_for("paper/ende_base", topology, **PMAP)
    assert exchanges(step.text) == {"all-reduce"}


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        (MESH, {"all-reduce"}),
        # Layers are gathered for the passes, and gradients scattered.
        (FSDP, {"all-gather", "reduce-scatter", "all-reduce"}),
        # What sublayers add, the highest logit of the shards, and rows that the table's
        # padding moves.
        (TENSOR, {"all-reduce", "all-gather", "collective-permute"}),
    ],
)
def test_what_a_mesh_exchanges(flags, kinds, compile_for):
    """The kinds of collectives of each layout."""
    found = exchanges(compile_for("paper/ende_base", "h200:8", **flags).text)
    assert "all-reduce" in found
    assert found <= kinds


@slow
def test_deterministic_steps_add_in_a_fixed_order(compile_for):
    """The gradient of the embedding is a scatter whose rows repeat, and are added by
    atomic additions; with ``training.deterministic`` no row repeats.
    """
    repeating = [
        [
            line
            for line in step.text.splitlines()
            if " scatter(" in line and "unique_indices=true" not in line
        ]
        for step in (
            compile_for("quickstart", "h200:1", training__deterministic=deterministic)
            for deterministic in (False, True)
        )
    ]
    assert list(map(bool, repeating)) == [True, False]
