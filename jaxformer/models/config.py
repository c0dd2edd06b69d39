"""The configuration of a Transformer, and the paper's presets."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxformer.errors import InputError, check_keys, key
from jaxformer.functional.layers import GATED
from jaxformer.kernels.backends import BACKENDS
from jaxformer.nn.config import (
    ACTIVATIONS,
    NORM_ORDERS,
    NORMS,
    POSITION_BIASES,
    LayerConfig,
)
from jaxformer.nn.embedding import IN_ATTENTION, LAYOUTS
from jaxformer.nn.embedding import KINDS as POSITION_KINDS
from jaxformer.nn.stacks import REMATERIALIZATIONS

HEADS = (
    *("none", "pooled", "words", "words_and_next"),
    *("classification", "tagging", "span"),
)
"""What reads the output of an encoder-only model."""
# Keys that a network has not. norm_epsilon, rotary_base, scale_positions,
# attention_backend and the activations of heads decide nothing without those of the
# Transformer's layers, and max_length is a limit of the data.
_OF_TRANSFORMERS = {field.name for field in dataclasses.fields(LayerConfig)}
_OF_TRANSFORMERS -= {"d_model", "dropout_rate", "norm_epsilon", "rotary_base"}
_OF_TRANSFORMERS |= {"positions", "position_offset", "embedding_norm", "segment_types"}
_OF_TRANSFORMERS |= {"rematerialization", "scan_layers"}
_OF_STACKS = {"attention_score", "reverse_source"}
_ABSENT = {
    "transformer": _OF_STACKS,
    "bahdanau": _OF_TRANSFORMERS | _OF_STACKS,
    "luong": _OF_TRANSFORMERS,
    "sutskever": _OF_TRANSFORMERS | {"attention_score"},
    "cho": _OF_TRANSFORMERS | _OF_STACKS,
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model (Vaswani
    et al. 2017, table 3), with biases in the projections of attention.

    Raises:
        InputError: a value is not allowed, or two values contradict each other.
    """

    # Of the target, or of both sides. A run reads it from its vocabulary.
    vocabulary_size: int = key(37_000, least=1, most=2**24, changes="tokens")
    # Of the source; None: vocabulary_size, where both sides share a vocabulary.
    source_vocabulary_size: int | None = key(
        None, least=1, most=2**24, changes="tokens"
    )
    # Width of the residual stream.
    d_model: int = key(512, least=1, most=2**20)
    # Width of the feed-forward layers.
    d_ff: int = key(2048, least=1, most=2**22)
    # Heads of each attention.
    num_heads: int = key(8, least=1, most=2**16)
    # Width of a head's queries and keys; None: d_model / num_heads.
    d_k: int | None = key(None, least=1, most=2**20)
    # Width of a head's values; None: d_model / num_heads.
    d_v: int | None = key(None, least=1, most=2**20)
    # Layers of encoder and decoder. 0 decoder layers are an encoder-only model, such
    # as BERT, and 0 encoder layers a decoder-only one, such as GPT.
    num_encoder_layers: int = key(6, least=0, most=1_000)
    num_decoder_layers: int = key(6, least=0, most=1_000)
    # Dropout on sub-layer outputs and on the sums of embeddings and positions (section
    # 5.4).
    dropout_rate: float = key(0.1, least=0, below=1)
    # Dropout on attention weights and inside the feed-forward layer: 0 in the paper,
    # 0.1 in later tensor2tensor.
    attention_dropout_rate: float = key(0.0, least=0, below=1)
    activation_dropout_rate: float = key(0.0, least=0, below=1)
    # relu (the paper), gelu (the tanh approximation), gelu_exact or silu (swish); with
    # a third kernel as a gate (Shazeer 2020): reglu, geglu, geglu_exact or swiglu.
    activation: str = key("relu", choices=ACTIVATIONS)
    # post: LN(x + f(x)), the paper; pre: x + f(LN(x)) and a final norm, more stable in
    # deep stacks.
    norm_order: str = key("post", choices=NORM_ORDERS)
    # Added to the variance in normalization.
    norm_epsilon: float = key(1e-6, above=0, most=1)
    # sinusoidal (the paper: sines and cosines interleaved), sinusoidal_halves
    # (tensor2tensor), sinusoidal_concatenated (all sines, then all cosines, as Marian's
    # models at Hugging Face), learned, rotary (queries and keys of self-attention turn
    # with the position, Su et al. 2021) or none.
    positions: str = key("sinusoidal", choices=POSITION_KINDS)
    # Maximum length of a sequence on either side, end of sentence included.
    max_length: int = key(1024, least=1, most=2**20)
    # all: source, target and output share one table (section 3.4); target: target and
    # output do; none.
    tied_embeddings: str = key("all", choices=("all", "target", "none"))
    # The number of the first position: 2 in BART, mBART and M2M-100, which count from
    # the id after padding. A table of learned positions has as many rows more.
    position_offset: int = key(0, least=0, most=2**20)
    # Whether embeddings are multiplied by the square root of d_model (section 3.4).
    scale_embedding: bool = key(True)
    # Whether learned positions are multiplied too where embeddings are. The paper says
    # nothing of it; mBART's are not.
    scale_positions: bool = key(True)
    # Whether the sums of embeddings and positions are normalized, as in BART and mBART.
    embedding_norm: bool = key(False)
    # Whether logits have a bias; the paper has none.
    output_bias: bool = key(False)
    # Kinds of segments with an embedding each, such as the two texts of a pair in BERT;
    # 0: none.
    segment_types: int = key(0, least=0, most=2**16)
    # What reads the output of an encoder-only model: words (of masked
    # positions), words_and_next (and whether the second text follows the first),
    # classification (of the whole text), tagging (of each position), span (its first
    # and last position), pooled (the vector of the whole text, from which another
    # head may begin) or none.
    head: str = key("none", choices=HEADS)
    # Activation of the first layer of the heads for masked words and for a whole text.
    head_activation: str = key("gelu_exact", choices=ACTIVATIONS)
    pooler_activation: str = key("tanh", choices=("tanh", "relu"))
    # Compute dtype: float32, bfloat16, or float16 for devices without bfloat16, with
    # loss scaling (training.loss_scale). Parameters, softmax, norms and losses are
    # always float32.
    dtype: str = key(
        "float32", choices=("float32", "bfloat16", "float16"), changes="speed"
    )
    # How attention is computed: auto (the device's kernel where it takes type, widths
    # and lengths, else plain), plain (matmuls and a softmax), cudnn (half precision
    # on GPUs of compute capability 8.0 or higher) or pallas (TPUs). Kernels keep no
    # attention weights and move less; they have no attention dropout. Results differ by
    # rounding.
    attention_backend: str = key(
        "auto", choices=BACKENDS, changes="speed", may_change=True
    )
    # What the backward pass recomputes instead of keeping it; results do not change:
    # none, layer (each layer from its input: least memory, a third more computation) or
    # dots (everything but the outputs of linear maps: between the two).
    rematerialization: str = key(
        "none", choices=REMATERIALIZATIONS, changes="speed", may_change=True
    )
    # Whether layers have stacked parameters and one program, run by a scan: deep models
    # compile faster.
    scan_layers: bool = key(False, changes="speed")
    # Ids of padding and of the first decoder input. A run reads them from its
    # vocabulary.
    pad_id: int = key(0, changes="tokens")
    bos_id: int = key(2, changes="tokens")
    # Ids of the end of a text and of the mask, where the model is to know them: masked
    # words are never these.
    eos_id: int | None = key(None, least=0, most=2**24, changes="tokens")
    mask_id: int | None = key(None, least=0, most=2**24, changes="tokens")
    # Blocks later than the paper. layer: layer normalization; rms: RMSNorm (Zhang and
    # Sennrich 2019).
    norm: str = key("layer", choices=NORMS)
    # Whether projections, feed-forward layers and layer norms have biases.
    biases: bool = key(True)
    # Heads of keys and values, which divide num_heads and share them (Ainslie et al.
    # 2023; 1: Shazeer 2019). None: num_heads.
    num_key_value_heads: int | None = key(None, least=1, most=2**16)
    # Whether queries and keys are normalized by RMSNorm (Henry et al. 2020; Dehghani et
    # al. 2023).
    query_key_norm: bool = key(False)
    # Base of the angles of rotary positions.
    rotary_base: float = key(10_000.0, above=1, most=1e9)
    # Bias on the scores of self-attention by distance: none, relative (learned, T5;
    # Raffel et al. 2020) or alibi (Press et al. 2022). Besides positions; alone with
    # positions=none.
    position_bias: str = key("none", choices=POSITION_BIASES)
    # Positions that self-attention sees, the own one and those before it; in the
    # encoder as many after it (Beltagy et al. 2020). None: all.
    attention_window: int | None = key(None, least=1, most=2**20)
    # Dropout of whole sub-layers, of each row by itself (stochastic depth; Huang et al.
    # 2016), at one rate in all layers as Fan et al. 2020.
    layer_drop_rate: float = key(0.0, least=0, below=1)
    # transformer, or a network before it, all of whose widths are d_model. With
    # attention: bahdanau (RNNsearch: GRUs of one layer, additive attention; Bahdanau et
    # al. 2015) or luong (LSTMs of as many layers on both sides, input feeding; Luong et
    # al. 2015). Without: sutskever (LSTMs, whose last states begin the decoder;
    # Sutskever et al. 2014) or cho (GRUs of one layer, one vector in each step; Cho et
    # al. 2014). Their layers have no other key than the dropout_rate.
    network: str = key("transformer", choices=tuple(_ABSENT))
    # Score of the attention of luong, of its state h and a position s of the source:
    # dot (h . s), general (h . W s) or concat (v . tanh(W [h; s])).
    attention_score: str = key("general", choices=("dot", "general", "concat"))
    # Whether luong or sutskever reads the source from its end to its beginning
    # (Sutskever et al. 2014, section 3.3).
    reverse_source: bool = key(False)

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("model", self)
        self._check_stacks()
        self._check_network()
        if self.network != "transformer":
            return
        try:
            self.layer  # noqa: B018 - checks the heads
        except InputError as error:
            raise InputError(f"model.{error}") from None
        if self.positions in LAYOUTS and self.d_model % 2:
            raise InputError(
                f"sinusoidal positions need an even model.d_model, not {self.d_model}"
            )

    def _check_stacks(self) -> None:
        stacks = self.num_encoder_layers, self.num_decoder_layers
        if not any(stacks):
            raise InputError(
                "model.num_encoder_layers and model.num_decoder_layers are both 0: a"
                " model has an encoder, a decoder or both"
            )
        if self.head != "none" and self.num_decoder_layers:
            raise InputError(
                f"model.head={self.head} is of encoder-only models: set"
                " model.num_decoder_layers=0, or model.head=none"
            )
        # One stack may have no padding in its vocabulary: the id after it.
        sizes = {"pad_id": self.text_vocabulary_size + 1}
        if all(stacks):
            sizes["pad_id"] = min(self.vocabulary_size, self.text_vocabulary_size)
        if self.num_decoder_layers:
            sizes["bos_id"] = self.vocabulary_size
        for name, size in sizes.items():
            if not 0 <= getattr(self, name) < size:
                raise InputError(
                    f"model.{name} must be in the vocabulary, below {size}, not"
                    f" {getattr(self, name)}"
                )
        if (
            all(stacks)
            and self.tied_embeddings == "all"
            and self.text_vocabulary_size != self.vocabulary_size
        ):
            raise InputError(
                "model.tied_embeddings=all needs one vocabulary, not"
                f" {self.source_vocabulary_size} source and {self.vocabulary_size}"
                " target tokens; share the vocabulary or set tied_embeddings=target"
            )

    def _check_network(self) -> None:
        changed = [
            f"model.{name}={value}"
            for name, value in vars(self).items()
            if name in _ABSENT[self.network]
            and value != getattr(TransformerConfig, name)
        ]
        if changed:
            raise InputError(
                f"model.network={self.network} has no {', '.join(changed)}: leave"
                f" {'it' if len(changed) == 1 else 'them'} out"
            )
        stacks = self.num_encoder_layers, self.num_decoder_layers
        if self.network in ("bahdanau", "cho") and stacks != (1, 1):
            raise InputError(
                f"model.network={self.network} has one layer on each side: set"
                " model.num_encoder_layers=1 and model.num_decoder_layers=1, not"
                f" {stacks[0]} and {stacks[1]}"
            )
        if self.network != "transformer" and stacks[0] != stacks[1]:
            raise InputError(
                f"model.network={self.network} begins each layer of the decoder with"
                " the state of one of the encoder: model.num_encoder_layers and"
                f" model.num_decoder_layers must be equal, not {stacks[0]} and"
                f" {stacks[1]}"
            )

    @property
    def attention_layers(self) -> int:
        """Layers of the decoder that attend to a source."""
        if self.network == "transformer":
            return self.num_encoder_layers and self.num_decoder_layers
        return int(self.network in ("bahdanau", "luong"))

    @property
    def head_widths(self) -> tuple[int, int]:
        """Widths of a head: d_k of queries and keys, d_v of values."""
        width = self.d_model // self.num_heads
        return self.d_k or width, self.d_v or width

    @property
    def text_vocabulary_size(self) -> int:
        """Tokens of the source, or of the only side."""
        return self.source_vocabulary_size or self.vocabulary_size

    @property
    def layer(self) -> LayerConfig:
        """What each layer of encoder and decoder is made of."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(LayerConfig)
        }
        if self.positions != "rotary":
            values["rotary_base"] = None
        return LayerConfig(**values)

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


def later_blocks(config: TransformerConfig) -> dict[str, Any]:
    """Return the values of keys whose blocks came after the translation models of
    other systems, where they are not the default: what an export refuses.
    """
    names = [
        *("norm", "biases", "num_key_value_heads", "query_key_norm"),
        *("position_bias", "attention_window"),
        *("activation",) * (config.activation in GATED),
        *("positions",) * (config.positions in IN_ATTENTION),
    ]
    own = {name: getattr(config, name) for name in names}
    return {k: v for k, v in own.items() if v != getattr(TransformerConfig, k)}
