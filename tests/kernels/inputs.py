"""Numbers for the tests of kernels, and kernels of machines that are not there."""

import contextlib
import functools
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)

from jaxformer.kernels import backends

HALF = {"bfloat16": 2**-8, "float16": 2**-11}


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@contextlib.contextmanager
def within_backend(backend: str) -> Iterator[None]:
    """Run the kernel for TPUs in the interpreter, and give what cuDNN is asked to XLA's
    own implementation of the same function.
    """
    if backend == "pallas":
        made = functools.partial(splash.make_splash_mha_single_device, interpret=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(splash, "make_splash_mha_single_device", made)
            yield
        return
    xla = jax.nn.dot_product_attention

    def by_xla(*arrays, implementation, **masks):
        assert implementation == "cudnn"
        assert not any(x.shape[1] % 2 for x in arrays)  # JAX refuses odd gradients
        return xla(*arrays, **masks)

    with (
        pytest.MonkeyPatch.context() as patch,
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        patch.setattr(jax.nn, "dot_product_attention", by_xla)
        patch.setattr(backends, "refusal", lambda *_: None)  # of float32
        yield
