"""BERT, RoBERTa, DistilBERT, GPT and GPT-2 of Hugging Face as runs, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxformer.data.config import DataConfig
from jaxformer.data.frame import ENCODER, TEXT, TEXT2, Template
from jaxformer.data.sources import IMPORTED
from jaxformer.data.vocabulary import SPECIAL, TOKENIZER, Vocabularies, Vocabulary
from jaxformer.data.vocabulary_labels import LabelVocabulary
from jaxformer.errors import InputError, require
from jaxformer.files import write_whole
from jaxformer.interop.huggingface import one_stack, tokenizer_files
from jaxformer.interop.huggingface.families import choose_type
from jaxformer.interop.huggingface.generation import (
    WITHOUT_EFFECT,
    read_beam_size,
)
from jaxformer.interop.huggingface.one_stack_kinds import KINDS
from jaxformer.interop.huggingface.one_stack_settings import (
    differences,
    find_objective,
    kind_of,
    read_labels,
)
from jaxformer.interop.huggingface.seq2seq import Imported
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import abstract_parameters
from jaxformer.runs.config import EvaluationConfig, RunConfig, data_kind
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.models import open_run

_TEMPLATES = {
    "bert": ENCODER,
    "distilbert": ENCODER,
    "roberta": Template(source=("{bos}", TEXT, *["{eos}"] * 2, TEXT2, "{eos}")),
    "gpt2": Template(),
    "openai-gpt": Template(),
}
"""The tokens around one text or two."""

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def describe(
    folder: Path, name: str, imported: Imported
) -> tuple[RunConfig, Vocabularies, list[str]]:
    """Return the configuration and the vocabularies of a run of a model.

    The objective is that of the model's head, and the labels are in the order of their
    numbers in ``config.json``.

    Args:
        folder: of the model, with the tokenizer's files.
        name: of the model.
        imported: the model.

    Returns:
        Configuration, vocabularies, and what is not taken from the folder: settings of
        its search, of a language model all but ``num_beams``, and what
        :func:`list_unused` finds.

    Raises:
        InputError: the tokenizer is missing, damaged or of another model, or the labels
            do not fit the head.
    """
    settings, model = imported.settings, imported.config
    objective = find_objective(model, settings)
    text = read_vocabularies(folder, settings).source
    labels: Vocabulary = text
    if objective in ("classification", "tagging"):
        labels = LabelVocabulary.from_labels(read_labels(settings))
    elif objective in ("regression", "span"):
        labels = LabelVocabulary.of_kind(data_kind(objective))
    ids: dict[str, Any] = {"pad_id": text.pad_id, "bos_id": text.bos_id}
    if not model.num_decoder_layers:
        ids |= {"eos_id": text.eos_id, "mask_id": text.mask_id}
    model = dataclasses.replace(model, **ids)
    data = DataConfig(
        kind=data_kind(objective),
        **dict.fromkeys(("train", "valid", "test"), f"{IMPORTED}{name}"),
        vocabulary_size=text.size,
        max_length=model.max_length,
    )
    training = TrainingConfig(
        objective=objective, label_smoothing=0.0, initializer="normal"
    )
    evaluation = EvaluationConfig(max_sentences=0, best_metric="loss")
    known = {*_IDS, "_from_model_config", *WITHOUT_EFFECT}
    search, decoding = imported.generation or {}, DecodingConfig()
    if objective == "causal":
        decoding = DecodingConfig(beam_size=read_beam_size(search))
        known.add("num_beams")
    config = RunConfig(model, data, training, decoding, evaluation)
    template = _TEMPLATES[settings["model_type"]]
    ignored = [f"{key}={search[key]!r}" for key in search if key not in known]
    ignored += list_unused(imported, text)
    return config, Vocabularies(text, labels, template), ignored


def list_unused(imported: Imported, text: Vocabulary) -> list[str]:
    """Name what a folder has and its run does not: rates of dropout that differ from
    the one of all sub-layers, a pooler that the head does not read, and a tokenizer
    whose case is not that of its pieces.

    Args:
        imported: the model.
        text: its vocabulary.
    """
    settings, head = imported.settings, imported.config.head
    name, kind = kind_of(settings)
    theirs = {ours: theirs for theirs, ours in kind.settings.items()}["dropout_rate"]
    rate = settings.get(theirs, kind.defaults[theirs])
    others = {
        "embd_pdrop": kind.conv,
        "classifier_dropout": head in ("classification", "tagging"),
        "seq_classif_dropout": head == "classification",
        "qa_dropout": head == "span",
    }
    found = [
        f"{key}={settings[key]} of config.json ({theirs}={rate} is that of all places)"
        for key, read in others.items()
        if read and settings.get(key) not in (None, rate)
    ]
    own = {"pooled", "words_and_next", "classification"}
    if name == "roberta" or head not in own:
        pooler = [each for each in imported.tensors if "pooler.dense." in each]
        found += [f"{' and '.join(sorted(pooler))} (no part of model.head={head})"] * (
            bool(pooler)
        )
    return found + tokenizer_files.compare_case(text.files[TOKENIZER])


def save(
    run: Path | str, checkpoint: str, folder: Path, dtype: str
) -> tuple[int | str, str | None]:
    """Write a run of a model of one stack for transformers, with its tokenizer.

    Args:
        run: directory of the run.
        checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
        folder: created.
        dtype: of the weights: ``float32``, ``float16`` or ``bfloat16``.

    Returns:
        The name of the checkpoint, and the part that the class of transformers has and
        the run has not: the pooler of BERT and RoBERTa without a head.

    Raises:
        InputError: there is no such run or checkpoint, transformers has no such model,
            or its vocabulary is one of SentencePiece.
    """
    _, config, saved, vocabularies = open_run(run, checkpoint)
    differ = {kind: differences(config.model, kind) for kind in KINDS}
    name = choose_type(config.model, differ, {kind: kind for kind in KINDS})
    text = vocabularies.source
    if TOKENIZER not in text.files:
        raise InputError(
            "this run has a vocabulary of SentencePiece, which transformers' classes of"
            f" {name} do not read: train with data.vocabulary_model=bytes"
        )
    settings: dict[str, Any] = {"model_type": name}
    if name not in ("bert", "distilbert"):
        settings |= {"bos_token_id": text.bos_id, "eos_token_id": text.eos_id}
    if vocabularies.labels is not None and config.model.head != "span":
        names = vocabularies.labels.labels or ("LABEL_0",)
        settings["id2label"] = {str(id_): label for id_, label in enumerate(names)}
    if config.training.objective == "regression":
        settings["problem_type"] = "regression"
    params = saved.load(abstract_parameters(config.model))
    one_stack.write(folder, config.model, params, settings, None, dtype)
    for file, content in _tokenizer(name, vocabularies, config.model).items():
        write_whole(folder / file, content)
    pooled = name in ("bert", "roberta") and config.model.head == "none"
    return saved.name, "pooler" if pooled else None


def _tokenizer(
    name: str, vocabularies: Vocabularies, model: TransformerConfig
) -> dict[str, bytes]:
    """Return the files of the tokenizer; the bytes of an imported one are its own."""
    text = vocabularies.source
    pieces = {
        special: text.pieces([getattr(text, f"{special}_id")])[0]
        for special in SPECIAL
        if getattr(text, f"{special}_id") < text.size
    }
    content = text.files[TOKENIZER]
    parts = json.loads(content)
    of_kind = _CLASSES[name]
    whole = vocabularies.template == _TEMPLATES[name]
    own = (parts["model"]["type"], pieces["bos"]) == of_kind[1:] and whole
    if vocabularies.template and not parts.get("post_processor"):
        content = _with_frame(content, vocabularies.template, pieces)
    options: dict[str, Any] = {
        "tokenizer_class": of_kind[0] if own else "PreTrainedTokenizerFast",
        "model_max_length": model.max_length,
        **{f"{special}_token": piece for special, piece in pieces.items()},
    }
    if model.num_encoder_layers:
        options |= {"cls_token": pieces["bos"], "sep_token": pieces["eos"]}
    if text.mask_id is not None:
        options["mask_token"] = text.pieces([text.mask_id])[0]
    options |= tokenizer_files.read_normalizer(content)
    return {
        TOKENIZER: content,
        "tokenizer_config.json": json.dumps(options, indent=2).encode() + b"\n",
    }


_CLASSES = {
    "bert": ("BertTokenizer", "WordPiece", "[CLS]"),
    "distilbert": ("DistilBertTokenizer", "WordPiece", "[CLS]"),
    "roberta": ("RobertaTokenizer", "BPE", "<s>"),
    "gpt2": ("GPT2Tokenizer", "BPE", "<|endoftext|>"),
    "openai-gpt": ("OpenAIGPTTokenizer", "BPE", "<unk>"),
}
"""The class of the tokenizer, its model, and the piece at the beginning."""


def _with_frame(content: bytes, template: Template, pieces: dict[str, str]) -> bytes:
    """Add the tokens around one text or two to a ``tokenizer.json``."""
    if "{bos}" not in template.source:
        return content
    tokenizers = require("tokenizers", "train")
    backend = tokenizers.Tokenizer.from_buffer(content)
    special = {f"{{{name}}}": piece for name, piece in pieces.items()}
    place = template.source.index(TEXT2)
    one, between = [*template.source], template.source.index(TEXT) + 1
    del one[between : place + 1]
    pair = [
        f"{special.get(part, '$B' if part == TEXT2 else '$A')}:{int(number >= place)}"
        for number, part in enumerate(template.source)
    ]
    single = [special.get(part, "$A") for part in one]
    known = [special[part] for part in dict.fromkeys(one) if part in special]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=" ".join(single),
        pair=" ".join(pair),
        special_tokens=[(piece, backend.token_to_id(piece)) for piece in known],
    )
    return backend.to_str().encode()
