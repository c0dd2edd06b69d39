"""The families of translation models of Hugging Face's transformers, and their settings
as our configurations, both ways.

| ``model_type`` | models | norms | positions |
|---|---|---|---|
| ``marian`` | OPUS-MT | post | sines, then cosines |
| ``m2m_100`` | M2M-100, NLLB-200 (dense) | pre | fairseq's sinusoids, after padding |
| ``mbart`` | mBART, mBART-50 | pre, and of the embedded input | learned, from row 2 |
| ``bart`` | BART | post, and of the embedded input | learned, from row 2 |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxformer.errors import InputError
from jaxformer.interop.huggingface.one_stack_kinds import KINDS
from jaxformer.models.config import TransformerConfig, later_blocks


@dataclasses.dataclass(frozen=True)
class Family:
    """What the models of one ``model_type`` have in common.

    Attributes:
        model: the class in transformers.
        options: of the configuration, the same in every model.
        after_padding: whether positions are numbered from the id after padding.
        output_bias: whether logits have a bias, which may be zero.
        separate: whether source and target may have vocabularies of their own.
        table: the name of a table of positions on each side.
        defaults: of settings that ``config.json`` may leave out.
    """

    model: str
    options: Mapping[str, Any]
    after_padding: bool = False
    output_bias: bool = True
    separate: bool = False
    table: str = "embed_positions.weight"
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def headless(self) -> str:
        """The class without logits, whose folders have the same tables."""
        name = self.model.removesuffix("ForConditionalGeneration")
        return f"{name.removesuffix('MTModel')}Model"


_LEARNED = {
    "embedding_norm": True,
    "positions": "learned",
    "position_offset": 2,
    "scale_positions": False,
}

FAMILIES = {
    "marian": Family(
        "MarianMTModel",
        {
            "norm_order": "post",
            "embedding_norm": False,
            "positions": "sinusoidal_concatenated",
            "position_offset": 0,
        },
        separate=True,
    ),
    "m2m_100": Family(
        "M2M100ForConditionalGeneration",
        {
            "norm_order": "pre",
            "embedding_norm": False,
            "positions": "sinusoidal_halves",
        },
        after_padding=True,
        output_bias=False,
        table="embed_positions.weights",
        defaults={"scale_embedding": True, "attention_dropout": 0.1},
    ),
    "mbart": Family("MBartForConditionalGeneration", _LEARNED | {"norm_order": "pre"}),
    "bart": Family("BartForConditionalGeneration", _LEARNED | {"norm_order": "post"}),
}
"""The families by their ``model_type``."""

ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
}
"""Our names of their activations; the first of two is written."""

_WHOLE = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "max_position_embeddings": "max_length",
    "pad_token_id": "pad_id",
    "decoder_start_token_id": "bos_id",
}
"""Our names of their whole numbers."""

_RATES = {
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "activation_dropout_rate",
}
"""Our names of their rates of dropout. Dropout of whole layers is ignored."""

_DEFAULTS = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
    "is_encoder_decoder": True,
}

_SWITCHES = (
    "scale_embedding",
    "tie_word_embeddings",
    "share_encoder_decoder_embeddings",
    "is_encoder_decoder",
)

_EPSILON = 1e-5
"""Epsilon of the layer norms, which Hugging Face's configurations do not have."""


