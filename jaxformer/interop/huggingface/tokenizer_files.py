"""Build a ``tokenizer.json`` of the files that older folders have instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError, require

WORDS, PIECES, MERGES = "vocab.txt", "vocab.json", "merges.txt"


def build_word_pieces(folder: Path, options: Mapping[str, Any]) -> bytes:
    """Build BERT's tokenizer (Devlin et al. 2019; WordPiece, Wu et al. 2016) of
    ``vocab.txt``, whose line numbers are the ids.

    Args:
        folder: of the model.
        options: ``tokenizer_config.json``: text is lower-cased and loses its accents,
            and Chinese characters are words, unless it says otherwise.

    Raises:
        InputError: the file is damaged, or has no piece for unknown text.
    """
    tokenizers = require("tokenizers", "train")
    try:
        pieces = (folder / WORDS).read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(folder, WORDS, error) from None
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    if "[UNK]" not in ids:
        raise InputError(f"{folder / WORDS} has no [UNK]: download it again")
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]")
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##")
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    backend.add_special_tokens([piece for piece in special if piece in ids])
    return backend.to_str().encode()


def build_byte_level(
    folder: Path, options: Mapping[str, Any], special: tuple[str, ...]
) -> bytes:
    """Build GPT-2's tokenizer (Radford et al. 2019, section 2.2) of ``vocab.json`` and
    ``merges.txt``.

    Args:
        folder: of the model.
        options: ``tokenizer_config.json``.
        special: pieces that text cannot spell.

    Raises:
        InputError: a file is damaged.
    """
    tokenizers = require("tokenizers", "train")
    backend = _read_merges(folder)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=bool(options.get("add_prefix_space", False))
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([*special])
    return backend.to_str().encode()


def build_gpt(folder: Path) -> bytes:
    """Build GPT's tokenizer (Radford et al. 2018), which lower-cases text and whose
    pieces at the end of a word end with ``</w>``, of the same files.

    Raises:
        InputError: a file is damaged.
    """
    tokenizers = require("tokenizers", "train")
    end = "</w>"
    backend = _read_merges(folder, end_of_word_suffix=end, unk_token="<unk>")
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.BPEDecoder(suffix=end)
    backend.add_special_tokens(["<unk>"])
    return backend.to_str().encode()


def _read_merges(folder: Path, **options: Any) -> Any:
    tokenizers = require("tokenizers", "train")
    files = str(folder / PIECES), str(folder / MERGES)
    try:
        model = tokenizers.models.BPE.from_file(*files, **options)
        return tokenizers.Tokenizer(model)
    except Exception as error:  # the library raises no other class
        raise _damaged(folder, f"{PIECES} or {MERGES}", error) from None


def _damaged(folder: Path, names: str, error: Exception) -> InputError:
    return InputError(
        f"{folder}: {names} is damaged, download them again"
        f" ({str(error).splitlines()[0]})"
    )


def drop_mask(content: bytes, rows: Any) -> bytes:
    """Return a byte-level ``tokenizer.json`` without its last piece if that is
    ``<mask>`` and the model has a row less; else the same bytes.

    Args:
        content: of the file.
        rows: ``vocab_size`` of the model.
    """
    try:
        parts = json.loads(content)
        ids, added = parts["model"]["vocab"], parts["added_tokens"]
        every = ids | {token["content"]: token["id"] for token in added}
        surplus = [piece for piece, id_ in every.items() if id_ >= rows]
    except (ValueError, KeyError, TypeError):
        return content  # damaged, which is said where it is read
    if surplus != ["<mask>"]:
        return content
    ids.pop("<mask>", None)
    parts["added_tokens"] = [x for x in added if x["content"] != "<mask>"]
    return json.dumps(parts, ensure_ascii=False).encode()


_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""The names in a ``tokenizer.json`` of what ``tokenizer_config.json`` has too."""


def apply_options(content: bytes, options: Mapping[str, Any]) -> bytes:
    """Return a BERT's ``tokenizer.json`` with the case, the accents and the Chinese
    characters of ``tokenizer_config.json``, which come first in transformers; the same
    bytes where they agree.
    """
    try:
        parts = json.loads(content)
        own = parts["normalizer"]
        if own["type"] != "BertNormalizer":
            return content
    except (ValueError, KeyError, TypeError):
        return content  # none, or damaged, which is said where it is read
    wanted = {
        ours: options[theirs]
        for theirs, ours in _NORMALIZER.items()
        if theirs in options and options[theirs] != own.get(ours)
    }
    if not wanted:
        return content
    parts["normalizer"] = own | wanted
    return json.dumps(parts, ensure_ascii=False).encode()


def read_normalizer(content: bytes) -> dict[str, Any]:
    """Return the options of :func:`apply_options` that a ``tokenizer.json`` has."""
    own = json.loads(content).get("normalizer") or {}
    return {theirs: own[ours] for theirs, ours in _NORMALIZER.items() if ours in own}


# Share of the pieces of a vocabulary with case that has capitals: that of BERT has a
# third.
_CASED = 0.05


def compare_case(content: bytes) -> list[str]:
    """Say where a ``tokenizer.json`` of BERT lower-cases text whose pieces have
    capitals, or keeps capitals that no piece has: such words become unknown.
    """
    parts = json.loads(content)
    normalizer = parts.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return []
    special = {each["content"] for each in parts.get("added_tokens", ())}
    pieces = [piece for piece in parts["model"]["vocab"] if piece not in special]
    cased = sum(piece != piece.lower() for piece in pieces)
    lower = bool(normalizer.get("lowercase"))
    if lower and cased > _CASED * len(pieces):
        return [
            f"{cased} of {len(pieces)} pieces (they have capitals, and the tokenizer"
            " lower-cases text: is do_lower_case=true of tokenizer_config.json right?)"
        ]
    if not lower and not cased:
        return [
            "words with capitals (no piece has one, and the tokenizer keeps them: is"
            " do_lower_case=false of tokenizer_config.json right?)"
        ]
    return []
