"""The section ``data`` of a run's configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from jaxformer.data.cleaning import Cleaning, UnicodeNormalization
from jaxformer.errors import InputError, check_most

VocabularyModel = Literal["bpe", "unigram"]
"""How SentencePiece finds its pieces; see :meth:`jaxformer.data.Vocabulary.train`."""

VOCABULARY_MODELS: tuple[VocabularyModel, ...] = ("bpe", "unigram")

MOST = {
    "vocabulary_size": 2**24,
    "source_vocabulary_size": 2**24,
    "max_length": 2**20,
    "packed_length": 2**20,
    "tokens_per_batch": 2**27,
    "num_buckets": 1_000,
    "workers": 1_000,
    "temperature": 1e9,
    "max_words": 10**9,
    "max_characters": 10**9,
    "max_length_ratio": 1e9,
}
"""Greatest values of numbers: beyond them no memory holds a batch or a table."""

_CLEANING = tuple(step.name for step in fields(Cleaning))
# Of the other keys, those that decide which tokens a text becomes.
_TOKENS = (
    "train",
    "source_language",
    "target_language",
    "vocabulary_size",
    "source_vocabulary_size",
    "shared_vocabulary",
    "vocabulary_model",
    "byte_fallback",
    "language_tags",
    "max_length",
    "source_eos",
)


@dataclass(frozen=True)
class DataConfig:
    """Say which text a run reads and how text becomes batches.

    Raises:
        InputError: a value lies out of range, or contradicts another.
    """

    # The data sets, each named as `jaxformer.data.sources` describes:
    # `bundled:en-de/train`, `text:train.en,train.de`, `synthetic:reverse/train`.
    # Defaults: the bundled corpus.
    train: str = "bundled:en-de/train"
    # Judges the model while it trains: loss, BLEU, and the choice of the best
    # checkpoint.
    valid: str = field(default="bundled:en-de/valid", metadata={"may_change": True})
    # Judges the finished model; never used to choose one.
    test: str = field(default="bundled:en-de/test", metadata={"may_change": True})

    # The languages translated from and to, as codes. A corpus of two languages serves
    # both directions.
    source_language: str = "en"
    target_language: str = "de"

    # Pieces in the vocabulary (of the target, when the two are separate), special
    # pieces included. Default 8000; the paper has 37,000 for 4.5 million pairs.
    vocabulary_size: int = 8000
    # Pieces in the source vocabulary, only with separate vocabularies. Default None: as
    # many as the target's.
    source_vocabulary_size: int | None = None
    # One vocabulary for both languages, trained on both together, as the paper has it;
    # the three-way tied embedding needs it. False trains one for each.
    shared_vocabulary: bool = True
    # "bpe" (the paper's) or "unigram".
    vocabulary_model: VocabularyModel = "bpe"
    # False (default): every character of the training text is a piece, and one that it
    # lacks becomes unk, which decodes to " ⁇ ". True: rare characters are spelled in
    # bytes, so that nothing is lost; 256 pieces are spent on that. Good for large
    # corpora, whose text holds thousands of stray characters.
    byte_fallback: bool = False

    # Give the vocabulary a tag for each target language (`<2de>`), and begin every
    # source sentence with the one it is to be translated into: one model then serves
    # several languages.
    language_tags: bool = False
    # Read another segmentation of the text in each epoch (subword regularisation).
    # Default None: always the best one. With a unigram vocabulary the power of a
    # segmentation's probability (0.1 to 0.5 are usual); with BPE the probability of
    # leaving out a merge (BPE-dropout; 0.1 is usual).
    segmentation_alpha: float | None = None
    # How small data sets of a mixture are repeated: 1 (default) leaves the sizes as
    # they are, 5 is usual for many languages, and a large number makes them equal.
    # Instead of weights.
    temperature: float = 1.0

    # Which pairs are left out of the training text, besides those with an empty side;
    # `jaxformer.data.cleaning` has the steps in their order. Most words (what white
    # space separates) on a side, in raw text. Default None: any number.
    max_words: int | None = None
    # Most characters (Unicode code points) on a side, in raw text; the limit for
    # scripts without spaces. Default None: any number.
    max_characters: int | None = None
    # Most times that one side has the characters of the other. Default None: any ratio.
    # 3 suits languages of like script; Chinese or Japanese against a European language
    # needs about 6.
    max_length_ratio: float | None = None
    # Drop pairs whose sides are the same text. Default False.
    drop_identical: bool = False
    # Drop pairs that an earlier pair of the same data set equals in both texts. Default
    # False.
    drop_duplicates: bool = False
    # "none" (default), "NFC" or "NFKC". Vocabularies trained here apply NFKC of their
    # own; the step serves the other steps, and vocabularies from elsewhere.
    unicode_normalization: UnicodeNormalization = "none"
    # Drop pairs of which a side is surely in another language than its own. Default
    # False. Needs the extra langid.
    detect_languages: bool = False

    # Longest training sentence in tokens, on each side, with its end-of-sentence token.
    # Longer pairs are dropped and counted, never cut.
    max_length: int = 256
    # Most token slots on EACH side of a batch, padding included, all devices together
    # (which fill up the last rows with padding where they do not share them equally).
    # The paper: about 25,000.
    tokens_per_batch: int = 25_000
    # Most distinct shapes of training batches, so most compilations of the step. More
    # buckets, less padding.
    num_buckets: int = 8
    # Put several pairs into a row, one after another, that do not see each other: one
    # shape of batches and hardly any padding. What TPUs like.
    packing: bool = False
    # Slots of a packed row, on its longer side. Longer rows waste less padding and cost
    # more attention.
    packed_length: int = 256
    # Leave out batches that their pairs do not fill, and those pairs of that epoch with
    # them. Default False: rows of padding, which weigh nothing, fill them up.
    drop_remainder: bool = False
    # Processes that tokenise the training text, if it is large. Default None: one a
    # core, if there are at least four. What comes out is the same.
    workers: int | None = field(default=None, metadata={"may_change": True})
    # End every source sentence with the end-of-sentence token; targets always do.
    source_eos: bool = True

    @property
    def cleaning(self) -> Cleaning:
        """The steps that clean the training text."""
        return Cleaning(**{key: getattr(self, key) for key in _CLEANING})

    @property
    def request(self) -> dict[str, Any]:
        """What decides which tokens the training text becomes, and so what a
        prepared folder holds, as JSON.
        """
        return {key: getattr(self, key) for key in (*_TOKENS, *_CLEANING)}

    def __post_init__(self) -> None:
        _ = self.cleaning  # checks its own keys
        for key in ("train", "valid", "test", "source_language", "target_language"):
            if not getattr(self, key).strip():
                raise InputError(
                    f"data.{key} is empty: name one, for example"
                    f" {type(self).__dict__[key]!r}"
                )
        for key in (
            "vocabulary_size",
            "source_vocabulary_size",
            "max_length",
            "tokens_per_batch",
            "num_buckets",
            "packed_length",
            "workers",
        ):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError(f"data.{key} must be at least 1, not {value}")
        check_most(self, MOST, "data.")
        if (
            self.segmentation_alpha is not None
            and not 0 <= self.segmentation_alpha <= 1
        ):
            raise InputError(
                "data.segmentation_alpha must be from 0 to 1, not"
                f" {self.segmentation_alpha}"
            )
        if not 1 <= self.temperature < math.inf:
            raise InputError(
                f"data.temperature must be a number from 1 up, not {self.temperature}"
            )
        if self.source_language == self.target_language:
            raise InputError(
                "data.source_language and data.target_language are both"
                f" {self.source_language!r}: give two languages"
            )
        if self.vocabulary_model not in VOCABULARY_MODELS:
            choices = " or ".join(VOCABULARY_MODELS)
            raise InputError(
                f"data.vocabulary_model must be {choices}, not"
                f" {self.vocabulary_model!r}"
            )
        if self.shared_vocabulary and self.source_vocabulary_size is not None:
            raise InputError(
                f"data.source_vocabulary_size={self.source_vocabulary_size} needs"
                " data.shared_vocabulary=False; a shared vocabulary has"
                " data.vocabulary_size pieces"
            )
