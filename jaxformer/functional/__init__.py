"""The equations of the Transformer as pure functions on arrays and plain dicts of
arrays, for plain JAX, Linen, NNX and Equinox. docs/the-paper.md reads them in the order
of the paper.
"""

from jaxformer.functional.attention import (
    dot_product_attention,
    masked_softmax,
    multi_head_attention,
    project_keys_values,
)
from jaxformer.functional.earlier_attention import (
    additive_scores,
    attend_by_scores,
    concat_scores,
    dot_scores,
    general_scores,
)
from jaxformer.functional.initializers import (
    init_embedding,
    init_feed_forward,
    init_layer_norm,
    init_linear,
    init_multi_head_attention,
)
from jaxformer.functional.layers import (
    dropout,
    embed,
    feed_forward,
    layer_norm,
    linear,
    project_to_vocabulary,
    rms_norm,
    stochastic_depth,
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
    window_mask,
)
from jaxformer.functional.positions import learned, segment_positions, sinusoidal
from jaxformer.functional.relative_positions import (
    alibi,
    relative_bias,
    relative_buckets,
    rotary,
)

__all__ = [
    "SegmentMask",
    "additive_scores",
    "alibi",
    "attend_by_scores",
    "causal_mask",
    "combine",
    "concat_scores",
    "correct",
    "cross_entropy",
    "dot_product_attention",
    "dot_scores",
    "dropout",
    "embed",
    "feed_forward",
    "general_scores",
    "init_embedding",
    "init_feed_forward",
    "init_layer_norm",
    "init_linear",
    "init_multi_head_attention",
    "layer_norm",
    "learned",
    "linear",
    "masked_softmax",
    "multi_head_attention",
    "padding_mask",
    "project_keys_values",
    "project_to_vocabulary",
    "relative_bias",
    "relative_buckets",
    "rms_norm",
    "rotary",
    "segment_mask",
    "segment_positions",
    "sinusoidal",
    "smoothed_probabilities",
    "smoothing_floor",
    "stochastic_depth",
    "symmetric_divergence",
    "window_mask",
    "z_loss",
]
