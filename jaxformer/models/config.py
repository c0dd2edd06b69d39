"""What a Transformer is made of: one frozen, validated dataclass and the paper's
presets.
"""

from __future__ import annotations

import dataclasses

from jaxformer.errors import InputError, check_most
from jaxformer.functional.layers import ACTIVATIONS
from jaxformer.nn.blocks import NORM_ORDERS, LayerConfig
from jaxformer.nn.embedding import KINDS as POSITION_KINDS
from jaxformer.nn.stacks import REMATERIALIZATIONS

TIED_EMBEDDINGS = ("all", "target", "none")
DTYPES = ("float32", "bfloat16", "float16")

MOST = {
    "vocabulary_size": 2**24,
    "source_vocabulary_size": 2**24,
    "max_length": 2**20,
    "d_model": 2**20,
    "d_k": 2**20,
    "d_v": 2**20,
    "d_ff": 2**22,
    "num_heads": 2**16,
    "num_encoder_layers": 1_000,
    "num_decoder_layers": 1_000,
    "norm_epsilon": 1,
}
"""Greatest values of numbers: no device has room for more."""


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model (Vaswani
    et al. 2017, table 3).

    Raises:
        InputError: a value that is not allowed, or values that do not go together.
    """

    # Target tokens, or those of the shared vocabulary. A run of the command line reads
    # it from the vocabulary.
    vocabulary_size: int = 37_000
    # Source tokens, where the vocabularies are separate; None: the same as
    # vocabulary_size.
    source_vocabulary_size: int | None = None
    # Width of the residual stream.
    d_model: int = 512
    # Width of the feed-forward layers.
    d_ff: int = 2048
    # Heads of every attention.
    num_heads: int = 8
    # Width of a head's queries and keys; None: d_model / num_heads.
    d_k: int | None = None
    # Width of a head's values; None: d_model / num_heads.
    d_v: int | None = None
    # Layers of the encoder and of the decoder; they may differ.
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    # Dropout on sub-layer outputs and on the sums of embeddings and positions (section
    # 5.4).
    dropout_rate: float = 0.1
    # Dropout on attention weights and inside the feed-forward layer: 0 in the paper,
    # 0.1 in later tensor2tensor.
    attention_dropout_rate: float = 0.0
    activation_dropout_rate: float = 0.0
    # relu (the paper), gelu (its tanh approximation), gelu_exact or silu (also called
    # swish).
    activation: str = "relu"
    # post: LN(x + f(x)), the paper; pre: x + f(LN(x)) with a final norm, steadier in
    # deep stacks.
    norm_order: str = "post"
    # Added to the variance in layer normalisation.
    norm_epsilon: float = 1e-6
    # sinusoidal (the paper, interleaved), sinusoidal_halves (tensor2tensor),
    # sinusoidal_concatenated (the paper's numbers, all sines before all cosines:
    # Marian's models at Hugging Face) or learned.
    positions: str = "sinusoidal"
    # Most tokens that a sequence may have, end of sentence included, on either side.
    max_length: int = 1024
    # all: one table for source, target and output (section 3.4); target: target and
    # output share one; none.
    tied_embeddings: str = "all"
    # Whether embeddings are multiplied by the square root of d_model (section 3.4), and
    # learned positions with them.
    scale_embedding: bool = True
    # Whether each token of the target vocabulary has a bias that is added to its logit;
    # the paper has none.
    output_bias: bool = False
    # Type of the computation, float32, bfloat16 or float16 (for devices without
    # bfloat16; the loss is then scaled, see training.loss_scale); parameters, softmax,
    # norms and losses are float32 in any case.
    dtype: str = "float32"
    # What the backward pass computes again instead of keeping it, the results being the
    # same: none, layer (each layer, from its input: least memory, about a third more
    # computation) or dots (all but the results of linear maps: in between).
    rematerialization: str = "none"
    # Whether one program is scanned over the layers, whose parameters are then stacked:
    # deep models compile sooner.
    scan_layers: bool = False
    # Ids of padding and of the token that begins a target. A run of the command line
    # reads them from the vocabulary.
    pad_id: int = 0
    bos_id: int = 2

    def __post_init__(self) -> None:
        """Check every value, and those that depend on each other."""
        check_most(self, MOST, "model.")
        positive = (
            "vocabulary_size",
            "d_model",
            "d_ff",
            "num_heads",
            "num_encoder_layers",
            "num_decoder_layers",
        )
        for name in (*positive, "max_length"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("source_vocabulary_size", "d_k", "d_v"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1, or None")
        for name in (
            "dropout_rate",
            "attention_dropout_rate",
            "activation_dropout_rate",
        ):
            _require(
                0.0 <= getattr(self, name) < 1.0,
                name,
                getattr(self, name),
                "at least 0 and below 1",
            )
        _require(self.norm_epsilon > 0.0, "norm_epsilon", self.norm_epsilon, "above 0")
        for name, choices in (
            ("activation", tuple(ACTIVATIONS)),
            ("norm_order", NORM_ORDERS),
            ("positions", POSITION_KINDS),
            ("tied_embeddings", TIED_EMBEDDINGS),
            ("dtype", DTYPES),
            ("rematerialization", REMATERIALIZATIONS),
        ):
            _require(
                getattr(self, name) in choices,
                name,
                repr(getattr(self, name)),
                f"one of {', '.join(choices)}",
            )
        for name in ("pad_id", "bos_id"):
            _require(
                0 <= getattr(self, name) < self.vocabulary_size,
                name,
                getattr(self, name),
                "in the vocabulary",
            )
        self._check_heads()
        if self.positions != "learned" and self.d_model % 2:
            raise InputError(
                f"sinusoidal positions need an even model.d_model, not {self.d_model}"
            )
        if self.tied_embeddings == "all" and self.source_vocabulary_size not in (
            None,
            self.vocabulary_size,
        ):
            raise InputError(
                "model.tied_embeddings=all needs one vocabulary, not"
                f" {self.source_vocabulary_size} source and {self.vocabulary_size}"
                " target tokens; share the vocabulary or set tied_embeddings=target"
            )

    def _check_heads(self) -> None:
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            fitting = [
                heads
                for heads in range(1, self.d_model + 1)
                if self.d_model % heads == 0
            ]
            near = min(fitting, key=lambda heads: abs(heads - self.num_heads))
            raise InputError(
                f"model.d_model {self.d_model} is not divisible by model.num_heads"
                f" {self.num_heads}; try {near} heads, or set model.d_k and model.d_v"
            )

    @property
    def layer(self) -> LayerConfig:
        """What each layer of encoder and decoder is made of."""
        return LayerConfig(
            **{
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(LayerConfig)
            }
        )

    @classmethod
    def base(cls, vocabulary_size: int) -> TransformerConfig:
        """Return the paper's base model: 6 + 6 layers of width 512."""
        return cls(vocabulary_size=vocabulary_size)

    @classmethod
    def big(cls, vocabulary_size: int) -> TransformerConfig:
        """Return the paper's big model: 6 + 6 layers of width 1024, dropout 0.3 (0.1
        for English-French).
        """
        return cls(
            vocabulary_size=vocabulary_size,
            d_model=1024,
            d_ff=4096,
            num_heads=16,
            dropout_rate=0.3,
        )

    @classmethod
    def tiny(cls, vocabulary_size: int) -> TransformerConfig:
        """Return a model for tests and laptops: 3 + 3 layers of width 256."""
        return cls(
            vocabulary_size=vocabulary_size,
            d_model=256,
            d_ff=1024,
            num_heads=4,
            num_encoder_layers=3,
            num_decoder_layers=3,
        )


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise InputError(f"model.{name} must be {rule}, not {value}")
