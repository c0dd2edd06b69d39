"""Vocabularies: text to token ids and back, by SentencePiece or by a tokenizer.json."""

from __future__ import annotations

import functools
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.data.frame import Template
from jaxformer.errors import InputError
from jaxformer.files import write_whole

if TYPE_CHECKING:
    from jaxformer.data.vocabulary_labels import LabelVocabulary

MODEL, PIECES, TOKENIZER = "model", "pieces.json", "tokenizer.json"
LABELS = "labels.json"
SPECIAL = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}
"""The special pieces of other people's vocabularies, as these families name them."""
MASK = "<mask>"
"""The piece in place of a word that is to be predicted."""


class Vocabulary(ABC):
    """Convert text to token ids and back. Immutable; equal if its files are.

    The modules ``vocabulary_sentencepiece`` and ``vocabulary_tokenizer`` have those
    that are trained here or brought along, ``vocabulary_table`` those of other models,
    and ``vocabulary_labels`` the labels of a text in place of words.

    Text never becomes a control id: ``"</s>"`` or ``"<pad>"`` in a sentence is split
    into pieces like any other text.

    Example:
        >>> vocabulary = Vocabulary.train(["a b c", "c b a"], size=8)
        >>> vocabulary.decode(vocabulary.encode("a  c"))
        'a c'
    """

    size: int
    """Ids are below it. A model may have more rows: they have no text and must not be
    generated.
    """
    pad_id: int
    unk_id: int
    bos_id: int
    """Of the beginning of a sentence; without such a piece: ``pad_id``."""
    eos_id: int
    mask_id: int | None = None
    """Of the mask in place of a word; None: no such piece."""
    _silent: frozenset[int]
    """The ids that have no text in :meth:`decode`."""

    @staticmethod
    def load(path: str | Path) -> Vocabulary:
        """Read ``NAME.tokenizer.json``, ``NAME.labels.json``, or a SentencePiece model
        and the file ``NAME.pieces.json`` next to it, if there is one.

        Raises:
            InputError: a file is missing, unreadable or damaged.
        """
        path = Path(path)
        files = {next((x for x in _JSON if path.name.endswith(x)), MODEL): path}
        if (pieces := path.with_suffix(f".{PIECES}")).exists():
            files[PIECES] = pieces
        try:
            read = {ending: file.read_bytes() for ending, file in files.items()}
            return Vocabulary.from_files(read)
        except OSError as error:
            raise InputError(f"no vocabulary {path}: {error.strerror}") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @staticmethod
    def from_files(files: Mapping[str, bytes]) -> Vocabulary:
        """Build a vocabulary from the contents of :attr:`files`.

        Raises:
            InputError: a content is damaged.
        """
        if TOKENIZER in files:
            from jaxformer.data.vocabulary_tokenizer import TokenizerVocabulary

            return TokenizerVocabulary(files[TOKENIZER])
        if PIECES in files:
            from jaxformer.data.vocabulary_table import TableVocabulary

            return TableVocabulary(files[MODEL], files[PIECES])
        if LABELS in files:
            from jaxformer.data.vocabulary_labels import LabelVocabulary

            return LabelVocabulary(files[LABELS])
        from jaxformer.data.vocabulary_sentencepiece import SentencePieceVocabulary

        return SentencePieceVocabulary(files[MODEL])

    @staticmethod
    def train(
        sentences: Iterable[str],
        size: int,
        *,
        model: VocabularyModel = "bpe",
        byte_fallback: bool = False,
        tags: Sequence[str] = (),
        mask: bool = False,
        normalization: str = DataConfig.normalization,
        seed: int = 0,
    ) -> Vocabulary:
        """Train a vocabulary of ``size`` pieces; pad, unk, bos and eos are ids 0 to 3.

        The same sentences give the same bytes.

        The arguments are those of :func:`jaxformer.data.vocabulary_training.train`.

        Raises:
            InputError: the text cannot be read or does not allow ``size`` pieces.
        """
        from jaxformer.data import vocabulary_training as training

        special = (*training.tag_pieces(tags), *([MASK] if mask else ()))
        if model == "bytes":
            trained = training.train_bytes(sentences, size, special)
            return Vocabulary.from_files({TOKENIZER: trained})
        trained = training.train(
            sentences, size, model, byte_fallback, special, normalization, seed
        )
        return Vocabulary.from_files({MODEL: trained})

    @property
    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The contents of its files by the endings of their names; the model first."""

    def save(self, path: str | Path) -> None:
        """Write the model file, whole or not at all, after any other file that
        :meth:`load` reads with it; make missing folders.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        (_, model), *others = self.files.items()
        for ending, content in others:
            write_whole(path.with_suffix(f".{ending}"), content)
        write_whole(path, model)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 in hex: of the model file, or over the hashes of all files."""
        first, *others = (hashlib.sha256(x).hexdigest() for x in self.files.values())
        if not others:
            return first
        return hashlib.sha256(" ".join([first, *others]).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Encode a sentence as token ids, without bos and eos; a blank one has none."""
        return self.encode_batch([text])[0]

    @abstractmethod
    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Encode each sentence as :meth:`encode` does; -1 threads: all cores."""

    def encode_with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a text; return its ids and the characters of each: where its first
        is, and where the first after it.

        Raises:
            InputError: the vocabulary does not know them.
        """
        raise InputError("this vocabulary does not know the places of its pieces")

    @abstractmethod
    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Encode each sentence in a random segmentation, determined by the seed.

        Args:
            texts: sentences.
            alpha: from 0 to 1; see :func:`jaxformer.data.segmentation.sample`.
            seed: at least 0.

        Raises:
            InputError: the vocabulary has only one segmentation of a text.
        """

    @property
    @abstractmethod
    def languages(self) -> Mapping[str, int]:
        """The id of each language that the vocabulary has a piece for, by its code."""

    def tag_id(self, language: str) -> int:
        """Return the id of the piece of a language.

        Raises:
            InputError: the vocabulary has no such language; the nearest are named.
        """
        if (found := self.languages.get(language)) is not None:
            return found
        from jaxformer.data.language_codes import unknown_language

        raise unknown_language(language, self.languages)

    def decode(
        self, ids: Sequence[int] | NDArray[np.integer], *, lines: bool = False
    ) -> str:
        r"""Decode token ids to a sentence of one line, or to text of several ``lines``.

        Decoding ends at the first eos and skips control ids. An id out of range reads
        as unk: " ⁇ ", or nothing in a vocabulary of another model. A ``\n`` or ``\r``,
        which only byte pieces can make, becomes a space in a sentence of one line.
        """
        tokens = self._known(ids)
        if self.eos_id in tokens:
            tokens = tokens[: tokens.index(self.eos_id)]
        text = self._text([token for token in tokens if token not in self._silent])
        return text if lines else re.sub(r"[\r\n]", " ", text)

    @abstractmethod
    def _text(self, ids: list[int]) -> str:
        """Join the text of ids that have some."""

    @abstractmethod
    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return the model's name of each token; "▁" is a space."""

    @property
    def continuing(self) -> NDArray[np.bool_]:
        """Whether each token continues a word, bool [size]: those of WordPiece that
        begin with ``##``, or else all that do not begin with a space.
        """
        names = self.pieces(range(self.size))
        parts = [name.startswith("##") for name in names]
        if not any(parts):
            parts = [not name.startswith(("▁", " ")) for name in names]
        return np.array(parts)

    def _known(self, ids: Iterable[int]) -> list[int]:
        """Replace ids that the vocabulary does not have by unk."""
        return [int(token) if 0 <= token < self.size else self.unk_id for token in ids]


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of source and target: the same object when shared."""

    source: Vocabulary
    target: Vocabulary
    template: Template | None = None
    """The tokens around the text, of an imported model; None: as in training here."""

    @classmethod
    def load(cls, directory: str | Path) -> Vocabularies:
        """Read ``shared.model``, or ``source.model`` and ``target.model``, from a run's
        folder of vocabularies; ``.tokenizer.json`` instead of ``.model``, and
        ``target.labels.json`` where the targets are labels.

        Raises:
            InputError: a file is missing or damaged.
        """
        shared, *paths = (_find(directory, x) for x in ("shared", "source", "target"))
        template = Template.load(Path(directory))
        if shared.exists():
            vocabulary = Vocabulary.load(shared)
            return cls(vocabulary, vocabulary, template)
        if not any(path.exists() for path in paths):
            inner = Path(directory) / "vocabulary"
            near = f"; did you mean {inner}?" if cls.exist(inner) else ""
            raise InputError(
                f"no vocabulary in {directory}: it needs shared.model, or source.model"
                f" and target.model{near}"
            )
        source, target = map(Vocabulary.load, paths)
        return cls(source, target, template)

    @staticmethod
    def exist(directory: str | Path) -> bool:
        """Whether a folder holds at least one vocabulary."""
        endings = (MODEL, TOKENIZER)
        return any(any(Path(directory).glob(f"*.{ending}")) for ending in endings)

    def save(self, directory: str | Path) -> None:
        """Write the files that :meth:`load` reads; existing ones stay."""
        parts = {"source": self.source, "target": self.target}
        if self.source is self.target:  # separate ones may be equal, and are still two
            parts = {"shared": self.source}
        for name, vocabulary in parts.items():
            path = Path(directory) / f"{name}.{next(iter(vocabulary.files))}"
            if not path.exists():
                vocabulary.save(path)
        if self.template is not None:
            self.template.save(Path(directory))

    @property
    def pad_ids(self) -> tuple[int, int]:
        """The padding ids of source and target."""
        return self.source.pad_id, self.target.pad_id

    @property
    def token_dtype(self) -> str:
        """The smallest dtype that holds the ids of both, little-endian."""
        sides = self.source, self.target
        largest = max(max(side.size, side.pad_id + 1) for side in sides)
        # Numbers and places are no ids.
        wide = self.labels is not None and not self.labels.labels
        return "<u2" if largest <= 1 << 16 and not wide else "<i4"

    @property
    def labels(self) -> LabelVocabulary | None:
        """The labels that are the targets; None: the targets are text."""
        if LABELS not in self.target.files:
            return None
        from jaxformer.data.vocabulary_labels import LabelVocabulary

        assert isinstance(self.target, LabelVocabulary)
        return self.target

    @property
    def text_hash(self) -> str:
        """The hash of the vocabulary of the text and of the template, without labels:
        that of the vocabularies of a masked language model.
        """
        return Vocabularies(self.source, self.source, self.template).hash

    @property
    def shared(self) -> bool:
        """Whether an id of the source is the same piece in the target."""
        tables = {each.files.get(PIECES) for each in (self.source, self.target)}
        return self.source == self.target or len(tables - {None}) == 1 == len(tables)

    @property
    def hash(self) -> str:
        """SHA-256 over the hashes of both, and of the template if there is one, in
        hex.
        """
        hashes = f"{self.source.hash} {self.target.hash}"
        if self.template is not None:
            hashes = f"{hashes} {self.template.hash}"
        return hashlib.sha256(hashes.encode()).hexdigest()


_JSON = (TOKENIZER, LABELS)


def _find(directory: str | Path, name: str) -> Path:
    paths = [Path(directory) / f"{name}.{ending}" for ending in (*_JSON, MODEL)]
    return next((path for path in paths if path.exists()), paths[-1])


def valid(texts: Sequence[str]) -> list[str]:
    """Replace lone surrogates by "?": they are no text, and encoders fail on them."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
