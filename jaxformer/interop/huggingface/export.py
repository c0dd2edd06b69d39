"""Write a run as a folder that Hugging Face's transformers loads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.data.frame import SOURCE
from jaxformer.data.vocabulary import MODEL as SENTENCEPIECE
from jaxformer.data.vocabulary import PIECES, SPECIAL, TOKENIZER, Vocabulary
from jaxformer.errors import InputError
from jaxformer.files import write_whole
from jaxformer.interop.huggingface import families
from jaxformer.interop.huggingface.families import FAMILIES
from jaxformer.interop.huggingface.generation import EARLY_STOPPING
from jaxformer.interop.huggingface.language_lists import WMT21
from jaxformer.interop.huggingface.seq2seq import write
from jaxformer.interop.huggingface.tokenizers import MODEL, names_of
from jaxformer.models.config import TransformerConfig
from jaxformer.search.config import DecodingConfig, differing_settings
from jaxformer.translation.translator import Translator

_OPTIONS = "tokenizer_config.json"

_TAKEN = {
    *("beam_size", "alpha", "length_penalty", "max_target_length", "max_extra_length"),
    *("min_length", "no_repeat_ngram", "end_at_limit", "early_stopping"),
    *("rank_unfinished", "renormalize", "no_unknown", "precision"),
    *("sample", "temperature", "top_k", "top_p", "min_p", "epsilon"),
}
"""The settings of a search that ``generation_config.json`` has too, by other names, or
whose loss :func:`save` names by itself.
"""


def save(
    folder: Path, translator: Translator, decoding: DecodingConfig, dtype: str
) -> list[str]:
    """Write the model, the search and the tokenizer of a translator.

    An imported model becomes one of its own family. One that was trained here becomes a
    Marian model, if it computes what these do and its vocabulary is of SentencePiece.

    Args:
        folder: created.
        translator: of a single model.
        decoding: how to search.
        dtype: of the weights: ``float32``, ``float16`` or ``bfloat16``.

    Returns:
        The settings of the search that transformers does not have.

    Raises:
        InputError: no family has such a model; its options that differ are named.
    """
    config, vocabularies = translator.model.config, translator.vocabularies
    kind = _choose(config, imported=vocabularies.template is not None)
    if kind == "marian":
        tokenizer = _marian(translator)
    else:
        tokenizer = _multilingual(kind, translator)
    target = vocabularies.target
    special = {f"{name}_token_id": getattr(target, f"{name}_id") for name in SPECIAL}
    special.pop("unk_token_id")
    generation = _generation(translator, decoding)
    # For CTranslate2's converter; transformers has them by the class of the model.
    layout = {
        "normalize_before": config.norm_order == "pre",
        "normalize_embedding": config.embedding_norm,
        "tokenizer_class": json.loads(tokenizer[_OPTIONS])["tokenizer_class"],
    }
    write(
        folder,
        config,
        translator.params,
        settings={"model_type": kind, **special, **layout},
        generation={**special, **generation},
        dtype=dtype,
    )
    for name, content in tokenizer.items():
        write_whole(folder / name, content)
    found = differing_settings(dataclasses.asdict(decoding))
    lost = [f"{name}={found[name][0]}" for name in found if name not in _TAKEN]
    if decoding.max_extra_length < generation["max_length"] - 1:
        lost.append(f"max_extra_length={decoding.max_extra_length}")
    if not decoding.rank_unfinished and decoding.beam_size > 1:
        lost.append("rank_unfinished=False (there it is True)")
    if decoding.length_penalty == "gnmt" and decoding.alpha:
        lost.append(f"length_penalty=gnmt (there it is average, {decoding.alpha})")
    return lost


def _choose(config: TransformerConfig, *, imported: bool) -> str:
    known = FAMILIES if imported else {"marian": FAMILIES["marian"]}
    differ = {kind: families.differences(config, known[kind]) for kind in known}
    names = {kind: family.model for kind, family in known.items()}
    otherwise = "; or export by --format=ctranslate2 or stablehlo"
    return families.choose_type(config, differ, names, otherwise)


def _generation(translator: Translator, decoding: DecodingConfig) -> dict[str, Any]:
    """Return the search as transformers names it."""
    config, target = translator.model.config, translator.vocabularies.target
    frame = translator.codec.frame
    most = min(decoding.max_target_length or config.max_length, config.max_length)
    never = [[config.pad_id], *map(list, frame.banned)]
    if translator.vocabularies.template is None:
        never.append([frame.start])
    if decoding.no_unknown:
        never.append([target.unk_id])
    found: dict[str, Any] = {
        "num_beams": decoding.beam_size,
        "length_penalty": 0.0 if decoding.length_penalty == "none" else decoding.alpha,
        "max_length": most + 1,  # with the first input
        "min_length": decoding.min_length if decoding.min_length > 1 else 0,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "decoder_start_token_id": frame.start,
        "bad_words_ids": never,
    }
    if decoding.sample:
        found |= {
            "do_sample": decoding.temperature > 0,
            "num_beams": 1,
            "temperature": decoding.temperature or 1.0,
            "top_k": decoding.top_k,
            "top_p": decoding.top_p,
            "min_p": decoding.min_p,
            "epsilon_cutoff": decoding.epsilon,
        }
    elif decoding.beam_size > 1:
        names = {ours: theirs for theirs, ours in EARLY_STOPPING.items()}
        found["early_stopping"] = names[decoding.early_stopping]
    if decoding.renormalize:
        found["renormalize_logits"] = True
    if decoding.end_at_limit:
        found["forced_eos_token_id"] = frame.end
    if frame.target_before:
        found["forced_bos_token_id"] = frame.target_before[0]
    return found


def _marian(translator: Translator) -> dict[str, bytes]:
    """Return the files of a Marian tokenizer.

    Raises:
        InputError: vocabulary or sources are not as in Marian models.
    """
    vocabularies, frame = translator.vocabularies, translator.codec.frame
    sides = {"source": vocabularies.source, "target": vocabularies.target}
    if any(SENTENCEPIECE not in side.files for side in sides.values()):
        raise InputError(
            "a MarianMTModel has vocabularies of SentencePiece, and this run has"
            " others: export it by --format=ctranslate2 or stablehlo"
        )
    if frame.source_after != (vocabularies.source.eos_id,):
        raise InputError(
            "the sources of a MarianMTModel end with </s>, and data.source_eos is"
            " False: train with True, or export by --format=ctranslate2 or stablehlo"
        )
    ids = {side: _marian_ids(each) for side, each in sides.items()}
    found = {f"{side}.spm": each.files[SENTENCEPIECE] for side, each in sides.items()}
    options: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": translator.languages[0],
        "target_lang": translator.languages[1],
        "model_max_length": translator.model.config.max_length,
        "separate_vocabs": not vocabularies.shared,
    }
    found["vocab.json"] = _json(ids["source"])
    if not vocabularies.shared:
        found["target_vocab.json"] = _json(ids["target"])
    return found | {_OPTIONS: _json(options)}


def _marian_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the id of each piece, by the names that Marian models have for special
    ones and for the tags of languages.
    """
    names = names_of(vocabulary)
    if PIECES not in vocabulary.files:
        for name, piece in SPECIAL.items():
            names[getattr(vocabulary, f"{name}_id")] = piece
        for code, id_ in vocabulary.languages.items():
            names[id_] = f">>{code}<<"
    return {name: id_ for id_, name in enumerate(names) if name}


