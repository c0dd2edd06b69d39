"""Text becomes batches: data sets by name, SentencePiece vocabularies, length buckets, a stream that resumes."""

from jaxformer.data.batching import Batch, Bucket, assign, cover, group, make_batch, plan_buckets
from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.data.pipeline import Position, Statistics, TrainingData, evaluation_batches
from jaxformer.data.sources import Pair, load, read_lines, reversal, split_lines
from jaxformer.data.transforms import (
    Dropped,
    Encoded,
    Sentences,
    encode,
    encode_evaluation,
    encode_training,
)
from jaxformer.data.vocabulary import Vocabularies, Vocabulary, load_or_train

__all__ = [
    "Batch",
    "Bucket",
    "DataConfig",
    "Dropped",
    "Encoded",
    "Pair",
    "Position",
    "Sentences",
    "Statistics",
    "TrainingData",
    "Vocabularies",
    "Vocabulary",
    "VocabularyModel",
    "assign",
    "cover",
    "encode",
    "encode_evaluation",
    "encode_training",
    "evaluation_batches",
    "group",
    "load",
    "load_or_train",
    "make_batch",
    "plan_buckets",
    "read_lines",
    "reversal",
    "split_lines",
]
