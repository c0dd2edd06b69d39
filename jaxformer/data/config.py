"""The section ``data`` of a run's configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jaxformer.errors import InputError, check_keys, key

UnicodeNormalization = Literal["none", "NFC", "NFKC"]
"""The normal form of text; see :func:`jaxformer.data.cleaning.normalize`."""

VocabularyModel = Literal["bpe", "unigram", "bytes"]
"""How a vocabulary finds its pieces; see
:meth:`jaxformer.data.vocabulary.Vocabulary.train`.
"""

ONE_SIDED = ("text", "masked", "documents")
WITH_LABELS = ("labelled", "scored", "tagged", "spans")
KINDS = ("pairs", *ONE_SIDED, *WITH_LABELS)
"""What an example of a data set is: a pair, one text, or a text and its labels."""


EARLIER: dict[str, Any] = {
    "normalization": "nmt_nfkc",
    "packing": False,
    "packed_length": 256,
}
"""Keys whose default has changed, and the earlier one: what runs and prepared folders
that lack such a key did. A run that has it continues with it, see
:func:`jaxformer.runs.config.keep_earlier`.
"""

LANGUAGE_CODE = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]+")
"""The code of a language, which is a part of names of files."""


@dataclass(frozen=True)
class Cleaning:
    """Which steps clean a corpus; by default only pairs with an empty side are dropped.

    The fields are keys of :class:`DataConfig`; :mod:`jaxformer.data.cleaning` has the
    steps.

    Raises:
        InputError: a value out of range.
    """

    # Drop pairs with a side that is not UTF-8, of plain text and tables. Default False:
    # such text is refused.
    drop_invalid: bool = key(False, changes="tokens")
    # Most words (what white space separates) on a side, in raw text. None: any number.
    max_words: int | None = key(None, least=1, most=10**9, changes="tokens")
    # Most characters (Unicode code points) on a side, in raw text; the limit for
    # scripts without spaces. None: any number.
    max_characters: int | None = key(None, least=1, most=10**9, changes="tokens")
    # Largest ratio of the characters of both sides. None: any ratio. 3 suits languages
    # of similar script; Chinese or Japanese with a European language needs about 6.
    max_length_ratio: float | None = key(None, least=1, most=10**9, changes="tokens")
    # Drop pairs whose sides are the same text.
    drop_identical: bool = key(False, changes="tokens")
    # Drop pairs that repeat both texts of an earlier pair of the same data set.
    drop_duplicates: bool = key(False, changes="tokens")
    # "none", "NFC" or "NFKC". Vocabularies trained here apply data.normalization; this
    # step serves the other steps, and vocabularies from elsewhere.
    unicode_normalization: UnicodeNormalization = key(
        "none", choices=("none", "NFC", "NFKC"), changes="tokens"
    )
    # Drop pairs with a side that is surely in another language. Needs the extra data.
    detect_languages: bool = key(False, changes="tokens")

    def __post_init__(self) -> None:
        """Check every key."""
        check_keys("data", self)


@dataclass(frozen=True)
class DataConfig(Cleaning):
    """Which text a run reads, how it is cleaned, and how it becomes batches.

    The steps of cleaning, which drop pairs of the training text, are the keys of
    :class:`Cleaning`.

    Raises:
        InputError: a value out of range, or one that contradicts another.
    """

    # What an example is: pairs (a sentence and its translation), text (one text, whose
    # next words are predicted), masked (one text, of which words are masked), documents
    # (two parts of texts of several lines, of which words are masked, and whether one
    # follows the other), labelled (a text, or two, and a label), scored (the same with
    # a number), tagged (words and as many tags) or spans (a question, a text and where
    # it has the answer).
    kind: str = key("pairs", choices=KINDS, changes="tokens")
    # The labels of labelled and tagged text in the order of their numbers, separated by
    # commas. Default None: those of the training text, sorted.
    labels: str | None = key(None, changes="tokens")
    # The data sets, each named as `jaxformer.data.sources` describes:
    # `bundled:en-de/train`, `text:train.en,train.de`, `synthetic:reverse/train`.
    # Defaults: the bundled corpus.
    train: str = key("bundled:en-de/train", changes="tokens")
    # Validation text, for the loss, BLEU and the choice of the best checkpoint.
    valid: str = key("bundled:en-de/valid", may_change=True)
    # Test text for the finished model; never used to choose one.
    test: str = key("bundled:en-de/test", may_change=True)

    # The languages translated from and to, as codes. A corpus of two languages serves
    # both directions.
    source_language: str = key("en", changes="tokens")
    target_language: str = key("de", changes="tokens")

    # Pieces in the vocabulary (of the target, when the two are separate), special
    # pieces included. Default 8000; the paper has 37,000 for 4.5 million pairs.
    vocabulary_size: int = key(8000, least=1, most=2**24, changes="tokens")
    # Pieces in the source vocabulary, only with separate vocabularies. Default None: as
    # many as the target's.
    source_vocabulary_size: int | None = key(
        None, least=1, most=2**24, changes="tokens"
    )
    # One vocabulary for both languages, trained on both together, as the paper has it;
    # the three-way tied embedding needs it. False trains one for each.
    shared_vocabulary: bool = key(True, changes="tokens")
    # "bpe" (the paper's), "unigram", or "bytes": byte-level BPE as in GPT-2, which
    # keeps white space and line ends and spells everything.
    vocabulary_model: VocabularyModel = key(
        "bpe", choices=("bpe", "unigram", "bytes"), changes="tokens"
    )
    # False (default): every character of the training text is a piece, and one that it
    # lacks becomes unk, which decodes to " ⁇ ". True: rare characters are spelled in
    # bytes and nothing is lost, for 256 pieces. Good for large corpora, whose text has
    # thousands of stray characters.
    byte_fallback: bool = key(False, changes="tokens")
    # How a vocabulary of SentencePiece that is trained here rewrites text: "identity",
    # "nfc", "nfkc", "nmt_nfkc", "nmt_nfkc_cf" or a file of SentencePiece's form. An
    # existing vocabulary keeps its own rules.
    normalization: str = key("identity", changes="tokens")
    # File of word vectors, as text of word2vec, GloVe or fastText: with them begin the
    # embeddings of the words that are one token.
    embeddings: str | None = key(None)

    # Add a tag for each target language (`<2de>`) to the vocabulary, and begin every
    # source sentence with its target's: one model then serves several languages.
    language_tags: bool = key(False, changes="tokens")
    # Sample another segmentation of the text in each epoch (subword regularisation).
    # Default None: always the best one. With BPE the probability of dropping a merge
    # (BPE-dropout; 0.1 is usual); with a unigram vocabulary the power of a
    # segmentation's probability (0.1 to 0.5 are usual).
    segmentation_alpha: float | None = key(None, least=0, most=1)
    # Temperature of a mixture, instead of weights: 1 (default) keeps the sizes of its
    # data sets, 5 is usual for many languages, and a large number makes them equal.
    temperature: float = key(1.0, least=1, most=10**9)

    # Longest training sentence in tokens, on each side, end of sentence included.
    # Longer pairs are dropped and counted, never cut. Masked text and documents are
    # divided, text with labels is cut and counted, and long texts of spans become
    # several windows.
    max_length: int = key(256, least=1, most=2**20, changes="tokens")
    # Tokens of a row of text: its documents, one after another, are divided into such
    # rows, at other places in each epoch. Default None: each text is a row.
    window: int | None = key(None, least=2, most=2**20, changes="tokens")
    # Tokens from the beginning of a window of a long text of spans to that of the next.
    # Default None: half of those that a window has room for.
    stride: int | None = key(None, least=1, most=2**20, changes="tokens")
    # Mask whole words, all pieces of each (Devlin et al. 2019, models of May 2019), not
    # single pieces. Words are what blanks separate; in WordPiece, a piece without ##
    # and the pieces with it that follow. Validation and evaluation mask pieces.
    whole_words: bool = key(False)
    # Most token slots on EACH side of a batch, padding included, all devices together.
    # The paper: about 25,000.
    tokens_per_batch: int = key(25_000, least=1, most=2**27)
    # Most shapes of training batches, each of which compiles the step, where rows are
    # not packed. More buckets, less padding.
    num_buckets: int = key(8, least=1, most=1_000)
    # Lengths and rows of the shapes of batches are multiples of this: lengths round up,
    # as far as max_length and tokens_per_batch allow, and rows down. Default 1; 8 for
    # GPUs and TPUs.
    shape_multiple: int = key(1, least=1, most=1_024)
    # Pack several pairs into a row, which do not attend to each other: one shape of
    # batches and hardly any padding. "auto" (default): where the kind of data and the
    # network allow it, see packs.
    packing: bool | str = key("auto", choices=("auto", True, False))
    # Slots of a packed row, on its longer side. Longer rows waste less padding and cost
    # more attention. Default None: four times the mean length, at most 256, and always
    # as many as the longest pair has.
    packed_length: int | None = key(None, least=1, most=2**20)
    # Drop the batches of an epoch that are not full, with their pairs. Default False:
    # rows of padding, which have no weight, fill them.
    drop_remainder: bool = key(False)
    # Processes that tokenise a large training text. Default None: one a core, if there
    # are at least four. The result is the same.
    workers: int | None = key(
        None, least=1, most=1_000, changes="speed", may_change=True
    )
    # End every source sentence with the end-of-sentence token; targets always do.
    source_eos: bool = key(True, changes="tokens")

    @property
    def one_sided(self) -> bool:
        """Whether an example is one text."""
        return self.kind in ONE_SIDED

    @property
    def packs(self) -> bool:
        """Whether rows hold several examples. A row has one label, and windows fill
        rows already.
        """
        if self.packing == "auto":
            return self.kind in _OF_KINDS["packing"] and self.window is None
        return bool(self.packing)

    @property
    def labels_per_text(self) -> int | None:
        """Targets of each text, where these are labels; None: as many as tokens."""
        counts = {"labelled": 1, "scored": 1, "spans": 2, "documents": 1}
        return counts.get(self.kind)

    @property
    def divides_later(self) -> bool:
        """Whether rows are cut from encoded texts of any length when these are read."""
        return self.window is not None or self.kind == "documents"

    @property
    def examples(self) -> str:
        """What the examples are called."""
        names = {"text": "texts", "masked": "texts", "spans": "questions"}
        if self.kind in ("pairs", "documents"):
            return self.kind
        return names.get(self.kind, "examples")

    @property
    def languages(self) -> tuple[str, str]:
        """The codes of the languages translated from and to."""
        return self.source_language, self.target_language

    def language_into(self, target: str) -> str:
        """Return the language that is translated into ``target``: that of the sources,
        or for a model of both directions the other one.
        """
        if target == self.target_language:
            return self.source_language
        from jaxformer.data.language_codes import same_language

        if same_language(target, self.source_language):
            return self.target_language
        return self.source_language

    def between(self, source: str | None, target: str | None) -> DataConfig:
        """Return the configuration with another direction; None: as it is.

        Raises:
            InputError: both are one language.
        """
        target = target or self.target_language
        source = source or self.language_into(target)
        return replace(self, source_language=source, target_language=target)

    @property
    def request(self) -> dict[str, Any]:
        """The keys that decide which tokens the training text becomes, as JSON: those
        of a prepared folder.
        """
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.metadata["changes"] == "tokens"
        }

    def __post_init__(self) -> None:
        check_keys("data", self)
        for name in ("train", "valid", "test", "source_language", "target_language"):
            if not getattr(self, name).strip():
                raise InputError(
                    f"data.{name} is empty: name one, for example"
                    f" {getattr(DataConfig, name)!r}"
                )
        for name in ("source_language", "target_language"):
            if not LANGUAGE_CODE.fullmatch(getattr(self, name)):
                raise InputError(
                    f"data.{name}={getattr(self, name)!r}: the code of a language is"
                    " part of names of files: give one without / and \\, control"
                    " characters and a dot at its beginning"
                )
        if self.source_language == self.target_language:
            raise InputError(
                "data.source_language and data.target_language are both"
                f" {self.source_language!r}: give two languages"
            )
        self._check_kind()
        if self.shared_vocabulary and self.source_vocabulary_size is not None:
            raise InputError(
                f"data.source_vocabulary_size={self.source_vocabulary_size} needs"
                " data.shared_vocabulary=False; a shared vocabulary has"
                " data.vocabulary_size pieces"
            )

    def _check_kind(self) -> None:
        """Refuse keys that make no sense for this kind of data."""
        for name, kinds in _OF_KINDS.items():
            value = getattr(self, name)
            usual = getattr(DataConfig, name), EARLIER.get(name)
            if self.kind not in kinds and value not in usual:
                raise InputError(
                    f"data.{name}={value} is for data.kind={' or '.join(kinds)}, not"
                    f" {self.kind}: leave it out"
                )
        if self.window is not None and self.window > self.max_length:
            raise InputError(
                f"data.window={self.window} is more than"
                f" data.max_length={self.max_length}: lower the one or raise the other"
            )
        if self.window is not None and self.packs:
            raise InputError(
                f"data.window={self.window} fills rows already: set data.packing=False,"
                " or data.window=None to keep texts apart"
            )
        if self.vocabulary_model == "bytes":
            for name in _OF_SENTENCEPIECE:
                value = getattr(self, name)
                if value not in (getattr(DataConfig, name), EARLIER.get(name)):
                    raise InputError(
                        f"data.{name}={value} is for vocabularies of SentencePiece:"
                        " leave it out, or set data.vocabulary_model=bpe"
                    )


_OF_SENTENCEPIECE = (
    "byte_fallback",
    "normalization",
    "language_tags",
    "segmentation_alpha",
)
_PAIRS = ("pairs",)
_UNALIGNED = ("pairs", *ONE_SIDED, "labelled", "scored")
# Keys that only some kinds of data have.
_OF_KINDS = {
    "max_length_ratio": _PAIRS,
    "drop_invalid": _PAIRS,
    "drop_identical": _PAIRS,
    "detect_languages": _PAIRS,
    # It could change the number of words, or the places of answers.
    "unicode_normalization": _UNALIGNED,
    "shared_vocabulary": _PAIRS,
    "source_vocabulary_size": _PAIRS,
    "language_tags": _PAIRS,
    "segmentation_alpha": _PAIRS,
    "source_eos": _PAIRS,
    "labels": ("labelled", "tagged"),
    "window": ("text",),
    "stride": ("spans",),
    "whole_words": ("masked", "documents"),
    "packing": ("pairs", "text", "masked", "tagged"),
}