def family_of(settings: Mapping[str, Any]) -> Family:
    """Return the family that ``model_type`` names.

    Raises:
        InputError: another one.
    """
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(
            "model_type in config.json must be one of"
            f" {', '.join((*FAMILIES, *KINDS))}, not {kind!r}; other models have other"
            " layers"
        )
    return FAMILIES[kind]


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings, and add those that ``config.json`` may leave out.

    Raises:
        InputError: an unknown ``model_type``, a setting that is missing or of another
            kind, or one that jaxformer does not have.
    """
    family = family_of(settings)
    given = {name: value for name, value in settings.items() if value is not None}
    whole = _DEFAULTS | dict(family.defaults) | given
    if "num_attention_heads" in given:  # their other name of the encoder's
        whole["encoder_attention_heads"] = given["num_attention_heads"]
    if family is FAMILIES["mbart"] and "eos_token_id" in whole:
        # mBART-25 names no first token: it is the language, which differs by batch.
        whole.setdefault("decoder_start_token_id", whole["eos_token_id"])
    numbers = ("vocab_size", *_WHOLE)
    missing = [name for name in (*numbers, "activation_function") if name not in whole]
    if missing:
        raise InputError(
            f"the configuration lacks {', '.join(missing)}; give the config.json of a"
            f" {family.model}"
        )
    whole.setdefault("decoder_vocab_size", whole["vocab_size"])
    for names, kinds, kind in (
        ((*numbers, "decoder_vocab_size"), (int,), "a whole number"),
        (_RATES, (int, float), "a number"),
        (_SWITCHES, (bool,), "true or false"),
    ):
        for name in names:
            if type(whole[name]) not in kinds:
                raise InputError(
                    f"{name} in config.json must be {kind}, not {whole[name]!r}"
                )
    _check_supported(whole, family)
    return whole


def check_class(settings: Mapping[str, Any], *known: str) -> None:
    """Check that the class of a model is known, and its weights are not quantised.

    Raises:
        InputError: it is another one, or they are.
    """
    named = settings.get("architectures") or known
    named = [named] if isinstance(named, str) else named
    if not {*known} & {*map(str, named)}:
        raise InputError(
            f"architectures in config.json must have {' or '.join(sorted(known))}, not"
            f" {', '.join(map(str, named))}, which has another head"
        )
    if "quantization_config" in settings:
        raise InputError(
            "config.json has a quantization_config, and quantised weights are not read;"
            " take the model that is not quantised"
        )


def _check_supported(settings: Mapping[str, Any], family: Family) -> None:
    check_class(settings, family.model, family.headless)
    if not settings["is_encoder_decoder"]:
        raise InputError(
            f"is_encoder_decoder in config.json must be true, not false: a"
            f" {family.model} has both sides"
        )
    for name in ("ffn_dim", "attention_heads"):
        ours, theirs = settings[f"encoder_{name}"], settings[f"decoder_{name}"]
        if ours != theirs:
            raise InputError(
                "encoder and decoder need layers of the same sizes, and"
                f" encoder_{name} is {ours} where decoder_{name} is {theirs}; such a"
                " model cannot be imported"
            )
    activation = settings["activation_function"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise InputError(
            f"activation_function must be one of {', '.join(ACTIVATIONS)} to be"
            f" imported, not {activation!r}"
        )


def to_config(settings: Mapping[str, Any]) -> TransformerConfig:
    """Convert settings from :func:`complete`. The tensors tell which tables are tied
    and whether logits have a bias.

    Raises:
        InputError: a value that the configuration does not allow.
    """
    family = family_of(settings)
    source = target = settings["vocab_size"]
    if family.separate and not settings["share_encoder_decoder_embeddings"]:
        target = settings["decoder_vocab_size"]
    names = {ours: settings[theirs] for theirs, ours in (_WHOLE | _RATES).items()}
    return TransformerConfig(
        vocabulary_size=target,
        source_vocabulary_size=None if source == target else source,
        activation=ACTIVATIONS[settings["activation_function"]],
        norm_epsilon=_EPSILON,
        tied_embeddings="none",
        scale_embedding=settings["scale_embedding"],
        **names,
        **_options(family, settings["pad_token_id"]),
    )


def _options(family: Family, pad_id: int) -> dict[str, Any]:
    """Return the options of the configuration that every model of a family has."""
    after = {"position_offset": pad_id + 1} if family.after_padding else {}
    return {**family.options, **after}


def differences(config: TransformerConfig, family: Family) -> dict[str, Any]:
    """Return the options that a configuration would need to be of a family, and does
    not have, by name.
    """
    width = config.d_model // config.num_heads
    plain = TransformerConfig()
    needed = {name: getattr(plain, name) for name in later_blocks(config)}
    needed |= _options(family, config.pad_id) | {"norm_epsilon": _EPSILON}
    needed |= {name: width for name in ("d_k", "d_v") if getattr(config, name)}
    if not family.output_bias:
        needed["output_bias"] = False
    if not family.separate and config.source_vocabulary_size is not None:
        needed["source_vocabulary_size"] = config.vocabulary_size
    return {
        name: value for name, value in needed.items() if getattr(config, name) != value
    }


def check_fits(
    config: TransformerConfig, model: str, differ: Mapping[str, Any]
) -> None:
    """Check that a model of theirs does not differ from a configuration.

    Raises:
        InputError: it does.
    """
    for name, value in differ.items():
        raise InputError(
            f"a {model} has model.{name} {value}, and this model has"
            f" {getattr(config, name)}: it cannot be written as one"
        )


def to_settings(
    config: TransformerConfig, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert a configuration to the fields of ``config.json``.

    Args:
        config: of a model that its family has, see :func:`check_fits`.
        settings: further fields: at least ``model_type`` and ``eos_token_id``. An
            activation of two names keeps its own.

    Raises:
        InputError: ``eos_token_id`` is missing.
    """
    family, activation = family_of(settings), settings.get("activation_function")
    if settings.get("eos_token_id") is None:
        raise InputError(
            "config.json needs the eos_token_id, which the model does not know; give it"
            " in the settings"
        )
    if ACTIVATIONS.get(str(activation)) != config.activation:
        names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
        activation = names[config.activation]
    numbers = {
        theirs: getattr(config, ours) for theirs, ours in (_WHOLE | _RATES).items()
    }
    sizes = {"vocab_size": config.vocabulary_size}
    if family.separate:
        sizes = {
            "vocab_size": config.text_vocabulary_size,
            "decoder_vocab_size": config.vocabulary_size,
        }
        sizes["share_encoder_decoder_embeddings"] = config.tied_embeddings == "all"
    tied = ("all", "target") if family.separate else ("all",)
    dropped = {"quantization_config", "torch_dtype", "_name_or_path"}
    eos = {"forced_eos_token_id": settings["eos_token_id"]}
    return {
        **eos,
        **{name: value for name, value in settings.items() if name not in dropped},
        **numbers,
        **sizes,
        "activation_function": activation,
        "architectures": [family.model],
        "is_encoder_decoder": True,
        "scale_embedding": config.scale_embedding,
        "tie_word_embeddings": config.tied_embeddings in tied,
    }


def choose_type(
    config: TransformerConfig,
    differ: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    otherwise: str = "",
) -> str:
    """Return the ``model_type`` whose models compute what a configuration says.

    Args:
        config: of the model.
        differ: by type the options that such a model has and this has not.
        names: of the models of each type.
        otherwise: what else can be done.

    Raises:
        InputError: there is none; the options that differ are named.
    """
    kind = min(differ, key=lambda kind: len(differ[kind]))
    if not differ[kind]:
        return kind
    needed = " ".join(f"--config.model.{key}={x}" for key, x in differ[kind].items())
    own = ", ".join(f"{key} {getattr(config, key)}" for key in differ[kind])
    raise InputError(
        f"transformers has no model with {own}: for its {names[kind]}, train with"
        f" {needed}{otherwise}"
    )
