"""The settings of BERT, RoBERTa, DistilBERT, GPT and GPT-2 of Hugging Face's
transformers as our configurations, both ways.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.errors import InputError
from jaxformer.interop.huggingface.families import ACTIVATIONS, check_class
from jaxformer.interop.huggingface.one_stack_kinds import HEADS, KINDS, Kind
from jaxformer.models.config import TransformerConfig

# In the file of GPT "gelu" names the approximation by tanh.
_OF_GPT = {**ACTIVATIONS, "gelu": "gelu"}


def to_config(settings: Mapping[str, Any], head: str = "none") -> TransformerConfig:
    """Convert the fields of ``config.json``.

    Args:
        settings: the fields.
        head: of :func:`find_head`.

    Raises:
        InputError: an unknown ``model_type``, or a setting that is missing, of another
            kind or not supported.
    """
    name, kind = kind_of(settings)
    whole = _complete(settings, kind)
    options = {ours: whole[theirs] for theirs, ours in kind.settings.items()}
    known = _OF_GPT if name == "openai-gpt" else ACTIVATIONS
    activation = known[str(whole[kind.activation])]
    options |= {"activation": activation, **kind.options}
    options.setdefault("d_ff", whole.get("n_inner") or 4 * options["d_model"])
    if name == "roberta":  # numbered from the id after padding
        options["position_offset"] = options["pad_id"] + 1
        options["max_length"] -= options["position_offset"]
    if not options.get("num_encoder_layers"):
        # These models have no padding: the id after the vocabulary.
        options["pad_id"] = options["vocabulary_size"]
        options["bos_id"] = whole.get("bos_token_id") or 0
        return TransformerConfig(**options)
    options |= {"head": head, "output_bias": head in ("words", "words_and_next")}
    # RoBERTa's head has the exact function with any activation of the model.
    options["head_activation"] = "gelu_exact" if name == "roberta" else activation
    if head in ("classification", "tagging", "span"):
        options["source_vocabulary_size"] = options["vocabulary_size"]
        labels = 2 if head == "span" else len(read_labels(settings))
        options["vocabulary_size"] = labels
    options["bos_id"] = 0
    return TransformerConfig(**options)


def kind_of(settings: Mapping[str, Any]) -> tuple[str, Kind]:
    """Return the ``model_type`` and its kind.

    Raises:
        InputError: it is another one.
    """
    name = str(settings.get("model_type"))
    if name not in KINDS:
        raise InputError(
            f"model_type in config.json must be one of {', '.join(KINDS)}, not {name!r}"
        )
    return name, KINDS[name]


def _complete(settings: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Check settings, and add those that a file may leave out."""
    given = {key: value for key, value in settings.items() if value is not None}
    whole = {**kind.defaults, **given}
    check_class(given, f"{kind.name}Model", *_classes(kind).values())
    for key, allowed in kind.needed.items():
        if settings.get(key) not in allowed:
            raise InputError(
                f"{key} in config.json must be {_json(allowed[0])}, not"
                f" {_json(settings[key])}: jaxformer has no such model"
            )
    missing = [key for key in kind.settings if key not in whole]
    if missing:
        raise InputError(
            f"config.json lacks {', '.join(missing)}: give that of the whole model"
        )
    fields = TransformerConfig.__dataclass_fields__
    for key, ours in {**kind.settings, "n_inner": "d_ff"}.items():
        rate = fields[ours].type == "float"
        value = whole.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)[: 1 + rate]):
            what = "a number" if rate else "a whole number"
            raise InputError(f"{key} in config.json must be {what}, not {value!r}")
    known = _OF_GPT if kind is KINDS["openai-gpt"] else ACTIVATIONS
    if str(whole.get(kind.activation)) not in known:
        raise InputError(
            f"{kind.activation} in config.json must be one of {', '.join(known)}, not"
            f" {whole.get(kind.activation)!r}"
        )
    return whole


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def _classes(kind: Kind) -> dict[str, str]:
    """Return the names of the classes by our heads."""
    if kind.conv:
        return {"none": f"{kind.name}LMHeadModel"}
    return {head: kind.name + end for head, end in HEADS.items()}


def read_labels(settings: Mapping[str, Any]) -> list[str]:
    """Return the labels of ``config.json`` in the order of their numbers.

    Raises:
        InputError: they are not numbered from 0, or two are the same.
    """
    given = settings.get("id2label")
    if given is None:
        count = settings.get("num_labels", 2)
        if type(count) is not int or count < 1:
            raise InputError(
                f"num_labels in config.json must be a whole number, not {count!r}"
            )
        return [f"LABEL_{number}" for number in range(count)]
    try:
        numbered = sorted((int(id_), str(label)) for id_, label in given.items())
    except (AttributeError, TypeError, ValueError):
        numbered = []
    labels = [label for _, label in numbered]
    whole = [id_ for id_, _ in numbered] == [*range(len(labels))]
    if not labels or not whole or len({*labels}) < len(labels):
        raise InputError(
            "id2label in config.json must name a label for each number from 0 on, each"
            f" once, not {_json(given)[:80]}"
        )
    return labels


