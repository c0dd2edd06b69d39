"""Pure functions on arrays and plain dicts of arrays, for plain JAX, Linen, NNX and
Equinox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.functional.attention import (
        KeysValues,
        attend,
        dot_product_attention,
        masked_softmax,
        multi_head_attention,
        project_keys_values,
    )
    from jaxformer.functional.chunked_losses import OutputLosses, output_losses
    from jaxformer.functional.layers import (
        dropout,
        embed,
        feed_forward,
        layer_norm,
        linear,
        project_to_vocabulary,
    )
    from jaxformer.functional.losses import (
        correct,
        cross_entropy,
        smoothed_probabilities,
        smoothing_floor,
        symmetric_divergence,
        z_loss,
    )
    from jaxformer.functional.masks import (
        SegmentMask,
        causal_mask,
        combine,
        padding_mask,
        segment_mask,
    )
    from jaxformer.functional.positions import learned, segment_positions, sinusoidal

__all__ = [
    "KeysValues",
    "OutputLosses",
    "SegmentMask",
    "attend",
    "causal_mask",
    "combine",
    "correct",
    "cross_entropy",
    "dot_product_attention",
    "dropout",
    "embed",
    "feed_forward",
    "layer_norm",
    "learned",
    "linear",
    "masked_softmax",
    "multi_head_attention",
    "output_losses",
    "padding_mask",
    "project_keys_values",
    "project_to_vocabulary",
    "segment_mask",
    "segment_positions",
    "sinusoidal",
    "smoothed_probabilities",
    "smoothing_floor",
    "symmetric_divergence",
    "z_loss",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attention": "KeysValues attend dot_product_attention masked_softmax"
        " multi_head_attention project_keys_values",
        "chunked_losses": "OutputLosses output_losses",
        "layers": "dropout embed feed_forward layer_norm linear project_to_vocabulary",
        "losses": "correct cross_entropy smoothed_probabilities smoothing_floor"
        " symmetric_divergence z_loss",
        "masks": "SegmentMask causal_mask combine padding_mask segment_mask",
        "positions": "learned segment_positions sinusoidal",
    },
)
