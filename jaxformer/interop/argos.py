"""Write a run as a package of Argos Translate, which LibreTranslate installs too.

A package is a CTranslate2 model, one SentencePiece model and a description. Argos
splits text into sentences, encodes them, translates the pieces with CTranslate2 and
decodes them by the same SentencePiece model. Its search is :data:`SEARCH`. What callers
of CTranslate2 pass otherwise is in the model: the tokens around a source, and that
special tokens are never generated.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jaxformer
from jaxformer.data.frame import UNKNOWN
from jaxformer.data.vocabulary import MODEL, Vocabulary
from jaxformer.data.vocabulary_sentencepiece import load_sentencepiece
from jaxformer.errors import InputError
from jaxformer.files import write_whole
from jaxformer.interop import ctranslate2
from jaxformer.interop.argos_languages import describe_language
from jaxformer.search.config import DecodingConfig, differing_settings
from jaxformer.translation.translator import Translator

SEARCH = DecodingConfig(
    beam_size=4,
    alpha=0.2,
    length_penalty="average",
    min_length=2,
    max_target_length=256,
    max_extra_length=256,
)
"""The search of Argos Translate 1.11, in our terms."""

_VERSION = "1.11"  # the first that needs no sentence splitter in a package
_LIMITS = {"max_target_length", "max_extra_length", "min_length"}
_OTHERWISE = "export it by --format=ctranslate2 or stablehlo"


def save(
    folder: Path, translator: Translator, decoding: DecodingConfig, precision: str
) -> list[str]:
    """Write the content of a package: one folder, named by the languages.

    Args:
        folder: exists; its content is to become a ZIP file.
        translator: of a single model.
        decoding: how to search.
        precision: of the weights: ``float32`` or ``int8``.

    Returns:
        The settings of the search that differ from those of Argos.

    Raises:
        InputError: a package cannot have such a vocabulary, tokens around the text or
            languages, or CTranslate2 such a model. Nothing is written.
    """
    tokens = _tokens(translator, decoding)
    model = _sentencepiece(translator, tokens)
    (source, source_name), (target, target_name) = _languages(translator)
    inner = folder / f"translate-{source}_{target}"
    quantization = None if precision == "float32" else precision
    params = translator.params
    model_config = translator.model.config
    ctranslate2.save(inner / "model", model_config, params, tokens, quantization)
    metadata = {
        # A date: above the published packages, which an update prefers otherwise.
        "package_version": time.strftime("%Y.%m.%d", time.gmtime()),
        "argos_version": _VERSION,
        "type": "translate",
        "from_code": source,
        "from_name": source_name,
        "to_code": target,
        "to_name": target_name,
    }
    if translator.codec.frame.target_before:
        (prefix,) = translator.codec.frame.target_before
        metadata["target_prefix"] = tokens.target[prefix]
    write_whole(inner / "sentencepiece.model", model)
    write_whole(inner / "metadata.json", f"{json.dumps(metadata, indent=2)}\n")
    write_whole(inner / "README.md", _readme(translator, metadata, precision))
    return _lost(decoding)


def _languages(translator: Translator) -> list[tuple[str, str]]:
    """Return code and name of both languages.

    Raises:
        InputError: they are unknown or the same.
    """
    codes = translator.languages
    found = [describe_language(code) for code in codes]
    if {"", *UNKNOWN} & {*codes}:
        raise InputError(
            "a package of Argos Translate names its languages, and the run does not:"
            " give --from and --to"
        )
    if found[0][0] == found[1][0]:
        raise InputError(
            f"a package of Argos Translate has two languages, and {codes[0]} and"
            f" {codes[1]} are both {found[0][0]}: {_OTHERWISE}"
        )
    return found


def _tokens(translator: Translator, decoding: DecodingConfig) -> ctranslate2.Tokens:
    """Return the tokens of the model, and what surrounds a text.

    Raises:
        InputError: Argos and CTranslate2 cannot add these tokens.
    """
    frame, config = translator.codec.frame, translator.model.config
    tokens = ctranslate2.tokens_of(translator)
    before, after = (
        [tokens.source[id_] for id_ in ids]
        for ids in (frame.source_before, frame.source_after)
    )
    if len(before) > 1 or after not in ([], [tokens.target[frame.end]]):
        raise InputError(
            "a package of Argos Translate adds at most one token before a source and"
            f" the end after it, and this model has {before} before and {after} after:"
            f" {_OTHERWISE}"
        )
    if len(frame.target_before) > 1:
        raise InputError(
            "a package of Argos Translate begins a target with at most one token, not"
            f" {translator.vocabularies.target.pieces(frame.target_before)}:"
            f" {_OTHERWISE}"
        )
    target = translator.vocabularies.target
    banned = {target.pad_id, frame.start} - {frame.end}
    banned |= {phrase[0] for phrase in frame.banned if len(phrase) == 1}
    banned |= {*range(target.size, config.vocabulary_size)}
    if decoding.no_unknown:
        banned.add(target.unk_id)
    return dataclasses.replace(
        tokens,
        source_eos=bool(after),
        source_bos=before[0] if before else None,
        banned=sorted(banned),
    )


def _sentencepiece(translator: Translator, tokens: ctranslate2.Tokens) -> bytes:
    """Return the model that encodes sources and decodes targets.

    It is that of the source. To decode, it needs to know the tokens without text; any
    other piece that it lacks it leaves as it is, which is its text.

    Raises:
        InputError: there is no such model.
    """
    source, target = translator.vocabularies.source, translator.vocabularies.target
    if not all(MODEL in each.files for each in (source, target)):
        raise InputError(
            "a package of Argos Translate has a SentencePiece model, and this run has a"
            " tokenizer.json: import the folder without tokenizer.json if it has"
            f" sentencepiece.bpe.model, or {_OTHERWISE}"
        )
    names = tokens.target[: target.size]
    processor = _load(source.files[MODEL])
    pieces = set(map(processor.id_to_piece, range(processor.get_piece_size())))
    silent = [
        name
        for id_, name in enumerate(names)
        if name not in pieces
        and name.replace("▁", " ").strip()
        and not target.decode([id_]).strip()
    ]
    model = source.files[MODEL] + b"".join(map(_control_piece, silent))
    if source.files[MODEL] != target.files[MODEL]:
        _check_text(_load(model), target, names)
    return model


def _load(model: bytes) -> Any:
    return load_sentencepiece().SentencePieceProcessor(model_proto=model)


def _control_piece(name: str) -> bytes:
    """Return a control piece that extends a SentencePiece model when its bytes follow.

    Control pieces decode to nothing, and no text is encoded as one. In the format, a
    Protocol Buffer, ``pieces`` is field 1 of the model: messages of a piece (field 1),
    a score (2) and a type (3), of which 3 is control.
    """
    piece = name.encode()
    content = b"\x0a" + _varint(len(piece)) + piece
    content += b"\x15" + struct.pack("<f", 0.0) + b"\x18\x03"
    return b"\x0a" + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


def _check_text(processor: Any, target: Vocabulary, names: Sequence[str]) -> None:
    """Check that a SentencePiece model decodes the pieces of another vocabulary.

    Raises:
        InputError: a piece has another text.
    """
    for id_, name in enumerate(names):
        if id_ in (target.unk_id, target.eos_id):
            continue
        text = processor.decode_pieces([name]).replace("▁", " ").strip()
        if text != target.decode([id_]).strip():
            raise InputError(
                "a package of Argos Translate has one SentencePiece model, and that of"
                f" the source does not decode the target's {name!r}: train with"
                f" data.shared_vocabulary=True, or {_OTHERWISE}"
            )


def _lost(decoding: DecodingConfig) -> list[str]:
    """Return the settings that Argos lacks or sets differently, with its values."""
    names = ("beam_size", "alpha", "length_penalty")
    there = {name: getattr(SEARCH, name) for name in names}
    found = differing_settings(dataclasses.asdict(decoding), **there)
    for name in ("no_unknown", "precision", *_LIMITS):
        found.pop(name, None)
    if decoding.min_length > SEARCH.min_length:
        found["min_length"] = decoding.min_length, SEARCH.min_length
    for name in ("max_target_length", "max_extra_length"):
        own, most = getattr(decoding, name), SEARCH.max_target_length
        if own is not None and most is not None and own < most:
            found[name] = own, most
    return [
        f"{name}={value}" + (f" (there {there[name]})" if name in there else "")
        for name, (value, _) in found.items()
    ]


def _readme(translator: Translator, metadata: dict[str, str], precision: str) -> str:
    directory = translator.directory
    run = f" {directory.name}" if directory else ""
    return (
        f"# {metadata['from_name']} to {metadata['to_name']}\n\n"
        f"The model of the run{run}, checkpoint {translator.checkpoint}, written by"
        f" jaxformer {jaxformer.__version__} with weights in {precision}. It has the"
        " licence of that model and of the data that it was trained on.\n"
    )
