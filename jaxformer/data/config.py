"""The section ``data`` of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxformer.errors import InputError

VocabularyModel = Literal["bpe", "unigram"]
"""How SentencePiece finds its pieces; see :meth:`jaxformer.data.Vocabulary.train`."""

VOCABULARY_MODELS: tuple[VocabularyModel, ...] = ("bpe", "unigram")


@dataclass(frozen=True)
class DataConfig:
    """Say which text a run reads and how text becomes batches.

    Raises:
        InputError: a value lies out of range, or contradicts another.
    """

    # The data sets, each named as `jaxformer.data.sources` describes: `bundled:en-de/train`, `text:train.en,train.de`,
    # `synthetic:reverse/train`. Defaults: the bundled corpus.
    train: str = "bundled:en-de/train"
    # Judges the model while it trains: loss, BLEU, and the choice of the best checkpoint.
    valid: str = "bundled:en-de/valid"
    # Judges the finished model; never used to choose one.
    test: str = "bundled:en-de/test"

    # The languages translated from and to, as codes. A corpus of two languages serves both directions.
    source_language: str = "en"
    target_language: str = "de"

    # Pieces in the vocabulary (of the target, when the two are separate), special pieces included. Default 8000; the
    # paper has 37,000 for 4.5 million pairs.
    vocabulary_size: int = 8000
    # Pieces in the source vocabulary, only with separate vocabularies. Default None: as many as the target's.
    source_vocabulary_size: int | None = None
    # One vocabulary for both languages, trained on both together, as the paper has it; the three-way tied embedding
    # needs it. False trains one for each.
    shared_vocabulary: bool = True
    # "bpe" (the paper's) or "unigram".
    vocabulary_model: VocabularyModel = "bpe"
    # False (default): every character of the training text is a piece, and one that it lacks becomes unk, which decodes
    # to " ⁇ ". True: rare characters are spelled in bytes, so that nothing is lost; 256 pieces are spent on that. Good
    # for large corpora, whose text holds thousands of stray characters.
    byte_fallback: bool = False

    # Longest training sentence in tokens, on each side, with its end-of-sentence token. Longer pairs are dropped and
    # counted, never cut.
    max_length: int = 256
    # Most token slots on EACH side of a batch, padding included, all devices together (which fill up
    # the last rows with padding where they do not share them equally). The paper: about 25,000.
    tokens_per_batch: int = 25_000
    # Most distinct shapes of training batches, so most compilations of the step. More buckets, less padding.
    num_buckets: int = 8
    # End every source sentence with the end-of-sentence token; targets always do.
    source_eos: bool = True

    def __post_init__(self) -> None:
        for key in ("train", "valid", "test", "source_language", "target_language"):
            if not getattr(self, key).strip():
                raise InputError(f"data.{key} is empty: name one, for example {type(self).__dict__[key]!r}")
        for key in ("vocabulary_size", "source_vocabulary_size", "max_length", "tokens_per_batch", "num_buckets"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InputError(f"data.{key} must be at least 1, not {value}")
        if self.source_language == self.target_language:
            raise InputError(
                f"data.source_language and data.target_language are both {self.source_language!r}: give two languages"
            )
        if self.vocabulary_model not in VOCABULARY_MODELS:
            choices = " or ".join(VOCABULARY_MODELS)
            raise InputError(f"data.vocabulary_model must be {choices}, not {self.vocabulary_model!r}")
        if self.shared_vocabulary and self.source_vocabulary_size is not None:
            raise InputError(
                f"data.source_vocabulary_size={self.source_vocabulary_size} needs data.shared_vocabulary=False; "
                "a shared vocabulary has data.vocabulary_size pieces"
            )
