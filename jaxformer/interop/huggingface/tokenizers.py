"""Read the tokenizer of a Hugging Face folder as the vocabularies of a run.

Ids and text are those of transformers, but special pieces that a text spells are text.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxformer.data.vocabulary import (
    PIECES,
    SPECIAL,
    TOKENIZER,
    Vocabularies,
    Vocabulary,
)
from jaxformer.data.vocabulary_sentencepiece import load_sentencepiece
from jaxformer.data.vocabulary_table import TableVocabulary
from jaxformer.data.vocabulary_tokenizer import TokenizerVocabulary
from jaxformer.errors import InputError, require
from jaxformer.interop.huggingface import files, tokenizer_files
from jaxformer.interop.huggingface.language_lists import (
    M2M100,
    MBART25,
    MBART50,
    NLLB200,
    WMT21,
)
from jaxformer.interop.huggingface.one_stack_kinds import KINDS

MODEL = "sentencepiece.bpe.model"


def read_vocabularies(folder: str | Path, settings: Mapping[str, Any]) -> Vocabularies:
    """Read the vocabularies of source and target.

    A vocabulary may have fewer ids than the model's table has rows (``vocab_size``):
    the rows from :attr:`jaxformer.data.vocabulary.Vocabulary.size` on have no text.

    Args:
        folder: with the files of the tokenizer, which ``docs/interop.md`` lists.
        settings: the fields of ``config.json``.

    Raises:
        InputError: the type of the model is unknown, a file is missing or damaged, or
            the vocabulary has more ids, or other special ids, than the model.
    """
    folder, kind = Path(folder), str(settings.get("model_type"))
    if kind not in _FILES:
        raise InputError(
            f"{folder}: no tokenizer is known of model_type {kind}: known are"
            f" {', '.join(_FILES)}"
        )
    options = read_options(folder)
    _check_class(folder, kind, options.get(_CLASS) or settings.get(_CLASS))
    if kind == "marian":
        found = _read_marian(folder, options)
    elif kind == "bart" or kind in KINDS:
        found = _both(_read_pieces(folder, kind, settings, options))
    else:
        found = _both(_read_multilingual(folder, kind, settings, options))
    _check(folder, settings, found)
    if isinstance(found.source, TableVocabulary):
        _check_added(folder, kind, options, found.source)
    return found


def read_options(folder: Path) -> dict[str, Any]:
    """Read ``tokenizer_config.json``, which a folder may lack.

    Raises:
        InputError: it is damaged.
    """
    name = "tokenizer_config.json"
    return files.read_settings(folder, name) if (folder / name).is_file() else {}


_FILES = {
    "marian": "source.spm, target.spm and vocab.json",
    "m2m_100": f"{MODEL} and vocab.json (M2M-100), or {TOKENIZER} or {MODEL} (NLLB)",
    "mbart": f"{TOKENIZER} or {MODEL}",
    **dict.fromkeys(("bert", "distilbert"), f"{TOKENIZER}, or vocab.txt"),
    **dict.fromkeys(
        ("bart", "roberta", "gpt2", "openai-gpt"),
        f"{TOKENIZER}, or vocab.json and merges.txt",
    ),
}
"""The files of the tokenizer for each ``model_type`` of ``config.json``."""


_CLASS = "tokenizer_class"

_CLASSES = {
    "marian": ("MarianTokenizer",),
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
    "mbart": ("MBartTokenizer", "MBart50Tokenizer"),
    "bart": ("BartTokenizer", "RobertaTokenizer"),
    "bert": ("BertTokenizer",),
    "distilbert": ("DistilBertTokenizer", "BertTokenizer"),
    "roberta": ("RobertaTokenizer",),
    "gpt2": ("GPT2Tokenizer",),
    "openai-gpt": ("OpenAIGPTTokenizer",),
}
"""The classes of the tokenizer for each ``model_type``; those of old folders may end
with ``Fast``.
"""

_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes that do what a ``tokenizer.json`` says."""


def _check_class(folder: Path, kind: str, given: Any) -> None:
    """Refuse a tokenizer whose pieces or tokens around a text are unknown."""
    known = _CLASSES[kind]
    if kind in KINDS and (folder / TOKENIZER).is_file():
        known += _GENERIC
    if given is not None and str(given).removesuffix("Fast") not in known:
        raise InputError(
            f"{folder}: the tokenizer_class of a model of type {kind} must be"
            f" {' or '.join(known)}, not {given}, which may cut a text or"
            " surround it with tokens in another way"
        )