def _multilingual(kind: str, translator: Translator) -> dict[str, bytes]:
    """Return the files of a tokenizer of BART, mBART, M2M-100 or NLLB."""
    vocabulary, template = (
        translator.vocabularies.source,
        translator.vocabularies.template,
    )
    assert template is not None
    options: dict[str, Any] = {
        "tokenizer_class": f"{_CLASSES[kind]}Tokenizer",
        "model_max_length": translator.model.config.max_length,
    }
    keys = (
        ("source_lang", "target_lang") if kind == "bart" else ("src_lang", "tgt_lang")
    )
    options |= zip(keys, translator.languages, strict=True)
    if kind == "mbart" and template.source[0] == SOURCE:
        options |= {"tokenizer_class": "MBart50Tokenizer", "bos_token": "<s>"}
    if kind == "m2m_100" and template.source[-1] == SOURCE:
        options["legacy_behaviour"] = True
    if TOKENIZER in vocabulary.files:
        found = {TOKENIZER: vocabulary.files[TOKENIZER]}
    else:
        found = {MODEL: vocabulary.files[SENTENCEPIECE]}
    codes = vocabulary.languages
    names = names_of(vocabulary)
    if kind == "m2m_100" and all(names[codes[code]] == f"__{code}__" for code in codes):
        options["tokenizer_class"] = "M2M100Tokenizer"
        options["language_codes"] = "wmt21" if {*codes} == {*WMT21} else "m2m100"
        of_text = {name: id_ for id_, name in enumerate(names) if name}
        for code in codes:
            of_text.pop(f"__{code}__")
        found["vocab.json"] = _json(of_text)
        rows = translator.model.config.vocabulary_size
        options["num_madeup_words"] = rows - vocabulary.size
        options["added_tokens_decoder"] = _added(names, codes.values())
    elif kind == "m2m_100" and MODEL in found:
        # NLLB's class has no ids of languages of its own.
        added = *codes.values(), names.index("<mask>")
        options["added_tokens_decoder"] = _added(names, added)
    return found | {_OPTIONS: _json(options)}


def _added(names: Sequence[str | None], ids: Iterable[int]) -> dict[str, Any]:
    return {str(id_): {"content": names[id_], "special": True} for id_ in ids}


_CLASSES = {"bart": "Bart", "mbart": "MBart", "m2m_100": "Nllb"}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n"
