"""Train vocabularies: pieces by SentencePiece or of bytes, and labels."""

from __future__ import annotations

import functools
import io
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxformer import signals
from jaxformer.data import normalization as tables
from jaxformer.data.config import (
    ONE_SIDED,
    WITH_LABELS,
    DataConfig,
    VocabularyModel,
)
from jaxformer.data.frame import ENCODER, FILE, Template
from jaxformer.data.vocabulary import (
    LABELS,
    MODEL,
    PIECES,
    SPECIAL,
    TOKENIZER,
    Vocabularies,
    Vocabulary,
)
from jaxformer.data.vocabulary_labels import LabelVocabulary
from jaxformer.data.vocabulary_sentencepiece import load_sentencepiece, tag
from jaxformer.errors import InputError, require

if TYPE_CHECKING:
    from jaxformer.data.records import Pair

Result = TypeVar("Result")

_MOST_BYTES = 4_192
_NAME, _TABLE = "normalization_rule_name", "normalization_rule_tsv"

_TRAINING: dict[str, Any] = {
    # Of a longer text a sample is drawn, which bounds memory and time.
    "input_sentence_size": 5_000_000,
    "shuffle_input_sentence": True,
    # The result depends on the number of threads: not that of cores.
    "num_threads": 16,
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": 2,
    "eos_id": 3,
    "minloglevel": 2,
}


class _SizeError(InputError):
    """A text does not allow a vocabulary of this size."""


def train(
    sentences: Iterable[str],
    size: int,
    model: VocabularyModel,
    byte_fallback: bool,
    special: Sequence[str],
    normalization: str,
    seed: int,
) -> bytes:
    """Train a SentencePiece model and return its file, the same bytes for the same
    sentences.

    Args:
        sentences: raw text.
        size: number of pieces, special ones included.
        model: ``"bpe"`` (Sennrich et al. 2016, section 3.2; the paper's) or
            ``"unigram"`` (Kudo 2018).
        byte_fallback: spell rare characters (below one in 10,000) and unseen ones
            in 256 byte pieces. Otherwise unseen characters become unk.
        special: further pieces that text cannot spell.
        normalization: a name of :mod:`jaxformer.data.normalization`, or the path of a
            table of rules.
        seed: draws the sample of a text of more than five million sentences.

    Raises:
        InputError: the text or the rules cannot be read, or the text does not allow
            ``size`` pieces.
    """
    check_normalization(normalization)
    module, writer = load_sentencepiece(), io.BytesIO()
    module.set_random_generator_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        rules = _find_rules(normalization, Path(folder))
        call = functools.partial(
            module.SentencePieceTrainer.train,
            model_writer=writer,
            vocab_size=size,
            model_type=model,
            character_coverage=0.9999 if byte_fallback else 1.0,
            byte_fallback=byte_fallback,
            control_symbols=[*special],
            **rules,
            **_TRAINING,
        )
        try:
            _feed(lambda lines: call(sentence_iterator=lines), _cut(sentences))
        except RuntimeError as error:
            raise _mendable(error, size) from error
    if _NAME in rules:
        return writer.getvalue()
    proto = require("sentencepiece.sentencepiece_model_pb2", "train")
    trained = proto.ModelProto.FromString(writer.getvalue())
    trained.normalizer_spec.ClearField(_TABLE)  # a path of this machine
    return trained.SerializeToString()


def _cut(sentences: Iterable[str]) -> Iterator[str]:
    """Cut texts that SentencePiece would leave out, at white space where there is some,
    and not before a combining mark.

    It leaves out texts of more than 4,192 bytes, and those with its sign for an unknown
    byte.
    """
    for sentence in sentences:
        text = sentence.replace("▅", " ")
        if len(text.encode("utf-8", "replace")) <= _MOST_BYTES:
            yield text
        else:
            yield from re.findall(
                r"(?s).{1,1000}(?:\s|\Z)|.{1,1000}(?![\u0300-\u036f])", text
            )


