"""Copy the parameters of a :class:`jaxformer.Transformer` to PyTorch's own layers and
back.

PyTorch keeps the maps of queries, keys and values in one matrix, and every matrix as
[out, in].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
import torch
from torch import Tensor, nn

from jaxformer.typing import PyTree

_ENCODER = ("self_attention", "feed_forward")
_DECODER = ("self_attention", "cross_attention", "feed_forward")


@dataclasses.dataclass(frozen=True)
class Place:
    """The location of one of our parameters in PyTorch's.

    Attributes:
        parameter: that holds it.
        shape: of ours.
        rows: of the parameter that are this one.
        transposed: whether it is [out, in] there.
    """

    parameter: Tensor
    shape: tuple[int, ...]
    rows: slice = dataclasses.field(default_factory=lambda: slice(None))
    transposed: bool = False

    def take(self, tensor: Tensor) -> np.ndarray:
        """Copy it, in our shape, out of a tensor like the parameter: its values or
        its gradient.
        """
        part = tensor.detach()[self.rows]
        return (part.T if self.transposed else part).reshape(self.shape).numpy().copy()

    def put(self, values: Any) -> None:
        """Set it to values of our shape."""
        with torch.no_grad():
            part = self.parameter[self.rows]
            given = torch.from_numpy(np.array(values, np.float32))
            part.copy_(
                given.reshape(part.shape[::-1]).T
                if self.transposed
                else given.reshape(part.shape)
            )


def find_places(
    table: nn.Embedding, encoder: nn.TransformerEncoder, decoder: nn.TransformerDecoder
) -> PyTree:
    """Find every parameter of a Transformer whose embeddings are all tied.

    Args:
        table: of source, target and output.
        encoder: of layers in post-norm or pre-norm, the latter with a last norm.
        decoder: of the same kind of layers.

    Returns:
        A tree like our parameters, of a :class:`Place` each.
    """
    return {
        "embedding": {"table": Place(table.weight, tuple(table.weight.shape))},
        "encoder": _stack(encoder, _ENCODER),
        "decoder": _stack(decoder, _DECODER),
    }


def read(
    places: PyTree, tensor: Callable[[Tensor], Tensor] = lambda parameter: parameter
) -> PyTree:
    """Return PyTorch's parameters, or of each the tensor like it that is asked for, as
    ours: float32 in NumPy.
    """
    return jax.tree.map(lambda place: place.take(tensor(place.parameter)), places)


def write(places: PyTree, params: PyTree) -> None:
    """Set PyTorch's parameters to ours, which are then in every place; the trees
    must have the same structure.
    """
    jax.tree.map(lambda place, values: place.put(values), places, params)


def _stack(
    stack: nn.TransformerEncoder | nn.TransformerDecoder, names: Sequence[str]
) -> PyTree:
    places = {
        f"layer_{number}": _layer(cast(Any, layer), names)
        for number, layer in enumerate(stack.layers)
    }
    return places | (
        {} if stack.norm is None else {"norm": _norm(cast(nn.LayerNorm, stack.norm))}
    )


def _layer(layer: Any, names: Sequence[str]) -> PyTree:
    places = {"self_attention": _attention(layer.self_attn)}
    if "cross_attention" in names:
        places["cross_attention"] = _attention(layer.multihead_attn)
    places["feed_forward"] = {
        "inner": _linear(layer.linear1),
        "outer": _linear(layer.linear2),
    }
    for number, name in enumerate(names, start=1):
        places[f"{name}_residual"] = {"norm": _norm(getattr(layer, f"norm{number}"))}
    return places


def _attention(module: nn.MultiheadAttention) -> PyTree:
    width, heads = module.embed_dim, module.num_heads
    per_head = width // heads
    places: dict[str, PyTree] = {}
    for number, name in enumerate(("query", "key", "value")):
        rows = slice(number * width, (number + 1) * width)
        places[name] = {
            "kernel": Place(
                module.in_proj_weight, (width, heads, per_head), rows, True
            ),
            "bias": Place(module.in_proj_bias, (heads, per_head), rows),
        }
    output = module.out_proj
    places["output"] = {
        "kernel": Place(output.weight, (heads, per_head, width), transposed=True),
        "bias": Place(output.bias, (width,)),
    }
    return places


def _linear(module: nn.Linear) -> PyTree:
    return {
        "kernel": Place(
            module.weight, (module.in_features, module.out_features), transposed=True
        ),
        "bias": Place(module.bias, (module.out_features,)),
    }


def _norm(module: nn.LayerNorm) -> PyTree:
    return {
        name: Place(tensor, tuple(tensor.shape))
        for name, tensor in (("scale", module.weight), ("bias", module.bias))
    }
