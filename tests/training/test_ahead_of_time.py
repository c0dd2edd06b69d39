"""What is compiled for devices that are not there, and the bounds that follow."""

import dataclasses
import json
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
from jaxformer.training import ahead_of_time
from jaxformer.training.ahead_of_time import compile_training_step, largest_batch
from jaxformer.training.engines import make_engine
from jaxformer.training.topologies import MACHINES, parse_topology


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


def described(text, shapes, flops=0.0):
    """Describe a program for a TPU by its text, with the operations that its compiler
    counts.
    """
    sizes = ("argument", "temp", "generated_code", "output", "alias")
    compiled = types.SimpleNamespace(
        as_text=lambda: text,
        cost_analysis=lambda: {"flops": flops},
        memory_analysis=lambda: types.SimpleNamespace(
            **{f"{size}_size_in_bytes": 1 for size in sizes}
        ),
    )
    engine = types.SimpleNamespace(devices=1)
    return ahead_of_time._describe(
        compiled,
        config(),
        parse_topology("v5e"),
        shapes,
        engine,
        peak=1e12,
        seconds=0.0,
    )


@pytest.mark.parametrize("counted", [0.5, 1.0, 2.0])
def test_no_share_of_the_peak_is_above_one(counted):
    """Where the compiler counts fewer operations than the model has, which those of
    Pallas kernels are not among, the model's decide.
    """
    shapes = {"source": (8, 256), "target": (8, 256)}
    flops = ahead_of_time.model_flops(config(), shapes)
    found = described("ENTRY %main () -> f32[] {\n}", shapes, counted * flops)
    assert found.share_of_peak == pytest.approx(1 / max(counted, 1.0))


def test_a_step_fits_in_what_jax_takes_of_a_device():
    """Three quarters of a GPU, as JAX's documentation says; all of a TPU."""
    gibibyte = 2**30
    for name, taken in (("a100", 0.75), ("v5e", 1.0)):
        machine = MACHINES[name]
        most = int(machine.memory * taken)
        for total, fits in ((most, True), (most + gibibyte, False)):
            compiled = types.SimpleNamespace(
                memory_analysis=lambda total=total: types.SimpleNamespace(
                    argument_size_in_bytes=total,
                    temp_size_in_bytes=0,
                    generated_code_size_in_bytes=0,
                    output_size_in_bytes=7,
                    alias_size_in_bytes=7,
                )
            )
            found = ahead_of_time._memory(compiled, machine)
            assert (found.total, found.device) == (total, machine.memory)
            assert found.fits == fits


def test_what_devices_exchange_is_a_record_of_json():
    text = """
ENTRY %main (a: f32[16]) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  ROOT %all-reduce = f32[16]{0} all-reduce(%a), to_apply=%add
}
"""
    found = described(text, {"source": (8, 256), "target": (8, 256)})
    record = json.loads(json.dumps(dataclasses.asdict(found)))
    assert record["bytes_exchanged"] == {"all-reduce": 64}


def test_a_type_without_a_peak_is_refused_before_anything_is_compiled(monkeypatch):
    device = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    monkeypatch.setattr(ahead_of_time, "devices_of", lambda _: [device])
    with pytest.raises(InputError, match="v5e has no published peak in float16"):
        compile_training_step(config({"dtype": "float16"}), parse_topology("v5e:1x1"))


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


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("INTERNAL: Couldn't find output tile sizes that satisfy hlo", [None, False]),
        ("RESOURCE_EXHAUSTED: out of memory", [None]),
    ],
)
def test_a_matmul_without_tiles_is_compiled_without_triton(message, options):
    """The result says so. Any other error of the compiler is one of the user's."""
    asked = []

    def compile(given=None):
        asked.append(given and given["xla_gpu_enable_triton_gemm"])
        if given is None:
            raise jax.errors.JaxRuntimeError(message)
        return "program"

    lowered = types.SimpleNamespace(compile=compile)
    engine = types.SimpleNamespace(lower=lambda _: lowered)
    if len(options) == 2:
        found = ahead_of_time._compile(engine, {})
        assert found == ("program", {"xla_gpu_enable_triton_gemm": False})
    else:
        with pytest.raises(InputError, match="refuses the step: RESOURCE_EXHAUSTED"):
            ahead_of_time._compile(engine, {})
    assert asked == options
