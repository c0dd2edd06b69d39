"""Text becomes batches: data sets by name, vocabularies, length buckets, and a stream
that resumes.

Each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.data.batching import (
        Batch,
        Bucket,
        Epoch,
        assign,
        cover,
        group,
        make_batch,
        plan_buckets,
    )
    from jaxformer.data.config import Cleaning, DataConfig
    from jaxformer.data.corpus import TrainingText, load_evaluation
    from jaxformer.data.encoding import encode
    from jaxformer.data.packing import (
        Rows,
        RowShape,
        make_packed_batch,
        pack,
        plan_rows,
    )
    from jaxformer.data.pipeline import Position, TrainingData, evaluation_batches
    from jaxformer.data.preparing import prepare
    from jaxformer.data.records import Pair
    from jaxformer.data.sources import Corpus, load
    from jaxformer.data.store import Encoded, Sentences
    from jaxformer.data.vocabulary import Vocabularies, Vocabulary

__all__ = [
    "Batch",
    "Bucket",
    "Cleaning",
    "Corpus",
    "DataConfig",
    "Encoded",
    "Epoch",
    "Pair",
    "Position",
    "RowShape",
    "Rows",
    "Sentences",
    "TrainingData",
    "TrainingText",
    "Vocabularies",
    "Vocabulary",
    "assign",
    "cover",
    "encode",
    "evaluation_batches",
    "group",
    "load",
    "load_evaluation",
    "make_batch",
    "make_packed_batch",
    "pack",
    "plan_buckets",
    "plan_rows",
    "prepare",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batching": "Batch Bucket Epoch assign cover group make_batch plan_buckets",
        "config": "Cleaning DataConfig",
        "corpus": "TrainingText load_evaluation",
        "encoding": "encode",
        "packing": "RowShape Rows make_packed_batch pack plan_rows",
        "pipeline": "Position TrainingData evaluation_batches",
        "preparing": "prepare",
        "records": "Pair",
        "sources": "Corpus load",
        "store": "Encoded Sentences",
        "vocabulary": "Vocabularies Vocabulary",
    },
)
