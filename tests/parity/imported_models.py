"""Little models of each family in folders as transformers writes them, imported as
runs: once in a process.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalCall=false, reportArgumentType=false

import dataclasses
import functools
import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizer_folders

import runs
from jaxformer.interop.huggingface.run import import_run
from jaxformer.translation.translator import Translator

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

LITTLE = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "max_position_embeddings": 128,
    "scale_embedding": False,
}
FAIRSEQ = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
# What writes the tokenizer, its class, that of the model, its settings, and languages.
FAMILIES = {
    "marian": (tokenizer_folders.marian, "Marian", "MarianMTModel", {}, (None, None)),
    "marian of languages": (
        tokenizer_folders.marian,
        "Marian",
        "MarianMTModel",
        {},
        (None, "fra"),
    ),
    "m2m_100": (
        tokenizer_folders.m2m100,
        "M2M100",
        "M2M100ForConditionalGeneration",
        {"decoder_start_token_id": 2},
        ("en", "de"),
    ),
    "nllb": (
        functools.partial(tokenizer_folders.fairseq, name="Nllb"),
        "Nllb",
        "M2M100ForConditionalGeneration",
        {"decoder_start_token_id": 2},
        ("eng_Latn", "deu_Latn"),
    ),
    "mbart": (
        functools.partial(tokenizer_folders.fairseq, name="MBart"),
        "MBart",
        "MBartForConditionalGeneration",
        {},
        ("en_XX", "ro_RO"),
    ),
    "mbart-50": (
        functools.partial(tokenizer_folders.fairseq, name="MBart50"),
        "MBart50",
        "MBartForConditionalGeneration",
        {"decoder_start_token_id": 2},
        ("en_XX", "ro_RO"),
    ),
    "bart": (
        tokenizer_folders.bart,
        "Bart",
        "BartForConditionalGeneration",
        {"forced_bos_token_id": 0},
        (None, None),
    ),
    "bart of a free first token": (
        tokenizer_folders.bart,
        "Bart",
        "BartForConditionalGeneration",
        {},
        (None, None),
    ),
}
WAYS = runs.slow_but(["nllb"], FAMILIES)
"""The families as parameters: one of each way to begin a target is quick."""

LONGEST = 24
OFTEN = {"marian": 6.0, "marian of languages": 5.0, "nllb": 4.0}
OFTEN |= {"bart": 4.0, "bart of a free first token": 4.0}


def make(folder, name, generation=None):
    """Write a folder of random weights; return its tokenizer and its model.

    Settings of ``generation`` take the place of those of the search below.
    """
    write, tokenizer, model, settings, (source, target) = FAMILIES[name]
    folder.mkdir()
    write(folder, **({"tags": ()} if name == "marian" else {}))
    options = {}
    if source is not None:
        options = {"src_lang": source, "tgt_lang": target}
    if name == "nllb":  # the ids of fairseq, which published folders state
        module = transformers.models.nllb.tokenization_nllb
        names = [*module.FAIRSEQ_LANGUAGE_CODES, "<mask>"]
        options["added_tokens_decoder"] = {
            1201 + place: transformers.AddedToken(token, special=True)
            for place, token in enumerate(names)
        }
    if name == "m2m_100":
        module = transformers.models.m2m_100.tokenization_m2m_100
        codes = module.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        options["additional_special_tokens"] = [f"__{code}__" for code in codes]
    kind = getattr(transformers, f"{tokenizer}Tokenizer")
    theirs = kind.from_pretrained(folder, **options)
    whole = LITTLE | FAIRSEQ | {"vocab_size": len(theirs)} | settings
    if name == "m2m_100":
        whole["vocab_size"] += 8  # rows without a piece, as published
    if name.startswith("marian"):
        pad_id = theirs.pad_token_id
        whole |= {"pad_token_id": pad_id, "decoder_start_token_id": pad_id}
        whole |= {"eos_token_id": 0, "forced_eos_token_id": 0}
        whole["activation_function"] = "swish"
    if name == "mbart":
        whole["decoder_start_token_id"] = theirs.convert_tokens_to_ids(target)
    config = getattr(transformers, model).config_class(**whole)
    drawn = getattr(transformers, model)(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in drawn.named_parameters():
            if key.endswith("embed_positions.weight") and name.startswith("marian"):
                continue  # sines and cosines
            spread = 0.05 if parameter.ndim == 1 else 0.5
            parameter.normal_(generator=generator)
            parameter.mul_(spread)
            if "norm" in key and key.endswith("weight"):
                parameter.add_(1.0)
        # Else no sentence ends before the limit.
        often = OFTEN.get(name, 2.5)
        drawn.model.shared.weight[whole["eos_token_id"]] *= often
        if name.startswith("marian"):  # as published
            drawn.model.shared.weight[pad_id] = 0.0
    search = {
        "num_beams": 4,
        "max_length": LONGEST,
        "length_penalty": 0.8,
        "forced_bos_token_id": settings.get("forced_bos_token_id"),
        "forced_eos_token_id": whole["eos_token_id"],
        "bad_words_ids": [[whole["pad_token_id"]], [9], [11, 12]],
        "early_stopping": "never",
    }
    drawn.generation_config.update(**(search if generation is None else generation))
    drawn.save_pretrained(folder)
    return theirs, drawn


def forced_id(theirs, name):
    """Return the token that each target begins with; None: none."""
    target = FAMILIES[name][-1][1]
    if name == "bart":
        return 0
    if name not in ("m2m_100", "nllb", "mbart-50"):
        return None
    return theirs.convert_tokens_to_ids(
        f"__{target}__" if name == "m2m_100" else target
    )


def their_batch(name, theirs, model, pairs):
    """Return the labels of pairs, padded, and a batch of their tokenizer with them."""
    target = FAMILIES[name][-1][1]
    tag = f">>{target}<< " if name == "marian of languages" else ""
    texts = [tag + source for source, _ in pairs], [text for _, text in pairs]
    batch = theirs(texts[0], text_target=texts[1], return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    config, labels = model.config, batch.pop("labels")
    if name == "bart of a free first token":
        labels = labels[:, 1:]  # ours has no <s> before a target
    start = torch.full_like(labels[:, :1], config.decoder_start_token_id)
    inputs = torch.cat([start, labels[:, :-1]], 1)
    if name == "mbart":  # the language after the end, which ours is not trained on
        labels = labels.masked_fill(labels == start[0], config.pad_token_id)
    ignored = labels.masked_fill(labels == config.pad_token_id, -100)
    return labels, {**batch, "decoder_input_ids": inputs, "labels": ignored}


class Case(NamedTuple):
    """A model of a family, and the run that is made of its folder."""

    name: str
    tokenizer: Any
    model: Any
    folder: Path
    run: Path
    ignored: list[str]
    translator: Translator


@functools.cache
def imported_case(name):
    """Make a model of a family and its run, in a folder of the tests' own."""
    path = Path(tempfile.mkdtemp(dir=os.environ[runs.FOLDER]))
    folder, run = path / "folder", path / "run"
    theirs, model = make(folder, name)
    source, target = FAMILIES[name][-1]
    _, ignored = import_run(folder, run, source_language=source, target_language=target)
    return Case(name, theirs, model, folder, run, ignored, Translator.load(run))