def find_objective(config: TransformerConfig, settings: Mapping[str, Any]) -> str:
    """Return the ``training.objective`` of a model.

    Raises:
        InputError: ``problem_type`` does not fit the labels, or is another one.
    """
    if config.num_decoder_layers:
        return "causal"
    if config.head != "classification":
        return {"tagging": "tagging", "span": "span"}.get(config.head, "masked")
    problem, labels = settings.get("problem_type"), config.vocabulary_size
    if problem not in (None, "single_label_classification", "regression"):
        raise InputError(
            f"problem_type in config.json is {problem}: jaxformer has classes, of which"
            " one is right, and regression"
        )
    if (problem == "regression") != (labels == 1):
        raise InputError(
            f"the classifier has {labels} output{'s' * (labels > 1)} and config.json"
            f" has problem_type={_json(problem)}: regression has one output and says so"
            ' by "problem_type": "regression", and classes are at least two'
        )
    return "regression" if problem == "regression" else "classification"


def find_head(kind: Kind, settings: Mapping[str, Any], names: frozenset[str]) -> str:
    """Return the head that the tensors belong to.

    A file may have more than its class needs, such as a pooler in a tagger.

    Raises:
        InputError: the class has a classifier and the file has none.
    """

    def has(part: str) -> bool:
        place = kind.heads.get(part)
        return place is not None and any(name.startswith(place) for name in names)

    named = str(settings.get("architectures"))
    for head in ("classification", "tagging", "span"):
        if HEADS[head] in named:
            part = "span" if head == "span" else "classifier"
            place = "classifier" if head == "tagging" else kind.heads.get(part)
            if place and not any(name.startswith(f"{place}.") for name in names):
                raise InputError(
                    f"the model lacks the tensor {place}.weight, the head of its class:"
                    " give the tensors of the whole model, or name"
                    f" {kind.name}Model in architectures of config.json and train the"
                    f" run with model.head={head}, which is then newly drawn"
                )
            return head
    if has("next_text") and has("pooler"):
        return "words_and_next"
    if has("transform"):
        return "words"
    if has("span"):
        return "span"
    if has("classifier") or "classifier.weight" in names:
        return "classification" if has("pooler") else "tagging"
    return "pooled" if kind.name == "Bert" and has("pooler") else "none"


def to_settings(
    config: TransformerConfig, name: str, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Convert a configuration to the fields of ``config.json``.

    Args:
        config: of a model that this ``model_type`` has, see :func:`differences`.
        name: the ``model_type``.
        labels: of a classifier, in the order of their numbers.
    """
    kind = KINDS[name]
    known = _OF_GPT if name == "openai-gpt" else ACTIVATIONS
    activations = {ours: theirs for theirs, ours in reversed(known.items())}
    found = {
        "model_type": name,
        "architectures": [_classes(kind)[config.head]],
        **{theirs: getattr(config, ours) for theirs, ours in kind.settings.items()},
        "vocab_size": config.text_vocabulary_size,
        kind.activation: activations[config.activation],
        "tie_word_embeddings": True,
    }
    if name == "roberta":
        found["max_position_embeddings"] += config.position_offset
    if name == "gpt2":
        wide = config.d_ff != 4 * config.d_model
        found["n_inner"] = config.d_ff if wide else None
    if kind.conv:
        found["embd_pdrop"] = config.dropout_rate
    if labels:
        found["id2label"] = {str(id_): label for id_, label in enumerate(labels)}
        found["label2id"] = {label: id_ for id_, label in enumerate(labels)}
    return found


def differences(config: TransformerConfig, name: str) -> dict[str, Any]:
    """Return the options that a configuration would need to be of a ``model_type``, and
    does not have, by name.
    """
    decoder = KINDS[name].conv
    if decoder != (config.num_encoder_layers == 0):
        side = "encoder" if decoder else "decoder"
        return {f"num_{side}_layers": 0}
    if name != "bert" and config.head in ("pooled", "words_and_next"):
        return {"head": "none" if config.head == "pooled" else "words"}
    labels = [str(number) for number in range(config.vocabulary_size)]
    named = labels if config.head in ("classification", "tagging") else ()
    other = to_config(to_settings(config, name, named), config.head)
    free = {"pad_id", "bos_id", "eos_id", "mask_id"}
    free |= {"activation_dropout_rate", "scale_positions"}  # nothing reads it there
    if config.head not in ("words", "words_and_next"):
        free |= {"head_activation", "output_bias"}  # of logits of words
    width = config.d_model // config.num_heads
    free |= {each for each in ("d_k", "d_v") if getattr(config, each) == width}
    return {
        field.name: getattr(other, field.name)
        for field in dataclasses.fields(config)
        if field.metadata["changes"] != "speed"
        and field.name not in free
        and getattr(other, field.name) != getattr(config, field.name)
    }