def names_of(vocabulary: Vocabulary) -> list[str | None]:
    """Return the piece of each id, as the tokenizer's own file names it; None: an id
    without a piece.
    """
    if PIECES in vocabulary.files:
        return json.loads(vocabulary.files[PIECES])["pieces"]
    if TOKENIZER not in vocabulary.files:
        return [*vocabulary.pieces(range(vocabulary.size))]
    tokenizers = require("tokenizers", "train")
    ids = tokenizers.Tokenizer.from_buffer(vocabulary.files[TOKENIZER]).get_vocab()
    found: list[str | None] = [None] * vocabulary.size
    for name, id_ in ids.items():
        found[id_] = name
    return found


def _read_marian(folder: Path, options: Mapping[str, Any]) -> Vocabularies:
    _refuse_missing(folder, "marian", "source.spm", "target.spm", "vocab.json")
    sides = {"source": "vocab.json", "target": "vocab.json"}
    if options.get("separate_vocabs"):
        sides["target"] = "target_vocab.json"
    found = []
    for side, name in sides.items():
        pieces = _by_id(folder / name)
        tags = [x for x in pieces if x and x.startswith(">>") and x.endswith("<<")]
        languages = {x[2:-2]: x for x in tags}
        found.append(_with_table(folder / f"{side}.spm", pieces, languages))
    same = found[0] == found[1]
    return Vocabularies(found[0], found[0] if same else found[1])


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a file in an error of its content."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_pieces(
    folder: Path, kind: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Vocabulary:
    """Read the vocabulary of BART, BERT, RoBERTa, DistilBERT, GPT or GPT-2."""
    path, content = folder / TOKENIZER, b""
    if path.is_file():
        content = path.read_bytes()
    elif kind in ("bert", "distilbert"):
        _refuse_missing(folder, kind, "vocab.txt")
        content = tokenizer_files.build_word_pieces(folder, options)
    else:
        _refuse_missing(folder, kind, "vocab.json", "merges.txt")
        if kind == "openai-gpt":
            content = tokenizer_files.build_gpt(folder)
        else:
            special = *SPECIAL.values(), "<mask>"
            special = ("<|endoftext|>",) if kind == "gpt2" else special
            content = tokenizer_files.build_byte_level(folder, options, special)
    with _naming(path if path.is_file() else folder):
        if kind == "bart":
            # Published fine-tuned models have no row for the last piece, <mask>.
            content = tokenizer_files.drop_mask(content, settings.get("vocab_size"))
        elif path.is_file():
            content = tokenizer_files.apply_options(content, options)
        return TokenizerVocabulary(content)


def _read_multilingual(
    folder: Path, kind: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Vocabulary:
    """Read the vocabulary of M2M-100, NLLB or mBART."""
    if kind == "m2m_100" and (folder / "vocab.json").is_file():
        _refuse_missing(folder, kind, MODEL)
        pieces = _by_id(folder / "vocab.json")
        codes = WMT21 if options.get("language_codes") == "wmt21" else M2M100
        languages = {code: f"__{code}__" for code in codes}
        pieces += languages.values()
        return _with_table(folder / MODEL, pieces, languages)
    if (folder / TOKENIZER).is_file():
        known = {*NLLB200} if kind == "m2m_100" else {*MBART50}
        return _read_tokenizer(folder / TOKENIZER, known)
    _refuse_missing(folder, kind, MODEL)
    own = _pieces(folder / MODEL)
    # fairseq's: its special pieces, then the model's from the fourth on.
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *own[3:]]
    codes = NLLB200
    if kind == "mbart":
        rows = len(pieces) + len(MBART50) + 1
        larger = settings.get("vocab_size", 0) >= rows
        named = str(options.get("tokenizer_class") or ("MBart50" if larger else ""))
        codes = MBART50 if named.startswith("MBart50") else MBART25
    pieces += [*codes, "<mask>"]
    return _with_table(folder / MODEL, pieces, {code: code for code in codes})


