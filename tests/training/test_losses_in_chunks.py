"""Steps of large batches compute their losses in chunks, and train as others do."""

import contextlib
import math
import re

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh

from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import abstract_parameters
from jaxformer.models.transformer import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import batch_losses
from jaxformer.training.engines import make_engine
from jaxformer.training.step import make_loss


def test_only_large_batches_are_in_chunks(monkeypatch):
    """Those of base with 64 x 128 tokens, but not of the quickstart. R-Drop and float16
    need all logits. Of TPUs only v5e and v6e have vector memory for a chunk.
    """

    def is_in_chunks(shape, *, kind="cpu", training=None, **model):
        calls = []

        def losses(*given, **settings):
            calls.append(given)
            raise StopIteration

        monkeypatch.setattr(batch_losses, "output_losses", losses)
        model = TransformerConfig(num_encoder_layers=1, num_decoder_layers=1, **model)
        params = abstract_parameters(model)
        config = TrainingConfig(**(training or {}))
        loss = make_loss(Transformer(model), config, lambda params: params)
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
    monkeypatch.setattr(batch_losses, "MOST_LOGIT_BYTES", 0)
    text, logits = compile_step(make_model, 64, engine="jit")
    assert largest(text) < logits / 2
