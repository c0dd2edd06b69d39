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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxformer import signals
from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.errors import InputError, require
from jaxformer.files import write_whole

if TYPE_CHECKING:
    from jaxformer.data.records import Pair

_TRAINING: dict[str, Any] = {
    "normalization_rule_name": "nmt_nfkc",
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


@dataclass(frozen=True)
class Vocabulary:
    """An immutable SentencePiece model, built from the bytes of its file.

    The model normalises text first, by ``nmt_nfkc`` if it was trained here: Unicode
    NFKC, control characters become spaces or are removed, white space collapses. So
    ``decode(encode(text))`` is the normalised text: never score a translation against
    decoded references.

    Text never becomes a control id: ``"</s>"`` or ``"<pad>"`` in a sentence is split
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
        object.__setattr__(self, "_processor", processor)
        object.__setattr__(self, "size", processor.get_piece_size())
        for name in ("pad", "unk", "bos", "eos"):
            id_ = getattr(processor, f"{name}_id")()
            if id_ < 0:  # also for a piece that text can spell
                raise InputError(
                    f"the SentencePiece model has no control piece for {name}: train it"
                    f" with --{name}_id (pad, unk, bos and eos are all needed)"
                )
            object.__setattr__(self, f"{name}_id", id_)

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
        except OSError as error:
            raise InputError(f"no vocabulary {path}: {error.strerror}") from None
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
        """Train a vocabulary of ``size`` pieces; pad, unk, bos and eos are ids 0 to 3.

        The same sentences give the same bytes.

        Args:
            sentences: raw text.
            size: number of pieces, special ones included.
            model: ``"bpe"`` (Sennrich et al. 2016, section 3.2; the paper's) or
                ``"unigram"`` (Kudo 2018).
            byte_fallback: spell rare characters (below one in 10,000) and unseen ones
                in 256 byte pieces. Otherwise unseen characters become unk.
            tags: languages; each gets a piece (``<2de>``) that text cannot spell.
            seed: draws the sample of a text of more than five million sentences.

        Raises:
            InputError: the text cannot be read or does not allow ``size`` pieces.
        """
        module, writer = _sentencepiece(), io.BytesIO()
        module.set_random_generator_seed(seed)
        text = signals.Feed(sentences)
        train = functools.partial(
            module.SentencePieceTrainer.train,
            sentence_iterator=iter(text),
            model_writer=writer,
            vocab_size=size,
            model_type=model,
            character_coverage=0.9999 if byte_fallback else 1.0,
            byte_fallback=byte_fallback,
            control_symbols=[tag(language) for language in tags],
            **_TRAINING,
        )
        try:
            signals.call(train)
        except RuntimeError as error:
            if text.error is not None:
                raise text.error from None
            raise _mendable(error, size) from error
        finally:
            text.unwanted.set()
        return cls(writer.getvalue())

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all; make missing folders."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.model)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the model file, in hex."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Encode a sentence as token ids, without bos and eos; a blank one has none."""
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Encode each sentence as :meth:`encode` does; -1 threads: all cores."""
        return self._processor.encode(_valid(texts), num_threads=threads)

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Encode each sentence in a random segmentation, determined by the seed.

        Args:
            texts: sentences.
            alpha: from 0 to 1; see :func:`jaxformer.data.segmentation.sample`.
            seed: at least 0.
        """
        from jaxformer.data.segmentation import sample

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
        r"""Decode token ids to a sentence of one line.

        Decoding ends at the first eos and skips pad and bos. An id out of range reads
        as unk, and unk as " ⁇ ". A ``\n`` or ``\r``, which only byte pieces can make,
        becomes a space.
        """
        tokens = self._known(ids)
        if self.eos_id in tokens:
            tokens = tokens[: tokens.index(self.eos_id)]
        kept = [token for token in tokens if token not in (self.pad_id, self.bos_id)]
        return re.sub(r"[\r\n]", " ", self._processor.decode(kept))

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return the model's name of each token; "▁" is a space."""
        return [self._processor.id_to_piece(token) for token in self._known(ids)]

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Replace ids that the model does not have by unk."""
        return [int(token) if 0 <= token < self.size else self.unk_id for token in ids]


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of source and target: the same object when shared."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def load(cls, directory: str | Path) -> Vocabularies:
        """Read ``shared.model``, or ``source.model`` and ``target.model``, from a run's
        folder of vocabularies.

        Raises:
            InputError: a file is missing or damaged.
        """
        names = ("shared.model", "source.model", "target.model")
        shared, *paths = (Path(directory) / name for name in names)
        if shared.exists():
            vocabulary = Vocabulary.load(shared)
            return cls(vocabulary, vocabulary)
        if not any(path.exists() for path in paths):
            inner = Path(directory) / "vocabulary"
            near = f"; did you mean {inner}?" if any(inner.glob("*.model")) else ""
            raise InputError(
                f"no vocabulary in {directory}: it needs shared.model, or source.model"
                f" and target.model{near}"
            )
        return cls(*map(Vocabulary.load, paths))

    def save(self, directory: str | Path) -> None:
        """Write the files that :meth:`load` reads; existing ones stay."""
        parts = {"source": self.source, "target": self.target}
        # Separate vocabularies may be equal, and are still two.
        if self.source is self.target:
            parts = {"shared": self.source}
        for name, vocabulary in parts.items():
            path = Path(directory) / f"{name}.model"
            if not path.exists():
                vocabulary.save(path)

    @property
    def pad_ids(self) -> tuple[int, int]:
        """The padding ids of source and target."""
        return self.source.pad_id, self.target.pad_id

    @property
    def token_dtype(self) -> str:
        """The smallest dtype that holds the ids of both, little-endian."""
        largest = max(self.source.size, self.target.size)
        return "<u2" if largest <= 1 << 16 else "<i4"

    @property
    def shared(self) -> bool:
        """Whether source and target have the same pieces."""
        return self.source == self.target

    @property
    def hash(self) -> str:
        """SHA-256 over the hashes of both, in hex."""
        hashes = f"{self.source.hash} {self.target.hash}"
        return hashlib.sha256(hashes.encode()).hexdigest()


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
    vocabularies = Vocabularies(found[0], found[-1])
    vocabularies.save(directory)
    return vocabularies


def _load_or_train_one(
    path: Path, config: DataConfig, pairs: Iterable[Pair], tags: Sequence[str]
) -> Vocabulary:
    side, key, size = path.stem, "data.vocabulary_size", config.vocabulary_size
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


def tag(language: str) -> str:
    """Return the piece of a target language (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def _valid(texts: Sequence[str]) -> list[str]:
    # A lone surrogate is no text and makes SentencePiece fail; it becomes "?".
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def _sentencepiece() -> ModuleType:
    """Import SentencePiece and silence it: its failures are exceptions too."""
    module = require("sentencepiece", "train")
    module.set_min_log_level(2)
    return module


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
    if "all_chars_count" in message or "sentences_.empty" in message:
        return InputError("the text to train a vocabulary on has no characters")
    return error