def _find_rules(name: str, folder: Path) -> dict[str, str]:
    """Return SentencePiece's option for a normalization; write a table to ``folder``
    if the rules are not its own.
    """
    if name in tables.KNOWN:
        return {_NAME: name}
    path = Path(name).expanduser()
    if name in tables.TABLES:
        path = folder / "rules.tsv"
        path.write_text(tables.write(tables.TABLES[name]()), "ascii")
    return {_TABLE: str(path)}


def check_normalization(name: str) -> None:
    """Refuse an unknown normalization and a file that is no table of rules.

    Raises:
        InputError: it is neither.
    """
    known = *tables.KNOWN, *tables.TABLES
    if name in known:
        return
    path = Path(name).expanduser()
    if not path.is_file():
        raise InputError(
            f"no file {name!r}: data.normalization is one of {', '.join(known)}, or a"
            " file of rules"
        )
    try:
        load_sentencepiece().SentencePieceNormalizer(rule_tsv=str(path))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise InputError(
            f"data.normalization={name} is no table of rules: a line is a text and its"
            " replacement with a tab between them, each of hexadecimal numbers of"
            " characters, such as '0041 030A', tab, '00C5'"
        ) from error


def tag_pieces(languages: Sequence[str]) -> list[str]:
    """Return the piece of each target language (``<2de>``)."""
    return [tag(language) for language in languages]


def train_bytes(sentences: Iterable[str], size: int, special: Sequence[str]) -> bytes:
    """Train byte-level BPE (Radford et al. 2019, section 2.2) and return its
    ``tokenizer.json``, the same bytes for the same sentences.

    White space and line ends are kept, and every text can be spelled: 256 pieces are
    the bytes.

    Args:
        sentences: raw text, of one line or more.
        size: number of pieces, special ones included.
        special: further pieces that text cannot spell.

    Raises:
        InputError: the text cannot be read or does not allow ``size`` pieces.
    """
    tokenizers = require("tokenizers", "train")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    level = tokenizers.pre_tokenizers.ByteLevel
    backend.pre_tokenizer = level(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    names = [*SPECIAL.values(), *special]
    least = len(level.alphabet()) + len(names)
    if size < least:
        raise _SizeError(
            f"a vocabulary of {size} pieces is too small: bytes and special pieces need"
            f" {least}"
        )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=names,
        initial_alphabet=level.alphabet(),
        show_progress=False,
    )
    _feed(lambda lines: backend.train_from_iterator(lines, trainer), sentences)
    found = backend.get_vocab_size()
    if found < size:
        raise _SizeError(
            f"a vocabulary of {size} pieces is too large for this text: it allows at"
            f" most {found}"
        )
    return backend.to_str().encode()


def _feed(
    function: Callable[[Iterator[str]], Result], sentences: Iterable[str]
) -> Result:
    """Call compiled code that reads sentences; an error in reading them is raised as
    it was.
    """
    text = signals.Feed(sentences)
    try:
        return signals.call(lambda: function(iter(text)))
    except Exception:
        if text.error is not None:
            raise text.error from None
        raise
    finally:
        text.unwanted.set()


def load_or_train(
    directory: str | Path,
    config: DataConfig,
    pairs: Iterable[Pair],
    *,
    tags: Sequence[str] = (),
) -> Vocabularies:
    """Load the vocabularies of a folder, or train them on ``pairs`` and save them
    there. If one cannot be trained, nothing is saved.

    Args:
        directory: the folder.
        config: of the vocabularies.
        pairs: raw text, which may be read several times.
        tags: target languages that get tags in the source vocabulary.

    Raises:
        InputError: the folder holds vocabularies of another config, or
            :meth:`Vocabulary.train` refuses the size.
    """
    directory = Path(directory)
    if config.kind in WITH_LABELS:
        vocabularies = with_labels(directory, config, pairs)
        vocabularies.save(directory)
        return vocabularies
    if any(any(directory.glob(f"*{end}")) for end in (PIECES, TOKENIZER, FILE)):
        imported = Vocabularies.load(directory)
        # Two that differ may share the ids, as those of Marian do.
        for side in ("source", "target"):
            _check_size(directory, side, getattr(imported, side), config)
        return imported
    sides = {True: ("shared",), False: ("source", "target")}
    for name in sides[not config.shared_vocabulary]:
        if (directory / f"{name}.model").exists():
            raise InputError(
                f"{directory} holds {name}.model, of a run with"
                f" data.shared_vocabulary={not config.shared_vocabulary}: set it so, or"
                " use another directory"
            )
    found = [
        _load_or_train_one(directory / f"{name}.model", config, pairs, tags)
        for name in sides[config.shared_vocabulary]
    ]
    template = ENCODER if config.kind in ("masked", "documents") else None
    vocabularies = Vocabularies(found[0], found[-1], template)
    vocabularies.save(directory)
    return vocabularies


