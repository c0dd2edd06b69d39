"""SentencePiece vocabularies: train, save, load; text to token ids and back."""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxformer.data import interruption
from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.data.records import Pair
from jaxformer.data.segmentation import sample
from jaxformer.errors import InputError, require
from jaxformer.files import write_whole

# What SentencePiece does depends on the number of threads, so it is not the number of
# cores.
_TRAINING_THREADS = 16
# Enough for a good vocabulary; above it, a sample drawn with the seed keeps memory and
# time within bounds.
_TRAINING_SENTENCES = 5_000_000


class _SizeError(InputError):
    """A text does not allow a vocabulary of this size."""


@dataclass(frozen=True)
class Vocabulary:
    """An immutable SentencePiece model, made from the bytes of its file; equal when the
    bytes are.

    Text is normalised before it is split, by the rules inside the model: ``nmt_nfkc``
    for the models that we train. That is Unicode NFKC (full-width digits, ligatures and
    the like become their plain forms), control characters become spaces or go, runs of
    white space become one space, and spaces at the ends go. So ``decode(encode(text))``
    is the normalised text, not the text: never judge a translation against decoded
    references.

    Control ids never come from text: ``"</s>"`` or ``"<pad>"`` in a sentence is split
    into pieces like any other text.

    Example:
        >>> vocabulary = Vocabulary.train(["a b c", "c b a"], size=8)
        >>> vocabulary.decode(vocabulary.encode("a  c"))
        'a c'

    Raises:
        InputError: the bytes are no SentencePiece model, or it lacks padding, beginning
            or end of sentence.
    """

    model: bytes = field(repr=False)
    """The content of the model file."""
    size: int = field(init=False, compare=False)
    """Number of pieces; ids are below it."""
    pad_id: int = field(init=False, compare=False)
    unk_id: int = field(init=False, compare=False)
    bos_id: int = field(init=False, compare=False)
    eos_id: int = field(init=False, compare=False)
    _processor: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        processor = _sentencepiece().SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.model)
        except RuntimeError:
            raise InputError(
                "not a SentencePiece model, or a damaged one: train or copy it again"
            ) from None
        ids = {
            name: getattr(processor, f"{name}_id")()
            for name in ("pad", "unk", "bos", "eos")
        }
        for name, id_ in ids.items():
            if id_ < 0:  # SentencePiece gives -1 also for a piece that text can spell
                raise InputError(
                    f"the SentencePiece model has no control piece for {name}: train it"
                    f" with --{name}_id (pad, unk, bos and eos are all needed)"
                )
        values = {f"{name}_id": id_ for name, id_ in ids.items()}
        for name, value in {
            **values,
            "size": processor.get_piece_size(),
            "_processor": processor,
        }.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[bytes]]:
        return Vocabulary, (self.model,)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a model file.

        Raises:
            InputError: the file is missing, unreadable, or not a model as
                :class:`Vocabulary` needs it.
        """
        try:
            model = Path(path).read_bytes()
        except FileNotFoundError:
            raise InputError(f"no vocabulary {path}") from None
        except OSError as error:
            raise InputError(
                f"cannot read the vocabulary {path}: {error.strerror}"
            ) from None
        try:
            return cls(model)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        size: int,
        *,
        model: VocabularyModel = "bpe",
        byte_fallback: bool = False,
        tags: Sequence[str] = (),
        seed: int = 0,
    ) -> Vocabulary:
        """Train a vocabulary of ``size`` pieces, with pad, unk, bos and eos as ids 0 to
        3.

        The same sentences give the same bytes.

        Args:
            sentences: raw text.
            size: number of pieces, special ones included.
            model: ``"bpe"`` (Sennrich et al. 2016, section 3.2; what the paper uses) or
                ``"unigram"`` (Kudo 2018).
            byte_fallback: spell characters rarer than one in 10,000, and those never
                seen, in 256 byte pieces, so that nothing is lost. Without it every
                character of the text is a piece, and one never seen (an emoji, say)
                becomes unk, which decodes to " ⁇ ".
            tags: languages, each of which gets a piece (``<2de>`` for ``de``) that text
                cannot spell.
            seed: chooses the sample that stands for a text of more than five million
                sentences.

        Raises:
            InputError: the text has no characters, cannot be read, or allows only more
                or fewer pieces than ``size``.
        """
        trainer = _sentencepiece()
        trainer.set_random_generator_seed(seed)
        writer = io.BytesIO()
        text = interruption.Feed(sentences)

        def train() -> None:
            trainer.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_writer=writer,
                vocab_size=size,
                model_type=model,
                character_coverage=0.9999 if byte_fallback else 1.0,
                byte_fallback=byte_fallback,
                normalization_rule_name="nmt_nfkc",
                input_sentence_size=_TRAINING_SENTENCES,
                shuffle_input_sentence=True,
                num_threads=_TRAINING_THREADS,
                control_symbols=[tag(language) for language in tags],
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                minloglevel=2,
            )

        try:
            interruption.call(train)
        except RuntimeError as error:
            if text.error is not None:
                raise text.error from None
            raise _mendable(error, size) from error
        finally:
            text.unwanted.set()
        return cls(writer.getvalue())

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all; folders that are missing are
        made.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.model)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the model file, in hex: two vocabularies agree exactly when it
        does.
        """
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Turn a sentence into token ids, without bos and eos; an empty or blank one
        gives none.
        """
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Turn each sentence into token ids as :meth:`encode` does, by default on
        all cores.
        """
        return self._processor.encode(_valid(texts), num_threads=threads)

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Turn each sentence into token ids of a segmentation drawn at random; the same
        seed draws the same anywhere.

        Args:
            texts: sentences.
            alpha: from 0 to 1; unigram: the power of a segmentation's probability (Kudo
                2018, section 3.3; 0 draws evenly); BPE: the probability of leaving out
                a merge (Provilkov et al. 2020, section 3.1; 0 gives the best
                segmentation, 1 characters).
            seed: of the drawing, at least 0.
        """
        return sample(self._processor, _valid(texts), alpha=alpha, seed=seed)

    def tag_id(self, language: str) -> int:
        """Return the id of the piece that asks for a language, ``<2de>`` for ``de``.

        Raises:
            InputError: the vocabulary was trained without it.
        """
        found = self._processor.piece_to_id(tag(language))
        if found == self.unk_id:
            raise InputError(
                f"the vocabulary has no tag {tag(language)}: train with"
                f" data.language_tags=True and text in {language}"
            )
        return found

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        r"""Turn token ids into a sentence of one line.

        Everything from the first eos on is left out, and so are pad and bos; without an
        eos all ids count. An id out of range reads as unk, and unk as " ⁇ ". A ``\n``
        or ``\r``, which only byte pieces can make, becomes a space.
        """
        kept = [
            token
            for token in self._known(self._until_eos(ids))
            if token not in (self.pad_id, self.bos_id)
        ]
        return re.sub(r"[\r\n]", " ", self._processor.decode(kept))

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Name each token as the model does, control pieces included, "▁" for a
        space: for drawing.
        """
        return [self._processor.id_to_piece(token) for token in self._known(ids)]

    def _until_eos(self, ids: Sequence[int] | NDArray[np.integer]) -> list[int]:
        tokens = [int(token) for token in ids]
        return tokens[: tokens.index(self.eos_id)] if self.eos_id in tokens else tokens

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Put unk in place of ids that the model does not have, which would raise
        IndexError.
        """
        return [int(token) if 0 <= token < self.size else self.unk_id for token in ids]


@dataclass(frozen=True)
class Vocabularies:
    """The vocabulary of the source and that of the target: one and the same when it
    is shared.
    """

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def load(cls, directory: str | Path) -> Vocabularies:
        """Read ``shared.model``, or ``source.model`` and ``target.model``, from a run's
        folder of vocabularies.

        Raises:
            InputError: neither is there, or a file is damaged.
        """
        directory = Path(directory)
        if (directory / "shared.model").exists():
            vocabulary = Vocabulary.load(directory / "shared.model")
            return cls(vocabulary, vocabulary)
        if (
            not (directory / "source.model").exists()
            and not (directory / "target.model").exists()
        ):
            raise InputError(
                f"no vocabulary in {directory}: it needs shared.model, or source.model"
                f" and target.model{_near(directory)}"
            )
        return cls(
            Vocabulary.load(directory / "source.model"),
            Vocabulary.load(directory / "target.model"),
        )

    def save(self, directory: str | Path) -> None:
        """Write what :meth:`load` reads; files that are there stay."""
        directory = Path(directory)
        # Separate vocabularies of the same text are equal, and still two.
        one = self.source is self.target
        parts = (
            {"shared": self.source}
            if one
            else {"source": self.source, "target": self.target}
        )
        for name, vocabulary in parts.items():
            if not (directory / f"{name}.model").exists():
                vocabulary.save(directory / f"{name}.model")

    @property
    def shared(self) -> bool:
        """Whether source and target have the same pieces."""
        return self.source == self.target

    @property
    def hash(self) -> str:
        """SHA-256 over the hashes of both, in hex."""
        return hashlib.sha256(
            f"{self.source.hash} {self.target.hash}".encode()
        ).hexdigest()


def load_or_train(
    directory: str | Path,
    config: DataConfig,
    pairs: Iterable[Pair],
    *,
    tags: Sequence[str] = (),
) -> Vocabularies:
    """Load a run's vocabularies from its folder, or train them on ``pairs`` and save
    them there.

    A shared vocabulary is the file ``shared.model``; separate ones are ``source.model``
    and ``target.model``.

    Args:
        directory: the folder.
        config: says which vocabularies.
        pairs: raw text, which may be read several times.
        tags: target languages, for which the source vocabulary gets tags.

    Raises:
        InputError: the folder holds vocabularies of another config, or
            :meth:`Vocabulary.train` refuses the size.
    """
    directory = Path(directory)
    mine, other = ("shared",), ("source", "target")
    if not config.shared_vocabulary:
        mine, other = other, mine
    for name in other:
        if (directory / f"{name}.model").exists():
            raise InputError(
                f"{directory} holds {name}.model, of a run with"
                f" data.shared_vocabulary={not config.shared_vocabulary}: set it so, or"
                " use another directory"
            )
    vocabularies = {
        name: _load_or_train_one(directory / f"{name}.model", name, config, pairs, tags)
        for name in mine
    }
    # Only now that all are trained: a size that one side refuses leaves nothing behind.
    for name, vocabulary in vocabularies.items():
        if not (directory / f"{name}.model").exists():
            vocabulary.save(directory / f"{name}.model")
    return Vocabularies(vocabularies[mine[0]], vocabularies[mine[-1]])


def _load_or_train_one(
    path: Path,
    side: str,
    config: DataConfig,
    pairs: Iterable[Pair],
    tags: Sequence[str],
) -> Vocabulary:
    key, size = "data.vocabulary_size", config.vocabulary_size
    if side == "source" and config.source_vocabulary_size is not None:
        key, size = "data.source_vocabulary_size", config.source_vocabulary_size
    if path.exists():
        vocabulary = Vocabulary.load(path)
        if vocabulary.size != size:
            raise InputError(
                f"{key} is {size} and {path} has {vocabulary.size} pieces: "
                f"set {key}={vocabulary.size}, or use another directory"
            )
        return vocabulary
    sides = {"shared": (0, 1), "source": (0,), "target": (1,)}[side]
    sentences = (pair[index] for pair in pairs for index in sides)
    try:
        return Vocabulary.train(
            sentences,
            size,
            model=config.vocabulary_model,
            byte_fallback=config.byte_fallback,
            tags=() if side == "target" else tags,
        )
    except _SizeError as error:
        raise InputError(f"{key}: {error}") from None


def _near(directory: Path) -> str:
    """Name the folder of vocabularies within a run or a prepared folder that was
    named in its place.
    """
    inner = directory / "vocabulary"
    return f"; did you mean {inner}?" if any(inner.glob("*.model")) else ""


def tag(language: str) -> str:
    """Name the piece with which a source asks for a target language (Johnson et al.
    2017, section 3).
    """
    return f"<2{language}>"


def _valid(texts: Sequence[str]) -> list[str]:
    # A lone surrogate is no text and makes SentencePiece fail; it becomes "?".
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def _sentencepiece() -> ModuleType:
    """Import SentencePiece and keep it from writing to standard error: its failures
    come as exceptions too.
    """
    module = require("sentencepiece", "train")
    module.set_min_log_level(2)
    return module


def _mendable(error: RuntimeError, size: int) -> Exception:
    """Word SentencePiece's refusal so that a person can mend it, or give it back
    where it is not about the input.
    """
    message = str(error)
    if found := re.search(r"size too high.*<= (\d+)", message):
        return _SizeError(
            f"a vocabulary of {size} pieces is too large for this text: it allows at"
            f" most {found[1]}"
        )
    if "insert_id" in message:
        return _SizeError(
            f"a vocabulary of {size} pieces has no room for pad, unk, bos and eos:"
            " choose more"
        )
    if found := re.search(rf"required_chars\. {size} vs (\d+)", message):
        return _SizeError(
            f"a vocabulary of {size} pieces is too small for this text: its characters"
            f" and the special pieces alone need {found[1]}; choose more, several"
            " thousand for a corpus"
        )
    if "all_chars_count" in message or "sentences_.empty" in message:
        return InputError("the text to train a vocabulary on has no characters")
    return error
