"""What a run asks of attention: its longest rows, and the backend of its devices."""

import types

import jax
import numpy as np
import pytest

from jaxformer.data.batching import Bucket, plan_buckets
from jaxformer.data.config import DataConfig
from jaxformer.data.packing import plan_rows
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.config import EvaluationConfig, RunConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.training.engines import make_engine
from jaxformer.training.train import largest_batch


def config(model=None, **data):
    return RunConfig(
        TransformerConfig(**(model or {})),
        DataConfig(**data),
        TrainingConfig(),
        DecodingConfig(),
        EvaluationConfig(),
    )


def test_the_largest_batch_is_that_of_a_run():
    """Rows and lengths are those that the run plans for its longest sentences, up to
    rows of padding.
    """
    sizes = {"tokens_per_batch": 25_000, "shape_multiple": 8}
    (bucket,) = plan_buckets([250], [250], num_buckets=1, max_length=250, **sizes)
    found = largest_batch(config(max_length=250, **sizes), 1)
    assert found == dict.fromkeys(
        ("source", "target"), (bucket.rows, bucket.source_length)
    )
    assert bucket == Bucket(250, 250, 96)
    twenty = np.full(90_000, 20)  # more pairs than a batch holds
    shape = plan_rows(twenty, twenty, packed_length=250, **sizes)
    found = largest_batch(config(packing=True, packed_length=250, **sizes), 1)
    assert found["source"] == (shape.rows, shape.source_length) == (96, 256)
    assert largest_batch(config(max_length=250, **sizes), 64)["target"] == (128, 250)
    twenty[0] = 250  # longer than packed_length
    shape = plan_rows(twenty, twenty, packed_length=100, **sizes)
    found = largest_batch(
        config(packing=True, packed_length=100, max_length=250, **sizes), 1
    )
    assert found["source"] == (shape.rows, shape.source_length) == (96, 256)


def test_an_attention_backend_is_that_of_the_devices():
    """Not of this machine: parameters are drawn anywhere, and steps are refused.
    cuDNN needs compute capability 8.0.
    """
    model = Transformer(
        TransformerConfig(
            vocabulary_size=23,
            d_model=16,
            d_ff=24,
            num_heads=2,
            dtype="bfloat16",
            attention_backend="cudnn",
        )
    )
    engine = make_engine(model, TrainingConfig(engine="jit"))
    with pytest.raises(InputError, match="is for a GPU, and this is a CPU"):
        engine.lower(dict.fromkeys(("source", "target"), (1, 1)))
    tokens = jax.ShapeDtypeStruct((1, 1), "int32")

    def initialize(model):
        return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)

    v100 = types.SimpleNamespace(platform="gpu", compute_capability="7.0")
    for device in (None, v100):
        assert initialize(model.copy(device=device))["params"]
    backends = []
    for capability in ("7.0", "8.0", None):
        gpu = types.SimpleNamespace(platform="gpu", compute_capability=capability)
        backends.append(model.config.choose_backend("auto", gpu, 8, train=True))
    assert backends == ["plain", "cudnn", "plain"]
    with pytest.raises(InputError, match="or higher, and this has 7"):
        jax.eval_shape(model.copy(device=v100).apply, initialize(model), tokens, tokens)
