"""The names and settings of BERT, RoBERTa, DistilBERT, GPT and GPT-2 in Hugging Face's
transformers.

| ``model_type`` | stack | norms | heads |
|---|---|---|---|
| ``bert`` | encoder | post, and of the embedded input | words, next text, labels |
| ``roberta`` | encoder, positions from row 2 | the same | words, labels |
| ``distilbert`` | encoder, no kinds of segments | the same | words, labels |
| ``gpt2`` | decoder | pre | the table of words |
| ``openai-gpt`` | decoder | post | the table of words |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """The names of one ``model_type``.

    Attributes:
        name: what the names of its classes begin with.
        prefix: of the tensors of the model without its head.
        settings: our names of their whole numbers and rates.
        defaults: of settings that a file may leave out.
        options: of the configuration, the same in every model.
        tables: of words, positions and kinds of segments, by our names.
        layer: of a layer, with its number.
        parts: of a layer: norms and linear maps, by our names.
        norms: outside the layers, by our names.
        heads: tensors of heads, by our names.
        conv: whether linear maps are [inputs, outputs].
        needed: settings and the only values of them that are read.
        activation: the name of the setting of the activation.
    """

    name: str
    prefix: str
    settings: Mapping[str, str]
    defaults: Mapping[str, Any]
    options: Mapping[str, Any]
    tables: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]
    norms: Mapping[str, str]
    heads: Mapping[str, str]
    conv: bool = False
    needed: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    activation: str = "hidden_act"


_SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_encoder_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_length",
    "type_vocab_size": "segment_types",
    "layer_norm_eps": "norm_epsilon",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "pad_token_id": "pad_id",
}
_ENCODER = {
    "num_decoder_layers": 0,
    "norm_order": "post",
    "embedding_norm": True,
    "positions": "learned",
    "scale_embedding": False,
    "tied_embeddings": "all",
}
_BERT = Kind(
    name="Bert",
    prefix="bert.",
    settings=_SIZES,
    defaults={
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    },
    options=_ENCODER,
    tables={
        "embedding": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "segment_embedding": "embeddings.token_type_embeddings",
    },
    layer="encoder.layer.{}.",
    parts={
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "self_attention_residual": "attention.output.LayerNorm",
        "inner": "intermediate.dense",
        "outer": "output.dense",
        "feed_forward_residual": "output.LayerNorm",
    },
    norms={"embedding_norm": "embeddings.LayerNorm"},
    heads={
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "word_bias": "cls.predictions.bias",
        "tied": "cls.predictions.decoder",
        "pooler": "bert.pooler.dense",
        "next_text": "cls.seq_relationship",
        "classifier": "classifier",
        "span": "qa_outputs",
    },
    needed={
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False, None),
        "add_cross_attention": (False, None),
    },
)
_ROBERTA = dataclasses.replace(
    _BERT,
    name="Roberta",
    prefix="roberta.",
    defaults={**_BERT.defaults, "layer_norm_eps": 1e-5, "pad_token_id": 1},
    heads={
        "transform": "lm_head.dense",
        "transform_norm": "lm_head.layer_norm",
        "word_bias": "lm_head.bias",
        "tied": "lm_head.decoder",
        "pooler": "classifier.dense",
        "classifier": "classifier.out_proj",
        "span": "qa_outputs",
    },
)
_DISTILBERT = dataclasses.replace(
    _BERT,
    name="DistilBert",
    prefix="distilbert.",
    settings={
        "vocab_size": "vocabulary_size",
        "dim": "d_model",
        "n_layers": "num_encoder_layers",
        "n_heads": "num_heads",
        "hidden_dim": "d_ff",
        "max_position_embeddings": "max_length",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "pad_token_id": "pad_id",
    },
    defaults={
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "pad_token_id": 0,
        "activation": "gelu",
    },
    options={**_ENCODER, "norm_epsilon": 1e-12, "pooler_activation": "relu"},
    tables={name: _BERT.tables[name] for name in ("embedding", "positions")},
    layer="transformer.layer.{}.",
    parts={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "output": "attention.out_lin",
        "self_attention_residual": "sa_layer_norm",
        "inner": "ffn.lin1",
        "outer": "ffn.lin2",
        "feed_forward_residual": "output_layer_norm",
    },
    heads={
        "transform": "vocab_transform",
        "transform_norm": "vocab_layer_norm",
        "word_bias": "vocab_projector.bias",
        "tied": "vocab_projector",
        "pooler": "pre_classifier",
        "classifier": "classifier",
        "span": "qa_outputs",
    },
    needed={},
    activation="activation",
)
_GPT2 = Kind(
    name="GPT2",
    prefix="transformer.",
    settings={
        "vocab_size": "vocabulary_size",
        "n_embd": "d_model",
        "n_layer": "num_decoder_layers",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_pdrop": "dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
    },
    defaults={
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "activation_function": "gelu_new",
    },
    options={
        "num_encoder_layers": 0,
        "norm_order": "pre",
        "positions": "learned",
        "scale_embedding": False,
        "tied_embeddings": "all",
    },
    tables={"embedding": "wte", "positions": "wpe"},
    layer="h.{}.",
    parts={
        "self_attention_residual": "ln_1",
        "query": "attn.query",
        "key": "attn.key",
        "value": "attn.value",
        "output": "attn.c_proj",
        "feed_forward_residual": "ln_2",
        "inner": "mlp.c_fc",
        "outer": "mlp.c_proj",
    },
    norms={"decoder/norm": "ln_f"},
    heads={"tied": "lm_head"},
    conv=True,
    needed={
        "scale_attn_weights": (True, None),
        "scale_attn_by_inverse_layer_idx": (False, None),
        "add_cross_attention": (False, None),
    },
    activation="activation_function",
)
HEADS = {
    "none": "Model",
    "pooled": "Model",
    "words": "ForMaskedLM",
    "words_and_next": "ForPreTraining",
    "classification": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
"""What the names of their classes end with, by our heads; those of GPT with
``LMHeadModel``.
"""

KINDS = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "gpt2": _GPT2,
    "openai-gpt": dataclasses.replace(
        _GPT2,
        name="OpenAIGPT",
        options={**_GPT2.options, "norm_order": "post"},
        defaults={**_GPT2.defaults, "n_positions": 512, "afn": "gelu"},
        tables={"embedding": "tokens_embed", "positions": "positions_embed"},
        norms={},
        needed={},
        activation="afn",
    ),
}
"""The models of one stack by their ``model_type``."""
