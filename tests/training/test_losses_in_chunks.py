"""Steps of large batches compute their losses in chunks, and train as others do."""

import contextlib
import math
import re

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from training.little import assert_trees_close

from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer, abstract_parameters
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import step as steps
from jaxformer.training.engines import make_engine
from jaxformer.training.state import create_state

MESH = {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}
# Unequal numbers of tokens on eight devices, one of which has only padding.
LENGTHS = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 5, 2]
TRAINING = {"z_loss": 1e-2, "smoothing_convention": "all"}


@pytest.fixture(scope="module")
def learn(make_model, make_batch):
    """Return a function that makes a step and an evaluation; it returns the first
    moment, and metrics and sums.
    """
    model = make_model(vocabulary_size=12, output_bias=True)
    batch = make_batch(0, LENGTHS)

    def run(**engine):
        with jax.numpy_dtype_promotion("standard"):  # optax mixes types
            made = make_engine(model, TrainingConfig(**TRAINING, **engine))
            start = create_state(model, TrainingConfig(**TRAINING))
            sums = made.evaluate(made.place(start), batch)
            state, metrics = made.step(made.place(start), batch)
            return made.collect(state).optimizer[0].mu, [metrics, sums]

    return run


@pytest.fixture(scope="module")
def with_all_logits(learn):
    return learn(engine="jit")


@pytest.mark.parametrize(
    "engine",
    [
        {"engine": "jit"},
        pytest.param({"engine": "pmap"}, marks=pytest.mark.slow),
        MESH | {"accumulation_steps": 2},
    ],
)
def test_equal_steps_with_all_logits(learn, with_all_logits, monkeypatch, engine):
    """On one device, under ``pmap`` and in parts on a mesh whose vocabulary is sharded,
    metrics, gradients and sums of an evaluation are those of one device with all
    logits.
    """
    calls = []
    monkeypatch.setattr(steps, "MOST_LOGIT_BYTES", 0)
    chunked = steps.output_losses
    monkeypatch.setattr(
        steps, "output_losses", lambda *a, **b: calls.append(b) or chunked(*a, **b)
    )
    found, sums = learn(**engine)
    assert {call["groups"] for call in calls} == {4 if "mesh_fsdp" in engine else 1}
    assert {call["z_loss"] for call in calls} == {0.0, 1e-2}
    expected, wanted = with_all_logits
    assert_trees_close(found, expected, atol=1e-6, rtol=0)
    assert_trees_close(sums, wanted, rtol=1e-5)


def test_only_large_batches_are_in_chunks(monkeypatch):
    """Those of base with 64 x 128 tokens, but not of the quickstart. R-Drop and float16
    need all logits. Of TPUs only v5e and v6e have vector memory for a chunk.
    """

    def is_in_chunks(shape, *, kind="cpu", training=None, **model):
        calls = []

        def losses(*given, **settings):
            calls.append(given)
            raise StopIteration

        monkeypatch.setattr(steps, "output_losses", losses)
        model = TransformerConfig(num_encoder_layers=1, num_decoder_layers=1, **model)
        params = abstract_parameters(model)
        config = TrainingConfig(**(training or {}))
        loss = steps.make_loss(Transformer(model), config, lambda params: params)
        batch = dict.fromkeys(
            ("source", "target"), jax.ShapeDtypeStruct(shape, np.int32)
        )
        device = AbstractDevice(kind, None, "tpu")
        mesh = AbstractMesh((1,), ("data",), abstract_device=device)
        key = jax.random.key(0)  # no program runs on an abstract mesh
        with (
            contextlib.suppress(StopIteration),
            jax.sharding.use_abstract_mesh(mesh),
        ):
            jax.eval_shape(loss, params, batch, key)
        return bool(calls)

    large = {"vocabulary_size": 37_000, "d_model": 64, "d_ff": 64}
    assert is_in_chunks((64, 128), **large)
    assert is_in_chunks((64, 128), dtype="bfloat16", **large)
    for kind in ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "NVIDIA H200"):
        assert is_in_chunks((64, 128), kind=kind, **large)
    for kind in ("TPU v4", "TPU v5", "TPU v5p"):
        assert not is_in_chunks((64, 128), kind=kind, **large)
    assert not is_in_chunks((64, 128), dtype="float16", **large)
    assert not is_in_chunks((64, 128), training={"r_drop": 1.0}, **large)
    assert not is_in_chunks((16, 128), **large)
    assert not is_in_chunks((37, 32), **{**large, "vocabulary_size": 2000})


def compile_step(make_model, rows, **engine):
    """Compile a step whose logits are larger than any other array; return the program's
    text and the elements of the logits of a device.
    """
    sizes = {"vocabulary_size": 384, "max_length": 48}
    engine = make_engine(make_model(**sizes), TrainingConfig(**engine))
    lowered = engine.lower(dict.fromkeys(("source", "target"), (rows, 48)))
    return lowered.compile().as_text(), rows * 48 * 384


def largest(text):
    """Return the most elements of a float32 array of a program."""
    shapes = re.findall(r"f32\[([\d,]+)\]", text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def test_no_array_holds_all_logits(make_model, monkeypatch):
    """Neither whole nor in another shape is one in the compiled step, where there is
    one otherwise.
    """
    text, logits = compile_step(make_model, 64, engine="jit")
    assert largest(text) >= logits
    monkeypatch.setattr(steps, "MOST_LOGIT_BYTES", 0)
    text, logits = compile_step(make_model, 64, engine="jit")
    assert largest(text) < logits / 2
