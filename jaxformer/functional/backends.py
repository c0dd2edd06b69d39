"""Which of the ways to compute attention fits: the plain definition, or a kernel of the
device.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.functional.attention import BACKENDS

PLATFORMS = {"cudnn": "gpu", "pallas": "tpu"}
"""The device of each kernel."""

# NVIDIA's documentation of cuDNN: attention needs Ampere (A100) or newer.
AMPERE = "8.0"
_CUDNN_CAPABILITY = re.compile(r"([89]|[1-9]\d)\.\d+")

LONGEST = 1024
"""The most queries and keys of the Pallas kernel, which holds a whole row of scores in
the fast memory of a TPU.
"""


class Attending(NamedTuple):
    """What the choice of a backend depends on.

    Attributes:
        platform: ``cpu``, ``gpu`` or ``tpu``.
        capability: compute capability of a GPU, such as ``8.0``; None: it has none.
        dtype: of queries, keys and values.
        d_k, d_v: width of a head's queries and keys, and of its values.
        length: the longer of queries and keys.
        dropout: whether attention weights are dropped.
        bias: whether scores have a bias.
        window: whether each query sees only keys near it.
    """

    platform: str
    capability: str | None
    dtype: jnp.dtype
    d_k: int
    d_v: int
    length: int
    dropout: bool
    bias: bool = False
    window: bool = False


def choose_backend(backend: str, attending: Attending) -> str:
    """Return ``plain``, ``cudnn`` or ``pallas``.

    ``auto`` is the kernel of the device where it takes the type, the widths and the
    length, without dropout, bias and window, and ``plain`` elsewhere. cuDNN needs
    compute capability 8.0 or higher.

    Raises:
        InputError: an unknown backend, or one that does not fit.
    """
    if backend not in BACKENDS:
        raise InputError(
            f"the attention backend is one of {', '.join(BACKENDS)}, not {backend!r}"
        )
    if backend == "auto":
        fitting = (own for own in PLATFORMS if refusal(own, attending) is None)
        return next(fitting, "plain")
    reason = None if backend == "plain" else refusal(backend, attending)
    if reason is not None:
        raise InputError(
            f"model.attention_backend={backend} {reason}: set"
            " model.attention_backend=auto"
        )
    return backend


def refusal(backend: str, attending: Attending) -> str | None:
    """Say why a kernel does not fit, as the end of a sentence; None: it does."""
    platform, capability, dtype, d_k, d_v, length, dropout, bias, window = attending
    needed = PLATFORMS[backend]
    if platform != needed:
        return f"is for a {needed.upper()}, and this is a {platform.upper()}"
    if backend == "cudnn" and not _CUDNN_CAPABILITY.fullmatch(capability or ""):
        return (
            f"needs a GPU of compute capability {AMPERE} or higher, and this has"
            f" {capability or 'none'}"
        )
    if dropout:
        return "has no dropout of attention weights"
    if bias or window:
        return f"has no {'bias on scores' if bias else 'window of attention'}"
    if backend == "pallas":
        if dtype not in ("bfloat16", "float32"):
            return f"computes in bfloat16 or float32, not in {dtype}"
        if length > LONGEST:
            return f"takes at most {LONGEST} positions, not {length}"
        return None
    if dtype not in ("bfloat16", "float16"):
        return f"computes in bfloat16 or float16, not in {dtype}"
    if d_k != d_v or d_k > 128 or d_k % 8:
        return (
            "takes heads with queries and values of one width, a multiple of 8 up to"
            f" 128, not d_k={d_k} and d_v={d_v}"
        )
    return None
