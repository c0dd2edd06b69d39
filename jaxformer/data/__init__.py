"""Text becomes batches: data sets by name, SentencePiece vocabularies, length
buckets, a stream that resumes.
"""

from jaxformer.data.batching import (
    Batch,
    Bucket,
    Epoch,
    assign,
    cover,
    group,
    make_batch,
    plan_buckets,
    share,
)
from jaxformer.data.cleaning import (
    Cleaning,
    Counts,
    clean,
    find_duplicates,
    why_nothing_is_left,
)
from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.data.duplicates import Duplicates
from jaxformer.data.files import expand, open_lines, read_lines, stream_lines
from jaxformer.data.loading import TrainingText, load_evaluation
from jaxformer.data.mixing import Part, Share
from jaxformer.data.packing import Rows, RowShape, make_packed_batch, pack, plan_rows
from jaxformer.data.pipeline import (
    Position,
    Statistics,
    TrainingData,
    evaluation_batches,
)
from jaxformer.data.preparing import prepare
from jaxformer.data.records import Pair
from jaxformer.data.shards import Prepared, ShardWriter
from jaxformer.data.sources import Corpus, copying, escape, load, reversal
from jaxformer.data.store import Joined, Spool, Store
from jaxformer.data.tokenizing import Sampling, Tokenizer, tokenize
from jaxformer.data.transforms import (
    Encoded,
    Fingerprint,
    Sentences,
    encode,
    encode_evaluation,
)
from jaxformer.data.vocabulary import Vocabularies, Vocabulary, load_or_train

__all__ = [
    "Batch",
    "Bucket",
    "Cleaning",
    "Corpus",
    "Counts",
    "DataConfig",
    "Duplicates",
    "Encoded",
    "Epoch",
    "Fingerprint",
    "Joined",
    "Pair",
    "Part",
    "Position",
    "Prepared",
    "RowShape",
    "Rows",
    "Sampling",
    "Sentences",
    "ShardWriter",
    "Share",
    "Spool",
    "Statistics",
    "Store",
    "Tokenizer",
    "TrainingData",
    "TrainingText",
    "Vocabularies",
    "Vocabulary",
    "VocabularyModel",
    "assign",
    "clean",
    "copying",
    "cover",
    "encode",
    "encode_evaluation",
    "escape",
    "evaluation_batches",
    "expand",
    "find_duplicates",
    "group",
    "load",
    "load_evaluation",
    "load_or_train",
    "make_batch",
    "make_packed_batch",
    "open_lines",
    "pack",
    "plan_buckets",
    "plan_rows",
    "prepare",
    "read_lines",
    "reversal",
    "share",
    "stream_lines",
    "tokenize",
    "why_nothing_is_left",
]
