"""How a model computes attention: the plain equation, or a kernel of the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.kernels import backends


def choose_backend(model: Any, backend: str | None, length: int, *, train: bool) -> str:
    """Return ``plain``, ``cudnn`` or ``pallas``; ``plain`` while parameters are drawn,
    which do not depend on it.

    Args:
        model: with a ``config`` and the ``device`` that computes (one of several, also
            of a topology); None: JAX's first.
        backend: one of :data:`~jaxformer.kernels.backends.BACKENDS`; None: as the
            configuration says.
        length: the longer of queries and keys.
        train: whether dropout is active.

    Raises:
        InputError: a backend that does not fit.
    """
    if model.scope is not None and model.is_initializing():
        return "plain"
    config, device = model.config, model.device or jax.devices()[0]
    width = config.d_model // config.num_heads
    attending = backends.Attending(
        device.platform,
        getattr(device, "compute_capability", None),
        jnp.dtype(config.dtype),
        config.d_k or width,
        config.d_v or width,
        length,
        dropout=train and config.attention_dropout_rate > 0.0,
        bias=config.position_bias != "none",
        window=config.attention_window is not None,
    )
    how = backend or config.attention_backend
    return backends.fit(how, attending, name="model.attention_backend")