def generate(theirs, model, name, texts, beam_size):
    """Return the sequences after the first input, and their scores."""
    source, target = FAMILIES[name][-1]
    options, start = {}, model.config.decoder_start_token_id
    never = model.generation_config.bad_words_ids or []
    # Ours never generates padding, the first input and rows without a piece.
    surplus = range(len(theirs), model.config.vocab_size)
    never = [*never, [model.config.pad_token_id], *([row] for row in surplus)]
    if name == "marian of languages":
        texts = [f">>{target}<< {text}" for text in texts]
    elif name == "mbart":
        never.append([start])
    elif source is not None:
        options["forced_bos_token_id"] = forced_id(theirs, name)
    batch = theirs(texts, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    found = model.generate(
        **batch,
        **options,
        do_sample=False,
        num_beams=beam_size,
        num_return_sequences=beam_size,
        bad_words_ids=never,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return found.sequences[:, 1:].tolist(), getattr(found, "sequences_scores", None)


def compare(translator, theirs, model, name, texts, beam_size, *, alone=False):
    """Check every token and score of all hypotheses; return the lengths that occur.

    The best is the same where only it is asked for, which is checked if ``alone``.
    """
    decoding = dataclasses.replace(translator.decoding, beam_size=beam_size)
    found = translator.search(texts, decoding=decoding, n_best=beam_size)
    sequences, scores = generate(theirs, model, name, texts, beam_size)
    ours = [each for own in found for each in own]
    assert len(ours) == len(sequences)
    vocabulary, frame = translator.vocabularies.target, translator.codec.frame
    lengths = set()
    for each, ids in zip(ours, sequences, strict=True):
        if vocabulary.eos_id in ids:
            ids = ids[: ids.index(vocabulary.eos_id) + 1]
        else:
            ids = [id_ for id_ in ids if id_ != vocabulary.pad_id]
        skip = len(frame.target_before)
        assert each.tokens == vocabulary.pieces(ids[skip:])
        text = theirs.decode(ids, skip_special_tokens=True)
        assert each.text.strip() == re.sub("[\r\n]", " ", text).strip()
        lengths.add(len(ids))
    if scores is not None:
        np.testing.assert_allclose(
            [each.score for each in ours], scores, rtol=1e-5, atol=1e-4
        )
    if alone:
        best = translator.search(texts, decoding=decoding)
        assert [own[0].tokens for own in best] == [own[0].tokens for own in found]
    return lengths
