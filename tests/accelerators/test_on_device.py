"""What only a device can show; without a GPU or TPU these tests skip.

JAX_PLATFORMS=cuda,cpu python -m pytest tests/accelerators/test_on_device.py
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer.kernels import attend
from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.engines import make_engine

PLATFORM = jax.default_backend()
KERNEL = {"gpu": "cudnn", "tpu": "pallas"}.get(PLATFORM)
pytestmark = pytest.mark.skipif(KERNEL is None, reason="there is no GPU or TPU")


@pytest.mark.parametrize("length", [96, 97, 256])
@pytest.mark.parametrize("kind", ["padded", "causal", "packed"])
def test_the_kernel_is_the_plain_definition(kind, length):
    """Output and gradients of bfloat16 inputs, within its rounding of a float32
    computation.
    """
    rng = np.random.default_rng(0)
    arrays = [
        jnp.asarray(rng.normal(size=(4, length, 8, 64)), jnp.bfloat16) for _ in range(4)
    ]
    lengths = np.array([length, length // 2, 1, 0])
    place = np.arange(length)
    ids = np.where(place < lengths[:, None], 1, 0)
    if kind == "packed":
        ids = ids * (1 + (place >= length // 3))
    segments = jnp.asarray(ids, jnp.int32)
    mask = F.SegmentMask(
        segments, segments if kind == "packed" else None, causal=kind == "causal"
    )

    @functools.partial(jax.jit, static_argnums=0)
    def run(backend, query, key, value, weight):
        def of(*operands):
            return attend(*operands, mask, backend=backend)[0]

        output, pull = jax.vjp(of, query, key, value)
        return output, pull(weight)

    found = run(KERNEL, *arrays)
    expected = run("plain", *(x.astype(jnp.float32) for x in arrays))
    for kernel, plain in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        kernel, plain = np.asarray(kernel, np.float32), np.asarray(plain, np.float32)
        assert np.abs(kernel - plain).max() <= 0.02 * np.abs(plain).max()


def test_training_goes_as_on_a_cpu():
    """The losses of 80 steps in bfloat16, on the device and on a CPU, without dropout:
    their means over 20 steps differ by less than two thousandths. From 100 steps on
    rounding decides: in float32 on a CPU, parameters that differ by a millionth move
    the mean of steps 180 to 200 by 2 %.
    """
    config = TransformerConfig(
        vocabulary_size=512,
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        dtype="bfloat16",
    )
    rng = np.random.default_rng(0)
    drawn = rng.integers(4, 512, (50, 32, 24), dtype=np.int32)

    def losses(device):
        with jax.default_device(device):
            training = TrainingConfig(engine="jit", warmup_steps=100)
            engine = make_engine(Transformer(config), training, [device])
            state, found = engine.create(), []
            for number in range(80):
                source = drawn[number % len(drawn)]
                batch = {"source": source, "target": source[:, ::-1].copy()}
                state, metrics = engine.step(state, batch)
                found.append(metrics["loss"] / metrics["tokens"])
        return np.asarray(found, np.float32).reshape(4, 20).mean(axis=1)

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        here, there = losses(jax.devices()[0]), losses(jax.devices("cpu")[0])
    assert here[-1] < 0.98 * here[0]
    np.testing.assert_allclose(here, there, rtol=0.002)