def _read_tokenizer(path: Path, languages: Iterable[str]) -> Vocabulary:
    """Read a tokenizer.json; pieces of languages in it become special."""
    with _naming(path):
        found = TokenizerVocabulary(path.read_bytes())
        backend = require("tokenizers", "train").Tokenizer.from_file(str(path))
        missing = sorted(languages - found.languages.keys())
        own = [code for code in missing if backend.token_to_id(code) is not None]
        if not own:
            return found
        backend.add_special_tokens(own)
        return TokenizerVocabulary(backend.to_str().encode())


def _with_table(
    model: Path, pieces: Sequence[str | None], languages: Mapping[str, str]
) -> TableVocabulary:
    table = json.dumps({"languages": languages, "pieces": pieces})
    with _naming(model):
        return TableVocabulary(model.read_bytes(), table.encode())


def _pieces(model: Path) -> list[str]:
    """Return the pieces of a SentencePiece model."""
    processor = load_sentencepiece().SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model.read_bytes())
    except RuntimeError:
        raise InputError(
            f"{model}: not a SentencePiece model, or a damaged one: download it again"
        ) from None
    return [processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())]


def _by_id(path: Path) -> list[str | None]:
    """Read a file of ids by piece as a list of pieces by id; None is a hole."""
    if not path.is_file():
        raise InputError(f"{path} is missing: download the whole folder")
    ids = _read_dict(path)
    rows = 1 + max((id_ for id_ in ids.values() if type(id_) is int), default=-1)
    pieces: list[str | None] = [None] * min(rows, 2 * len(ids))
    for piece, id_ in ids.items():
        if type(id_) is not int or not 0 <= id_ < len(pieces) or pieces[id_]:
            raise InputError(
                f"{path}: {piece!r} has the id {id_!r}, and each piece needs a number"
                " of its own: download it again"
            )
        pieces[id_] = piece
    return pieces


def _read_dict(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a JSON object, or damaged: download it again")
    return cast("dict[str, Any]", found)


def _refuse_missing(folder: Path, kind: str, *names: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder} has no {missing[0]}: the tokenizer of a model of type {kind} is"
            f" {_FILES[kind]}"
        )


def _both(vocabulary: Vocabulary) -> Vocabularies:
    return Vocabularies(vocabulary, vocabulary)


def _check_added(
    folder: Path, kind: str, options: Mapping[str, Any], vocabulary: Vocabulary
) -> None:
    """Refuse tokens that were added to those of the tokenizer's own files."""
    name = "added_tokens.json"
    added = _read_dict(folder / name) if (folder / name).is_file() else {}
    decoder = options.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        added |= {
            token.get("content"): int(id_)
            for id_, token in decoder.items()
            if isinstance(token, dict) and id_.isdecimal()
        }
    names = names_of(vocabulary)
    for token, id_ in added.items():
        if type(id_) is not int or [token] != names[id_ : id_ + 1]:
            raise InputError(
                f"{folder}: the token {token!r} of id {id_!r} was added to the"
                f" tokenizer and is not in {_FILES[kind]}: remove it"
            )


def _check(
    folder: Path, settings: Mapping[str, Any], vocabularies: Vocabularies
) -> None:
    """Refuse vocabularies of another model."""
    rows = settings.get("vocab_size")
    sides = {
        "source": (vocabularies.source, rows),
        "target": (vocabularies.target, settings.get("decoder_vocab_size") or rows),
    }
    for side, (vocabulary, most) in sides.items():
        count = vocabulary.size
        if isinstance(vocabulary, TokenizerVocabulary):
            count = max(count, vocabulary.count_rows())
        if isinstance(most, int) and count > most:
            raise InputError(
                f"{folder}: the {side} vocabulary has {count:,} ids and the"
                f" model {most:,} (vocab_size): they are not of one model"
            )
        if count > vocabulary.size:
            raise InputError(
                f"{folder}: the largest id of {TOKENIZER} is {count - 1:,} with only"
                f" {vocabulary.size:,} pieces: number them without holes"
            )
        for name in ("pad", "eos"):
            own, given = (
                getattr(vocabulary, f"{name}_id"),
                settings.get(f"{name}_token_id"),
            )
            # A model without padding names any token.
            if isinstance(given, int) and given != own != vocabulary.size:
                raise InputError(
                    f"{folder}: {name} is id {own} of the {side} vocabulary and"
                    f" {given} of the model: they are not of one model"
                )