def with_labels(
    directory: Path, config: DataConfig, pairs: Iterable[Pair]
) -> Vocabularies:
    """Load the vocabularies of a text and of its labels, or train what is missing;
    nothing is saved.

    The folder may be of a run without labels, whose vocabulary is then that of the
    text.

    Raises:
        InputError: as :func:`load_or_train`, or there are no labels.
    """
    names = ("source", "shared")
    endings = (TOKENIZER, MODEL)
    paths = [directory / f"{name}.{ending}" for name in names for ending in endings]
    path = next((path for path in paths if path.exists()), directory / "source.model")
    template = Template.load(directory) if path.exists() else ENCODER
    text = _load_or_train_one(path, config, pairs, ())
    saved = directory / f"target.{LABELS}"
    if saved.exists() and config.labels is None:
        found = Vocabularies(text, Vocabulary.load(saved), template)
        if found.labels and found.labels.fits(config.kind):
            return found
    labels = LabelVocabulary.collect(config.kind, config.labels, pairs)
    return Vocabularies(text, labels, template)


def _check_size(path: Path, side: str, found: Vocabulary, config: DataConfig) -> None:
    key, size = _size(side, config)
    if found.size != size:
        raise InputError(
            f"{key} is {size} and {path} has {found.size} pieces: "
            f"set {key}={found.size}, or use another directory"
        )


def _size(side: str, config: DataConfig) -> tuple[str, int]:
    if side == "source" and config.source_vocabulary_size is not None:
        return "data.source_vocabulary_size", config.source_vocabulary_size
    return "data.vocabulary_size", config.vocabulary_size


def _load_or_train_one(
    path: Path, config: DataConfig, pairs: Iterable[Pair], tags: Sequence[str]
) -> Vocabulary:
    side = path.stem
    if path.exists():
        vocabulary = Vocabulary.load(path)
        _check_size(path, side, vocabulary, config)
        return vocabulary
    key, size = _size(side, config)
    sides = {"shared": (0, 1), "source": (0,), "target": (1,)}[side]
    if config.kind in ONE_SIDED:
        sides = (0,)
    sentences = (pair[index] for pair in pairs for index in sides)
    if config.kind != "pairs" and config.vocabulary_model != "bytes":
        # What separates lines and texts is no part of a piece.
        sentences = (part for each in sentences for part in re.split("[\t\n]", each))
    try:
        return Vocabulary.train(
            sentences,
            size,
            model=config.vocabulary_model,
            byte_fallback=config.byte_fallback,
            tags=() if side == "target" else tags,
            mask=config.kind not in ("pairs", "text"),
            normalization=config.normalization,
        )
    except _SizeError as error:
        raise InputError(f"{key}: {error}") from None


def _mendable(error: RuntimeError, size: int) -> Exception:
    """Return SentencePiece's error as an :class:`InputError` if the input causes it."""
    message, start = str(error), f"a vocabulary of {size} pieces"
    if found := re.search(r"size too high.*<= (\d+)", message):
        return _SizeError(
            f"{start} is too large for this text: it allows at most {found[1]}"
        )
    if "insert_id" in message:
        return _SizeError(f"{start} has no room for pad, unk, bos and eos: choose more")
    if found := re.search(rf"required_chars\. {size} vs (\d+)", message):
        return _SizeError(
            f"{start} is too small for this text: its characters and the special pieces"
            f" need {found[1]}; choose more, several thousand for a corpus"
        )
    empty = "all_chars_count", "sentences_.empty", "required_chars_.empty"
    if any(name in message for name in empty):
        return InputError("the text to train a vocabulary on has no characters")
    return error
