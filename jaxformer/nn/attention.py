"""Multi-head attention as a Linen module: it owns the projections and calls the pure
functions.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeAlias

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import attention as functional
from jaxformer.functional.attention import Mask, Rotation
from jaxformer.functional.masks import SegmentMask, combine, window_mask
from jaxformer.functional.relative_positions import rotary
from jaxformer.kernels.attention import attend
from jaxformer.kernels.matmul import joint_linear
from jaxformer.nn import cache as caches
from jaxformer.nn.cache import KeyValueStore, Spans
from jaxformer.nn.config import head_widths
from jaxformer.nn.dropout import make_drop
from jaxformer.nn.initializers import ones, projection
from jaxformer.typing import Array, Bool, Float, Int

Weights: TypeAlias = Float[Array, "B H T S"] | None
"""The attention weights of every head; None where a kernel computed attention."""


class MultiHeadAttention(nn.Module):
    """Several heads of attention in parallel (Vaswani et al. 2017, section 3.2.2).

    Parameters: ``query``, ``key`` and ``value`` with kernels [D, H, K] and biases [H,
    K], ``output`` with a kernel [H, K, D] and a bias [D], all float32. The computation
    is in the dtype of the input.

    Attributes:
        d_model: width of input and output.
        num_heads: heads.
        d_k: width of a head's queries and keys; d_model / num_heads where None.
        d_v: width of a head's values; d_model / num_heads where None.
        dropout_rate: of the attention weights; 0 in the paper.
        num_key_value_heads: G, which divides the heads: kernels of keys and values are
            [D, G, K], and each serves H / G heads of queries (Ainslie et al. 2023; 1:
            Shazeer 2019). None: as many as heads.
        biases: whether projections have biases.
        query_key_norm: whether queries and keys are normalized, with the scales
            ``query_norm`` and ``key_norm`` [K]; see
            :func:`~jaxformer.functional.attention.project_heads`.
        rotary_base: base of the angles of rotary positions (Su et al. 2021), for
            self-attention; None: none.
        window: each position attends to itself and ``window - 1`` positions on both
            sides, in self-attention; None: to all.

    Raises:
        InputError: heads that do not divide the width, or heads of keys that do not
            divide the heads.
    """

    d_model: int
    num_heads: int
    d_k: int | None = None
    d_v: int | None = None
    dropout_rate: float = 0.0
    num_key_value_heads: int | None = None
    biases: bool = True
    query_key_norm: bool = False
    rotary_base: float | None = None
    window: int | None = None

    def setup(self) -> None:
        """Create the four projections, and the scales of the norms."""
        d_k, d_v = head_widths(self)
        width, heads = self.d_model, self.num_heads
        groups = self.num_key_value_heads or heads
        shapes = {
            "query": (width, heads, d_k),
            "key": (width, groups, d_k),
            "value": (width, groups, d_v),
            "output": (heads, d_v, width),
        }
        norms = ("query_norm", "key_norm") if self.query_key_norm else ()
        self.projections = {
            name: self.param(
                name, projection, shape, 2 if name == "output" else 1, self.biases
            )
            for name, shape in shapes.items()
        } | {name: self.param(name, ones, d_k) for name in norms}

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        mask: Mask = None,
        *,
        bias: Float[Array, "#B #H #T #S"] | None = None,
        train: bool = False,
        backend: str = "plain",
    ) -> tuple[Float[Array, "B T D"], Weights]:
        """Attend from ``x`` to ``memory``; return the output and the weights, which a
        ``backend`` other than ``plain`` does not compute.

        Args:
            x: the vectors that queries are projected from.
            memory: the vectors that keys and values are projected from; None: ``x``.
            mask: boolean, True = may attend, or segments.
            bias: added to the scaled scores.
            train: whether dropout is active.
            backend: how attention is computed.

        Raises:
            InputError: another memory than ``x`` with rotary positions or a window.
        """
        memory, names = x if memory is None else memory, ["key", "value"]
        if memory is x:
            names.append("query")
        elif self.rotary_base or self.window:
            raise InputError(
                "rotary positions and windows are for self-attention: attend to x"
                " itself, or make the module without rotary_base and window"
            )
        return functional.multi_head_attention(
            self.projections,
            x,
            memory,
            self._near(mask, x.shape[1]),
            rotate=self._rotation(jnp.arange(x.shape[1])),
            linear=joint_linear(memory, *(self.projections[name] for name in names)),
            attend=functools.partial(attend, backend=backend),
            bias=bias,
            drop=make_drop(self, self.dropout_rate, train),
        )

    def _rotation(self, positions: Int[Array, " T"]) -> Rotation | None:
        if self.rotary_base is None:
            return None
        return functools.partial(rotary, positions=positions, base=self.rotary_base)

    def _near(self, mask: Mask, length: int) -> Mask:
        """Restrict a mask to the window."""
        if self.window is None:
            return mask
        if isinstance(mask, SegmentMask):
            return dataclasses.replace(mask, window=self.window)
        return combine(mask, window_mask(length, self.window))

    def store(
        self, x: Float[Array, "B T D"], positions: Int[Array, " T"]
    ) -> KeyValueStore:
        """Project a sequence for later positions of its own to attend to."""
        rotate = self._rotation(positions)
        return caches.project_to_store(self.projections, x, rotate)

    def step(
        self,
        x: Float[Array, "N 1 D"],
        cache: Spans,
        *,
        position: Int[Array, ""],
        seen: Bool[Array, "B 1 W M"],
        bias: Float[Array, "1 H 1 M"] | None = None,
    ) -> tuple[Float[Array, "N 1 D"], Spans]:
        """Attend from the new position of N = B W hypotheses to those before it.

        Args:
            x: the input of the position; the hypotheses of a text are adjacent.
            cache: keys and values of the positions before, with empty slots.
            position: of ``x``, counted from 0.
            seen: which slots each hypothesis reads, its own included.
            bias: added to the scores.

        Returns:
            The output, and the cache with this position.
        """
        beams = x.reshape(seen.shape[0], seen.shape[2], -1)
        cache = caches.extend(cache, self.store(beams, position[None]), position)
        if self.window is not None:
            place = caches.slot_positions(*seen.shape[:1:-1])
            seen = seen & (place > position - self.window)[None, None, None]
        how = {"bias": bias, "rotate": self._rotation(position[None])}
        where = x, cache, seen, position
        return caches.attend_to_spans(self.projections, *where, **how)[0], cache
